"""Entries in answers of Redis, and the arguments of an append. One field, `envelope`, is the body of an entry; the
others are its fields. An entry without that field is another program's, and all of its fields count as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any

import msgspec

from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.stream_keys import StreamKeys
from wrasse.clock import from_micros
from wrasse.ports.entry_chunks import PLAIN
from wrasse.ports.groups import Delivery
from wrasse.ports.streams import TOO_LONG, Draft, Entry, EntryId, GroupState, StreamState

ENVELOPE = b"envelope"
_numbers = msgspec.json.Decoder(list[int]).decode


def id_of(text: bytes) -> EntryId:
    """An id in the server's format."""
    ms, _, seq = text.partition(b"-")
    return EntryId(int(ms), int(seq))


def ids_of(texts: Sequence[bytes]) -> Iterable[EntryId]:
    """Ids in the server's format. Many at once are parsed as one JSON list, three times as fast as one by one."""
    parts = _numbers(b"[" + b",".join(texts).replace(b"-", b",") + b"]")
    return map(EntryId, parts[::2], parts[1::2])


def entry_of(subject: str, id: bytes, words: Sequence[bytes]) -> Entry:
    """The entry with these names and values."""
    if len(words) == 2 and words[0] == ENVELOPE:
        return Entry(id_of(id), subject, words[1])
    names = [name.decode("utf-8", "backslashreplace") for name in words[::2]]
    fields = dict(zip(names, words[1::2], strict=True))
    return Entry(id_of(id), subject, fields.pop("envelope", b""), fields)


def columns_of(found: Sequence[Any]) -> tuple[list[bytes], list[bytes], Mapping[int, Mapping[str, bytes]]]:
    """Ids, bodies, and by position the fields beside them, from a server's answer."""
    words = [word for _, pairs in found for word in pairs]
    if len(words) == 2 * len(found) and words[::2].count(ENVELOPE) == len(found):
        return [id for id, _ in found], words[1::2], PLAIN
    beside: dict[int, Mapping[str, bytes]] = {}
    bodies: list[bytes] = []
    for place, (id, pairs) in enumerate(found):
        entry = entry_of("", id, pairs)
        bodies.append(entry.body)
        if entry.fields:
            beside[place] = entry.fields
    return [id for id, _ in found], bodies, beside


def deliveries_of(
    words: Sequence[Any], subjects: Sequence[str], group: str, consumer: str, until: datetime
) -> list[Delivery]:
    """The deliveries in the answer of the script."""
    given: list[Delivery] = []
    at, end = 0, len(words)
    while at < end:
        subject, id, number, length = subjects[words[at] - 1], words[at + 1], words[at + 2], words[at + 3]
        at += 4
        if length < -1:  # it would lead back to the same position for ever
            raise ValueError(f"an entry of {length} words")
        if length == -1:
            length, entry = 1, Entry(id_of(id), subject, b"", {TOO_LONG: b"%d" % words[at]})
        elif length == 1:
            entry = Entry(id_of(id), subject, words[at])
        else:
            entry = entry_of(subject, id, words[at : at + length])
        at += length
        given.append(Delivery(entry, group, consumer, number, until))
    return given


def new_deliveries(found: Sequence[Any], subject: str, group: str, consumer: str, until: datetime) -> list[Delivery]:
    """The deliveries in the server's answer to a read by group."""
    ids, bodies, beside = columns_of(found)
    if beside is PLAIN:
        entries = map(Entry, ids_of(ids), repeat(subject), bodies)
        return [*map(Delivery, entries, repeat(group), repeat(consumer), repeat(1), repeat(until))]
    return [Delivery(entry_of(subject, id, words), group, consumer, 1, until) for id, words in found]


def draft_words(draft: Draft) -> list[Word]:
    """A draft in the format of the scripts."""
    beside = [word for pair in draft.fields.items() for word in pair] if draft.fields else []
    return [draft.key, draft.body, len(beside), *beside]


class AppendBatch:
    """The drafts of one append, by stream."""

    __slots__ = ("_by_subject", "_drafts", "_plain")

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self._drafts = drafts
        self._by_subject: dict[str, Sequence[Draft]] = {}
        self._plain: set[str] = set()  # streams whose drafts have only a body
        subjects = dict.fromkeys(draft.subject for draft in drafts)
        for subject in subjects:
            own = drafts if len(subjects) == 1 else [draft for draft in drafts if draft.subject == subject]
            self._by_subject[subject] = own

    def keys(self, keys: StreamKeys) -> list[str]:
        """KEYS of the script."""
        names = [keys.registry]
        for subject in self._by_subject:
            of = keys.of(subject)
            names += (of.log, of.facts, of.known, of.known_expiry)
        return names

    def args(self) -> list[Word]:
        """ARGV of the script."""
        args: list[Word] = [len(self._by_subject)]
        for subject, drafts in self._by_subject.items():
            bodies = [draft.body for draft in drafts if not draft.key and not draft.fields]
            if len(bodies) == len(drafts):
                self._plain.add(subject)
                args += (subject, "bodies", len(bodies), sum(map(len, bodies)), *bodies)
            else:
                args += (subject, "drafts", len(drafts), 0)
                for draft in drafts:
                    args += draft_words(draft)
        return args

    def ids(self, answer: Sequence[Any]) -> Sequence[EntryId]:
        """The ids in the answer of the script, in the order of the drafts."""
        found: dict[str, list[EntryId]] = {}
        for (subject, drafts), ids in zip(self._by_subject.items(), answer, strict=True):
            plain = subject in self._plain
            found[subject] = _row(int(ids[0]), int(ids[1]), len(drafts)) if plain else [id_of(id) for id in ids]
        if len(found) == 1:
            return tuple(*found.values())
        following = {subject: iter(ids) for subject, ids in found.items()}
        return tuple(next(following[draft.subject]) for draft in self._drafts)


def _row(ms: int, first: int, count: int) -> list[EntryId]:
    return [EntryId(ms, seq) for seq in range(first, first + count)]


def read_state(subject: str, reply: Iterator[Any], now: int, history: str = "") -> StreamState:
    """One stream in numbers, as the scripts that include `describing` answer it, from the words that come next."""
    length, size, appended, first, last, groups = (next(reply) for _ in range(6))
    states = [_group_state(next(reply) for _ in range(7)) for _ in range(groups)]
    return StreamState(
        subject,
        length=length,
        bytes=size,
        appended=appended,
        first=id_of(first) if first else None,
        last=id_of(last) if last else None,
        groups=tuple(sorted(states, key=lambda state: state.name)),
        at=from_micros(now),
        history=history,
    )


def _group_state(words: Iterator[Any]) -> GroupState:
    name, delivered, pending, lowest, lag, consumers, lost = words
    first = id_of(lowest) if lowest else None
    read = id_of(delivered)
    return GroupState(
        name.decode("utf-8", "backslashreplace"),
        floor=read if first is None else first.previous,
        delivered=read,
        pending=int(pending),
        oldest_pending_at=None if first is None else first.at,
        consumers=int(consumers),
        lag=int(lag) if lag else None,
        lost=int(lost),
    )
