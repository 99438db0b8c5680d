"""Types of tasks in the settings, and what is built from them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from wrasse.clock import SystemClock
from wrasse.config.load import load
from wrasse.errors import ConfigError
from wrasse.ports.jobs import Job
from wrasse.runtime.backends import Stores
from wrasse.runtime.engine import open_engine
from wrasse.runtime.stream_tasks import TaskBackends, open_task_jobs, task_home

PLAIN = {"WRASSE_BACKENDS_JOBS": "memory:", "WRASSE_BACKENDS_RECORDS": "memory:", "WRASSE_BACKENDS_STREAMS": "memory:"}


def home(types: str, **more: str) -> TaskBackends:
    found = task_home(load(environ={**PLAIN, "WRASSE_TASK_TYPES": types, **more}))
    assert found is not None
    return found


def test_a_type_says_its_budget_and_its_threshold() -> None:
    (mail,) = home("{mail: {step_timeout: 20s, max_retries: 5}}").types

    assert (mail.name, mail.threshold, mail.retries_max) == ("mail", timedelta(seconds=20), 5)


def test_a_type_that_says_nothing_follows_the_sweeps_threshold() -> None:
    (mail,) = home("{mail: {}}", WRASSE_SWEEPER_STUCK_THRESHOLD="70s").types

    assert mail.threshold == timedelta(seconds=70)


@pytest.mark.parametrize(
    ("types", "what"),
    [
        ("{Mail: {}}", "the task type 'Mail'"),
        ("{low: {}}", "a queue of worker.queues too"),
        ("{mail: {workers: 0}}", "workers is 0"),
        ("{mail: {max_retries: -1}}", "max_retries is -1"),
        ("{mail: {step_timeout: 1s}}", "step_timeout is 1s"),
        ("{mail: {steps: 1}}", "steps"),
    ],
)
def test_a_type_that_cannot_be_is_refused_with_why(types: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        load(environ={"WRASSE_TASK_TYPES": types})


async def test_tasks_have_sweeps_of_their_own_with_their_own_cadence() -> None:
    config = load(environ={**PLAIN, "WRASSE_TASK_TYPES": "{mail: {}}", "WRASSE_SWEEPER_INTERVAL": "45s"})
    stores = Stores(SystemClock())
    engine, _ = await open_engine(config, stores, SystemClock(), ["stuck_jobs"])
    everything, _ = await open_engine(config, stores, SystemClock())

    await stores.close()
    assert list(engine.names) == ["stuck_jobs", "stuck_jobs@tasks"]
    assert {"stuck_jobs@tasks", "finished_jobs@tasks"} <= set(everything.names)


async def test_the_child_that_beats_finds_tasks_by_one_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = task_home(load(environ={"WRASSE_TASK_TYPES": "{mail: {}}"}))
    assert found is not None
    url = found.url()
    await (await open_task_jobs(url)).enqueue([Job("task_1", queue="mail")], request="r")
    monkeypatch.chdir("/")

    assert await (await open_task_jobs(url)).get("task_1") is not None
