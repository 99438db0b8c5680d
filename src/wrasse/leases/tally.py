"""What leased keys counted: metrics read it, nobody else."""

from __future__ import annotations


class LeaseTally:
    """Since the process began. `cleared` are leases that ended by themselves, met by an operation or by a sweep;
    `waited` are acquires that found the key held. `replays` are looks at open transactions amid traffic, and `replayed`
    the transactions that those finished."""

    __slots__ = (
        "acquired", "cleared", "committed", "decisions_deleted", "entries_deleted", "released", "renewed", "replayed",
        "replays", "transactions_committed", "transactions_rolled_back", "waited",
    )  # fmt: skip

    def __init__(self) -> None:
        self.acquired = self.waited = self.renewed = self.committed = self.released = 0
        self.cleared = self.entries_deleted = 0
        self.transactions_committed = self.transactions_rolled_back = 0
        self.replays = self.replayed = self.decisions_deleted = 0
