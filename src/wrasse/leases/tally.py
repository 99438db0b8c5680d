"""What leased keys counted: metrics read it, nobody else."""

from __future__ import annotations


class LeaseTally:
    """Since the process began. `cleared` are leases that ended by themselves, met by an operation or by a sweep;
    `waited` are acquires that found the key held."""

    __slots__ = ("acquired", "cleared", "committed", "entries_deleted", "released", "renewed", "waited")

    def __init__(self) -> None:
        self.acquired = self.waited = self.renewed = self.committed = self.released = 0
        self.cleared = self.entries_deleted = 0
