"""The stream map: which stream of JetStream holds a subject, its newest entry, and the configuration of streams that
wrasse makes.

A subject that is in no stream yet gets one of its own (or that of its pattern), without a maximum age: one may be set
later if no group reads it, see `Ages` in `group_cursors.py`. A stream that another program made for the subject is used
as it is. A stream of ours is marked in its metadata (servers from 2.10 keep it) with the root that made it and the
maximum age that wrasse gave it. A stream without this mark, or with another age than the marked one, belongs to others
and stays as it is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from wrasse.backends.nats.client.jetstream import (
    STREAM_NAME_IN_USE,
    STREAM_NOT_FOUND,
    SUBJECTS_OVERLAP,
    JetStream,
    JsError,
)
from wrasse.backends.nats.client.transport import ServerInfo
from wrasse.backends.nats.message_codec import NatsNames, StoredMessage, fields_of, millis, stream_name
from wrasse.backends.nats.page_reader import PageReader
from wrasse.bounded import UNREADABLE
from wrasse.clock import Clock
from wrasse.errors import StoreBroken, StoreUnavailable
from wrasse.ports.streams import START, Draft, EntryId, ServerAge

DEDUP_SECONDS = 120
MADE_BY = "wrasse.made_by"
AGE = "wrasse.max_age"
_NANO = 1_000_000_000
_MICRO = 1_000
_MICROSECOND = timedelta(microseconds=1)
_SERVER_KEYS = "_nats."  # metadata keys that the server itself adds
_SUBJECTS_MAX = 20_000
NOTE_SECONDS = 1.0  # within which another process's note is seen
_TRIES = 50
UNKNOWN = -1  # the total of bytes at an entry that another program wrote

Config = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Tip:
    """The newest entry of a subject: what the next append follows. `expected` is the sequence the server compares."""

    seq: int = 0
    ms: int = 0
    number: int = 0
    total: int = 0
    expected: int = 0

    @property
    def id(self) -> EntryId | None:
        """Its id; None if there never was an entry."""
        return EntryId(self.ms, self.seq) if self.seq else None


@dataclass(frozen=True, slots=True)
class SubjectNote:
    """The note about a subject: its single writer, and its newest entry if a trim removed that."""

    last: Tip = Tip()
    writer: str = ""  # the single writer, see append.py
    revision: int = 0

    def packed(self) -> bytes:
        """The bytes of the note."""
        last = self.last
        return json.dumps(
            {
                "entries_max": None,  # this and the other constants: older versions read them
                "bytes_max": None,
                "last": [last.seq, last.ms, last.number, last.total],
                "known": False,
                "pen": self.writer,
            }
        ).encode()

    @classmethod
    def read(cls, message: StoredMessage) -> SubjectNote | None:
        """The inverse of `packed`; None where another program wrote something else."""
        try:
            told = json.loads(message.body)
            return cls(Tip(*map(int, told["last"])), str(told["pen"]), message.seq)
        except UNREADABLE:
            return None


@dataclass(frozen=True, slots=True)
class StreamNumbers:
    """The state of a subject's stream."""

    count: int  # messages of the subject
    bytes: int  # their size there
    last_seq: int
    last_ms: int
    at: str  # the server's clock, empty on servers that do not send it
    history: str  # changes when another server leads the stream, or its only server restarts
    age: ServerAge  # what the server removes by itself
    consumers: int  # that the stream has, whichever program made them
    work_queue: bool  # an ack removes a message


class WaitingDrafts:
    """Drafts that wait for their batch, and their outcome."""

    __slots__ = ("drafts", "future")

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.drafts = drafts
        self.future: asyncio.Future[list[EntryId]] = asyncio.get_running_loop().create_future()


