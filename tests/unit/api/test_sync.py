"""wrasse without async: the same calls, and processes that fork."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import run

import pytest

import wrasse
from wrasse.errors import JobFailed, StoreBroken, UsageError


@pytest.fixture
def app(tmp_path: Path) -> Iterator[wrasse.sync.App]:
    with wrasse.sync.connect(f"sqlite:{tmp_path}/here.db") as app:
        yield app


def test_results_groups_unique_names_and_retries_are_the_same_without_async(app: wrasse.sync.App) -> None:
    app.handler("double", retry=wrasse.Retry(failures_max=0))(lambda job: int(job.data) * 2)
    put = app.jobs.enqueue("double", 21, keep="1h", unique="one")
    again = app.jobs.enqueue("double", 21, unique="one")
    then = app.jobs.group([wrasse.NewJob("double", 1), wrasse.NewJob("double", "x")], wrasse.NewJob("double", 4))
    app.run_pending()
    assert put.result() == 42
    assert (bool(put), again.new, again.id) == (True, False, put.id)
    assert then.result() == 8
    info = put.info()
    assert info is not None
    assert info.kept_until is not None
    assert not put.cancel()


def test_a_dead_job_raises_without_async(app: wrasse.sync.App) -> None:
    put = app.jobs.enqueue("x")
    assert put.cancel("no")
    with pytest.raises(JobFailed):
        put.result(timeout="1s")


def test_a_worker_runs_in_the_background_for_as_long_as_its_block(app: wrasse.sync.App) -> None:
    app.handler("double")(lambda job: int(job.data) * 2)
    with app.worker(concurrency=2) as worker:
        given = app.jobs.enqueue("double", 21, keep="1h").result(timeout="30s")
        was = worker.running
    late = app.jobs.enqueue("double", 1, keep="1h")
    info = late.info()
    assert (given, was, worker.running) == (42, True, False)
    assert info is not None
    assert info.state == "ready"


def test_stopping_a_worker_lets_its_handler_finish(app: wrasse.sync.App) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.handler("slow")
    def slow(job: wrasse.Job) -> str:
        begun.set()
        assert go_on.wait(30)
        return "whole"

    worker = app.worker()
    worker.start()
    put = app.jobs.enqueue("slow", keep="1h")
    assert begun.wait(30)
    threading.Timer(0.05, go_on.set).start()
    worker.stop(grace="30s")
    assert put.result(timeout="1s") == "whole"


def test_closing_the_app_stops_its_workers(tmp_path: Path) -> None:
    app = wrasse.sync.connect(f"sqlite:{tmp_path}/here.db")
    app.handler("x")(lambda job: None)
    worker = app.worker()
    worker.start()
    app.close()
    assert (worker.running, app._loop.running) == (False, False)


def test_what_makes_a_background_worker_fail_is_raised_when_it_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear all, this is no database at all, " * 50)
    with wrasse.sync.connect(f"sqlite:{tmp_path}/letter.txt") as app:
        worker = app.worker()
        worker.start()
        with pytest.raises(StoreBroken):
            worker.stop()


def test_a_worker_is_started_once(app: wrasse.sync.App) -> None:
    app.handler("x")(lambda job: None)
    with app.worker() as worker, pytest.raises(UsageError, match="has been started"):
        worker.start()


FORKS = """
import os, sys
import wrasse

app = wrasse.sync.connect("sqlite:here.db")
app.handler("x")(lambda job: os.getpid())
app.jobs.enqueue("x", id="parent-before")
children = []
for number in range(3):
    pid = os.fork()
    if not pid:
        for each in range(20):
            app.jobs.enqueue("x", id=f"child-{number}-{each}")
        sys.exit(0)  # the clean way, with all that is registered for the end
    children.append(pid)
for each in range(20):
    app.jobs.enqueue("x", id=f"parent-{each}")
codes = [os.waitpid(pid, 0)[1] for pid in children]
assert codes == [0, 0, 0], codes
app.jobs.enqueue("x", id="parent-after")
(count,) = app.jobs.counts().queues
print(count.ready)
"""


def test_children_of_a_fork_have_connections_of_their_own(tmp_path: Path) -> None:
    done = run([sys.executable, "-c", FORKS], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "82"), done.stderr


def test_an_app_that_was_never_used_ends_without_a_thread() -> None:
    app = wrasse.sync.connect("memory:")
    app.close()
    assert not app._loop.running
