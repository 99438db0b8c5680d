"""A JetStream key-value bucket: messages by subject, of which only the newest is kept, written conditionally.

It is a standard bucket: `nats kv ls <root>` lists its keys. With copies, reads go to the leader, since a copy may be
behind. No write is sent twice: after a lost answer the caller finds out whether it was made.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from wrasse.backends.nats.client.connection import NatsAnswer as Answer, NatsConnection, NoResponders
from wrasse.backends.nats.client.jetstream import (
    MARGIN,
    MESSAGE_NOT_FOUND,
    STORE_FAILED,
    STREAM_NAME_IN_USE,
    STREAM_NOT_FOUND,
    JetStream,
    JsError,
    ServerTime,
    refusal,
)
from wrasse.backends.nats.options import NatsOptions
from wrasse.bounded import in_utc, integer
from wrasse.clock import Clock
from wrasse.errors import ConfigError, Refused, StoreFull, StoreUnavailable, TooLarge

ASKED_AT_ONCE = 64
HEADER_BYTES = 256  # for the conditions of a write and the server's own fields
REPEATS_KNOWN = timedelta(minutes=2)  # how long the server recognises a repeated write
_NO_CLUSTER = 10074
_FULL = (STORE_FAILED, 10028, 10047, 10122)
_LAST = re.compile(r"wrong last sequence: (\d+)")
T = TypeVar("T")
_In = TypeVar("_In")


@dataclass(frozen=True, slots=True)
class KvMessage:
    """One message of the bucket: its sequence, when the server stored it, and its bytes."""

    seq: int
    at: datetime
    data: bytes


class StaleServer(StoreUnavailable):
    """A server returned outdated data; the leader is about to change."""


class Overtaken(Exception):
    """The condition of a write failed. `seq`: the sequence of the last message, if the server sent it."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"the last message is {seq}")
        self.seq = seq


class _Config(msgspec.Struct):
    subjects: list[str] = []
    max_msgs_per_subject: int = 0
    max_age: int = 0
    max_bytes: int = -1
    discard: str = ""
    storage: str = ""
    num_replicas: int = 1
    allow_direct: bool = False
    deny_purge: bool = False


class _State(msgspec.Struct):
    messages: int = 0
    bytes: int = 0
    subjects: dict[str, int] = {}


class _Peer(msgspec.Struct):
    current: bool = False
    offline: bool = False


class _Cluster(msgspec.Struct):
    name: str = ""
    leader: str = ""
    leader_since: str = ""
    replicas: list[_Peer] = []


class Info(msgspec.Struct):
    """What the server says about the bucket."""

    config: _Config
    state: _State
    cluster: _Cluster = msgspec.field(default_factory=_Cluster)
    ts: datetime | None = None
    total: int = 0


class _Got(msgspec.Struct):
    seq: int
    time: datetime
    data: bytes = b""


class _FoundMessage(msgspec.Struct):
    message: _Got


_info = msgspec.json.Decoder(Info).decode
_found = msgspec.json.Decoder(_FoundMessage).decode


