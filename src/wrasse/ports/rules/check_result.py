"""The result of one check of a backend, a setting or the machine, and what to do if it is not OK."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: its state, what was found, and what to do about it."""

    check: str
    state: str
    what: str
    do: str = ""
