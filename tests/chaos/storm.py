"""A storm over real processes on one server: everybody has a line of his own to the server, and all can be hit.

Processes are killed and stopped, lines are cut, slowed, made deaf and refused, the server is killed and started again.
When it is over, nothing more is hit, and everything must come to rest.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import seeds
from processes.kill_scene import KillScene, children, eventually
from servers.proxy import Proxy, proxy
from wrasse.clock import SystemClock
from wrasse.errors import StoreUnavailable
from wrasse.jobs.producer import Producer, ProducerOptions

ACTOR = Path(__file__).with_name("storm_actor.py")
KILLED = -signal.SIGKILL
BLOWS = ("kill", "kill", "kill", "pause", "freeze", "freeze", "cut", "deaf", "deaf", "slow", "refuse")


@dataclass(frozen=True, slots=True)
class Weather:
    """Who is out, what hits them, and how much there is to do."""

    workers: int = 8
    producers: int = 2
    engines: int = 2
    blows: tuple[str, ...] = BLOWS
    restart_every: int = 20  # rounds; of the server
    pause: float = 0.05  # seconds between two puts of a producer
    most: int = 12  # jobs in one put
    planted: str = ""
    poison: bool = True  # one job kills every worker that takes it
    aim: tuple[str, ...] = ("worker", "producer", "engine")  # whom the blows hit
    actor: Path = ACTOR
    gap: float = 0.4  # seconds between two blows, at most
    look: float = 0.02  # seconds between two looks whether all is at rest


class Server(Protocol):
    """What everybody is connected to, and what is killed and started again."""

    port: int

    def restart(self) -> None:
        """Killed, and started again with its data."""
        ...


class Seat:
    """The place of one actor: its role, its line to the server, and the process that has it now."""

    def __init__(self, role: str, line: Proxy) -> None:
        self.role, self.line = role, line
        self.process: subprocess.Popen[bytes] | None = None


def spawn(
    scene: KillScene, role: str, url: str, planted: str, *more: object, actor: Path = ACTOR
) -> subprocess.Popen[bytes]:
    """Starts an actor; what it complains about is in the scene's file `errors`."""
    command = [sys.executable, str(actor), role, url, planted, *map(str, more)]
    path = os.pathsep.join(filter(None, (str(ACTOR.parents[1]), os.environ.get("PYTHONPATH"))))
    with (scene.folder / "errors").open("ab") as errors:
        process = subprocess.Popen(command, cwd=scene.folder, env=seeds.environment(PYTHONPATH=path), stderr=errors)
    scene.running.append(process)
    return process


