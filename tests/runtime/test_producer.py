"""The producer as a user meets it: `wrasse run --role=producer`, its settings, its summary and its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from cli.command_line import typed, wrasse
from processes.daemons import running, until
from servers.valkey import Valkey
from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.options import RedisOptions
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.config.load import load
from wrasse.errors import ConfigError
from wrasse.ports.jobs import JobFilter, JobState

SEED = """\
producer:
  scan_dir: ./inbox
  include_globs: ["**/*"]
  exclude_globs: ["**/*.tmp", "**/.DS_Store"]
  default_priority: low
  high_priority_exts: [".pdf", ".docx"]
  rate_limit_per_sec: 0
  rate_limit_key: jobqueue:rate_limit:producer
"""


@pytest.fixture
def inbox(place: Path) -> Path:
    """A directory with three files, and settings that name it."""
    (place / "wrasse.yaml").write_text(SEED)
    inbox = place / "inbox"
    fill(inbox, "a.PDF", "b.txt", "sub/c.txt", "d.tmp")
    (inbox / "out").symlink_to(place / "wrasse.yaml")
    return inbox


def fill(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def ready() -> int:
    return sum(queue["ready"] for queue in wrasse("jobs", "stats", "--json").json["queues"])


async def files_of(database: Path) -> list[str]:
    """The path in every job that waits."""
    store = await Sqlite.open(database)
    found, after = [], None
    try:
        while True:
            page = await store.jobs.page(JobState.READY, JobFilter(), after, 1_000)
            for info in page:
                record = await store.jobs.get(info.id)
                assert record is not None
                found.append(str(json.loads(record.job.payload)["filepath"]))
            after = page.cursor
            if after is None:
                return found
    finally:
        await store.close()


def test_the_files_of_a_directory_become_jobs_once(inbox: Path) -> None:
    first = typed("run", "--role=producer", "--json", cwd=inbox.parent)
    assert (first.code, first.json) == (
        0,
        {
            "directory": str(inbox),
            "found": 3,
            "enqueued": 3,
            "known": 0,
            "skipped": {"excluded": 1, "outside": 1},
            "stopped": False,
        },
    )
    again = typed("run", "--role=producer", cwd=inbox.parent)
    assert again.out == "found 3 files: enqueued 0, 3 known already; skipped 1 excluded, 1 outside\n"
    queues = wrasse("jobs", "stats", "--json").json["queues"]
    assert {queue["queue"]: queue["ready"] for queue in queues} == {"high": 1, "low": 2}


def test_names_of_files_stay_out_of_the_log(inbox: Path) -> None:
    assert "a.PDF" not in typed("run", "--role=producer", cwd=inbox.parent).err


def test_a_command_gets_the_path_of_each_file(inbox: Path) -> None:
    assert wrasse("run", "--role=producer").code == 0
    with running(inbox.parent, "--role=worker", "--exec=cp {filepath} {filepath}.{filesize}") as daemon:
        until(lambda: len(list(inbox.rglob("*.[0-9]"))) == 3, "a copy of each file")
        daemon.signal()
        assert daemon.end() == 0


def test_on_redis_any_program_can_read_the_job_of_a_file(inbox: Path, redis_server: Valkey) -> None:
    root = inbox.parent.name
    url = f"{redis_server.url}?root={root}"
    assert typed("run", "--role=producer", f"--set=backends.jobs={url}", cwd=inbox.parent).code == 0
    (raw,) = asyncio.run(_list(redis_server.url, f"{root}:high_priority"))
    job = json.loads(raw)
    assert (job["filepath"], job["filesize"], job["priority"]) == (str(inbox / "a.PDF"), len("a.PDF"), "high")
    assert "payload_b64" not in job


async def _list(url: str, key: str) -> list[bytes]:
    link = await OwnRedisClient.open(RedisOptions.of(url))
    try:
        return [bytes(each) for each in await link.ask("LRANGE", key, 0, -1)]
    finally:
        await link.close()


def test_a_missing_directory_ends_with_one_error(place: Path) -> None:
    answer = typed("run", "--role=producer", cwd=place)
    assert answer.code == 2
    assert answer.err.count("error:") == 1
    assert "producer.scan_dir" in answer.err


def test_one_walk_does_not_wait_for_a_server_that_is_down(inbox: Path) -> None:
    answer = typed("run", "--role=producer", "--set=backends.jobs=redis://127.0.0.1:1", cwd=inbox.parent)
    assert answer.code == 1
    assert "127.0.0.1:1" in answer.err


def test_watching_without_a_producer_is_refused(place: Path) -> None:
    answer = wrasse("run", "--role=sweeper", "--watch")
    assert answer.code == 2
    assert "--role=producer" in answer.err


def test_all_roles_start_a_producer_only_where_one_is_described(place: Path, inbox: Path) -> None:
    with running(place, "--role=all") as daemon:
        until(lambda: ready() == 3, "the files of the inbox")
        daemon.said("walked")
        fill(inbox, "e")
        daemon.signal()
        assert daemon.end() == 0
    (place / "wrasse.yaml").write_text("producer: {default_priority: high}\n")
    with running(place, "--role=all") as daemon:
        daemon.said("started")
        daemon.signal()
        assert daemon.end() == 0
    assert ready() == 3


def test_a_watching_producer_puts_what_comes_and_counts_it(inbox: Path) -> None:
    with running(inbox.parent, "--role=producer", "--watch", "--set=producer.settle=100ms") as daemon:
        until(lambda: ready() == 3, "what was there")
        fill(inbox, "new/e.pdf")
        until(lambda: ready() == 4, "what came")
        until(lambda: daemon.metrics().get('jobs_produced_total{queue="high"}') == 2, "its metrics")
        daemon.signal()
        assert daemon.end() == 0
        daemon.said("watched")


def test_a_stop_does_not_wait_for_the_rate(inbox: Path) -> None:
    fill(inbox, *(f"f{number}" for number in range(300)))
    with running(inbox.parent, "--role=producer", "--set=producer.rate_limit_per_sec=1") as daemon:
        until(lambda: ready() >= 1, "the first file")
        daemon.signal()
        asked = time.monotonic()
        assert daemon.end() == 0
        took = time.monotonic() - asked
        assert daemon.process.stdout is not None
        summary = daemon.process.stdout.read().decode()
    assert took < 5  # 200 ms, on a machine that does nothing else
    assert "stopped before the end" in summary
    assert f"enqueued {ready()}," in summary


def test_a_walk_that_was_killed_is_finished_by_the_next_one(place: Path) -> None:
    names = [f"{number % 7}/f{number}" for number in range(800)]
    fill(place / "data", *names)
    put = 0
    for _ in range(2):
        with running(place, "--role=producer", "--set=producer.rate_limit_per_sec=500") as daemon:
            put = until(partial(_more_than, put), "some more files")
            os.kill(daemon.process.pid, signal.SIGKILL)
            daemon.end()
    assert 0 < put < len(names)
    done = typed("run", "--role=producer", "--json", "--set=producer.rate_limit_per_sec=0", cwd=place)
    assert (done.code, done.json["found"]) == (0, len(names))
    assert sorted(asyncio.run(files_of(place / "wrasse.db"))) == sorted(str(place / "data" / name) for name in names)


def _more_than(before: int) -> int | None:
    now = ready()
    return now if now > before else None


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("include_globs: ['[a']", "include_globs"),
        ("exclude_globs: ['{a']", "exclude_globs"),
        ("include_globs: ['']", "empty pattern"),
        ("rate_limit_per_sec: -1", "rate_limit_per_sec"),
        ("rate_limit_key: ''", "rate_limit_key"),
        ("scan_dir: ''", "scan_dir"),
        ("poll_interval: 0s", "poll_interval"),
        ("watch: sometimes", "use one of: auto, poll"),
    ],
)
def test_a_mistake_in_the_producers_settings_is_said_with_its_line(place: Path, setting: str, said: str) -> None:
    (place / "wrasse.yaml").write_text(f"producer:\n  {setting}\n")
    with pytest.raises(ConfigError) as raised:
        load()
    assert said in str(raised.value)
    assert "wrasse.yaml line 2" in raised.value.message


def test_the_section_of_the_design_document_loads_without_a_warning(inbox: Path) -> None:
    assert load().warnings == ()
