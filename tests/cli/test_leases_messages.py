"""Dead messages of the lease API on the command line: seen, requeued, deleted with what rode along."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from cli.command_line import wrasse
from wrasse.backends.directory.connect import Directory
from wrasse.clock import SystemClock
from wrasse.lease_server.queue_service import ConsumerProof, QueueService
from wrasse.leases.leases import Leases
from wrasse.ports.jobs import DeadLetterJob, Job, Reason


@pytest.fixture
def directory(place: Path) -> Path:
    (place / "wrasse.yaml").write_text("backends: {records: 'file:data'}")
    asyncio.run(dead(place / "data"))
    return place / "data"


async def dead(directory: Path) -> None:
    """A message that failed, with its state."""
    backend = await Directory.open(directory, SystemClock())
    leases = Leases(backend.records, backend.objects, SystemClock())
    service = QueueService(leases, SystemClock())
    await service.enqueue("default", Job("m", queue="orders", payload=b"x", minted=True))
    (claimed,) = await service.claim("default", "orders", "me", 1, timedelta(seconds=30), timedelta(0))
    state = await service.claim_state("default", claimed, "me", timedelta(seconds=30), "")
    await leases.update(state.granted, b"1")
    dead_letter = DeadLetterJob(claimed.claim, Reason.FAILED, error="no such order")
    await service.nack(ConsumerProof("default", "orders", claimed.claim, state.granted, stateful=True), dead_letter)
    await service.close()
    await leases.close()
    await backend.close()


def names(directory: Path) -> list[str]:
    """What is stored of messages."""
    found = [path for path in directory.rglob("*") if path.is_file() and "%w" not in path.parts]
    return [path.name for path in found if path.name != "buckets.json" and ".lease-index" not in path.parts]


def test_a_dead_message_is_shown_and_deleted_with_its_state(directory: Path) -> None:
    shown = wrasse("leases", "messages", "orders").out
    deleted = wrasse("leases", "messages", "orders", "--delete=m")
    again = wrasse("leases", "messages", "orders", "--delete=m")
    assert ("no such order" in shown, deleted.out, again.code, names(directory)) == (True, "m deleted\n", 2, [])


def test_a_dead_message_is_handed_out_again(directory: Path) -> None:
    assert wrasse("leases", "messages", "orders", "--requeue=m").code == 0
    shown = wrasse("leases", "messages", "orders", "--state=ready", "--json").json
    assert [(each["message"], each["failures"]) for each in shown["messages"]] == [("m", 0)]
    assert wrasse("leases", "messages", "orders").out == "nothing is dead in orders\n"
