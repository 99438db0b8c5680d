"""The rights that docs/how-to/run-on-redis.md names are enough for all that wrasse does, and no more than it says."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import redis

from conformance.queue_client import QueueClient
from servers.valkey import Valkey, newest, oldest, valkey
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.options import RedisOptions
from wrasse.errors import Refused
from wrasse.ports.jobs import JobFilter, JobState
from wrasse.ports.records import Collection

PAGE = Path(__file__).parents[3] / "docs/how-to/run-on-redis.md"


def documented() -> list[str]:
    """The rules of the user, as the page has them."""
    found = re.search(r"^redis-cli ACL SETUSER (.*)$", PAGE.read_text("utf-8"), re.M)
    assert found is not None, "the page names a user"
    return found[1].replace("'", "").split()


@pytest.fixture(params=[newest, oldest], ids=["newest", "6.2"], scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Valkey]:
    with valkey(binary=request.param()) as own:
        with redis.Redis(port=own.port) as client:
            client.execute_command("ACL", "SETUSER", *documented())
        yield own


@pytest.fixture
async def store(server: Valkey) -> AsyncIterator[Redis]:
    user, _, secret, *_ = documented()
    options = RedisOptions(nodes=(("127.0.0.1", server.port),), username=user, password=secret.removeprefix(">"))
    own = await Redis.open(options)
    yield own
    await own.close()


async def test_they_are_enough_for_jobs_and_records(store: Redis) -> None:
    jobs_client = QueueClient(store.jobs)
    await jobs_client.enqueue("a", "b", "c")
    first, second, _ = [claimed.claim for claimed in await jobs_client.claim()]
    await jobs_client.heartbeat(first, second)
    await jobs_client.complete(first)
    await jobs_client.dead_letter(second)
    await store.jobs.overdue(None, 10)
    listed = {
        state: await jobs_client.ids(state, JobFilter()) for state in (JobState.RUNNING, JobState.DONE, JobState.DEAD)
    }
    counts = await store.jobs.counts()
    records = store.records(Collection.named("things"))
    written = await records.create("a", b"1", due_at=counts.at)
    page = await records.due(None, None, 10)
    deleted = await records.delete("a", at=written.version or "")
    await store.forget(Collection.named("things"))
    assert listed == {JobState.RUNNING: ["c"], JobState.DONE: ["a"], JobState.DEAD: ["b"]}
    assert (len(page), bool(deleted)) == (1, True)


async def test_they_are_enough_for_checks_repairs_and_admin_commands(store: Redis) -> None:
    await QueueClient(store.jobs).enqueue("a")
    await store.client.ask("LPUSH", store.lists.names["dead_letter"], b"no job")
    found = await store.fsck.check(repair=True, heartbeat_timeout=timedelta(seconds=30))
    lengths = await store.lists.lengths("jobqueue:rate_limit:producer")
    purged = await store.lists.purge("jobqueue:rate_limit:producer", force=True, dry=False)
    assert (len(found), len(lengths.named), bool(purged.keys)) == (1, 2, True)


async def test_they_are_enough_for_the_pulse_and_the_doctor(store: Redis) -> None:
    identity = (await store.health_sample()).identity
    said = [finding.what for finding in await store.examine()]
    assert (len(identity) > 40, "this user may not read the server's settings" in said) == (True, True)


async def test_they_are_not_enough_for_other_keys_or_for_the_server(store: Redis) -> None:
    for command in (("GET", "other"), ("FLUSHALL",), ("KEYS", "*"), ("CONFIG", "GET", "save")):
        with pytest.raises(Refused, match="NOPERM"):
            await store.client.ask(*command)
