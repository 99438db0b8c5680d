"""Sightings and references converted to and from their spool form. Pure."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote_from_bytes, unquote_to_bytes

from wrasse.clock import from_micros, to_micros
from wrasse.orphans.root import Root
from wrasse.orphans.spool import Referred
from wrasse.orphans.verdict import ABORT, KnownSighting, Suspected
from wrasse.ports.catalog import Reference
from wrasse.ports.objects import OpenUpload, raw_key
from wrasse.ports.sightings import Change, Evidence, NewSighting, Sighting, SightingState, Unseen

_ESCAPED = "%bytes/"  # no root begins like this


def referred_of(reference: Reference, root: Root, at: datetime) -> Referred:
    """A reference in spool form, judged by the catalog's clock."""
    return Referred(
        raw_key(reference.key),
        reference.prefix,
        live(reference, root, at),
        0 if reference.ended_at is None else to_micros(reference.ended_at),
        reference.rule,
        reference.owner,
    )


def live(reference: Reference, root: Root, at: datetime) -> bool:
    """Whether a reference protects: its row has not ended, or an operation on it may still be running."""
    if reference.ended_at is None:
        return True
    return reference.started_at is not None and at - reference.started_at < root.writer.longest


def suspected_of(upload: OpenUpload) -> Suspected:
    """An unfinished upload as a suspect: its upload id takes the place of a fingerprint."""
    known = KnownSighting(raw_key(upload.key), fingerprint=upload.id, first_at=to_micros(upload.begun_at))
    return Suspected(ABORT, known, "a multipart upload that was never finished")


def upload_of(suspected: Suspected) -> OpenUpload:
    """The upload of a suspect."""
    known = suspected.known
    return OpenUpload(text(known.unit), known.fingerprint, from_micros(known.first_at))


def change_of(known: KnownSighting) -> Change:
    """The change that a spooled note makes."""
    return NewSighting(sighting_of(known)) if known.evidence else Unseen(text(known.unit))


def known_of(sighting: Sighting) -> KnownSighting:
    """A sighting in spool form."""
    return KnownSighting(
        raw_key(sighting.unit),
        sighting.evidence.value,
        sighting.fingerprint,
        sighting.size,
        sighting.files,
        sighting.first_scan,
        to_micros(sighting.first_at),
        sighting.first_tick,
        sighting.state.value,
        sighting.state_scan,
        0 if sighting.state_at is None else to_micros(sighting.state_at),
        sighting.state_tick,
    )


def sighting_of(known: KnownSighting) -> Sighting:
    """The sighting of a spool form."""
    return Sighting(
        text(known.unit),
        Evidence(known.evidence),
        known.fingerprint,
        known.size,
        known.files,
        known.first_scan,
        from_micros(known.first_at),
        known.first_tick,
        SightingState(known.state),
        known.state_scan,
        from_micros(known.state_at) if known.state_at else None,
        known.state_tick,
    )


def text(key: bytes) -> str:
    """A key as ports represent it."""
    return key.decode("utf-8", "surrogateescape")


def name_of(unit: bytes) -> str:
    """The name of a unit in plans, journal and cursors: its key, escaped if that is not UTF-8."""
    try:
        return unit.decode()
    except UnicodeDecodeError:
        return _ESCAPED + quote_from_bytes(unit)


def unit_of(name: str) -> bytes:
    """The unit of such a name."""
    return unquote_to_bytes(name.removeprefix(_ESCAPED)) if name.startswith(_ESCAPED) else raw_key(name)
