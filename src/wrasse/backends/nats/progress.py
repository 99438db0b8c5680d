"""Shows the progress of a group that reads by cursor to the tools of NATS: as a durable consumer of its name.

Its ack floor is what is archived, its unprocessed messages are the lag. The mark stays the truth: the consumer follows
it, about a second behind while archiving runs, and is never ahead. Errors here are logged once and stop nothing else.
In a stream with interest retention this consumer is that interest: messages that are not archived stay.

A consumer of that name that another program made is left alone. A work queue gets none: there each message is for one
consumer only, and ours would take messages from the workers.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from wrasse.backends.nats.client.jetstream import CONSUMER_NOT_FOUND, JetStream, JsError
from wrasse.backends.nats.durables import SHOWN
from wrasse.backends.nats.layout import stream_name, token
from wrasse.backends.nats.stream_map import SubjectStream
from wrasse.errors import Refused, WrasseError

_EVERY = 1.0  # seconds: how often one consumer is moved at most
_LAST = 2.0  # seconds that the last moves may take
_SHOWN_MAX = 1_000
_RESETS = (2, 14)  # servers from here on move a consumer in place; before, it is made anew
_log = logging.getLogger("wrasse.streams")


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
        self._told: set[str] = set()
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def show(self, subject_stream: SubjectStream, subject: str, group: str, seq: int) -> None:
        """Schedules a group's position to be shown soon; a later call replaces an earlier one."""
        whose = subject, group
        if whose in self._refused or self._ending.is_set():
            return
        if whose not in self._known and len(self._known) + len(self._refused) >= _SHOWN_MAX:
            self._tell(f"more than {_SHOWN_MAX} groups: the others are not shown as consumers of NATS")
            return
        self._wanted[whose] = subject_stream, seq
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="progress of groups")

    async def close(self) -> None:
        """Writes the remaining positions, and ends."""
        self._ending.set()
        task, self._task = self._task, None
        if task is not None:
            await asyncio.wait([task], timeout=_LAST)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _work(self) -> None:
        while self._wanted:
            wanted, self._wanted = self._wanted, {}
            for (subject, group), (subject_stream, seq) in wanted.items():
                await self._try(subject, group, subject_stream, seq)
            with suppress(TimeoutError):
                async with asyncio.timeout(_EVERY):
                    await self._ending.wait()

    async def _try(self, subject: str, group: str, subject_stream: SubjectStream, seq: int) -> None:
        whose = subject, group
        known = self._known.pop(whose, None)
        try:
            consumer = known or await self._look(subject_stream, group)
            self._known[whose] = await self._move(consumer, seq)
        except Refused as why:
            self._refused.add(whose)
            self._tell(f"{why.message}; {why.do}")
        except WrasseError as why:
            self._tell(why.message)  # tried again when the group has moved

    async def _look(self, subject_stream: SubjectStream, group: str) -> _Consumer:
        """The consumer's current state; Refused where there can be none."""
        config: dict[str, Any] = (await self._js.call(f"STREAM.INFO.{subject_stream.stream}"))["config"]
        alone = config.get("subjects") == [subject_stream.subject]
        name = token(group) if alone else f"{token(group)}-{stream_name(subject_stream.subject)}"
        retention = str(config.get("retention"))
        if retention == "workqueue" or (retention == "interest" and not self._resets):
            raise Refused(
                f"the group {group!r} is not shown as a consumer of the stream {subject_stream.stream!r}, whose "
                "retention is "
                f"{retention}",
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

    def _tell(self, why: str) -> None:
        if why not in self._told and len(self._told) < _SHOWN_MAX:
            self._told.add(why)
            _log.warning("progress is not shown to the tools of NATS: %s", why)