class Storm:
    """Keeps every seat taken, and hits one of them each round."""

    def __init__(
        self, scene: KillScene, server: Server, weather: Weather, seats: list[Seat], draw: random.Random
    ) -> None:
        self.scene, self.server, self.weather, self.seats, self.draw = scene, server, weather, seats, draw
        self.blows = 0
        self.restarts = 0
        self.crashes: list[tuple[str, int]] = []  # of actors that ended by themselves
        self._started = 0
        for seat in seats:
            self._start(seat)

    def _start(self, seat: Seat) -> None:
        self._started += 1
        work = (f"p{self._started}", self.weather.pause, self.weather.most)
        more = work if seat.role == "producer" else (self.scene.heartbeat_timeout,)
        url = self.scene.url.replace(f":{self.server.port}", f":{seat.line.port}")
        seat.process = spawn(self.scene, seat.role, url, self.weather.planted, *more, actor=self.weather.actor)

    async def rounds(self, hits: asyncio.TaskGroup, count: int) -> None:
        """So many blows, one after the other; what lasts goes on in the group."""
        for _ in range(count):
            await asyncio.sleep(self.draw.uniform(0.02, self.weather.gap))
            self.replace_the_dead()
            self.blows += 1
            if self.blows % self.weather.restart_every == 0:
                self.restarts += 1
                await asyncio.to_thread(self.server.restart)
            else:
                aimed_at = [seat for seat in self.seats if seat.role in self.weather.aim]
                hits.create_task(self._hit(self.draw.choice(self.weather.blows), self.draw.choice(aimed_at)))

    def replace_the_dead(self) -> None:
        """Whoever a job killed is followed by another. Nobody else may have ended."""
        for seat in self.seats:
            process = seat.process
            if process is not None and process.poll() is not None:
                if process.returncode != KILLED:
                    self.crashes.append((seat.role, process.returncode))
                self.scene.running.remove(process)
                self._start(seat)

    async def _hit(self, blow: str, seat: Seat) -> None:
        match blow:
            case "kill":
                self._end(seat)
                self._start(seat)
            case "pause" | "freeze":
                await self._stop(seat, with_children=blow == "freeze")
            case "cut":
                seat.line.cut()
            case "deaf":
                seat.line.deaf = True
                await asyncio.sleep(self.draw.uniform(0.05, 0.5))
                seat.line.deaf = False
            case "slow":
                seat.line.delay = self.draw.uniform(0.01, 0.3)
                await asyncio.sleep(self.draw.uniform(0.2, 1.5))
                seat.line.delay = 0.0
            case "refuse":
                seat.line.refuse = True
                seat.line.cut()
                await asyncio.sleep(self.draw.uniform(0.2, 2.0) * self.scene.heartbeat_timeout)
                seat.line.refuse = False

    async def _stop(self, seat: Seat, *, with_children: bool) -> None:
        """Stops a process for about a silence, shorter or longer; its beats go on, or stop with it."""
        assert seat.process is not None
        pids = [seat.process.pid, *(children(seat.process.pid) if with_children else ())]
        for each in pids:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGSTOP)
        await asyncio.sleep(self.draw.uniform(0.5, 3.0) * self.scene.heartbeat_timeout)
        for each in pids:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)

    def _end(self, seat: Seat) -> None:
        if seat.process is not None:
            self.scene.kill(seat.process)
            seat.process = None

    async def pass_over(self, rounds: int, jobs_min: int = 0) -> None:
        """So many rounds, and on until there were enough jobs; then calm."""
        producer = Producer(self.scene.jobs, SystemClock(), ProducerOptions(patience=timedelta(seconds=50)))
        await self.scene.until_logged("end")
        if self.weather.poison:
            await producer.enqueue(producer.job("poison", id="poison"))
        async with asyncio.TaskGroup() as hits:
            await self.rounds(hits, rounds)
            while sum(len(line.facts) for line in self.scene.log() if line.what == "put") < jobs_min:
                await self.rounds(hits, 30)
        await self.calm()
        assert self.crashes == [], (self.scene.folder / "errors").read_text()[-2_000:]

    async def calm(self) -> None:
        """No more jobs; and it goes on until none waits, none is held, and nobody died of the last ones."""
        for seat in [seat for seat in self.seats if seat.role == "producer"]:
            self._end(seat)
            self.seats.remove(seat)

        async def at_rest() -> bool:
            self.replace_the_dead()
            try:
                counts = await self.scene.jobs.counts()
            except StoreUnavailable:  # servers that have not found each other again
                return False
            return all(q.ready + q.scheduled + q.running == 0 for q in counts.queues)

        await eventually(at_rest, within=200, every=self.weather.look)
        self.replace_the_dead()


@asynccontextmanager
async def storm_over(scene: KillScene, server: Server, weather: Weather, draw: random.Random) -> AsyncIterator[Storm]:
    """A storm whose actors all run."""
    roles = ["worker"] * weather.workers + ["producer"] * weather.producers + ["engine"] * weather.engines
    async with AsyncExitStack() as stack:
        seats = [Seat(role, await stack.enter_async_context(proxy(server.port))) for role in roles]
        yield Storm(scene, server, weather, seats, draw)
