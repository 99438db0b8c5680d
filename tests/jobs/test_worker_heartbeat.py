"""Sends heartbeats from a child process: who keeps a job, and who loses it. Real processes on SQLite."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from processes.kill_scene import KillScene, alive, children, eventually, open_kill_scene
from wrasse.ports.jobs import Job, JobState, Reason
from wrasse.runtime.heartbeat_process import process_state

HEARTBEAT_TIMEOUT = 1.5


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[KillScene]:
    async with open_kill_scene(tmp_path, HEARTBEAT_TIMEOUT) as scene:
        yield scene


async def enqueue(scene: KillScene, id: str, kind: str, payload: bytes = b"") -> None:
    await scene.jobs.enqueue([Job(id, kind=kind, payload=payload)], request=id)


def resident_kib(pid: int) -> int:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0])


def pids(scene: KillScene) -> list[int]:
    path = scene.folder / "pids"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


async def child_of(pid: int) -> int:
    await eventually(lambda: bool(children(pid)))
    return children(pid)[0]


async def test_a_worker_whose_interpreter_is_frozen_for_three_silences_keeps_its_job(scene: KillScene) -> None:
    await enqueue(scene, "a", "freeze", str(3.3 * HEARTBEAT_TIMEOUT).encode())
    scene.worker()
    moved = 0

    async def done() -> bool:
        nonlocal moved
        moved += await scene.sweep()
        return (await scene.record("a")).info.state is JobState.DONE

    await eventually(done)
    assert moved == 0
    assert (await scene.record("a")).info.attempts == 1


async def test_a_job_whose_worker_is_killed_comes_back_and_the_beat_child_ends(scene: KillScene) -> None:
    await enqueue(scene, "a", "wait")
    worker = scene.worker()
    await scene.until_logged("start", "a")
    child = await child_of(worker.pid)
    scene.kill(worker)
    await eventually(lambda: not alive(child))
    await eventually(scene.swept)
    record = await scene.record("a")
    assert (record.info.state, record.info.rescues, record.info.failures) == (JobState.READY, 1, 0)
    assert record.history[-1].reason is Reason.WORKER_DIED


async def test_a_command_whose_worker_is_killed_dies_with_it(scene: KillScene) -> None:
    await enqueue(scene, "a", "command")
    worker = scene.worker()
    await eventually(lambda: len(pids(scene)) == 2)
    await eventually(lambda: process_state(worker.pid) == "S")  # it has noted which group the command runs in
    scene.kill(worker)
    await eventually(lambda: not any(alive(pid) for pid in pids(scene)))
    assert (await scene.record("a")).info.state is JobState.RUNNING


async def test_a_command_dies_with_its_worker_while_a_new_beat_child_starts(scene: KillScene) -> None:
    await enqueue(scene, "a", "command")
    worker = scene.worker()
    await eventually(lambda: len(pids(scene)) == 2)
    [first] = set(children(worker.pid)) - set(pids(scene))
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: len(set(children(worker.pid)) - {first, *pids(scene)}) == 1)
    [second] = set(children(worker.pid)) - {first, *pids(scene)}
    os.kill(second, signal.SIGSTOP)
    await eventually(lambda: process_state(worker.pid) == "S")  # and has written the orders
    scene.kill(worker)
    os.kill(second, signal.SIGCONT)
    await eventually(lambda: not any(alive(pid) for pid in [second, *pids(scene)]))
    assert (await scene.record("a")).info.state is JobState.RUNNING


async def test_a_command_whose_beat_child_is_killed_goes_on(scene: KillScene) -> None:
    await enqueue(scene, "a", "command")
    worker = scene.worker()
    await eventually(lambda: len(pids(scene)) == 2)
    [child] = set(children(worker.pid)) - set(pids(scene))
    os.kill(child, signal.SIGKILL)
    await eventually(lambda: len(set(children(worker.pid)) - {child}) == 2)
    assert all(alive(pid) for pid in pids(scene))


async def test_a_job_whose_worker_is_stopped_is_lost_to_it_and_its_handler_is_told(scene: KillScene) -> None:
    await enqueue(scene, "a", "wait")
    worker = scene.worker()
    await scene.until_logged("start", "a")
    os.kill(worker.pid, signal.SIGSTOP)
    await eventually(scene.swept)
    os.kill(worker.pid, signal.SIGCONT)
    await scene.until_logged("told", "a", True, False)
    # It is the same worker that claims the job again: it was never dead.
    scene.release("a")
    done = await scene.until("a", JobState.DONE)
    assert (done.info.attempts, done.info.rescues) == (2, 1)


async def test_a_finish_that_comes_after_the_job_was_taken_away_is_refused(scene: KillScene) -> None:
    await enqueue(scene, "a", "block")
    worker = scene.worker()
    await scene.until_logged("start", "a")
    os.kill(worker.pid, signal.SIGSTOP)
    await eventually(scene.swept)
    other = await scene.jobs.claim(["low"], 1, worker="other", heartbeat_timeout=scene.one_silence(), request="r")
    scene.release("a")
    os.kill(worker.pid, signal.SIGCONT)
    await scene.until_logged("asked", "a", False)
    worker.terminate()
    await scene.until_logged("stopped", 1, 0)
    info = (await scene.record("a")).info
    assert (info.state, info.claim) == (JobState.RUNNING, other.jobs[0].claim)


async def test_a_killed_heartbeat_process_is_replaced_and_the_worker_keeps_its_job(tmp_path: Path) -> None:
    patient = 5.0  # on a loaded machine the new process may need a few seconds to start
    async with open_kill_scene(tmp_path, patient) as scene:
        await enqueue(scene, "a", "wait")
        worker = scene.worker()
        await scene.until_logged("start", "a")
        first = await child_of(worker.pid)
        os.kill(first, signal.SIGKILL)
        moved = 0

        async def replaced_and_alive() -> bool:
            nonlocal moved
            moved += await scene.sweep()
            info = (await scene.record("a")).info
            claimed, heartbeat = info.claimed_at, info.heartbeat_at
            assert claimed is not None
            assert heartbeat is not None
            return bool(set(children(worker.pid)) - {first}) and (heartbeat - claimed).total_seconds() > patient

        await eventually(replaced_and_alive)
        scene.release("a")
        done = await scene.until("a", JobState.DONE)
        assert (done.info.attempts, moved) == (1, 0)


async def test_a_beat_child_that_hangs_is_replaced_too(scene: KillScene) -> None:
    worker = scene.worker()
    first = await child_of(worker.pid)
    await scene.until_logged("worker")

    async def listed() -> bool:
        return bool((await scene.jobs.counts()).workers)

    await eventually(listed)
    os.kill(first, signal.SIGSTOP)
    await eventually(lambda: bool(set(children(worker.pid)) - {first}))
    await eventually(lambda: not alive(first))
    await enqueue(scene, "a", "work")
    assert (await scene.until("a", JobState.DONE)).info.attempts == 1


async def test_a_job_past_its_timeout_is_not_beaten_for_by_a_worker_that_hangs(scene: KillScene) -> None:
    await scene.jobs.enqueue([Job("a", kind="block", timeout=scene.one_silence())], request="a")
    scene.worker()
    await scene.until_logged("start", "a")
    await eventually(scene.swept)
    assert (await scene.record("a")).history[-1].reason is Reason.WORKER_DIED


async def test_a_terminated_worker_finishes_what_runs_and_says_goodbye(scene: KillScene) -> None:
    await enqueue(scene, "a", "wait")
    worker = scene.worker()
    await scene.until_logged("start", "a")
    child = await child_of(worker.pid)
    worker.terminate()
    os.kill(child, signal.SIGTERM)

    async def beaten_meanwhile() -> bool:
        info = (await scene.record("a")).info
        assert info.claimed_at is not None
        assert info.heartbeat_at is not None
        return info.heartbeat_at - info.claimed_at > scene.one_silence()

    await eventually(beaten_meanwhile)
    assert children(worker.pid) == [child]
    await enqueue(scene, "b", "work")
    scene.release("a")
    await eventually(lambda: worker.poll() is not None)
    assert worker.returncode == 0
    assert (await scene.record("a")).info.state is JobState.DONE
    assert (await scene.record("b")).info.attempts == 0
    assert (await scene.jobs.counts()).workers == ()
    assert not alive(child)


async def test_the_beat_child_is_small(scene: KillScene) -> None:
    worker = scene.worker()
    child = await child_of(worker.pid)

    async def listed() -> bool:
        return bool((await scene.jobs.counts()).workers)

    await eventually(listed)
    assert resident_kib(child) < 35 * 1024


def test_the_beat_child_imports_little() -> None:
    code = "import sys, wrasse.runtime.heartbeat_process, wrasse.runtime.backends; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    heavy = {"aiohttp", "click", "rich", "yaml", "prometheus_client", "wrasse.engine.run"}
    heavy.add("wrasse.jobs.record_core.queue")
    assert heavy.isdisjoint(loaded)
