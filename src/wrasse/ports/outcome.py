"""How one conditional change ended. A precondition that fails is an answer, not an exception."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """`done`: the change was made. `conflict`: its precondition no longer held and nothing was changed. `unknown`: the
    reply was lost and can no longer be found out; nothing may be deleted on the strength of it. `failed`: an error
    about this one item, which is counted and does not stop the rest."""

    DONE = "done"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"
    FAILED = "failed"


STORED = {outcome: "lost" if outcome is Outcome.CONFLICT else outcome.value for outcome in Outcome}
"""How journals write an outcome: what they hold already is read as it was written."""

FROM_STORED = {text: outcome for outcome, text in STORED.items()}
"""The outcome that a journal wrote so."""
