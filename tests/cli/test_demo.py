"""wrasse demo: everything it promises happens, and it says so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cli.command_line import typed
from wrasse.cli.demo.tour import Demo, DemoText, staged
from wrasse.ports.journal import Intent, SettledIntent
from wrasse.ports.outcome import Outcome

pytestmark = pytest.mark.timeout(1_000)  # however busy the machine is: the demo gives up by itself


@pytest.mark.full
def test_everything_the_demo_promises_happens(place: Path) -> None:
    answer = typed("demo", "--json", cwd=place, within=900)
    assert answer.code == 0, answer.out + answer.err
    steps = answer.json["steps"]
    assert len(steps) == 9
    assert [step["ok"] for step in steps] == [True] * 9
    assert list(place.iterdir()) == [], "it leaves nothing behind"


def test_the_demo_is_told_without_a_terminal(place: Path) -> None:
    answer = typed("demo", cwd=place, within=900)
    assert answer.code == 0, answer.out + answer.err
    assert "\x1b" not in answer.out
    for words in ("SIGKILL", "silent for", "rescued 1 times already", "WOULD", "in 3 archives", "All of it happened"):
        assert words in answer.out


async def test_the_demo_waits_for_outcomes_that_come_after_the_action_and_for_no_more_than_it_promised() -> None:
    did = [("requeue", "job"), ("requeue", "poison"), ("requeue", "slow-report"), ("dead_letter", "poison")]
    told: list[DemoText] = []
    async with staged() as stage:
        journal = (await stage.app.open("engine")).journal
        await journal.intend([Intent(str(n), "run", "stuck_jobs", *each, "silent") for n, each in enumerate(did)])
        telling = asyncio.create_task(Demo(stage, told.append)._journal())
        await journal.settle([SettledIntent(str(n), Outcome.DONE) for n in range(3)])
        done, _ = await asyncio.wait([telling], timeout=0.5)
        assert done == set(), "the sweep that buried the job has not said so yet"
        await journal.settle([SettledIntent("3", Outcome.DONE)])
        assert await telling == "4 lines: 3 requeued, 1 dead-lettered"


async def test_a_worker_that_died_of_poison_just_now_is_no_process_that_ended_badly() -> None:
    async with staged() as stage:
        (await stage._start("-c", "import time; time.sleep(60)")).kill()
        assert await stage.drain() == []
