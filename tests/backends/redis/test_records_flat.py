"""Records that are hashes of their own on Redis: the task hash, shared with programs without wrasse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest

from servers.valkey import Valkey
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.options import RedisOptions
from wrasse.backends.redis.records import RedisFlatRecords
from wrasse.errors import UsageError
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, Record
from wrasse.ports.streams import START, Draft

TASKS = Collection("gbe:state:tasks", "gbe:state:tasks:due", "gbe:state:tasks:buckets", timedelta(minutes=1), flat=True)
SOON = datetime(2026, 1, 1, tzinfo=UTC)
QUEUE = "gbe.tasks.mail.queue"


@pytest.fixture
async def redis(redis_server: Valkey) -> AsyncIterator[Redis]:
    root = f"t{uuid4().hex}"
    options = RedisOptions(nodes=(("127.0.0.1", redis_server.port),), root=root, streams_prefix=f"{root}:o:")
    opened = await Redis.open(options)
    yield opened
    await opened.close()


@pytest.fixture
def tasks(redis: Redis) -> RedisFlatRecords:
    records = redis.records(TASKS)
    assert isinstance(records, RedisFlatRecords)
    return records


def written(**fields: str) -> bytes:
    return msgspec.json.encode(fields)


def fields_of(record: Record | None) -> dict[str, str]:
    assert record is not None, "there is such a record"
    return msgspec.json.decode(record.value, type=dict[str, str])


def key(redis: Redis, name: str) -> str:
    """What the origin's program calls the record, behind this test's own prefix."""
    return f"{redis.client.options.streams_prefix}gbe:state:tasks:{name}"


async def changed(tasks: RedisFlatRecords, *, dry: bool = False) -> list[str]:
    """The records that a whole round of looks finds."""
    found, cursor = [], "0"
    while True:
        looked = await tasks.scan(cursor, 100, dry=dry)
        found += [record.key for record in looked.changed]
        cursor = looked.cursor
        if looked.ended:
            return sorted(found)


async def test_a_task_is_a_hash_with_one_field_for_each_key(redis: Redis, tasks: RedisFlatRecords) -> None:
    await tasks.create("mail:task_1", written(state="pending", task_id="task_1"))

    stored = await redis.client.ask("HGETALL", key(redis, "mail:task_1"))

    pairs = dict(zip(stored[::2], stored[1::2], strict=True))
    assert pairs == {b"state": b"pending", b"task_id": b"task_1"}


async def test_a_put_replaces_the_whole_record_its_old_fields_and_its_expiry(
    redis: Redis, tasks: RedisFlatRecords
) -> None:
    created = await tasks.create("mail:1", written(state="pending", error="old"))
    await redis.client.ask("PEXPIRE", key(redis, "mail:1"), 60_000)
    record = await tasks.get("mail:1")
    assert record is not None
    assert record.version == created.version

    await tasks.put("mail:1", written(state="claimed"), at=record.version)

    assert fields_of(await tasks.get("mail:1")) == {"state": "claimed"}
    assert await redis.client.ask("PTTL", key(redis, "mail:1")) == -1


async def test_what_another_program_changed_is_never_written_over(redis: Redis, tasks: RedisFlatRecords) -> None:
    created = await tasks.create("mail:1", written(state="running"))
    assert created.version is not None
    await redis.client.ask("HSET", key(redis, "mail:1"), "state", "completed")

    late = await tasks.put("mail:1", written(state="pending"), at=created.version, emit=[Draft(QUEUE, b"again")])

    assert late.outcome is Outcome.CONFLICT
    assert fields_of(await tasks.get("mail:1")) == {"state": "completed"}
    assert not (await redis.streams.read(QUEUE, START, 10)).items


async def test_a_record_that_another_program_deleted_is_not_made_again_by_a_put(
    redis: Redis, tasks: RedisFlatRecords
) -> None:
    created = await tasks.create("mail:1", written(state="running"), due_at=SOON)
    assert created.version is not None
    await redis.client.ask("DEL", key(redis, "mail:1"))

    late = await tasks.put("mail:1", written(state="pending"), at=created.version)

    assert (late.outcome, await tasks.get("mail:1")) == (Outcome.CONFLICT, None)
    assert (await tasks.due(None, None, 10)).items == ()
    assert (await tasks.page("", None, 10)).items == ()
    assert (await tasks.create("mail:1", written(state="pending"))).outcome is Outcome.DONE


async def test_of_fifty_writers_of_another_programs_record_one_wins(redis: Redis, tasks: RedisFlatRecords) -> None:
    await redis.client.ask("HSET", key(redis, "mail:1"), "state", "pending", "retry_count", "0")
    record = await tasks.get("mail:1")
    assert record is not None

    answers = await asyncio.gather(
        *(tasks.put("mail:1", written(state="claimed", worker=str(n)), at=record.version) for n in range(50))
    )

    assert [bool(answer) for answer in answers].count(True) == 1


async def test_a_write_whose_reply_was_lost_is_answered_as_it_was_although_others_changed_the_record(
    redis: Redis, tasks: RedisFlatRecords
) -> None:
    first = await tasks.create("mail:1", written(state="pending"), nonce="n")
    await redis.client.ask("HSET", key(redis, "mail:1"), "state", "claimed")

    again = await tasks.create("mail:1", written(state="pending"), nonce="n")

    assert (again.outcome, again.version) == (Outcome.DONE, first.version)
    assert fields_of(await tasks.get("mail:1")) == {"state": "claimed"}


async def test_records_of_other_programs_are_found_once_and_ours_are_not(redis: Redis, tasks: RedisFlatRecords) -> None:
    await tasks.create("mail:ours", written(state="pending"))
    await redis.client.ask("HSET", key(redis, "mail:theirs"), "state", "running", "updated_at", "1")
    await redis.client.ask("SET", key(redis, "mail:no-hash"), "text")
    for dry in (True, False):
        assert await changed(tasks, dry=dry) == ["mail:theirs"]
    record = await tasks.get("mail:theirs")
    assert record is not None

    assert await tasks.note("mail:theirs", at=record.version, due_at=SOON) is Outcome.DONE

    assert await changed(tasks) == []
    assert [(each.key, each.due_at) for each in await tasks.due(None, None, 10)] == [("mail:theirs", SOON)]
    await redis.client.ask("HSET", key(redis, "mail:theirs"), "updated_at", "2")
    assert await changed(tasks) == ["mail:theirs"]


async def test_a_note_about_a_record_that_changed_meanwhile_is_lost(redis: Redis, tasks: RedisFlatRecords) -> None:
    await redis.client.ask("HSET", key(redis, "mail:1"), "state", "running")
    record = await tasks.get("mail:1")
    assert record is not None
    await redis.client.ask("HSET", key(redis, "mail:1"), "state", "completed")

    assert await tasks.note("mail:1", at=record.version, due_at=SOON) is Outcome.CONFLICT

    assert (await tasks.due(None, None, 10)).items == ()


async def test_a_round_of_looks_goes_on_where_the_last_one_stopped_whoever_made_it(
    redis: Redis, tasks: RedisFlatRecords
) -> None:
    for n in range(300):
        await redis.client.ask("HSET", key(redis, f"mail:{n}"), "state", "running")
    other = redis.records(TASKS)
    assert isinstance(other, RedisFlatRecords)
    found: set[str] = set()

    for turn in range(10_000):
        looked = await (tasks if turn % 2 else other).scan(None, 50, dry=False)
        found |= {record.key for record in looked.changed}
        if looked.ended:
            break

    assert found == {f"mail:{n}" for n in range(300)}


async def test_glob_signs_in_the_collection_find_nothing_else(redis: Redis) -> None:
    odd = redis.records(Collection("gbe:s[t]*", "i", "b", flat=True))
    assert isinstance(odd, RedisFlatRecords)
    prefix = redis.client.options.streams_prefix
    await redis.client.ask("HSET", f"{prefix}gbe:st:decoy:1", "state", "running")
    await redis.client.ask("HSET", f"{prefix}gbe:s[t]*:1", "state", "running")

    assert await changed(odd) == ["1"]


async def test_bytes_that_are_no_text_are_shown(redis: Redis, tasks: RedisFlatRecords) -> None:
    await redis.client.ask("HSET", key(redis, "mail:1"), "state", b"\xff")

    assert fields_of(await tasks.get("mail:1")) == {"state": "\\xff"}


@pytest.mark.parametrize("value", [b"{}", b"[]", b'{"a":1}', b"no"])
async def test_what_no_hash_could_hold_is_refused(tasks: RedisFlatRecords, value: bytes) -> None:
    with pytest.raises(UsageError):
        await tasks.create("mail:1", value)


async def test_pages_are_in_the_order_of_names_and_end(tasks: RedisFlatRecords) -> None:
    for name in ("b:2", "a:1", "b:1", "c:1"):
        await tasks.create(name, written(state="pending"), due_at=SOON)
    first = await tasks.page("b:", None, 1)

    rest = await tasks.page("b:", first.cursor, 10)

    assert ([each.key for each in first], [each.key for each in rest], rest.more) == (["b:1"], ["b:2"], False)


async def test_a_deleted_record_is_gone_from_every_index(redis: Redis, tasks: RedisFlatRecords) -> None:
    created = await tasks.create("mail:1", written(state="pending"), due_at=SOON)
    assert created.version is not None

    assert await tasks.delete("mail:1", at=created.version)

    assert await redis.client.ask("EXISTS", key(redis, "mail:1")) == 0
    assert (await tasks.due(None, None, 10)).items == (await tasks.page("", None, 10)).items == ()
