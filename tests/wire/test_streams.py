"""Streams, groups, dead letters and alerts as they are stored on Redis and NATS."""

from __future__ import annotations

from datetime import timedelta

import pytest

from wire.conftest import Difference, OpenPlace
from wire.places import Place, dumped, pass_time
from wrasse.ports.groups import Ack, Nak, StartAt
from wrasse.ports.streams import Draft
from wrasse.streams.alerts import ALERTS, Alert, Alerts
from wrasse.streams.delivery import dead_letter
from wrasse.streams.group_census import IDLE_OBSERVATIONS, IdleObservations
from wrasse.streams.publisher import Publication, Publisher

HOUR = timedelta(hours=1)
TASKS, AUDIT = "gbe.tasks.email.queue", "gbe.events.audit.change"
GROUP, CURSOR = "email-workers", "archiver"


async def _messages(place: Place) -> None:
    """Envelopes, entries of others, a key; a group with something acked, pending, given back and set aside."""
    publisher = Publisher(place.backend.streams, place.clock)
    groups = place.backend.groups
    await publisher.publish(TASKS, b"first", trace_id="0af7651916cd43dd8448eb211c80319c")
    await publisher.publish_many([Publication(TASKS, b'{"n":%d}' % number) for number in range(5)])
    await publisher.publish(TASKS, b"once", key="order-1")
    await publisher.publish(TASKS, b"once", key="order-1")
    await groups.join(TASKS, GROUP, StartAt(first=True), ack_timeout=HOUR)
    got = await groups.deliver([TASKS], GROUP, "consumer-1", 4, ack_timeout=HOUR)
    await groups.answer([Ack(TASKS, GROUP, got[0].entry.id)])
    await groups.answer([Nak(TASKS, GROUP, got[1].entry.id, HOUR)])
    await groups.answer([dead_letter(got[2], "no such user", deliveries=3)])
    await groups.extend("consumer-1", got[3:], ack_timeout=HOUR)
    await groups.deliver([TASKS], GROUP, "consumer-2", 1, ack_timeout=HOUR)


async def _upkeep(place: Place) -> None:
    """A group that reads by cursor, a trim below it, entries that are no messages, an alert, a look at a consumer."""
    publisher = Publisher(place.backend.streams, place.clock)
    streams, groups = place.backend.streams, place.backend.groups
    await publisher.publish_many([Publication(AUDIT, b"%d" % number) for number in range(4)])
    await streams.append([Draft(AUDIT, b"\x00no envelope", fields={"other": b"field"})])
    await groups.join(AUDIT, CURSOR, StartAt(first=True), cursor=True)
    entries = (await streams.read(AUDIT, (await streams.info(AUDIT)).first.previous, 10)).items
    await groups.mark(AUDIT, CURSOR, entries[2].id)
    await pass_time(place, HOUR)
    await streams.trim(AUDIT, age=timedelta(0), below=entries[2].id, protect=[CURSOR], limit=2)
    alerts = Alerts(place.backend.records(ALERTS), streams, place.clock, "aged_entries")
    alert = Alert(AUDIT, "nobody reads it", "start a consumer", group=CURSOR, count=3, oldest_at=place.clock.now())
    await alerts.tell(alert, None, place.clock.now())
    if place.name == "redis":  # where the backend knows consumers
        await groups.join(AUDIT, GROUP, StartAt(first=True), ack_timeout=HOUR)
        await groups.deliver([AUDIT], GROUP, "consumer-1", 1, ack_timeout=HOUR)
        (consumer,) = await groups.consumers(AUDIT, GROUP)
        await IdleObservations(place.backend.records(IDLE_OBSERVATIONS)).note(consumer, place.clock.now())


SCENES = {"messages": _messages, "upkeep": _upkeep}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("where", ["redis", "nats"])
async def test_streams_are_stored_as_recorded(
    open_place: OpenPlace, difference: Difference, where: str, scene: str
) -> None:
    assert not difference(f"streams_{scene}_{where}", await dumped(open_place, where, SCENES[scene]))
