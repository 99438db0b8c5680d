"""Orphans with references in a real MariaDB or MySQL, as a user types it and by the daemon. Long forms, where
WRASSE_TEST_MYSQL names one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cli.command_line import wrasse
from processes.daemons import running, until
from servers.mariadb import connected, database

pytestmark = pytest.mark.full
CONFIG = """
orphans:
  archives:
    preset: workspaces
    database: {url}
    superseded: 0s
    soft_deleted: 0s
    age_min: 0s
    writer_timeout: 0s
    writer_retries: 0
    interval: 1s
"""
NEW = {"ws1/new/home.tar.gz": "new", "ws1/new/home.tar.gz.meta": "sha256"}
ALL = {**NEW, "ws1/old/home.tar.gz": "old", "ws1/old/home.tar.gz.meta": "sha256"}


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mysql_url: str) -> Iterator[Any]:
    """The application's database, with a workspace that has its archive and an older one."""
    monkeypatch.chdir(tmp_path)
    for key, text in ALL.items():
        file = tmp_path / "wrasse-data/archives" / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with database(mysql_url) as url, connected(url) as link:
        link.autocommit(True)
        link.select_db(url.rpartition("/")[2])
        with link.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE workspaces (id varchar(40), archive_key varchar(700), op_id varchar(40), "
                "deleted_at timestamp NULL, KEY (archive_key))"
            )
            cursor.execute("INSERT INTO workspaces VALUES ('ws1', 'archives/ws1/new/home.tar.gz', 'new', NULL)")
            (tmp_path / "wrasse.yaml").write_text(CONFIG.format(url=url))
            yield cursor


def archives() -> dict[str, str]:
    root, found = Path("wrasse-data/archives"), {}
    for path in root.rglob("*.*"):
        with suppress(FileNotFoundError):  # a daemon may move it away just now
            found[str(path.relative_to(root))] = path.read_text()
    return found


def test_a_plan_is_read_carried_out_and_undone(db: Any) -> None:
    for _ in range(2):
        planned = wrasse("orphans", "plan", "--out", "plan.jsonl")
        assert planned.code == 0, planned.err
    lines = [json.loads(line) for line in Path("plan.jsonl").read_text().splitlines()[1:]]
    assert [(line["verb"], line["unit"]) for line in lines] == [("quarantine", "archives/ws1/old/")]
    assert "archive_key" in wrasse("orphans", "why", "archives/ws1/new/home.tar.gz").out
    done = wrasse("orphans", "apply", "plan.jsonl", "--json")
    assert (done.code, done.json["done"], archives()) == (0, 1, NEW), done.err
    assert (wrasse("orphans", "undo", done.json["run"]).code, archives()) == (0, ALL)


def test_the_doctor_speaks_of_references(db: Any) -> None:
    assert "archive_key of mysql://" in wrasse("doctor").out


def test_the_daemon_takes_orphans_away_and_brings_back_what_is_referenced_again(db: Any, tmp_path: Path) -> None:
    for _ in range(2):
        assert wrasse("orphans", "plan").code == 0
    assert wrasse("orphans", "arm", "archives").code == 0
    with running(tmp_path, "--role=sweeper") as daemon:
        until(lambda: archives() == NEW, "the older archive is in quarantine")
        db.execute("INSERT INTO workspaces VALUES ('ws2', 'archives/ws1/old/home.tar.gz', NULL, NULL)")
        until(lambda: archives() == ALL, "the older archive is back")
        daemon.signal()
        assert daemon.end() == 0