class SubjectStream:
    """One subject and the stream that holds it."""

    __slots__ = ("batches", "note", "note_at", "own", "stream", "subject", "tip", "turn", "waiting")

    def __init__(self, stream: str, subject: str, *, own: bool) -> None:
        self.stream = stream
        self.subject = subject  # its name in JetStream
        self.own = own  # the stream has no other subject
        self.batches = True  # False once the server refused an atomic batch
        self.tip: Tip | None = None  # None: unknown, to be read
        self.note = SubjectNote()
        self.note_at = -NOTE_SECONDS
        self.turn = asyncio.Lock()  # serialises appends of this process: each names the one it follows
        self.waiting: list[WaitingDrafts] = []

    def condition(self, expected: int) -> bytes:
        """The header of an entry that must follow this sequence."""
        what = b"" if self.own else b"-Subject"
        return b"Nats-Expected-Last%b-Sequence:%d\r\n" % (what, expected)


def size_between(first: StoredMessage, last: Tip, state: StreamNumbers) -> int:
    """The bytes of the entries from first to last: exact where all are ours, else estimated from the stream's size."""
    if not first.number or last.total < first.total:
        return state.bytes
    beside = fields_of(first.header) or {}
    size = len(first.body) + sum(len(name.encode()) + len(value) for name, value in beside.items())
    return last.total - first.total + size


