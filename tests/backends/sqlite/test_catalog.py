"""A catalog in a user's own SQLite database: any query, never a change, and an error where something is odd."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import apsw
import pytest

from wrasse.backends.sqlite import catalog as statements
from wrasse.backends.sqlite.catalog import SqliteCatalog
from wrasse.clock import ManualClock
from wrasse.errors import ConfigError, Refused, StoreBroken, StoreUnavailable, WrasseError
from wrasse.ports.catalog import Query, Reference


@pytest.fixture
def user(tmp_path: Path) -> Iterator[apsw.Connection]:
    db = apsw.Connection(str(tmp_path / "app.db"))
    db.execute(
        "CREATE TABLE workspaces (id INTEGER PRIMARY KEY, archive, deleted_at);"
        "CREATE INDEX by_archive ON workspaces (archive);"
    )
    yield db
    db.close()


def catalog_of(user: apsw.Connection, source: str) -> SqliteCatalog:
    return SqliteCatalog(user.filename, source, ManualClock())


async def shown(catalog: SqliteCatalog) -> list[Reference]:
    async with catalog.snapshot() as snapshot:
        return list(await snapshot.page(None, 100))


async def test_a_query_gives_references(user: apsw.Connection) -> None:
    user.execute("INSERT INTO workspaces VALUES (1, 'b', NULL), (2, 'a', '2026-01-02 03:04:05'), (3, NULL, NULL)")
    catalog = catalog_of(
        user,
        """SELECT archive || '/' AS Key, 1 AS prefix, id AS owner, 'archive of ' || id AS rule, deleted_at AS ended_at
           FROM workspaces; """,
    )
    ended = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert await shown(catalog) == [
        Reference("a/", True, "2", "archive of 2", ended),
        Reference("b/", True, "1", "archive of 1", None),
    ]
    found = await catalog.referenced(["a/x", "b/", "b", "c/x"])
    assert [each and each.owner for each in found] == ["2", "1", None, None]


async def test_a_query_may_end_in_a_comment(user: apsw.Connection) -> None:
    user.execute("INSERT INTO workspaces VALUES (1, 'a', NULL)")
    catalog = catalog_of(user, "SELECT archive AS key FROM workspaces -- all")
    assert [each.rule for each in await shown(catalog)] == ["query"]


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        (1767323045, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (1767323045.5, datetime(2026, 1, 2, 3, 4, 5, 500_000, tzinfo=UTC)),
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T04:04:05+01:00", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02", datetime(2026, 1, 2, tzinfo=UTC)),
    ],
)
async def test_the_end_of_a_reference_may_be_written_in_several_ways(
    user: apsw.Connection, value: object, moment: datetime
) -> None:
    user.execute("INSERT INTO workspaces VALUES (1, 'a', ?)", (value,))
    catalog = catalog_of(user, "SELECT archive AS key, deleted_at AS ended_at FROM workspaces")
    assert [each.ended_at for each in await shown(catalog)] == [moment]


@pytest.mark.parametrize(
    ("query", "error", "text"),
    [
        ("workspaces", ConfigError, "no column 'key'"),
        ("nowhere", ConfigError, "no such table"),
        ("SELECT archive AS key FROM", ConfigError, "syntax error"),
        ("DELETE FROM workspaces", ConfigError, "syntax error"),
        ("SELECT id AS key FROM workspaces", StoreBroken, "'key'.* holds a int"),
        ("SELECT archive AS key, 'yes' AS prefix FROM workspaces", StoreBroken, "'prefix'.* holds 'yes'"),
        ("SELECT archive AS key, 'soon' AS ended_at FROM workspaces", StoreBroken, "'ended_at'.* holds 'soon'"),
        ("SELECT archive AS key, 1767323045000 AS ended_at FROM workspaces", StoreBroken, "'ended_at'.* holds 1767"),
        ("SELECT CASE id WHEN 1 THEN 'b' ELSE x'61' END AS key FROM workspaces", StoreBroken, "both texts and blobs"),
    ],
)
async def test_what_cannot_be_understood_is_an_error_and_not_an_absence(
    user: apsw.Connection, query: str, error: type[Exception], text: str
) -> None:
    user.execute("INSERT INTO workspaces VALUES (1, 'a', NULL), (2, 'b', NULL)")
    with pytest.raises(error, match=text):
        await shown(catalog_of(user, query))
    assert user.execute("SELECT count(*) FROM workspaces").get == 2


@pytest.mark.parametrize("content", [None, b"this is no database, but long enough to look like one" * 20])
async def test_a_database_that_is_none_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "app.db").write_bytes(content)
    catalog = SqliteCatalog(tmp_path / "app.db", "refs", ManualClock())
    for ask in (lambda: shown(catalog), lambda: catalog.referenced(["a"])):
        with pytest.raises(WrasseError):
            await ask()
    assert os.listdir(tmp_path) == ([] if content is None else ["app.db"])


async def test_keys_may_be_blobs(user: apsw.Connection) -> None:
    user.executemany("INSERT INTO workspaces VALUES (NULL, ?, NULL)", [(b"b/\xff",), (b"a",), (b"c",)])
    catalog = catalog_of(user, "SELECT archive AS key, archive = x'61' AS prefix FROM workspaces")
    async with catalog.snapshot() as snapshot:
        first = await snapshot.page(None, 1)
        rest = await snapshot.page(first.cursors[0], 10)
        again = await snapshot.page(rest.cursors[0], 10)
    assert [each.key for each in (*first, *rest, *again)] == ["a", "b/\udcff", "c", "c"]
    found = await catalog.referenced(["a", "b/\udcff", "ab", "c", "d"])
    assert [each and each.key for each in found] == ["a", "b/\udcff", "a", "c", None]


async def test_a_database_in_another_encoding_is_refused(tmp_path: Path) -> None:
    db = apsw.Connection(str(tmp_path / "app.db"))
    db.execute("PRAGMA encoding = 'UTF-16'; CREATE TABLE refs (key)")
    db.close()
    with pytest.raises(Refused, match="not in UTF-8"):
        await shown(SqliteCatalog(tmp_path / "app.db", "refs", ManualClock()))


async def test_a_database_that_stays_locked_is_an_error(user: apsw.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wrasse.backends.sqlite.catalog._BUSY_MS", 1)
    user.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailable, match="locked by another process"):
        await catalog_of(user, "SELECT archive AS key FROM workspaces").referenced(["a"])


async def test_looking_up_and_listing_use_the_index(user: apsw.Connection) -> None:
    catalog = catalog_of(user, "SELECT archive AS key, id AS owner, 1 AS prefix FROM workspaces")
    plans: list[str] = []
    async with catalog.snapshot() as snapshot:
        for statement in (statements._ALL, statements._FROM, statements._NAMED, statements._ABOVE):
            text = statement.format(columns=snapshot._columns, source=snapshot._source.sql)
            plans += [row[3] for row in user.execute("EXPLAIN QUERY PLAN " + text, {"form": "a"})]
    assert not any(plan.startswith("SCAN workspaces") and "by_archive" not in plan for plan in plans), plans
    assert "USE TEMP B-TREE FOR ORDER BY" not in plans


async def test_a_cancelled_snapshot_lets_go_of_the_database(user: apsw.Connection) -> None:
    user.execute("INSERT INTO workspaces VALUES (1, 'a', NULL)")
    catalog = catalog_of(user, "SELECT archive AS key FROM workspaces")
    for turns in range(6):
        call = asyncio.ensure_future(shown(catalog))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
    user.execute("BEGIN EXCLUSIVE; ROLLBACK")
    assert [each.key for each in await shown(catalog)] == ["a"]


async def test_several_queries_are_one_view_in_one_order(user: apsw.Connection) -> None:
    user.execute("CREATE TABLE a (key TEXT); CREATE TABLE b (archive TEXT, gone TEXT)")
    user.execute("INSERT INTO a VALUES ('1'), ('3'); INSERT INTO b VALUES ('2/', NULL), ('4/', '2026-01-01T00:00:00')")
    queries = [Query("pin", "a"), Query("op", "SELECT archive AS key, 1 AS prefix, gone AS ended_at FROM b")]
    catalog = SqliteCatalog(user.filename, queries, ManualClock())
    assert [(each.key, each.rule) for each in await shown(catalog)] == [
        ("1", "pin"), ("2/", "op"), ("3", "pin"), ("4/", "op"),
    ]  # fmt: skip
    found = await catalog.referenced(["2/x", "3", "4/x", "5"])
    assert [each and (each.key, each.ended_at is None) for each in found] == [
        ("2/", True), ("3", True), ("4/", False), None,
    ]  # fmt: skip
