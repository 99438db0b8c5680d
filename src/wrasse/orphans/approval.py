"""What somebody has said about a root: that it may act by itself, and that one refused round was right. Pure.

A root is armed for the configuration it had: after a change it plans until it is armed again.
"""

from __future__ import annotations

import msgspec

from wrasse.bounded import decoded
from wrasse.errors import StoreBroken
from wrasse.ports.sightings import CompleteScan

AS_MUCH = 0.95


class Approval(msgspec.Struct, frozen=True, omit_defaults=True):
    """`armed` is the digest of the configuration that may act. `refused` names the last round that was not believed, or
    (`plan`) whose plan was held, with why and with what it had counted; `allowed` is the same name once somebody has
    said yes to it."""

    armed: str = ""
    refused: str = ""
    why: str = ""
    due: int = 0
    allowed: str = ""
    plan: bool = False
    rows: int = 0
    protected: int = 0

    @property
    def overruled(self) -> bool:
        """Whether the last refusal was overruled."""
        return bool(self.refused) and self.allowed == self.refused

    def believes(self, made: CompleteScan) -> bool:
        """Whether somebody said that what the database answers is right, and it answers no less than it did then."""
        then, now = (self.rows, self.protected), (made.counts.get("rows", 0), made.counts.get("protected", 0))
        return self.overruled and not self.plan and all(b >= AS_MUCH * a for a, b in zip(then, now, strict=True))

    def covers(self, made: CompleteScan, more: int) -> bool:
        """Whether leave was given for a plan of about this size."""
        return self.overruled and self.plan and made.counts.get("due_objects", 0) <= self.due + more


def refusal(approval: Approval, made: CompleteScan, why: str, *, plan: bool) -> Approval:
    """What is remembered of a round that was not believed, or whose plan is held."""
    counts = made.counts
    return Approval(
        approval.armed,
        made.id,
        why,
        counts.get("due_objects", 0),
        plan=plan,
        rows=counts.get("rows", 0),
        protected=counts.get("protected", 0),
    )


def after(approval: Approval, made: CompleteScan, held: str, *, lifted: bool) -> Approval:
    """What is remembered after a round. Leave to go beyond lasts until the plan it was given for is carried out, which
    may take several runs; it never grows."""
    if held:
        return refusal(approval, made, held, plan=True)
    if lifted:
        return msgspec.structs.replace(approval, due=min(approval.due, made.counts.get("due_objects", 0)))
    return Approval(approval.armed)


_decode = msgspec.json.Decoder(Approval).decode


def read_approval(value: bytes) -> Approval:
    """The approval in a root's value."""
    if not value:
        return Approval()
    try:
        return decoded(_decode, value)
    except ValueError:
        raise StoreBroken("what is known of a root is no approval of wrasse's", do="arm the root again") from None


def write_approval(approval: Approval) -> bytes:
    """The value that holds an approval."""
    return msgspec.json.encode(approval)
