"""The operator's approvals for a root: that it is armed, and that one refused scan was correct. Pure.

A root is armed for one configuration: after a change it only plans until it is armed again.
"""

from __future__ import annotations

import msgspec

from wrasse.bounded import decoded
from wrasse.errors import StoreBroken
from wrasse.ports.sightings import CompleteScan

AS_MUCH = 0.95


class Approval(msgspec.Struct, frozen=True, omit_defaults=True):
    """`armed` is the digest of the configuration that may act. `refused` names the last scan that was implausible, or
    (`plan`) whose plan was too large, with the reason and its counts; `allowed` is the same name once an operator has
    approved it."""

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
        """Whether an operator approved an implausible scan, and this one has no fewer references than that."""
        then, now = (self.rows, self.protected), (made.counts.get("rows", 0), made.counts.get("protected", 0))
        return self.overruled and not self.plan and all(b >= AS_MUCH * a for a, b in zip(then, now, strict=True))

    def covers(self, made: CompleteScan, more: int) -> bool:
        """Whether a plan of about this size was approved."""
        return self.overruled and self.plan and made.counts.get("due_objects", 0) <= self.due + more


def refusal(approval: Approval, made: CompleteScan, why: str, *, plan: bool) -> Approval:
    """The approval after a scan that was implausible, or whose plan is too large."""
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
    """The approval after a scan. Permission for a large plan lasts until that plan is carried out, which may take
    several runs; it never grows."""
    if held:
        return refusal(approval, made, held, plan=True)
    if lifted:
        return msgspec.structs.replace(approval, due=min(approval.due, made.counts.get("due_objects", 0)))
    return Approval(approval.armed)


_decode = msgspec.json.Decoder(Approval).decode


def read_approval(value: bytes) -> Approval:
    """The approval stored for a root."""
    if not value:
        return Approval()
    try:
        return decoded(_decode, value)
    except ValueError:
        raise StoreBroken("the stored approval of a root cannot be read", do="arm the root again") from None


def write_approval(approval: Approval) -> bytes:
    """The stored form of an approval."""
    return msgspec.json.encode(approval)
