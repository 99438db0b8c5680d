"""Maximal ages: who sets and who ends them, in an order that leaves none on a stream with a group.

JetStream changes a stream without any condition, so two who change it at once are kept apart by what each looks at
afterwards. Whoever sets an age looks for groups before it and after it, and takes it back. Whoever makes a group ends
the age first, writes the group down, and looks at the age again. Each writes before it looks, so of two that meet at
least one sees the other. See `docs/design/018-retention.md` for what is left of the race.
"""

from __future__ import annotations

from datetime import timedelta

from wrasse.backends.nats.client.jetstream import STREAM_NOT_FOUND, JsError
from wrasse.backends.nats.group_cursors import Marks
from wrasse.backends.nats.stream_config import Config, server_age, with_age
from wrasse.backends.nats.stream_map import StreamMap, SubjectStream
from wrasse.ports.outcome import Outcome


class Ages:
    """The maximal ages of one backend's streams."""

    def __init__(self, stream_map: StreamMap, marks: Marks) -> None:
        self._stream_map = stream_map
        self._marks = marks

    async def keep_for(self, subject: str, age: timedelta | None) -> Outcome:
        """As `ServerAges` promises."""
        subject_stream = await self._stream_map.find(subject)
        # Of several subjects in one stream each may be read by somebody else, so such a stream gets none.
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
        if await self._is_read(subject, subject_stream):  # whoever came after the look above may have seen no age
            await self.end(subject_stream)
            return Outcome.CONFLICT
        return Outcome.DONE

    async def end(self, subject_stream: SubjectStream) -> None:
        """Ends the age that wrasse set, if there is one. Somebody else's stays: who set it is asked to end it."""
        config = await self._config(subject_stream) if subject_stream.own else None
        if config is None:
            return
        now = server_age(config, self._stream_map.layout)
        if now.ours and now.age is not None:
            await self._update(subject_stream, with_age(config, None))

    async def durable(self, subject_stream: SubjectStream) -> bool:
        """Whether somebody has a durable consumer there: a group, or what shows how far one is."""
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
