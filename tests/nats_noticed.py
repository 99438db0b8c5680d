"""Deliveries on NATS in a test that knows how many there are.

JetStream confirms an append just before its consumers learn of the message, so a pull right after it may find nothing,
or all but the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from wrasse.ports.groups import Delivery, Groups

NOTICED = timedelta(milliseconds=30)


async def deliver_noticed(
    groups: Groups, subjects: Sequence[str], group: str, consumer: str, limit: int, *,
    ack_timeout: timedelta, wait: timedelta = NOTICED,
) -> list[Delivery]:  # fmt: skip
    """Also what the consumers of the server learn of a moment later."""
    found = list(await groups.deliver(subjects, group, consumer, limit, ack_timeout=ack_timeout, wait=wait))
    if len(found) == limit:
        return found
    more = await groups.deliver(subjects, group, consumer, limit - len(found), ack_timeout=ack_timeout, wait=NOTICED)
    return [*found, *more]
