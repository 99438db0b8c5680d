"""References in databases of others: any query, never a change, and an error where something is odd."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import psycopg
import pytest

from servers.proxy import Proxy
from wrasse.backends.sql.address import SqlAddress
from wrasse.backends.sql.catalog import ReferenceQuery, SqlCatalog, pieces
from wrasse.backends.sql.dialect import Postgres, array
from wrasse.errors import ConfigError, StoreBroken, StoreUnavailable, WrasseError
from wrasse.orphans.root import Workspaces, workspaces_queries
from wrasse.ports.catalog import Query, Reference

T = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class User:
    """A user with a schema of their own."""

    def __init__(self, url: str) -> None:
        self.name = f"u{uuid.uuid4().hex}"
        self.db = psycopg.connect(url, autocommit=True)
        self.db.execute(f"CREATE SCHEMA {self.name}")
        self.db.execute(f"SET search_path = {self.name}")
        self.url = f"{url}?options=-csearch_path%3D{self.name}"
        self.catalogs: list[SqlCatalog] = []

    def run(self, sql: str) -> None:
        self.db.execute(sql)  # type: ignore[arg-type]

    def catalog(self, *sql: str, url: str = "") -> SqlCatalog:
        queries = [Query(f"query {number}", each) for number, each in enumerate(sql, 1)]
        self.catalogs.append(SqlCatalog.open(url or self.url, queries))
        return self.catalogs[-1]


@pytest.fixture
async def user(postgres_url: str) -> AsyncIterator[User]:
    user = User(postgres_url)
    yield user
    for catalog in user.catalogs:
        await catalog.close()
    user.run(f"DROP SCHEMA {user.name} CASCADE")
    user.db.close()


async def shown(catalog: SqlCatalog) -> list[Reference]:
    async with catalog.snapshot() as snapshot:
        return list(await snapshot.page(None, 1000))


async def test_queries_of_several_shapes_are_one_stream(user: User) -> None:
    user.run("CREATE TABLE documents (id int, path varchar(50), gone timestamp)")
    user.run("INSERT INTO documents VALUES (1, 'b', NULL), (2, 'a', '2026-01-02 03:04:05'), (3, NULL, NULL)")
    user.run("CREATE TABLE pins (key char(6), prefix boolean)")
    user.run("INSERT INTO pins VALUES ('aa/', true)")
    catalog = user.catalog(
        "SELECT path AS key, id AS owner, gone AS ended_at FROM documents; ",
        "SELECT 'thumb%' || id AS key, 1767323045 AS ended_at FROM documents WHERE path LIKE 'b%' -- of all",
        "pins",
    )
    assert await shown(catalog) == [
        Reference("a", False, "2", "query 1", T),
        Reference("aa/", True, "", "table pins", None),
        Reference("b", False, "1", "query 1", None),
        Reference("thumb%1", False, "", "query 2", T),
    ]
    found = await catalog.referenced(["a", "aa/x", "thumb%1", "thumbs"])
    assert [each and each.rule for each in found] == ["query 1", "table pins", "query 2", None]


async def test_the_table_of_the_design_document_protects_as_it_says(user: User) -> None:
    user.run("CREATE TABLE workspaces (id text, archive_key text, op_id text, deleted_at timestamptz)")
    user.run("""INSERT INTO workspaces VALUES
        ('ws1', 'archives/ws1/aaa/home.tar.gz', 'bbb', NULL), ('ws2', NULL, 'ccc', now()), ('ws3', '', '', NULL)""")
    catalog = SqlCatalog.open(user.url, workspaces_queries(Workspaces()))
    user.catalogs.append(catalog)
    units = [f"archives/{each}/" for each in ("ws1/aaa", "ws1/bbb", "ws1/old", "ws12/aaa", "ws2/ccc")]
    found = await catalog.referenced(units, below=True)
    assert [each and (each.rule, each.ended_at is None) for each in found] == [
        ("archive_key", True), ("op_id", True), None, None, ("op_id", False),
    ]  # fmt: skip


async def test_a_database_that_sorts_by_letters_gives_no_verdict(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_letters(self: Postgres, plain: str, key: str) -> tuple[str, dict[str, object]]:
        return f'SELECT * FROM ({plain}) r WHERE "key" >= %(key)s ORDER BY lower("key")', {"key": key}

    user.run("CREATE TABLE refs AS SELECT unnest(ARRAY['a', 'B', 'c']) AS key")
    catalog = user.catalog("refs")
    assert [each.key for each in await shown(catalog)] == ["B", "a", "c"]
    monkeypatch.setattr(Postgres, "ordered", by_letters)
    with pytest.raises(StoreBroken, match="does not sort keys by their bytes"):
        await shown(catalog)


async def test_a_stream_that_is_shorter_than_its_count_gives_no_verdict(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(self: Postgres, plain: str, key: str) -> tuple[str, dict[str, object]]:
        return f'SELECT * FROM ({plain}) r WHERE "key" >= %(key)s ORDER BY "key" LIMIT 2', {"key": key}

    user.run("CREATE TABLE refs AS SELECT unnest(ARRAY['a', 'b', 'c']) AS key")
    monkeypatch.setattr(Postgres, "ordered", cut_short)
    with pytest.raises(StoreBroken, match="sent 2 of 3 references"):
        await shown(user.catalog("refs"))


@pytest.mark.parametrize(("sql", "kind", "says"), [
    ("SELECT 1 AS id", ConfigError, "no column 'key'"),
    ("SELECT 1 AS key", ConfigError, "is a number, not a text"),
    ("SELECT 'a'::bytea AS key", ConfigError, "is bytea, not a text"),
    ("SELECT key FROM nowhere", ConfigError, "nowhere"),
    ("SELECT lost AS key FROM pg_class", ConfigError, "lost"),
    ("SELEC 1", ConfigError, "refuses a query"),
    ("SELECT 'a' AS key, 2 AS prefix", StoreBroken, "'prefix'"),
    ("SELECT 'a' AS key, 'x' AS prefix", StoreBroken, "cannot be read"),
    ("SELECT 'a' AS key, 'soon' AS ended_at", StoreBroken, "'ended_at'"),
    ("SELECT 'a' AS key, 'infinity'::timestamptz AS ended_at", StoreBroken, "'ended_at'"),
    ("SELECT rolpassword AS key FROM pg_authid WHERE pg_sleep(0) IS NULL AND 1 / (SELECT 0) = 1", StoreBroken, "22012"),
])  # fmt: skip
async def test_what_is_wrong_with_a_query_is_an_error_and_never_an_answer(
    user: User, sql: str, kind: type[WrasseError], says: str
) -> None:
    catalog = user.catalog(sql)
    with pytest.raises(kind, match=says):
        await shown(catalog)
    with pytest.raises(kind):
        await catalog.referenced(["a"])


async def test_a_query_that_takes_too_long_is_stopped_and_the_next_one_is_answered(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wrasse.backends.sql.catalog.LOOKUP_MAX", 1.0)
    slow = user.catalog("SELECT 'a' AS key, pg_sleep(30) IS NULL AS prefix")
    with pytest.raises(StoreUnavailable, match=r"took too long|did not answer"):
        await slow.referenced(["a"])
    monkeypatch.setattr("wrasse.backends.sql.catalog.LOOKUP_MAX", 30.0)
    assert await user.catalog("SELECT 'a' AS key").referenced(["a"]) == [Reference("a", rule="query 1")]


async def test_nothing_can_be_changed_by_a_query(user: User) -> None:
    user.run("CREATE TABLE refs (key text)")
    user.run("CREATE FUNCTION sneaky() RETURNS text LANGUAGE sql AS $$ INSERT INTO refs VALUES ('x') RETURNING key $$")
    with pytest.raises(WrasseError, match="read-only"):
        await shown(user.catalog("SELECT sneaky() AS key"))


async def test_a_connection_that_is_cut_gives_no_verdict_and_the_next_lookup_connects_again(user: User) -> None:
    user.run("CREATE TABLE refs AS SELECT 'k' || n AS key FROM generate_series(1, 50000) n")
    catalog = user.catalog("refs")
    async with catalog.snapshot() as snapshot:
        first = await snapshot.page(None, 10)
        user.run("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'wrasse'")
        with pytest.raises(StoreUnavailable):
            await snapshot.page(first.cursor, 100_000)
    assert len(await shown(catalog)) == 1000


async def test_a_server_that_stops_answering_is_given_up(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wrasse.backends.sql.catalog.LOOKUP_MAX", 1.0)
    port = user.db.info.port
    proxy = Proxy(port)
    await proxy.start()
    catalog = user.catalog("SELECT 'a' AS key", url=user.url.replace(f":{port}/", f":{proxy.port}/"))
    assert await catalog.referenced(["a"])
    proxy.delay = 600.0
    with pytest.raises(StoreUnavailable, match="did not answer in 1 s"):
        await catalog.referenced(["a"])
    await proxy.close()


async def test_a_caller_that_stops_waiting_leaves_no_query_behind(user: User) -> None:
    catalog = user.catalog("SELECT 'a' AS key, pg_sleep(60) IS NULL AS prefix")
    task = asyncio.create_task(catalog.referenced(["a"]))
    busy = "state = 'active' AND query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()"
    async with asyncio.timeout(30):
        while user.db.execute(  # noqa: ASYNC110  # the server rings no bell
            f"SELECT count(*) FROM pg_stat_activity WHERE {busy}"
        ).fetchone() == (0,):
            await asyncio.sleep(0.01)
    task.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_the_doctor_warns_when_no_index_can_be_used(user: User) -> None:
    user.run("CREATE TABLE refs AS SELECT 'archives/' || md5(n::text) || '/x' AS key FROM generate_series(1, 20000) n")
    user.run("ANALYZE refs")
    catalog = user.catalog("refs", "SELECT nothing FROM nowhere")
    assert [each.state for each in await catalog.examine()] == ["fail"]
    (finding,) = await user.catalog("refs").examine()
    assert (finding.state, "whole table" in finding.what) == ("warn", True)
    user.run('CREATE INDEX ON refs (key COLLATE "C")')
    user.run("ANALYZE refs")
    assert [each.state for each in await user.catalog("refs").examine()] == ["ok"]


async def test_keys_that_no_text_can_hold_are_asked_for_as_far_as_one_can(user: User) -> None:
    catalog = user.catalog("SELECT 'a/' AS key, true AS prefix")
    asked = ["a/\udcff", "a/\0", "\udcff", "b\0/", 'a"\\/x', "a/{,}"]
    found = await catalog.referenced(asked, below=True)
    assert [each is not None for each in found] == [True, True, False, False, False, True]


async def test_a_prefix_of_another_ending_is_found_once_a_snapshot_has_shown_it(user: User) -> None:
    user.run("CREATE TABLE refs (key text, prefix int)")
    user.run("INSERT INTO refs VALUES ('a/b-', 1), ('x/', 1)")
    catalog = user.catalog("refs")
    await shown(catalog)
    found = await catalog.referenced(["a/b-c/", "x/y/", "a/b/"], below=True)
    assert [each and each.key for each in found] == ["a/b-", "x/", None]


def test_secrets_of_a_url_are_not_shown() -> None:
    urls = ["postgresql://me:secret@db.example:5433/app?sslpassword=secret", "mysql://me:secret@db.example/app"]
    assert [SqlAddress.parse(url).shown for url in urls] == [
        "postgresql://db.example:5433/app",
        "mysql://db.example/app",
    ]
    with pytest.raises(ConfigError) as error:
        SqlAddress.parse("oracle://me:secret@db/app")
    assert "secret" not in str(error.value)


async def test_a_refused_password_does_not_show_it() -> None:
    catalog = SqlCatalog.open("postgresql://me:hidden@127.0.0.1:1/app", [Query("q", "refs")])
    with pytest.raises(StoreUnavailable) as error:
        await catalog.referenced(["a"])
    assert "hidden" not in str(error.value)
    await catalog.close()


def test_every_piece_is_asked_for_when_nothing_is_known_of_prefixes() -> None:
    assert pieces("a/b", None) == ["", "a", "a/", "a/b"]
    assert pieces("a/b-c/d", frozenset("/-")) == ["", "a/", "a/b-", "a/b-c/"]
    assert ReferenceQuery(["a/b/", "a/b/c/", "d/"], frozenset("/"), below=True).directories == ["a/b/", "d/"]


def test_texts_in_an_array_are_quoted() -> None:
    assert array(['a"b', "c\\d", ""]) == '{"a\\"b","c\\\\d",""}'
    assert array([]) == "{}"
