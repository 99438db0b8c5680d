"""Groups that read by cursor (the archiver's): their positions, what the tools of NATS see of them, and the maximum
ages that streams without groups may have.

A mark (`Marks`) is the position of a group: one message each in the stream of notes. It is written on condition that it
is unchanged since it was read, so of two concurrent writers one fails.

`GroupProgress` shows the progress of a group to the tools of NATS, as a durable consumer of its name: its ack floor is
what is archived, its unprocessed messages are the lag. The mark stays the truth: the consumer follows it, about a
second behind while archiving runs, and is never ahead. Errors here are logged once and stop nothing else. In a stream
with interest retention this consumer is that interest: messages that are not archived stay. A consumer of that name
that another program made is left alone. A work queue gets none: there each message is for one consumer only, and ours
would take messages from the workers.

`Ages` sets and removes maximum ages in an order that leaves none on a stream with a group. JetStream changes a stream
unconditionally, so concurrent changes are resolved by checks afterwards. A process that sets an age checks for groups
before and after it, and reverts it if there is one. A process that makes a group removes the age first, stores the
group, and checks the age again. Each writes before it checks, so of two concurrent processes at least one sees the
other. See `docs/design/018-retention.md` for the remaining race.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from wrasse.backends.nats.client.jetstream import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND, JetStream, JsError
from wrasse.backends.nats.durables import SHOWN
from wrasse.backends.nats.message_codec import NatsNames, stream_name, text_of, token
from wrasse.backends.nats.page_reader import PageReader
from wrasse.backends.nats.stream_map import Config, StreamMap, SubjectStream, server_age, with_age
from wrasse.bounded import UNREADABLE
from wrasse.errors import Refused, StoreBroken, WrasseError
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import EntryId

_VERSION = 1  # of a mark
_MOVE_INTERVAL = 1.0  # seconds: how often one consumer is moved at most
_CLOSE_SECONDS = 2.0  # for the last moves
_SHOWN_MAX = 1_000
_RESETS = (2, 14)  # servers from here on move a consumer in place; before, it is made anew
_log = logging.getLogger("wrasse.streams")


@dataclass(frozen=True, slots=True)
class GroupCursor:
    """The position of a group, and the revision of its mark."""

    at: EntryId
    revision: int


class Marks:
    """The marks of one backend."""

    def __init__(self, js: JetStream, layout: NatsNames, reader: PageReader) -> None:
        self._js = js
        self._layout = layout
        self._reader = reader

    async def get(self, subject: str, group: str) -> GroupCursor | None:
        """The mark of a group, read from the leader."""
        asked = {"last_by_subj": self._layout.mark(subject, group)}
        message = await self._reader.one(self._layout.books, asked, leader=True)
        if message is None:
            return None
        try:
            version, ms, seq = json.loads(message.body)
            if version != _VERSION:
                raise ValueError
            return GroupCursor(EntryId(int(ms), int(seq)), message.seq)
        except UNREADABLE as error:
            raise StoreBroken(
                f"the position of the group {group} of {subject} cannot be read in {self._layout.books}",
                do="see what writes there; then delete the mark, and the group is joined anew: nats stream purge "
                f"{self._layout.books} --subject={self._layout.mark(subject, group)}; until then nothing is trimmed",
            ) from error

    async def put(self, subject: str, group: str, at: EntryId, revision: int = 0) -> bool:
        """Writes a mark after this revision; False if another process was faster."""
        headers = {"Nats-Rollup": "sub", "Nats-Expected-Last-Subject-Sequence": str(revision)}
        body = json.dumps([_VERSION, at.ms, at.seq], separators=(",", ":")).encode()
        try:
            await self._js.store(self._layout.mark(subject, group), body, headers)
        except JsError as refused:
            if not refused.wrong_sequence:
                raise
            return False
        return True

    async def groups(self, subject: str) -> list[str]:
        """The groups of a stream that have a mark, in order."""
        verb, asked = f"STREAM.INFO.{self._layout.books}", {"subjects_filter": self._layout.marks(subject)}
        try:
            found = {name.rpartition(".")[2] async for page in self._js.pages(verb, "subjects", asked) for name in page}
        except JsError as refused:
            if refused.code != STREAM_NOT_FOUND:
                raise
            return []  # the stream of notes does not exist yet
        return sorted(group for name in found if (group := _group(name)) is not None)


def _group(name: str) -> str | None:
    """The group that a mark names; None if another program wrote a name that is no group's. Pure."""
    try:
        group = text_of(name)
    except UNREADABLE:
        return None
    return group if token(group) == name else None


