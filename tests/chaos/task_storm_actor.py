"""A worker, a producer or an engine of tasks in a storm, as a process of its own; with one fault planted if it is told.

The engine runs what a user's does: `stuck_jobs` on tasks, `aged_entries` with a retention of a moment, and
`dead_consumers`. It says in the side log when a waiting task had to be told of again because its entry was gone: that
is how a trim of what was still needed would show.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from chaos.storm_actor import put_on
from chaos.task_scene import RETRIES, TYPE, TaskStore, open_task_store
from processes.kill_actor import CLOCK, log, waited_for, work_off
from wrasse.config.load import load
from wrasse.config.settings import STREAM_SWEEPS, RetentionSettings, Settings, StuckTasksSettings, TaskTypeSettings
from wrasse.engine.loop import ENGINE_LEASES, Engine
from wrasse.engine.run import RunContext
from wrasse.engine.turn import ENGINE_STATE, SweepBackend
from wrasse.ids import Ids
from wrasse.jobs.record_core.claims import RecordClaim
from wrasse.jobs.stream_tasks.events import Said
from wrasse.jobs.stream_tasks.queue import TaskClaims
from wrasse.jobs.stream_tasks.store import Task, TaskStore as Tasks
from wrasse.leases.manager import LeaseManager
from wrasse.ports.groups import Ack, Delivery
from wrasse.ports.rules.job_transitions import StoredJob
from wrasse.runtime.backends import journal_of
from wrasse.runtime.engine import build_stream_sweep, build_task_sweep
from wrasse.runtime.open_ports import OpenPorts
from wrasse.streams import retention
from wrasse.streams.retention import Trimmer

OFTEN = timedelta(milliseconds=300)
KEPT = timedelta(seconds=1)  # entries of queues and of progress; what tells of the end is never trimmed
GONE_FOR = timedelta(seconds=1)


async def store_at(url: str) -> TaskStore:
    return await waited_for(lambda: open_task_store(url))


def engine_settings(heartbeat_timeout: timedelta) -> Settings:
    """What a user would write, but in seconds."""
    settings = load(Path(os.devnull), environ={}).settings
    often = {name: replace(own, interval=OFTEN) for name, own in settings.sweeps.items()}
    dead = often["dead_consumers"]
    often["dead_consumers"] = replace(dead, fields={**dead.fields, "gone_for": GONE_FOR})
    return replace(
        settings,
        task_types={TYPE: TaskTypeSettings(step_timeout=heartbeat_timeout, max_retries=RETRIES)},
        sweeper=StuckTasksSettings(interval=OFTEN, lock_ttl=timedelta(seconds=1), stuck_threshold=heartbeat_timeout),
        retention={f"gbe.tasks.*.{each}": RetentionSettings(KEPT, exact=True) for each in ("queue", "progress")},
        sweeps=often,
    )


async def run_engine(url: str, heartbeat_timeout: timedelta) -> None:
    store = await store_at(url)
    tell_of_the_untold()
    settings, backend = engine_settings(heartbeat_timeout), store.backend
    journal = journal_of(backend, CLOCK)
    ports = ("jobs", "records", "engine", "streams")
    opened = OpenPorts(dict.fromkeys(ports, backend), engine_journal=journal, tasks=store.jobs, types=(TYPE,))
    sweeps = [
        build_task_sweep("stuck_jobs", settings, opened, CLOCK),
        *(made for name in STREAM_SWEEPS if (made := build_stream_sweep(name, settings, opened, CLOCK)) is not None),
    ]
    log("engine")
    await Engine(
        sweeps,
        home=SweepBackend(LeaseManager(backend.records(ENGINE_LEASES), CLOCK), backend.records(ENGINE_STATE)),
        context=RunContext(journal, CLOCK, Ids(CLOCK)),
        owner=f"engine-{os.getpid()}",
        lease_ttl=timedelta(seconds=3),  # NATS gives up a lease one second before its end
    ).run()


def tell_of_the_untold() -> None:
    """Says in the side log that a task was found waiting without an entry, and how much was trimmed."""
    put, rounds = Tasks.put, Trimmer._trim_steps

    async def told(tasks: Tasks, task: Task, stored: StoredJob, at: datetime, said: Sequence[Said] = ()) -> Task | None:
        written = await put(tasks, task, stored, at, said)
        if written is not None and any(b'"untold"' in each.payload for each in said):
            log("untold", stored.info.id)
        return written

    async def counted(trimmer: Trimmer, *args: object) -> int:
        removed = await rounds(trimmer, *args)
        if removed:
            log("trimmed", removed)
        return removed

    Tasks.put = told  # type: ignore[method-assign]
    Trimmer._trim_steps = counted  # type: ignore[method-assign,assignment]


def ack_before_claim() -> None:
    """A hint is acked as it comes, and its task is claimed a moment later."""
    claim_hints = TaskClaims._claim_hints

    async def hasty(takes: TaskClaims, claim: RecordClaim, deliveries: Sequence[Delivery], limit: int) -> list[Task]:
        await takes._groups.answer([Ack(each.entry.subject, each.group, each.entry.id) for each in deliveries[:limit]])
        await asyncio.sleep(0.2)
        return await claim_hints(takes, claim, deliveries, limit)

    TaskClaims._claim_hints = hasty  # type: ignore[method-assign]


def trim_by_pending() -> None:
    """The guard of the design document: an entry is needed only while it is pending."""
    retention.Retention.protecting = lambda *_: ()  # type: ignore[method-assign,assignment]
    rounds = Trimmer._trim_steps

    async def guarded(trimmer: Trimmer, *args: object) -> int:
        order = args[0]
        state = await trimmer._streams.info(order.subject)  # type: ignore[attr-defined]
        idle = state is None or all(group.pending == 0 for group in state.groups)
        return await rounds(trimmer, *args) if idle else 0  # type: ignore[arg-type]

    Trimmer._trim_steps = guarded  # type: ignore[method-assign,assignment]


FAULTS: Mapping[str, Callable[[], None]] = {each.__name__: each for each in (ack_before_claim, trim_by_pending)}


async def act(role: str, url: str, *rest: str) -> None:
    """What one process does until it is killed."""
    match role:
        case "worker":
            await work_off((await store_at(url)).jobs, url, timedelta(seconds=float(rest[0])), concurrency=4)
        case "producer":
            await put_on((await store_at(url)).jobs, rest[0], float(rest[1]), int(rest[2]))
        case "engine":
            await run_engine(url, timedelta(seconds=float(rest[0])))


def main() -> None:
    random.seed(os.environ.get("PYTEST_SEED_OF_WRASSE"))
    role, url, planted, *rest = sys.argv[1:]
    if planted:
        FAULTS[planted]()
    asyncio.run(act(role, url, *rest))


if __name__ == "__main__":
    main()
