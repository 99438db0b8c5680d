"""Sightings on PostgreSQL: tables that two make at once, rights that are missing, connections that end, replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from conformance.sightings_stores import fresh_postgres
from servers.postgres import postgres
from wrasse.backends.sql.catalog import SqlCatalog
from wrasse.backends.sql.sightings import SCHEMA, PostgresSightings
from wrasse.clock import EPOCH, SystemClock
from wrasse.errors import ConfigError, Refused, StoreUnavailable
from wrasse.ports.catalog import Query
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, stored_name
from wrasse.ports.sightings import Change, CompleteScan, Evidence, NewSighting, Sighting, SightingChange, SightingState
from wrasse.runtime.open_ports import sweep_home

END_SESSIONS = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'wrasse'"
AT = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
async def url(postgres_url: str) -> AsyncIterator[str]:
    async with fresh_postgres(postgres_url) as url:
        yield url


SECOND = timedelta(seconds=1)
DUE = {"b": 3, "é": 1, "a/1": 2}


def sighting(unit: str) -> Sighting:
    return Sighting(unit, Evidence.SUPERSEDED, "f1", 7, b"files", 1, AT, 0)


def made(number: int) -> CompleteScan:
    return CompleteScan("r", f"round-{number}", number, AT, AT, number, {})


async def test_several_processes_may_make_the_tables_at_once(url: str) -> None:
    opened = await asyncio.gather(*(PostgresSightings.open(url) for _ in range(4)))
    assert [(await each.standing("r")).last for each in opened] == [None] * 4
    for each in opened:
        await each.close()


async def test_of_two_rounds_at_once_one_is_kept_and_the_other_is_told(url: str) -> None:
    first, second = await PostgresSightings.open(url), await PostgresSightings.open(url)
    ends = await asyncio.gather(
        first.commit(made(1), [[NewSighting(sighting("a/"))]]), second.commit(made(1), [[NewSighting(sighting("b/"))]])
    )
    assert sorted(ends) == [False, True]
    kept = "a/" if ends[0] else "b/"
    assert [each.unit for each in await first.page("r", None, 10)] == [kept]
    await first.close()
    await second.close()


async def test_a_connection_that_ends_in_the_middle_of_a_round_leaves_the_one_before_it(url: str) -> None:
    store = await PostgresSightings.open(url)
    assert await store.commit(made(1), [[NewSighting(sighting("a/"))]])

    class Cut:
        def __iter__(self) -> Iterator[Sequence[Change]]:
            yield [NewSighting(sighting("b/"))]
            with psycopg.connect(url, autocommit=True) as db:
                db.execute(END_SESSIONS)
            yield [NewSighting(sighting("c/"))]

    with pytest.raises(StoreUnavailable):
        await store.commit(made(2), Cut())
    assert (await store.standing("r")).last == made(1)
    assert [each.unit for each in await store.page("r", None, 10)] == ["a/"]
    await store.close()


async def test_marks_from_two_processes_in_any_order_never_wait_for_each_other_for_ever(url: str) -> None:
    first, second = await PostgresSightings.open(url), await PostgresSightings.open(url)
    units = [f"{number:03}/" for number in range(200)]
    await first.commit(made(1), [[NewSighting(sighting(unit)) for unit in units]])
    marks = [SightingChange(unit, SightingState.SEEN, "f1", SightingState.MOVED, "round-1", 1) for unit in units]
    one, other = await asyncio.gather(first.mark("r", marks), second.mark("r", marks[::-1]))
    ends = [{mine, theirs} for mine, theirs in zip(one, list(other)[::-1], strict=True)]
    assert ends == [{Outcome.DONE, Outcome.CONFLICT}] * 200
    await first.close()
    await second.close()


async def test_a_user_who_may_not_create_tables_is_told_and_can_use_existing_ones(url: str) -> None:
    schema = url.rpartition("%3D")[2]
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE ROLE plain_{schema} LOGIN; GRANT USAGE ON SCHEMA {schema} TO plain_{schema}")  # type: ignore[arg-type]
    plain = url.replace("postgres@", f"plain_{schema}@")
    with pytest.raises(ConfigError, match="refuses this user"):
        await PostgresSightings.open(plain)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(SCHEMA)  # type: ignore[arg-type]
        db.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO plain_{schema}")  # type: ignore[arg-type]
    store = await PostgresSightings.open(plain)
    assert await store.commit(made(1), [[NewSighting(sighting("a/"))]])
    await store.close()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"DROP OWNED BY plain_{schema}; DROP ROLE plain_{schema}")  # type: ignore[arg-type]


async def test_a_replica_is_refused_for_references_and_for_sightings() -> None:
    with postgres(replica=True) as url:
        catalog = SqlCatalog.open(url, [Query("q", "SELECT 'a' AS key")])
        with pytest.raises(Refused, match="is a replica"):
            await catalog.referenced(["a"])
        with pytest.raises(Refused, match="is a replica"):
            async with catalog.snapshot():
                raise AssertionError("it opened")
        await catalog.close()
        with pytest.raises(Refused, match="is a replica"):
            await PostgresSightings.open(url)


async def test_other_databases_keep_no_sightings() -> None:
    with pytest.raises(ConfigError, match="keeps no sightings"):
        await PostgresSightings.open("mysql://db/app")


async def test_the_lease_of_a_root_is_beside_its_sightings_so_that_one_engine_acts_on_it(url: str) -> None:
    first, second = await PostgresSightings.open(url), await PostgresSightings.open(url)
    clock = SystemClock()
    one, two = (sweep_home(store, clock) for store in (first, second))
    held = await one.lease_manager.acquire("sweep/orphan_objects@root", "one", timedelta(seconds=30))
    assert held is not None
    assert await two.lease_manager.acquire("sweep/orphan_objects@root", "two", timedelta(seconds=30)) is None
    await one.lease_manager.release(held)
    assert await two.lease_manager.acquire("sweep/orphan_objects@root", "two", timedelta(seconds=30)) is not None
    await first.close()
    await second.close()


async def test_records_beside_sightings_are_conditional_ordered_and_due(url: str) -> None:
    store = await PostgresSightings.open(url)
    records = store.records(Collection.named("things"))
    made = [await records.create(key, key.encode(), due_at=EPOCH + due * SECOND, nonce="n") for key, due in DUE.items()]
    assert [bool(each) for each in made] == [True] * len(DUE)
    assert (await records.create("b", b"other")).outcome is Outcome.CONFLICT
    assert (await records.create("b", b"b", nonce="n")).outcome is Outcome.DONE  # asked again
    assert (await records.put("b", b"x", at="7")).outcome is Outcome.CONFLICT
    assert await records.put("b", b"new", at=made[0].version or "", due_at=None)
    names = [record.key for record in await records.page("", None, 10)]
    assert names == sorted(DUE, key=stored_name)
    first = await records.page("", None, 1)
    rest = await records.page("", first.cursor, 10)
    assert [*(each.key for each in first), *(each.key for each in rest)] == names
    assert [record.key for record in await records.due(None, None, 10)] == ["é", "a/1"]
    one = await records.due(None, None, 1)
    assert [record.key for record in await records.due(None, one.cursor, 10)] == ["a/1"]
    assert await records.delete("b", at="2")
    assert await records.get("b") is None
    await store.close()
