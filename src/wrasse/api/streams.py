"""Messages for programs: `app.streams`, and `@app.on("orders.*.paid")`.

A handler gets every message of its subject or pattern, which is acked when it returns, redelivered with a growing delay
when it raises, and dead-lettered after `deliveries_max`. Each handler is a group of its own, by default named after its
function: all processes that run it share the messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from wrasse.clock import Clock
from wrasse.errors import UsageError
from wrasse.jobs.new_job import Duration, as_duration, encoded
from wrasse.ports.backend import StreamStore
from wrasse.ports.groups import StartAt, check_group
from wrasse.ports.rules.subjects import check_pattern
from wrasse.ports.streams import APPENDS_MAX
from wrasse.runtime.signals import on_stop
from wrasse.streams.consumer import Consumer, ConsumerSettings, StreamSubscription, StreamTally
from wrasse.streams.delivery import Handler, HandlerCall
from wrasse.streams.publisher import Publication, Publisher

_HANDLER = TypeVar("_HANDLER", bound=Handler)
_STARTS = {"first": StartAt(first=True), "last": StartAt()}


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One message for `publish_many`: what `publish` takes, as a value."""

    subject: str
    data: object = b""
    key: str = ""
    trace_id: str | None = None


async def listen(
    store: StreamStore,
    clock: Clock,
    handlers: Sequence[StreamSubscription],
    stopped: asyncio.Event,
    tallies: dict[str, StreamTally] | None = None,
) -> None:
    """Runs the handlers until `stopped` is set; running ones may finish. Outcomes of messages are counted in `tallies`,
    by group."""
    counted = {} if tallies is None else tallies
    consumers = [
        Consumer(store.streams, store.groups, clock, each, counted.setdefault(each.group, StreamTally()))
        for each in handlers
    ]
    async with asyncio.TaskGroup() as tasks:
        for consumer in consumers:
            tasks.create_task(consumer.run())
        await stopped.wait()
        for consumer in consumers:
            tasks.create_task(consumer.close())


class AppStreams:
    """Publishes messages, and runs handlers for them. Opened on first use."""

    def __init__(self, open: Callable[[], Awaitable[StreamStore]], clock: Clock) -> None:
        self._open = open
        self._clock = clock
        self.handlers: list[StreamSubscription] = []
        self._stopped = asyncio.Event()

    async def publish(self, subject: str, data: object = b"", *, key: str = "", trace_id: str | None = None) -> str:
        """Publishes one message; stored when this returns, under the returned id. Bytes are sent as they are, anything
        else as JSON. The same `key` within two minutes publishes nothing new and returns the first one's id."""
        return (await self.publish_many([NewMessage(subject, data, key, trace_id)]))[0]

    async def publish_many(self, messages: Iterable[NewMessage]) -> list[str]:
        """Publishes many, in order, up to ten thousand in one step; returns their ids."""
        publisher = Publisher((await self._open()).streams, self._clock)
        made = [Publication(new.subject, encoded(new.data), new.key, new.trace_id) for new in messages]
        ids: list[str] = []
        for start in range(0, len(made), APPENDS_MAX):
            ids += await publisher.publish_many(made[start : start + APPENDS_MAX])
        return ids

    def on(
        self,
        pattern: str,
        *,
        group: str = "",
        start: str = "last",
        auto_ack: bool = True,
        concurrency: int = 1,
        ack_timeout: Duration = "30s",
        deliveries_max: int = 5,
    ) -> Callable[[_HANDLER], _HANDLER]:
        """Registers a function, async or plain, for the messages of a subject or pattern. `start`: where its group
        begins when it is new, `first` or `last`. Without `auto_ack` the function calls `ack`, `nak` or
        `dead_letter`."""
        check_pattern(pattern)
        if start not in _STARTS:
            raise UsageError(f"a group cannot start at {start!r}", do="write first or last")
        settings = ConsumerSettings(
            auto_ack=auto_ack,
            start=_STARTS[start],
            concurrency=concurrency,
            ack_timeout=as_duration(ack_timeout),
            deliveries_max=deliveries_max,
        )

        def register(function: _HANDLER) -> _HANDLER:
            HandlerCall(function)
            name = group or getattr(function, "__name__", type(function).__name__)
            check_group("any", name)
            if any((each.pattern, each.group) == (pattern, name) for each in self.handlers):
                raise UsageError(
                    f"two handlers of {pattern!r} are in the group {name!r}, and would share its messages",
                    do="give one of them another group",
                )
            self.handlers.append(StreamSubscription(pattern, name, function, settings))
            return function

        return register

    async def run(self, *, signals: bool = True) -> None:
        """Runs the registered handlers until `stop`, SIGTERM or SIGINT; running ones may finish. Without `signals` it
        leaves those to the program it is part of."""
        if not self.handlers:
            raise UsageError("there is no handler for messages", do='register one: @app.on("orders.*.paid")')
        store = await self._open()
        try:
            with on_stop(lambda _: self.stop(), heard=signals):
                await listen(store, self._clock, self.handlers, self._stopped)
        finally:
            self._stopped.clear()

    def stop(self) -> None:
        """Ends `run`."""
        self._stopped.set()