@dataclass(frozen=True, slots=True)
class _Consumer:
    """One consumer, as far as it is known. `at` is the sequence it shows, None if it does not exist yet."""

    stream: str
    name: str
    subject: str
    at: int | None


class GroupProgress:
    """The consumers that show the progress of groups."""

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._wanted: dict[tuple[str, str], tuple[SubjectStream, int]] = {}  # by subject and group: its position
        self._known: dict[tuple[str, str], _Consumer] = {}
        self._refused: set[tuple[str, str]] = set()
        self._logged: set[str] = set()
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def show(self, subject_stream: SubjectStream, subject: str, group: str, seq: int) -> None:
        """Schedules a group's position to be shown soon; a later call replaces an earlier one."""
        whose = subject, group
        if whose in self._refused or self._ending.is_set():
            return
        if whose not in self._known and len(self._known) + len(self._refused) >= _SHOWN_MAX:
            self._log_once(f"more than {_SHOWN_MAX} groups: the others are not shown as consumers of NATS")
            return
        self._wanted[whose] = subject_stream, seq
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="progress of groups")

    async def close(self) -> None:
        """Writes the remaining positions, and ends."""
        self._ending.set()
        task, self._task = self._task, None
        if task is not None:
            await asyncio.wait([task], timeout=_CLOSE_SECONDS)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _work(self) -> None:
        while self._wanted:
            wanted, self._wanted = self._wanted, {}
            for (subject, group), (subject_stream, seq) in wanted.items():
                await self._try(subject, group, subject_stream, seq)
            with suppress(TimeoutError):
                async with asyncio.timeout(_MOVE_INTERVAL):
                    await self._ending.wait()

    async def _try(self, subject: str, group: str, subject_stream: SubjectStream, seq: int) -> None:
        whose = subject, group
        known = self._known.pop(whose, None)
        try:
            consumer = known or await self._state_of(subject_stream, group)
            self._known[whose] = await self._move(consumer, seq)
        except Refused as why:
            self._refused.add(whose)
            self._log_once(f"{why.message}; {why.do}")
        except WrasseError as why:
            self._log_once(why.message)  # tried again when the group has moved

    async def _state_of(self, subject_stream: SubjectStream, group: str) -> _Consumer:
        """The consumer's current state; Refused where there can be none."""
        config: dict[str, Any] = (await self._js.call(f"STREAM.INFO.{subject_stream.stream}"))["config"]
        alone = config.get("subjects") == [subject_stream.subject]
        name = token(group) if alone else f"{token(group)}-{stream_name(subject_stream.subject)}"
        retention = str(config.get("retention"))
        if retention == "workqueue" or (retention == "interest" and not self._resets):
            raise Refused(
                f"the group {group!r} is not shown as a consumer of the stream {subject_stream.stream!r}, whose "
                f"retention is {retention}",
                do="expect messages to be deleted once all other consumers have acked them; with `limits` they stay",
            )
        try:
            info = await self._js.call(f"CONSUMER.INFO.{subject_stream.stream}.{name}")
        except JsError as refused:
            if refused.code != CONSUMER_NOT_FOUND:
                raise
            return _Consumer(subject_stream.stream, name, subject_stream.subject, None)
        if info["config"].get("description") != SHOWN:
            raise Refused(
                f"the stream {subject_stream.stream!r} has a consumer {name!r} of another program",
                do="the group is not shown as one; delete or rename that consumer if it should be",
            )
        at, acked = (int(info[what]["stream_seq"]) for what in ("delivered", "ack_floor"))
        # Another program may have read with it. Servers before 2.10 have no floor before the first ack.
        return _Consumer(
            subject_stream.stream, name, subject_stream.subject, at if at == acked or not self._resets else -1
        )

    async def _move(self, consumer: _Consumer, seq: int) -> _Consumer:
        place = f"{consumer.stream}.{consumer.name}"
        if consumer.at == seq:
            return consumer
        if self._resets:
            if consumer.at is None:
                await self._make(consumer, {"deliver_policy": "all"})
            await self._js.call(f"CONSUMER.RESET.{place}", {"seq": seq + 1})
        else:
            if consumer.at is not None:
                await self._js.call(f"CONSUMER.DELETE.{place}")
            await self._make(consumer, {"deliver_policy": "by_start_sequence", "opt_start_seq": seq + 1})
        return replace(consumer, at=seq)

    async def _make(self, consumer: _Consumer, start: dict[str, object]) -> None:
        config = {
            "durable_name": consumer.name,
            "description": SHOWN,
            "ack_policy": "all",
            "filter_subject": consumer.subject,
            **start,
        }
        verb = f"CONSUMER.DURABLE.CREATE.{consumer.stream}.{consumer.name}"
        await self._js.call(verb, {"stream_name": consumer.stream, "config": config})

    @property
    def _resets(self) -> bool:
        return self._js.connection.server.at_least(*_RESETS)

    def _log_once(self, why: str) -> None:
        if why not in self._logged and len(self._logged) < _SHOWN_MAX:
            self._logged.add(why)
            _log.warning("progress is not shown to the tools of NATS: %s", why)