class StreamMap:
    """All subjects that this process has used."""

    def __init__(self, js: JetStream, layout: NatsNames, reader: PageReader, clock: Clock) -> None:
        self.js = js
        self.layout = layout
        self.reader = reader
        self._clock = clock
        self._stream_map: dict[str, SubjectStream] = {}

    async def open(self) -> None:
        """Makes the stream of notes."""
        books = self._config(self.layout.books, self.layout.books_subjects)
        await self._make({**books, "allow_rollup_hdrs": True, "allow_atomic": False})

    async def find(self, subject: str) -> SubjectStream | None:
        """The stream of a subject, if there is one."""
        subject_stream = self._stream_map.get(subject)
        if subject_stream is not None:
            return subject_stream
        stored = self.layout.stored(subject)
        answer = await self.js.call("STREAM.NAMES", {"subject": stored})
        names = [str(name) for name in answer.get("streams") or ()]
        if not names:
            return None
        home, subjects = self.layout.home(subject)
        return self._remembered(subject, SubjectStream(names[0], stored, own=names[0] == home and subjects == stored))

    async def make(self, subject: str) -> SubjectStream:
        """The stream of a subject, made if there is none."""
        subject_stream = await self.find(subject)
        if subject_stream is not None:
            return subject_stream
        name, subjects = self.layout.home(subject)
        try:
            await self._make(self._config(name, subjects))
        except JsError as refused:
            if refused.code not in (SUBJECTS_OVERLAP, STREAM_NAME_IN_USE):
                raise
            subject_stream = await self.find(subject)  # another process was faster
            if subject_stream is not None:
                return subject_stream
            if subjects == self.layout.stored(subject):
                raise
            # Others of its pattern have streams of their own from before the pattern was configured: so does this.
            subjects = self.layout.stored(subject)
            name = stream_name(subjects)
            await self._make(self._config(name, subjects))
        stored = self.layout.stored(subject)
        return self._remembered(subject, SubjectStream(name, stored, own=subjects == stored))

    def forget(self, subject: str) -> None:
        """The stream does not exist any more."""
        self._stream_map.pop(subject, None)

    async def note(self, subject: str, subject_stream: SubjectStream, *, leader: bool = False) -> SubjectNote:
        """The note about the subject, at most NOTE_SECONDS old."""
        now = self._clock.monotonic()
        if not leader and subject_stream.note_at + NOTE_SECONDS > now >= subject_stream.note_at:
            return subject_stream.note
        asked = {"last_by_subj": self.layout.subject_note_subject(subject)}
        message = await self.reader.one(self.layout.books, asked, leader=leader)
        note = SubjectNote() if message is None else SubjectNote.read(message)
        if note is None:
            books = self.layout.books
            raise StoreBroken(
                f"the note about the stream {subject} cannot be read in {books}",
                do="find the program that writes there, and delete the note: nats stream purge "
                f"{books} --subject={self.layout.subject_note_subject(subject)}",
            )
        subject_stream.note = note
        subject_stream.note_at = now
        return subject_stream.note

    async def remember(self, subject: str, subject_stream: SubjectStream, last: Tip) -> None:
        """Notes the newest entry, before a trim removes it."""
        await self.change(
            subject, subject_stream, lambda old: replace(old, last=max(old.last, last, key=lambda tip: tip.seq))
        )

    async def state(self, subject_stream: SubjectStream) -> StreamNumbers | None:
        """The state of a subject's stream; None if it does not exist."""
        try:
            told = await self.js.call(
                f"STREAM.INFO.{subject_stream.stream}", {"subjects_filter": subject_stream.subject}
            )
        except JsError as refused:
            if refused.code == STREAM_NOT_FOUND:
                return None
            raise
        state: dict[str, Any] = told["state"]
        count = int((state.get("subjects") or {}).get(subject_stream.subject, 0))
        messages = int(state["messages"])
        size = int(state["bytes"]) * count // messages if messages else 0
        last_seq = int(state["last_seq"])
        last_ms = millis(str(state["last_ts"]).encode()) if last_seq else 0
        cluster = told.get("cluster") or {}
        leads = f"{cluster.get('leader')} {cluster.get('leader_since')}"
        leads = leads if cluster.get("name") else self.js.connection.server.id
        history = f"{told.get('created')} {leads}"
        age = server_age(told["config"], self.layout)
        age = replace(age, ours=age.ours and subject_stream.own)
        at, consumers = str(told.get("ts", "")), int(state.get("consumer_count", 0))
        queue = told["config"].get("retention") == "workqueue"
        return StreamNumbers(count, size, last_seq, max(last_ms, 0), at, history, age, consumers, queue)

    async def tip_of(self, subject: str, subject_stream: SubjectStream, *, leader: bool = False) -> Tip:
        """The newest entry that exists or existed, from the server."""
        last = await self.reader.one(subject_stream.stream, {"last_by_subj": subject_stream.subject}, leader=leader)
        if last is not None:
            number, total = (last.number, last.total) if last.number else (last.seq, UNKNOWN)
            return Tip(last.seq, last.ms, number, total, last.seq)
        note = await self.note(subject, subject_stream, leader=True)
        if not subject_stream.own:
            return replace(note.last, expected=0)
        state = await self.state(subject_stream)
        if state is None or not state.last_seq:
            return note.last
        if note.last.seq == state.last_seq:
            return replace(note.last, expected=state.last_seq)
        # Another program emptied it: only the server's own numbers are left.
        return Tip(state.last_seq, max(state.last_ms, note.last.ms), state.last_seq, note.last.total, state.last_seq)

    async def last_upto(self, subject_stream: SubjectStream, upto: EntryId, first: int, last: int) -> EntryId | None:
        """The newest entry from sequence `first` to `last` whose id is not above `upto`, by binary search, since ids
        only grow; None if there is none. In a shared stream these need not be entries of this subject."""
        found: EntryId | None = None
        while first <= last:
            middle = (first + last + 1) // 2
            message = await self.reader.one(
                subject_stream.stream, {"seq": middle, "next_by_subj": subject_stream.subject}
            )
            if message is None or message.seq > last:
                last = middle - 1
            elif message.id <= upto:
                found = message.id
                first = message.seq + 1
            else:
                last = middle - 1
        return found

    async def place_after(self, subject_stream: SubjectStream, seq: int, tip: EntryId | None = None) -> EntryId:
        """An id that is at least that of every entry up to this sequence, also of removed ones: the one before the
        entry that follows; of the last entry its own."""
        if not seq:
            return START
        if tip is None:
            last = await self.reader.one(subject_stream.stream, {"last_by_subj": subject_stream.subject}, leader=True)
            tip = START if last is None else last.id
        if seq < tip.seq:
            following = await self.reader.one(
                subject_stream.stream, {"seq": seq + 1, "next_by_subj": subject_stream.subject}, leader=True
            )
            if following is not None:
                return following.id.previous
        return EntryId(tip.ms, max(tip.seq, seq))

    async def change(
        self, subject: str, subject_stream: SubjectStream, changed: Callable[[SubjectNote], SubjectNote]
    ) -> SubjectNote:
        """Changes the note, repeated if other processes change it too."""
        for _ in range(_TRIES):
            note = await self.note(subject, subject_stream, leader=True)
            new = changed(note)
            if new == note:
                return note
            headers = {"Nats-Rollup": "sub", "Nats-Expected-Last-Subject-Sequence": str(note.revision)}
            try:
                revision = await self.js.store(self.layout.subject_note_subject(subject), new.packed(), headers)
            except JsError as refused:
                if not refused.wrong_sequence:
                    raise
                continue
            subject_stream.note = replace(new, revision=revision)
            subject_stream.note_at = self._clock.monotonic()
            return subject_stream.note
        raise StoreUnavailable("too many processes change the note of one stream at once", do="try again")

    async def _make(self, config: dict[str, object]) -> None:
        name = config["name"]
        try:
            await self.js.call(f"STREAM.CREATE.{name}", config)
        except JsError as refused:
            if refused.code != STREAM_NAME_IN_USE:
                raise
            await self.js.call(f"STREAM.INFO.{name}")  # made by another version or by hand: used as it is

    def _config(self, name: str, subjects: str) -> dict[str, object]:
        return new_config(self.layout, name, subjects, self.js.connection.server)

    def _remembered(self, subject: str, subject_stream: SubjectStream) -> SubjectStream:
        if len(self._stream_map) >= _SUBJECTS_MAX:
            self._stream_map.clear()
        return self._stream_map.setdefault(subject, subject_stream)


