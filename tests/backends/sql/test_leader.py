"""Leadership by an advisory lock of PostgreSQL: one at a time, lost with the connection, refused behind a pooler."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import psycopg
import pytest

from servers.pooler import pooler
from wrasse.backends.sql.catalog import SqlCatalog, SqlLeader, lock_id
from wrasse.errors import Refused
from wrasse.ports.catalog import Query

QUERIES = [Query("q", "SELECT 'a' AS key")]


class Processes:
    """Processes, each with a connection of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.catalogs: list[SqlCatalog] = []

    def start(self, url: str = "", name: str = "scheduler") -> SqlLeader:
        self.catalogs.append(SqlCatalog.open(url or self.url, QUERIES))
        leader = self.catalogs[-1].leader(name)
        assert leader is not None
        return leader


@pytest.fixture
async def processes(postgres_url: str) -> AsyncIterator[Processes]:
    processes = Processes(postgres_url)
    yield processes
    for catalog in processes.catalogs:
        await catalog.close()


def cut(url: str) -> None:
    """Another program ends the sessions of wrasse on the server."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'wrasse'")


async def test_one_process_leads_and_the_others_are_told(processes: Processes) -> None:
    first, second, other = processes.start(), processes.start(), processes.start(name="another")
    assert await first.pause_reason() is None
    assert "another process has the lock 'scheduler'" in str(await second.pause_reason())
    assert await other.pause_reason() is None


async def test_leadership_goes_on_when_it_is_given_up_however_often_it_was_asked_for(processes: Processes) -> None:
    first, second = processes.start(), processes.start()
    assert [await first.acquire(), await first.acquire(), await first.pause_reason()] == [True, True, None]
    await first.release()
    assert await second.acquire()
    assert not await first.acquire()


async def test_leadership_that_is_lost_in_a_run_is_not_taken_again_before_the_next(processes: Processes) -> None:
    leader = processes.start()
    assert await leader.pause_reason() is None
    cut(processes.url)
    assert "was lost in this run" in str(await leader.pause_reason())
    assert "was lost in this run" in str(await leader.pause_reason())
    leader.recall(None)
    assert await leader.pause_reason() is None


async def test_a_process_that_loses_the_connection_loses_leadership_with_it(processes: Processes) -> None:
    first, second = processes.start(), processes.start()
    assert await first.pause_reason() is None
    cut(processes.url)
    assert await second.pause_reason() is None
    # Its catalog connects again and answers; that does not make it the leader.
    await processes.catalogs[0].referenced(["a"])
    assert "was lost in this run" in str(await first.pause_reason())


async def test_the_last_lookup_does_not_cost_leadership(processes: Processes) -> None:
    leader = processes.start()
    assert await leader.pause_reason() is None
    for _ in range(3):
        assert await processes.catalogs[0].referenced(["a"]) != [None]
    assert await leader.pause_reason() is None


async def test_a_pooler_that_hands_out_sessions_by_the_transaction_is_refused(processes: Processes) -> None:
    port = urlsplit(processes.url).port
    assert port is not None
    with pooler(port) as between:
        leader = processes.start(processes.url.replace(f":{port}/", f":{between.port}/"))
        assert await processes.catalogs[0].referenced(["a"]) != [None]
        with pytest.raises(Refused, match="behind a pooler"):
            await leader.acquire()


def test_a_lock_has_the_number_that_the_coordinator_of_the_design_document_gives_it() -> None:
    first = hashlib.sha256(b"scheduler").digest()[:8]
    assert lock_id("scheduler") == int.from_bytes(first) & (2**63 - 1)


def test_other_databases_have_no_such_lock() -> None:
    assert SqlCatalog.open("mysql://db/app", QUERIES).leader("scheduler") is None
