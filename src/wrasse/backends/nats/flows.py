"""Streams and groups behind one link: everything that they share, made once."""

from __future__ import annotations

from dataclasses import dataclass

from wrasse.backends.nats.appending import Appender
from wrasse.backends.nats.durables import Durables
from wrasse.backends.nats.groups import NatsGroups
from wrasse.backends.nats.js import JetStream
from wrasse.backends.nats.lanes import Lanes
from wrasse.backends.nats.layout import Layout
from wrasse.backends.nats.link import Link
from wrasse.backends.nats.marks import Marks
from wrasse.backends.nats.reading import Reader
from wrasse.backends.nats.stream_time import ServerTime
from wrasse.backends.nats.streams import NatsStreams
from wrasse.clock import Clock


@dataclass(frozen=True, slots=True)
class Flows:
    """The two ports."""

    streams: NatsStreams
    groups: NatsGroups
    lanes: Lanes

    @classmethod
    async def open(
        cls,
        link: Link,
        clock: Clock,
        at: ServerTime,
        *,
        patterns: tuple[str, ...] = (),
        batches: bool | None = None,
        atomic: bool | None = None,
        create: bool = True,
    ) -> Flows:
        """Makes the stream of books if it is not there, unless `create` says no. `at` is the server's clock. `patterns`
        name what is kept together in one stream. `batches` and `atomic` say whether the server reads and writes many
        messages in one step, if not as its version has it."""
        js, layout = JetStream(link), Layout.of(link.options, patterns)
        reader = Reader(js, batches=batches)
        lanes = Lanes(js, layout, reader, clock)
        if create:
            await lanes.open()
        marks, durables = Marks(js, layout, reader), Durables(js)
        appender = Appender(lanes, at, clock, atomic=atomic)
        return cls(
            NatsStreams(lanes, marks, durables, appender, at),
            NatsGroups(link, lanes, marks, durables, appender, at),
            lanes,
        )
