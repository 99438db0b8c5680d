"""Entries and deliveries made in bulk: their slots are filled directly, in less than half the time of their own
constructors, which for frozen values go the long way round. Nothing else about the values differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from wrasse.ports.groups import Delivery
from wrasse.ports.streams import Entry, EntryId

Fields = Mapping[str, bytes] | None
_new: Callable[[Any], Any] = object.__new__


def _slots(kind: type) -> list[Callable[[Any, object], None]]:
    return [vars(kind)[name].__set__ for name in kind.__dataclass_fields__]  # type: ignore[attr-defined]


_set_ms, _set_seq = _slots(EntryId)
_set_id, _set_subject, _set_body, _set_fields = _slots(Entry)
_set_entry, _set_group, _set_consumer, _set_number, _set_until = _slots(Delivery)


def made_ids(ms: int, first: int, count: int) -> list[EntryId]:
    """EntryId(ms, seq) for so many numbers in a row."""
    ids: list[EntryId] = [_new(EntryId) for _ in range(count)]
    for seq, id in enumerate(ids, first):
        _set_ms(id, ms)
        _set_seq(id, seq)
    return ids


def made_entry(ms: int, seq: int, subject: str, body: bytes, fields: Fields) -> Entry:
    """Entry(EntryId(ms, seq), subject, body, fields)."""
    id: EntryId = _new(EntryId)
    _set_ms(id, ms)
    _set_seq(id, seq)
    entry: Entry = _new(Entry)
    _set_id(entry, id)
    _set_subject(entry, subject)
    _set_body(entry, body)
    _set_fields(entry, fields)
    return entry


def made_delivery(entry: Entry, group: str, consumer: str, number: int, until: datetime) -> Delivery:
    """Delivery(entry, group, consumer, number, until)."""
    delivery: Delivery = _new(Delivery)
    _set_entry(delivery, entry)
    _set_group(delivery, group)
    _set_consumer(delivery, consumer)
    _set_number(delivery, number)
    _set_until(delivery, until)
    return delivery
