"""`wrasse run --handler=module:app` works where that App enqueues, or is refused with both sources."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.command_line import wrasse
from processes.daemons import running, until
from servers.valkey import Valkey, valkey

APP = """
import wrasse

app = wrasse.{connect}
@app.handler("greet")
def greet(job):
    open("greeted", "w").write(job.id)
    app.jobs.enqueue("follow", {{}})

@app.handler("follow")
def follow(job):
    open("followed", "w").write(job.id)
"""
PUT = "import shop; shop.app.jobs.enqueue('greet', {})"


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as own:
        yield own


def shop(place: Path, connect: str) -> None:
    (place / "shop.py").write_text(APP.format(connect=connect))


@pytest.mark.parametrize("by", ["flag", "setting"])
def test_a_worker_takes_the_jobs_of_the_app_that_it_runs(place: Path, server: Valkey, by: str) -> None:
    shop(place, f"sync.connect('{server.url}')")
    handler = ", handler: 'shop:app'" if by == "setting" else ""
    (place / "wrasse.yaml").write_text(f"worker: {{count: 2{handler}}}")
    subprocess.run([sys.executable, "-c", PUT], cwd=place, check=True, timeout=60)
    with running(place, "--role=worker", *(["--handler=shop:app"] if by == "flag" else [])) as daemon:
        started = daemon.said("started")
        until(lambda: (place / "followed").exists(), "the job of the App and its follow-up are run")
    assert any(each.startswith("jobs: redis://") for each in started["backends"])
    assert started["slots"] == 2
    assert "wrasse.db" not in os.listdir(place)


def test_a_worker_of_one_function_works_where_the_app_that_registered_it_enqueues(place: Path, server: Valkey) -> None:
    shop(place, f"sync.connect('{server.url}')")
    with running(place, "--role=worker", "--handler=shop:follow") as daemon:
        started = daemon.said("started")
        subprocess.run([sys.executable, "-c", PUT.replace("greet", "follow")], cwd=place, check=True, timeout=60)
        until(lambda: (place / "followed").exists(), "the job of the App is run")
    assert any(each.startswith("jobs: redis://") for each in started["backends"])
    assert "wrasse.db" not in os.listdir(place)


def test_a_worker_uses_the_settings_file_of_the_app(place: Path, server: Valkey) -> None:
    shop(place, "sync.connect('shop.yaml')")
    (place / "shop.yaml").write_text(f"backends: {{jobs: '{server.url}'}}\nworker: {{count: 3}}")
    with running(place, "--role=worker", "--handler=shop:app") as daemon:
        assert daemon.said("started")["slots"] == 3
        subprocess.run([sys.executable, "-c", PUT], cwd=place, check=True, timeout=60)
        until(lambda: (place / "followed").exists(), "the job of the App and its follow-up are run")


def test_an_app_that_names_nothing_follows_the_command(place: Path, server: Valkey) -> None:
    shop(place, "sync.connect()")
    (place / "other.yaml").write_text(f"backends: {{jobs: '{server.url}'}}")
    with running(place, "--role=worker", "--handler=shop:app", "--config=other.yaml"):
        assert wrasse("jobs", "enqueue", "--kind=greet", "{}", "--config=other.yaml").code == 0
        until(lambda: (place / "followed").exists(), "the follow-up that the App puts is run by the same worker")


@pytest.mark.parametrize(
    ("connect", "settings", "args", "told"),
    [
        ("connect('redis://h:1')", "backends: {jobs: 'sqlite:mine.db'}", (), "wrasse.yaml line 1: backends.jobs"),
        ("connect('redis://h:1')", "", ("--set=backends.jobs=redis://o:1",), "command line: backends.jobs"),
        ("sync.connect('redis://h:1')", "redis: {addr: 'o:1'}", (), "wrasse.yaml line 1: redis.addr"),
        ("connect('redis://h:1')", "backends: {streams: 'nats://n'}", (), "wrasse.yaml line 1: backends.streams"),
    ],
)
def test_an_app_and_a_command_that_name_different_places_are_refused(
    place: Path, connect: str, settings: str, args: tuple[str, ...], told: str
) -> None:
    shop(place, connect)
    (place / "wrasse.yaml").write_text(settings)
    done = subprocess.run(
        [sys.executable, "-m", "wrasse", "run", "--handler=shop:app", *args],
        cwd=place, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "the App shop:app and this command use different places" in done.stderr
    assert "redis://h:1/0 (URL of the App" in done.stderr
    assert told in done.stderr


def test_the_doctor_checks_where_the_app_enqueues_or_that_settings_contradict_it(place: Path, server: Valkey) -> None:
    shop(place, f"connect('{server.url}')")
    (place / "wrasse.yaml").write_text("worker: {handler: 'shop:app'}")
    command = [sys.executable, "-m", "wrasse", "doctor"]
    well = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60)
    assert f"jobs: {server.url}" in well.stdout
    (place / "wrasse.yaml").write_text("worker: {handler: 'shop:app'}\nbackends: {jobs: 'sqlite:mine.db'}")
    wrong = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60)
    assert (wrong.returncode, "use different places" in wrong.stdout) == (1, True)


@pytest.mark.parametrize(
    ("app", "command", "told"),
    [
        ("backends: {jobs: 'redis://h:1'}", "worker: {count: 2}", "jobs are in redis://h:1/0 (shop.yaml line 1"),
        ("worker: {count: 2}", "backends: {jobs: 'redis://h:1'}", "in redis://h:1/0 (wrasse.yaml line 1"),
        ("leases: {server: 'http://l:1'}", "worker: {count: 2}", "leases are in http://l:1 (shop.yaml line 1"),
        ("leases: {server: 'http://l:1'}", "leases: {server: 'http://l:2'}", "in http://l:2 (wrasse.yaml line 1"),
        ("engine: {backend: 'sqlite:a.db'}", "worker: {count: 2}", "engine.backend"),
        ("worker: {queues: {high: a, low: b}}", "worker: {count: 2}", "worker.queues is {'high': 'a', 'low': 'b'}"),
        ("producer: {default_priority: high}", "worker: {count: 2}", "producer.default_priority is 'high' by the App"),
        ("task_types: {mail: {workers: 2}}", "worker: {count: 2}", "task_types is {'mail': "),
        ("backends: {jobs: 'redis://h:1?root=a'}", "backends: {jobs: 'redis://h:1?root=b'}", "root=a"),
    ],
)
def test_a_file_of_the_app_and_one_of_the_command_must_name_the_same_places(
    place: Path, app: str, command: str, told: str
) -> None:
    shop(place, "connect('shop.yaml')")
    (place / "shop.yaml").write_text(app)
    (place / "wrasse.yaml").write_text(command)
    done = subprocess.run(
        [sys.executable, "-m", "wrasse", "doctor", "--set=worker.handler=shop:app"],
        cwd=place, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "the App shop:app and this command use different places" in done.stdout
    assert told in done.stdout


@pytest.mark.parametrize(
    ("connect", "backends", "warned"),
    [
        ("sync.connect('redis://h:1')", "", True),
        ("connect('shop.yaml')", "", True),
        ("connect()", "", False),
        ("connect('redis://h:1')", "backends: {jobs: 'sqlite:mine.db'}", False),
    ],
)
def test_a_command_that_does_not_import_the_app_says_that_it_reads_elsewhere(
    place: Path, connect: str, backends: str, warned: bool
) -> None:
    shop(place, connect)
    (place / "wrasse.yaml").write_text(f"worker: {{handler: 'shop:app'}}\n{backends}")
    answer = wrasse("jobs", "list")
    assert ("worker.handler shop:app makes an App with settings of its own" in answer.err) is warned
    assert (f"uses sqlite://{place}/wrasse.db" in answer.err) is warned
    assert ("worker.handler shop:app makes an App" in wrasse("config", "show", "--where").err) is warned
    (place / "wrasse.yaml").write_text("worker: {handler: 'shop:greet'}")
    assert wrasse("jobs", "list").err == ""
