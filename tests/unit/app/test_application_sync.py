"""wrasse without async: the same calls, and processes that fork."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import run

import pytest

import wrasse
from wrasse.errors import JobFailed


@pytest.fixture
def app(tmp_path: Path) -> Iterator[wrasse.sync.App]:
    with wrasse.sync.connect(f"sqlite:{tmp_path}/here.db") as app:
        yield app


def test_results_groups_unique_names_and_retries_are_the_same_without_async(app: wrasse.sync.App) -> None:
    app.handler("double", retry=wrasse.Retry(failures_max=0))(lambda job: int(job.data) * 2)
    put = app.jobs.put("double", 21, keep="1h", unique="one")
    again = app.jobs.put("double", 21, unique="one")
    then = app.jobs.group([wrasse.NewJob("double", 1), wrasse.NewJob("double", "x")], wrasse.NewJob("double", 4))
    app.run_pending()
    assert put.result() == 42
    assert (bool(put), again.new, again.id) == (True, False, put.id)
    assert then.result() == 8
    state = put.state()
    assert state is not None
    assert state.kept_until is not None
    assert not put.cancel()


def test_a_dead_job_raises_without_async(app: wrasse.sync.App) -> None:
    put = app.jobs.put("x")
    assert put.cancel("no")
    with pytest.raises(JobFailed):
        put.result(timeout="1s")


FORKS = """
import os, sys
import wrasse

app = wrasse.sync.connect("sqlite:here.db")
app.handler("x")(lambda job: os.getpid())
app.jobs.put("x", id="parent-before")
children = []
for number in range(3):
    pid = os.fork()
    if not pid:
        for each in range(20):
            app.jobs.put("x", id=f"child-{number}-{each}")
        sys.exit(0)  # the clean way, with all that is registered for the end
    children.append(pid)
for each in range(20):
    app.jobs.put("x", id=f"parent-{each}")
codes = [os.waitpid(pid, 0)[1] for pid in children]
assert codes == [0, 0, 0], codes
app.jobs.put("x", id="parent-after")
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
