"""Archives in every layout and compression, with names, metadata and bytes, and the records behind them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from wire.conftest import Difference, OpenPlace
from wire.dumps import as_text
from wire.places import START, Place, dumped
from wrasse.archives.archiver import ArchivePorts, Archiver, ArchiverOptions
from wrasse.archives.batch import BatchLimits
from wrasse.archives.codec import Compression
from wrasse.archives.cursor import CURSORS, Cursors
from wrasse.archives.drain import GROUP
from wrasse.archives.naming import DayLayout, Form
from wrasse.archives.restart import plan_restart
from wrasse.archives.rule import Rule
from wrasse.clock import Clock, ManualClock
from wrasse.leases.core import leases_in
from wrasse.leases.manager import LeaseManager
from wrasse.ports.objects import Objects
from wrasse.ports.streams import Draft
from wrasse.streams.publisher import Publisher

SUBJECT = "gbe.events.audit.change"
FORMS = {f"{layout.value}_{codec.value}": Form(layout, codec) for layout in DayLayout for codec in Compression}


async def _archived(place: Place, objects: Objects, clock: Clock, form: Form) -> None:
    """Two archives with messages, an entry of another program and one with fields; then a new epoch."""
    backend, publisher = place.backend, Publisher(place.backend.streams, clock)
    await publisher.publish(SUBJECT, b'{"who":"me"}', trace_id="0af7651916cd43dd8448eb211c80319c")
    await publisher.publish(SUBJECT, b"\x00\xff")
    await backend.streams.append([Draft(SUBJECT, b"no envelope")])
    await backend.streams.append([Draft(SUBJECT, b"with fields", fields={"a": b"1", "b": b"\xff"})])
    ports = ArchivePorts(
        backend.streams, backend.groups, backend.records(CURSORS),
        LeaseManager(backend.records(leases_in(".wrasse")), clock),
    )  # fmt: skip
    rule = Rule("gbe.events.audit.*", objects, "file:data", limits=BatchLimits(size=3), form=form)
    await Archiver(ports, [rule], clock, "archiver-1", ArchiverOptions(lease_ttl=timedelta(hours=1))).drain()
    cursors = Cursors(backend.records(CURSORS))
    restart = await plan_restart(backend.streams, cursors, rule, SUBJECT, GROUP)
    assert restart.epoch == 2


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["directory", "strict s3"])
async def test_archives_are_stored_as_recorded(
    open_place: OpenPlace, difference: Difference, where: str, form: str
) -> None:
    """From Redis, whose records and stream are recorded once."""
    stored = await open_place(where)
    clock = ManualClock(START)
    text = ""

    async def play(place: Place) -> None:
        nonlocal text
        await _archived(place, stored.backend.objects, clock, FORMS[form])
        text = as_text(await stored.items(), place.names)

    behind = await dumped(open_place, "redis", play)
    assert not difference(f"archives_{form}_{where}", text)
    if form == "slashes_gzip" and where == "directory":
        assert not difference("archives_behind_redis", behind)
