"""Maximum ages: set and removed in an order that leaves none on a stream with a group.

JetStream changes a stream unconditionally, so concurrent changes are resolved by checks afterwards. A process that sets
an age checks for groups before and after it, and reverts it if there is one. A process that makes a group removes the
age first, stores the group, and checks the age again. Each writes before it checks, so of two concurrent processes at
least one sees the other. See `docs/design/018-retention.md` for the remaining race.
"""

from __future__ import annotations

from datetime import timedelta

from wrasse.backends.nats.client.jetstream import STREAM_NOT_FOUND, JsError
from wrasse.backends.nats.group_cursors import Marks
from wrasse.backends.nats.stream_config import Config, server_age, with_age
from wrasse.backends.nats.stream_map import StreamMap, SubjectStream
from wrasse.ports.outcome import Outcome


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
