"""Deliveries on NATS in a test that knows how many there are.

JetStream confirms an append before its consumers learn of the message; how long before is up to the scheduler of a
busy machine. A pull right after an append may find nothing, or all but the last one. So these ask again until the
consumers have passed the last message of their subjects and `at_least` so many deliveries have come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from wrasse.backends.nats.groups import NatsGroups
from wrasse.ports.groups import Delivery, Groups

NOTICED = timedelta(milliseconds=30)


async def deliver_noticed(
    groups: NatsGroups, subjects: Sequence[str], group: str, consumer: str, limit: int, *,
    ack_timeout: timedelta, wait: timedelta = NOTICED, at_least: int = 0,
) -> list[Delivery]:  # fmt: skip
    """Also what the consumers of the server learn of a moment later."""
    found: list[Delivery] = []
    async with asyncio.timeout(60):
        while True:
            left = limit - len(found)
            found += await groups.deliver(subjects, group, consumer, left, ack_timeout=ack_timeout, wait=wait)
            if len(found) == limit:
                return found
            if len(found) >= at_least and all([await _passed(groups, each, group) for each in subjects]):
                return found
            wait = NOTICED


def delivering(groups: Groups, *, back: int = 0) -> Callable[..., Coroutine[Any, Any, Sequence[Delivery]]]:
    """`deliver` of any backend, for a test that counts on what it has just appended. `back`: so many at least are
    delivered again, where the server's own timers say when."""
    return partial(deliver_noticed, groups, at_least=back) if isinstance(groups, NatsGroups) else groups.deliver


async def _passed(groups: NatsGroups, subject: str, group: str) -> bool:
    lane = await groups._stream_map.make(subject)
    durable = await groups._durables.find(lane, group)
    last = await groups._stream_map.reader.one(lane.stream, {"last_by_subj": lane.subject}, leader=True)
    return durable is None or last is None or durable.delivered >= last.seq