def new_config(layout: NatsNames, name: str, subjects: str, server: ServerInfo) -> dict[str, object]:
    """A new stream of ours. Without a maximum age: it is unknown who will read it."""
    config: dict[str, object] = {
        "name": name,
        "subjects": [subjects],
        "retention": "limits",
        "storage": layout.storage,
        "num_replicas": layout.replicas,
        "discard": "new",
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "allow_direct": True,
        "duplicate_window": DEDUP_SECONDS * _NANO,
    }
    if server.at_least(2, 10):
        config["metadata"] = {MADE_BY: layout.root}
    if server.at_least(2, 12):
        config["allow_atomic"] = True
    return config


def is_ours(config: Config, layout: NatsNames) -> bool:
    """Whether this root made the stream."""
    return _metadata(config).get(MADE_BY) == layout.root


def server_age(config: Config, layout: NatsNames) -> ServerAge:
    """What the server removes by age, and who set the age."""
    set_to = _max_age(config)
    ours = is_ours(config, layout) and (not set_to or _metadata(config).get(AGE) == str(set_to))
    age = timedelta(microseconds=set_to // _MICRO) if set_to else None
    # The server allows no age below its deduplication window.
    return ServerAge(age, ours, least=timedelta(seconds=DEDUP_SECONDS))


def with_age(config: Config, age: timedelta | None) -> dict[str, object]:
    """The same stream with this age, marked as ours."""
    nanos = 0 if age is None else age // _MICROSECOND * _MICRO
    kept = {
        name: value for name, value in _metadata(config).items() if name != AGE and not name.startswith(_SERVER_KEYS)
    }
    return {**config, "max_age": nanos, "metadata": {**kept, AGE: str(nanos)} if nanos else kept}


def _metadata(config: Config) -> Mapping[str, object]:
    found = config.get("metadata")
    return found if isinstance(found, dict) else {}


def _max_age(config: Config) -> int:
    found = config.get("max_age")
    return found if isinstance(found, int) else 0
