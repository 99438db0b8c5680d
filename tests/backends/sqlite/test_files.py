"""The file itself: old, new, foreign, corrupt, missing, read-only, moved. Each has one clear error; nothing is lost."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from pathlib import Path

import apsw
import pytest

from backends.sqlite import child as sqlite_child
from backends.sqlite.law import broken_laws
from wrasse.backends.sqlite import connection as sqlite_connection
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import EPOCH
from wrasse.errors import StoreBroken, StoreUnavailable, UsageError
from wrasse.ports.jobs import Enqueued, Job
from wrasse.ports.sightings import CompleteScan

OLD = ("CREATE TABLE old (n INTEGER); INSERT INTO old VALUES (1), (2);",)
NEWER = (*OLD, "ALTER TABLE old ADD COLUMN twice INTEGER; UPDATE old SET twice = 2 * n;")


def connection(path: Path) -> apsw.Connection:
    return apsw.Connection(str(path))


async def use(path: Path) -> None:
    store = await Sqlite.open(path)
    try:
        for n in range(500):
            await store.jobs.get(f"job-{n}")
    finally:
        await store.close()


async def test_a_missing_file_is_made(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    await store.close()
    assert connection(tmp_path / "wrasse.db").pragma("user_version") == len(sqlite_connection.load_steps())


async def test_an_empty_file_is_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "wrasse.db"
    path.touch()
    store = await Sqlite.open(path)
    assert await store.jobs.enqueue([Job("a")], request="r") == (Enqueued("a", new=True),)
    await store.close()


async def test_a_database_keeps_its_identity_for_life(tmp_path: Path) -> None:
    identities = []
    for name in ("one.db", "one.db", "two.db"):
        store = await Sqlite.open(tmp_path / name)
        identities.append((await store.health_sample()).identity)
        await store.close()
    assert identities[0] == identities[1] != identities[2]


def test_an_old_database_is_brought_up_to_date_with_its_data(tmp_path: Path) -> None:
    db = connection(tmp_path / "old.db")
    sqlite_connection.prepare(db, "old.db", OLD)
    sqlite_connection.prepare(db, "old.db", NEWER)
    assert db.execute("SELECT n, twice FROM old").fetchall() == [(1, 2), (2, 4)]


def test_a_step_that_fails_leaves_the_old_version(tmp_path: Path) -> None:
    db = connection(tmp_path / "old.db")
    sqlite_connection.prepare(db, "old.db", OLD)
    with pytest.raises(apsw.SQLError):
        sqlite_connection.prepare(db, "old.db", (*NEWER, "INSERT INTO nowhere VALUES (1);"))
    assert (db.pragma("user_version"), db.execute("SELECT * FROM old").fetchall()) == (1, [(1,), (2,)])


async def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "wrasse.db"
    db = connection(path)
    sqlite_connection.prepare(db, "new", [*sqlite_connection.load_steps(), "CREATE TABLE next_year (n INTEGER);"])
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreBroken, match=r"schema version \d+, and this version of wrasse knows \d+"):
        await Sqlite.open(path)
    assert path.read_bytes() == before


async def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "wrasse.db"
    path.write_text("these are my notes\n" * 500)
    with pytest.raises(StoreBroken, match="is not a database"):
        await Sqlite.open(path)
    assert path.read_text() == "these are my notes\n" * 500


@pytest.mark.parametrize(
    "sql", ["CREATE TABLE theirs (n)", "PRAGMA user_version = 3", "PRAGMA application_id = 252006673"]
)
async def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path, sql: str) -> None:
    path = tmp_path / "theirs.db"
    db = connection(path)
    db.execute(sql)
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreBroken, match="of another program"):
        await Sqlite.open(path)
    assert path.read_bytes() == before


async def test_a_corrupt_database_says_so(tmp_path: Path) -> None:
    path = tmp_path / "wrasse.db"
    store = await Sqlite.open(path)
    await store.jobs.enqueue([Job(f"job-{n}", payload=b"x" * 500) for n in range(500)], request="r")
    await store.close()
    content = bytearray(path.read_bytes())
    content[8 * 4096 : -4096] = os.urandom(len(content) - 9 * 4096)
    path.write_bytes(content)
    with pytest.raises(StoreBroken, match="is corrupt"):
        await use(path)


async def test_a_path_that_cannot_be_opened_says_which_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be opened") as caught:
        await Sqlite.open(tmp_path / "no/such/directory/wrasse.db")
    assert "directory" in caught.value.do


@pytest.mark.parametrize("name", [".", "notes/wrasse.db", "itself", "pipe", "n" * 300])
async def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes").write_text("a file")
    (tmp_path / "itself").symlink_to("itself")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreBroken, match=f"{re.escape(str(tmp_path / name))} is not a database: ") as caught:
        await Sqlite.open(tmp_path / name)
    assert "another file" in caught.value.do


@pytest.mark.parametrize("path", ["", ":memory:"])
async def test_a_name_that_is_no_file_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="is not a file"):
        await Sqlite.open(path)


@pytest.mark.parametrize(
    ("exists", "directory", "says"),
    [
        pytest.param(False, 0o555, "cannot be opened", id="no file, and none can be made"),
        pytest.param(True, 0o555, "cannot be written", id="a file in a directory for reading"),
        pytest.param(True, 0o777, "cannot be written", id="a file for reading"),
    ],
)
def test_what_is_read_only_says_so(exists: bool, directory: int, says: str) -> None:
    # Not below tmp_path, which nobody but its owner can reach.
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "wrasse.db"
        if exists:
            sqlite_connection.prepare(connection(path), "wrasse.db", sqlite_connection.load_steps())
            path.chmod(0o444)
        path.parent.chmod(directory)
        said = sqlite_child.start("opens_as_nobody", path).communicate("go\n")[0].splitlines()[-1]
        path.parent.chmod(0o755)
    assert said.startswith("StoreUnavailable: ")
    assert says in said


def test_the_switch_to_a_log_waits_for_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "wrasse.db"
    other = connection(path)
    other.execute("BEGIN EXCLUSIVE")
    db = connection(path)  # not patient by itself
    timer = threading.Timer(0.1, lambda: other.execute("ROLLBACK"))
    timer.start()
    sqlite_connection._use_wal(db, "wrasse.db")
    timer.join()
    assert db.pragma("journal_mode") == "wal"


def test_a_database_that_another_process_makes_during_the_first_check_is_ours(tmp_path: Path) -> None:
    path = tmp_path / "wrasse.db"
    db, other, made = connection(path), connection(path), list[str]()
    sqlite_connection._use_wal(db, "wrasse.db")

    def traced(cursor: object, sql: str, bindings: object) -> bool:
        if "user_version" in sql and not made:
            made.append(sql)
            sqlite_connection.prepare(other, "wrasse.db", sqlite_connection.load_steps())
        return True

    db.exec_trace = traced
    sqlite_connection.prepare(db, "wrasse.db", sqlite_connection.load_steps())
    assert made
    assert sqlite_connection.identity(db) == sqlite_connection.identity(other)


async def test_a_file_that_was_moved_away_accepts_no_more_jobs(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    (tmp_path / "wrasse.db").rename(tmp_path / "backup.db")
    with pytest.raises(StoreUnavailable, match="was moved, replaced or deleted"):
        await store.jobs.enqueue([Job("a")], request="r")
    (tmp_path / "backup.db").rename(tmp_path / "wrasse.db")
    assert await store.jobs.enqueue([Job("a")], request="r") == (Enqueued("a", new=True),)
    await store.close()


async def test_after_close_everything_is_refused(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailable, match="is closed"):
        await store.jobs.enqueue([Job("a")], request="r")
    with pytest.raises(StoreUnavailable, match="is closed"):
        await store.health_sample()


def test_many_processes_that_open_a_new_database_at_once_all_succeed(tmp_path: Path) -> None:
    children = [sqlite_child.start("opens", tmp_path / "wrasse.db") for _ in range(6)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
    said = []
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        said += sqlite_child.finish(child)
    assert said == ["opened"] * 6
    assert broken_laws(tmp_path / "wrasse.db") == []


async def test_of_the_scans_of_each_root_only_the_last_is_kept(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    for root, number in (("a", 1), ("a", 2), ("b", 1), ("a", 3)):
        assert await store.sightings.commit(CompleteScan(root, f"r{number}", number, EPOCH, EPOCH, 1, {}), [])
    await store.close()
    rows = connection(tmp_path / "wrasse.db").execute("SELECT root, number FROM orphan_rounds ORDER BY root")
    assert list(rows) == [("a", 3), ("b", 1)]
