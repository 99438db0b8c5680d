"""Tasks for a storm: where they live as one text, and the store that a process of the storm opens by it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec

from wrasse.clock import SystemClock
from wrasse.jobs.stream_tasks import queue as task_queue
from wrasse.jobs.stream_tasks.queue import TaskQueue, TaskType
from wrasse.ports.backend import Backend
from wrasse.runtime.backends import Stores
from wrasse.runtime.stream_tasks import SCHEME, TaskBackends, open_tasks

TYPE = "low"  # the type, called as the queue that the storm's workers work on
RETRIES = 3
HINT = timedelta(seconds=2)  # within which a hint is claimed, so that one of a dead worker comes back soon


def tasks_at(server: str, folder: Path, heartbeat_timeout: float) -> str:
    """Tasks on this server, as one text."""
    types = (TaskType(TYPE, RETRIES, timedelta(seconds=heartbeat_timeout)),)
    return TaskBackends(server, server, f"file:{folder}/objects", types).url()


@dataclass(frozen=True, slots=True)
class TaskStore:
    """A queue of tasks as a store: `jobs` are tasks, `backend` is where they live."""

    jobs: TaskQueue
    backend: Backend
    stores: Stores

    async def close(self) -> None:
        """Lets go of everything."""
        await self.stores.close()


async def open_task_store(url: str) -> TaskStore:
    """The tasks that a text of `tasks_at` names."""
    task_queue.ACK_TIMEOUT = HINT
    home, stores = msgspec.json.decode(url.removeprefix(SCHEME), type=TaskBackends), Stores(SystemClock())
    try:
        return TaskStore(await open_tasks(home, stores), await stores.open(home.records), stores)
    except BaseException:
        await stores.close()
        raise
