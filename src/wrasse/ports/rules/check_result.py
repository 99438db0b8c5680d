"""How one check ended: what a backend, a setting or a machine was found to be, and what to do if that is not well."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what is so, and what to do if that is not well."""

    check: str
    state: str
    what: str
    do: str = ""
