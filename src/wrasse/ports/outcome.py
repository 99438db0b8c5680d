"""How one conditional change ended. A precondition that fails is an answer, not an exception."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """`done`: the change was made. `lost`: its precondition no longer held and nothing was changed. `unknown`: the
    reply was lost and can no longer be found out; nothing may be deleted on the strength of it. `failed`: an error
    about this one item, which is counted and does not stop the rest."""

    DONE = "done"
    LOST = "lost"
    UNKNOWN = "unknown"
    FAILED = "failed"
