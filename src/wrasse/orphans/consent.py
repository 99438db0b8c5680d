"""What somebody has said about a root: that it may act by itself, and that one refused round was right. Pure.

A root is armed for the configuration it had: after a change it plans until it is armed again.
"""

from __future__ import annotations

import msgspec

from wrasse.errors import StoreBroken
from wrasse.ports.sightings import Round


class Consent(msgspec.Struct, frozen=True, omit_defaults=True):
    """`armed` is the digest of the configuration that may act. `refused` names the last round that was refused or held,
    with why, and how many objects were due in it; `allowed` is the same name once somebody has said yes to it."""

    armed: str = ""
    refused: str = ""
    why: str = ""
    due: int = 0
    allowed: str = ""

    @property
    def overruled(self) -> bool:
        """Whether the last refusal was overruled."""
        return bool(self.refused) and self.allowed == self.refused

    def covers(self, due: int, more: int) -> bool:
        """Whether leave was given for a plan of about this size."""
        return self.overruled and due <= self.due + more


def refusal(consent: Consent, made: Round, why: str) -> Consent:
    """What is remembered of a round that was refused, or whose plan is held."""
    return Consent(consent.armed, made.id, why, made.counts.get("due_objects", 0))


def after(consent: Consent, made: Round, held: str, *, lifted: bool) -> Consent:
    """What is remembered after a round. Leave to go beyond lasts until the plan it was given for is carried out, which
    may take several runs; it never grows."""
    if held:
        return refusal(consent, made, held)
    if lifted:
        return msgspec.structs.replace(consent, due=min(consent.due, made.counts.get("due_objects", 0)))
    return Consent(consent.armed)


_decode = msgspec.json.Decoder(Consent).decode


def read_consent(value: bytes) -> Consent:
    """The consent in a root's value."""
    if not value:
        return Consent()
    try:
        return _decode(value)
    except msgspec.DecodeError:
        raise StoreBroken("what is known of a root is no consent of wrasse's", do="arm the root again") from None


def write_consent(consent: Consent) -> bytes:
    """The value that holds a consent."""
    return msgspec.json.encode(consent)
