"""References in MariaDB or MySQL: the same promises as on PostgreSQL. Long forms, where WRASSE_TEST_MYSQL names one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pymysql
import pytest

from orphan_field import HOUR, SEED, Field, at_key
from servers.mariadb import connected, database
from wrasse.backends.sql.catalog import SqlCatalog
from wrasse.errors import ConfigError, Refused, StoreUnavailable
from wrasse.orphans.root import Workspaces, workspaces_queries
from wrasse.ports.catalog import Query

pytestmark = pytest.mark.full


class User:
    """A user with a database of their own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.db: pymysql.Connection = connected(url)  # type: ignore[type-arg]
        self.db.select_db(url.rpartition("/")[2])
        self.catalogs: list[SqlCatalog] = []

    def run(self, sql: str) -> tuple[object, ...]:
        with self.db.cursor() as cursor:
            cursor.execute(sql)
            self.db.commit()
            return tuple(cursor.fetchall())

    def catalog(self, *queries: Query) -> SqlCatalog:
        self.catalogs.append(SqlCatalog.open(self.url, queries))
        return self.catalogs[-1]


@pytest.fixture
async def user(mysql_url: str) -> AsyncIterator[User]:
    with database(mysql_url) as url:
        user = User(url)
        yield user
        for catalog in user.catalogs:
            await catalog.close()
        user.db.close()


async def test_the_table_of_the_design_document_protects_as_it_says(user: User) -> None:
    user.run("CREATE TABLE workspaces (id varchar(40), archive_key text, op_id varchar(40), deleted_at timestamp NULL)")
    user.run("""INSERT INTO workspaces VALUES
        ('ws1', 'archives/ws1/aaa/home.tar.gz', 'bbb', NULL), ('ws2', NULL, 'ccc', now()), ('ws3', '', '', NULL)""")
    catalog = user.catalog(*workspaces_queries(Workspaces()))
    units = [f"archives/{each}/" for each in ("ws1/aaa", "ws1/bbb", "ws1/old", "WS1/aaa", "ws12/aaa", "ws2/ccc")]
    found = await catalog.referenced(units, below=True)
    assert [each and (each.rule, each.ended_at is None) for each in found] == [
        ("archive_key", True), ("op_id", True), None, None, None, ("op_id", False),
    ]  # fmt: skip


async def test_orphans_go_and_what_its_rows_name_stays(user: User, tmp_path: Path) -> None:
    user.run("CREATE TABLE workspaces (id varchar(40), archive_key text, op_id varchar(40), deleted_at datetime)")
    user.run(f"INSERT INTO workspaces VALUES ('ws1', '{at_key('ws1', 'new')}', '', NULL)")
    field = Field(tmp_path, SEED, catalog=user.catalog(*workspaces_queries(Workspaces())))
    for op in ("old", "new"):
        await field.put("ws1", op)
    await field.arm()
    # The database has a clock of its own, which the grace counts by, too: so much time does not pass there.
    for gap in (HOUR, HOUR, HOUR):
        assert not (await field.run(after=gap)).errors
    assert len(await field.keys()) == 4
    report = await field.run(dry=True)
    assert not report.errors
    found = await field.sightings.page(field.root.name, None, 10)
    assert [each.unit for each in found] == ["archives/ws1/old/"]


async def test_a_server_that_only_reads_gives_no_verdict(user: User) -> None:
    user.run("CREATE TABLE refs (`key` text)")
    catalog = user.catalog(Query("refs", "refs"))
    user.run("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(Refused, match="read-only"):
            await catalog.referenced(["a"])
    finally:
        user.run("SET GLOBAL read_only = 0")


async def test_a_query_that_takes_too_long_is_stopped_on_the_server_too(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wrasse.backends.sql.catalog.LOOKUP_MAX", 1.0)
    slow = user.catalog(Query("refs", "SELECT 'a' AS \"key\", SLEEP(30) AS prefix"))
    with pytest.raises(StoreUnavailable):
        await slow.referenced(["a"])
    async with asyncio.timeout(20):
        busy = "info LIKE '%SLEEP(30)%' AND id <> CONNECTION_ID()"
        while user.run(  # noqa: ASYNC110  # the server rings no bell
            f"SELECT count(*) FROM information_schema.processlist WHERE {busy}"
        ) != ((0,),):
            await asyncio.sleep(0.05)


async def test_the_doctor_warns_when_no_index_can_be_used(user: User) -> None:
    user.run("CREATE TABLE refs (`key` varchar(80))")
    user.run("CREATE TABLE n (n int)")
    user.run("INSERT INTO n VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)")
    user.run("INSERT INTO refs SELECT CONCAT('archives/', md5(a.n + 10*b.n + 100*c.n + 1000*d.n + 10000*e.n), '/x') "
             "FROM n a, n b, n c, n d, n e WHERE e.n < 2")  # fmt: skip
    (finding,) = await user.catalog(Query("refs", "refs")).examine()
    assert (finding.state, "whole table" in finding.what) == ("warn", True)
    user.run("CREATE INDEX refs_key ON refs (`key`)")
    user.run("ANALYZE TABLE refs")
    assert [each.state for each in await user.catalog(Query("refs", "refs")).examine()] == ["ok"]


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("nowhere", "doesn't exist"),
        ("SELEKT 1", "error in your SQL"),
        ("SELECT 1 AS other", "no column 'key'"),
        ('SELECT 5 AS "key"', "not a text"),
    ],
)
async def test_what_is_wrong_with_a_query_is_an_error_and_never_an_answer(user: User, sql: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        await user.catalog(Query("refs", sql)).referenced(["a"])