class KvBucket:
    """The bucket of one root. `open` makes it if there is none, or treats it as empty."""

    def __init__(self, connection: NatsConnection, clock: Clock, told: Clock | None = None) -> None:
        self._connection = connection
        self._js = JetStream(connection)
        self._options: NatsOptions = connection.options
        self._by_leader = True
        self.replicas = 1  # copies, as `open` found them
        self.there = True
        self._clock = clock
        self.time = ServerTime(clock, self._time_by_message, told, within=MARGIN)

    @property
    def stream(self) -> str:
        """The stream behind it."""
        return f"KV_{self._options.root}"

    @property
    def root(self) -> str:
        """Its name."""
        return self._options.root

    @property
    def where(self) -> str:
        """Its name in messages to the user."""
        return f"the bucket {self._options.root} on {self._options.where}"

    @property
    def bytes_max(self) -> int:
        """The longest message that the server accepts, less its headers."""
        return self._connection.server.max_payload - HEADER_BYTES

    async def connection(self) -> int:
        """The number of the current connection, reconnected if needed. What was read over another one is uncertain: a
        server that lost its disk counts from a lower sequence."""
        await self._connection.ready()
        return self._connection.connections

    async def open(self, *, create: bool = True) -> None:
        """Makes the bucket, or checks that the existing one keeps every record. Without `create` a missing one is
        empty."""
        try:
            info = await self.info()
        except JsError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
            if not create:
                self.there = False
                return
            await self._make()
            info = await self.info()
        if problem := _problem(info.config):
            raise Refused(f"{self.where} {problem}", do="correct it with `nats stream edit`, or name another nats.root")
        self.replicas = info.config.num_replicas
        self._by_leader = self.replicas > 1 or not info.config.allow_direct

    async def _make(self) -> None:
        try:
            await self._js.call(f"STREAM.CREATE.{self.stream}", self._wanted())
        except JsError as error:
            if error.code == _NO_CLUSTER:
                raise ConfigError(
                    f"nats.replicas is {self._options.replicas}, and {self._options.where} is no cluster",
                    do="set nats.replicas: 1, or name the servers of a cluster",
                ) from error
            if error.code != STREAM_NAME_IN_USE:  # another process was faster, with its own settings
                raise

    async def ask(self, verb: str, body: bytes = b"") -> bytes:
        """One call of the JetStream API that changes nothing, as JSON."""
        answer = await self._read(f"{self._options.api}.{verb}", body)
        refused = refusal(answer.payload, self._options.where)
        if refused is not None:
            raise refused
        return answer.payload

    async def info(self, subjects: str = "", offset: int = 0) -> Info:
        """What the server says about the bucket, with the subjects that match."""
        if not self.there:
            config = _Config(storage=self._options.storage, num_replicas=self._options.replicas)
            return Info(config, _State(), ts=self._clock.now())
        asked = b"" if not subjects else msgspec.json.encode({"subjects_filter": subjects, "offset": offset})
        answer = await self.ask(f"STREAM.INFO.{self.stream}", asked)
        return self._decoded(_info, answer)

    async def subjects(self, matching: str) -> tuple[list[str], datetime]:
        """Every subject with a message that matches, and the time that decides what is due."""
        info = await self.info(matching)
        at = self.time.read(info.ts) if info.ts is not None else await self.time.now()
        found = dict.fromkeys(info.state.subjects)
        while len(found) < info.total:
            before = len(found)
            info = await self.info(matching, before)
            found |= dict.fromkeys(info.state.subjects)
            if len(found) == before:  # the server's total differs from what it lists: all that exists was listed
                break
        return list(found), at

    async def get(self, subject: str, at_least: int = 0) -> KvMessage | None:
        """The message of a subject; never an older one than `at_least`, which a server that is behind might return."""
        if not self.there:
            found = None
        elif self._by_leader:
            found = await self._by_the_leader(subject)
        else:
            found = await self._directly(subject)
        if at_least and self._by_leader and (found is None or found.seq < at_least):
            raise StaleServer(f"{self.where} returned outdated data", do="try again; its leader changes")
        return found

    async def get_many(self, subjects: Sequence[str]) -> list[KvMessage | None]:
        """The messages of these subjects."""
        found: list[KvMessage | None] = []
        for begin in range(0, len(subjects), ASKED_AT_ONCE):
            part = subjects[begin : begin + ASKED_AT_ONCE]
            found += _all_of(await asyncio.gather(*(self.get(each) for each in part), return_exceptions=True))
        return found

    async def write(self, subject: str, data: bytes, *, after: int, seen: int, name: str) -> tuple[int, int]:
        """Writes a message if the subject's last one is still `after` (0: there is none), as read over the connection
        `seen`; else Overtaken. Returns the new sequence and the connection. `name` is the message id: a write that
        arrives twice is made once."""
        here = await self.connection()
        if after and here != seen:
            raise Overtaken(0)
        headers = {"Nats-Expected-Last-Subject-Sequence": str(after), "Nats-Msg-Id": name}
        try:
            return await self._store(subject, data, headers), here
        except JsError as error:
            if not error.wrong_sequence:
                raise
            last = _LAST.search(error.message)
            raise Overtaken(int(last[1]) if last else 0) from None

    async def set(self, subject: str) -> None:
        """Writes an empty message, unconditionally."""
        await self._store(subject, b"", {})

    async def purge(self, subject: str, seq: int = 0, seen: int = 0) -> bool:
        """Deletes the subject's message, if its sequence is not above `seq` (0: whatever it is), as read over the
        connection `seen`; returns whether it did."""
        if seen and await self.connection() != seen:
            return False
        upto = {"seq": seq + 1} if seq else {}
        answer = await self._js.call(f"STREAM.PURGE.{self.stream}", {"filter": subject, **upto})
        return bool(answer.get("purged"))

    async def purge_many(self, subjects: Sequence[str]) -> None:
        """Deletes the messages of these subjects."""
        for begin in range(0, len(subjects), ASKED_AT_ONCE):
            part = subjects[begin : begin + ASKED_AT_ONCE]
            _all_of(await asyncio.gather(*(self.purge(each) for each in part), return_exceptions=True))

    async def _store(self, subject: str, data: bytes, headers: Mapping[str, str]) -> int:
        if len(data) > self.bytes_max:
            limit = self._connection.server.max_payload
            raise TooLarge(
                f"a record of {len(data)} bytes, and {self._options.where} takes messages of at most {limit}",
                do="raise max_payload in the settings of nats-server to 2MB, or store large values as objects",
            )
        try:
            return await self._js.store(self._reached(subject), data, headers)
        except JsError as error:
            if error.code in _FULL:
                what = f"{self.where} is full: {error.message}"
                raise StoreFull(what, do="give JetStream more storage, or the bucket a larger max_bytes") from error
            raise

    def _reached(self, subject: str) -> str:
        """The subject to publish to: in another domain, behind that domain's API prefix."""
        return f"{self._options.api}.{subject}" if self._options.domain else subject

    async def _read(self, subject: str, body: bytes = b"") -> Answer:
        """A read, which is safe to repeat: once more over a new connection, if the old one broke before the answer."""
        asked = self._clock.monotonic()
        try:
            return await self._connection.request(subject, body)
        except NoResponders:
            raise
        except StoreUnavailable:
            if self._clock.monotonic() - asked >= self._options.read_timeout.total_seconds():
                raise
        return await self._connection.request(subject, body)

    async def _directly(self, subject: str) -> KvMessage | None:
        answer = await self._read(f"{self._options.api}.DIRECT.GET.{self.stream}.{subject}")
        if answer.status == 404:
            return None
        if answer.status:
            raise StoreUnavailable(f"{self.where} answered {answer.status} to a read", do="look at the server's log")
        return self._decoded(_direct, answer)

    async def _by_the_leader(self, subject: str) -> KvMessage | None:
        body = msgspec.json.encode({"last_by_subj": subject})
        try:
            got = self._decoded(_found, await self.ask(f"STREAM.MSG.GET.{self.stream}", body)).message
        except JsError as error:
            if error.code == MESSAGE_NOT_FOUND:
                return None
            raise
        return KvMessage(got.seq, in_utc(got.time), got.data)

    def _decoded(self, decode: Callable[[_In], T], answer: _In) -> T:
        try:
            return decode(answer)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise StoreUnavailable(
                f"{self.where} sent an answer that is not JetStream's", do="look at the server's log"
            ) from error

    async def _time_by_message(self) -> datetime:
        info = await self.info()
        if info.ts is not None:
            return info.ts
        subject = f"$KV.{self.root}.clock"  # servers before 2.10 send the time only of stored messages
        await self.set(subject)
        clock = await self.get(subject)
        if clock is None:
            raise StoreUnavailable(f"{self.where} did not keep a message", do="look at the server's log")
        return clock.at

    def _wanted(self) -> Mapping[str, object]:
        return {
            "name": self.stream,
            "subjects": [f"$KV.{self.root}.>"],
            "retention": "limits",
            "max_msgs_per_subject": 1,
            "discard": "new",
            "storage": self._options.storage,
            "num_replicas": self._options.replicas,
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "duplicate_window": int(REPEATS_KNOWN.total_seconds() * 1e9),
        }


def _problem(config: _Config) -> str:
    if config.max_age:
        return "drops messages older than its max_age"
    if config.max_msgs_per_subject != 1:
        return "keeps more than the newest message of a key"
    if config.discard != "new":
        return "drops the oldest when it is full"
    return "does not allow purges (deny_purge)" if config.deny_purge else ""


def _direct(answer: Answer) -> KvMessage:
    at = in_utc(datetime.fromisoformat(answer.field("Nats-Time-Stamp")))
    return KvMessage(integer(answer.field("Nats-Sequence"), 1), at, answer.payload)


def _all_of(answers: Sequence[T | BaseException]) -> list[T]:
    """The answers, or the first error among them."""
    good: list[T] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        good.append(answer)
    return good