class Ages:
    """The maximum ages of one backend's streams."""

    def __init__(self, stream_map: StreamMap, marks: Marks) -> None:
        self._stream_map = stream_map
        self._marks = marks

    async def keep_for(self, subject: str, age: timedelta | None) -> Outcome:
        """As `ServerAges` promises."""
        subject_stream = await self._stream_map.find(subject)
        # Other programs may read the other subjects of a shared stream, so it gets no age.
        config = None if subject_stream is None or not subject_stream.own else await self._config(subject_stream)
        if subject_stream is None or config is None:
            return Outcome.CONFLICT
        now = server_age(config, self._stream_map.layout)
        if not now.ours or now.age == age:
            return Outcome.CONFLICT
        if age is None:
            await self._update(subject_stream, with_age(config, None))
            return Outcome.DONE
        if await self._is_read(subject, subject_stream):
            return Outcome.CONFLICT
        await self._update(subject_stream, with_age(config, max(age, now.least)))
        if await self._is_read(subject, subject_stream):  # a group made after the check above may have seen no age
            await self.end(subject_stream)
            return Outcome.CONFLICT
        return Outcome.DONE

    async def end(self, subject_stream: SubjectStream) -> None:
        """Removes the age that wrasse set, if there is one. Another program's stays: the error asks its owner."""
        config = await self._config(subject_stream) if subject_stream.own else None
        if config is None:
            return
        now = server_age(config, self._stream_map.layout)
        if now.ours and now.age is not None:
            await self._update(subject_stream, with_age(config, None))

    async def durable(self, subject_stream: SubjectStream) -> bool:
        """Whether the stream has a durable consumer: a group, or one that shows progress."""
        async for page in self._stream_map.js.pages(f"CONSUMER.LIST.{subject_stream.stream}", "consumers"):
            if any(each["config"].get("durable_name") for each in page):
                return True
        return False

    async def _is_read(self, subject: str, subject_stream: SubjectStream) -> bool:
        return bool(await self._marks.groups(subject)) or await self.durable(subject_stream)

    async def _config(self, subject_stream: SubjectStream) -> Config | None:
        try:
            told = await self._stream_map.js.call(f"STREAM.INFO.{subject_stream.stream}")
        except JsError as refused:
            if refused.code == STREAM_NOT_FOUND:
                return None
            raise
        config: Config = told["config"]
        return config

    async def _update(self, subject_stream: SubjectStream, config: Config) -> None:
        await self._stream_map.js.call(f"STREAM.UPDATE.{subject_stream.stream}", config)
