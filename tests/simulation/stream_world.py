"""A world of publishers, consumers and trims in virtual time, with laws that are checked at every call to the backend.

Real publishers and consumers, the memory backend, and between them a network that loses, delays and kills. Handlers
take their time, fail at random, and fail always on poison. The same seed tells the same story.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from faults import Crashed, Network, Seeded
from stream_faults import FaultyGroups, FaultyStreams
from virtual_time import VirtualClock
from wrasse.backends.memory.groups import MemoryGroups
from wrasse.backends.memory.journal import MemoryJournal
from wrasse.backends.memory.records import MemoryRecords
from wrasse.backends.memory.streams import Logs, MemoryStreams
from wrasse.engine.run import AnySweep, RunContext, run_once
from wrasse.errors import StoreUnavailable
from wrasse.ids import Ids
from wrasse.ports.groups import Ack, Answer, DeadLetter, Delivery, Nak, StartAt
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import START, EntryId
from wrasse.streams.alerts import Alerts
from wrasse.streams.consumer import Consumer, ConsumerSettings, StreamSubscription
from wrasse.streams.delivery import Received
from wrasse.streams.group_census import Census, IdleObservations, PlainSurvey
from wrasse.streams.publisher import Publisher
from wrasse.streams.retention import Retention, RetentionRule, RetentionTally, Trimmer, horizon
from wrasse.sweeps.aged_entries import AgedEntries
from wrasse.sweeps.dead_consumers import DeadConsumers

S, G, DEAD = "gbe.tasks.email.queue", "email-workers", "gbe._deadletter.tasks"
TIMEOUT = timedelta(seconds=30)
KEPT = timedelta(seconds=60)
STORM, REST, TICK = 900.0, 1_800.0, 1.0
SETTINGS = ConsumerSettings(
    auto_ack=True,
    start=StartAt(first=True),
    ack_timeout=TIMEOUT,
    inflight_max=8,
    deliveries_max=12,
    concurrency=2,
    close_max=timedelta(seconds=20),
)


class Broken(AssertionError):
    """A law did not hold."""


@dataclass(frozen=True, slots=True)
class Bug:
    """What is wrong with this world; nothing, by default."""

    name: str = "none"
    streams: type[MemoryStreams] = MemoryStreams
    groups: type[MemoryGroups] = MemoryGroups
    consumer: type[Consumer] = Consumer


@dataclass(slots=True)
class Account:
    """Who was given what until when, and what was handled and answered."""

    held: dict[EntryId, tuple[str, int, datetime]] = field(default_factory=dict)
    acked: set[EntryId] = field(default_factory=set)
    handled: set[EntryId] = field(default_factory=set)
    letters: set[EntryId] = field(default_factory=set)
    doubled: int = 0  # messages that were handled to their end once more


class WatchedGroups:
    """The backend's groups, with the laws checked at every call."""

    def __init__(self, groups: MemoryGroups, clock: VirtualClock, account: Account) -> None:
        self._groups = groups
        self._clock = clock
        self._account = account
        self._said_goodbye: set[str] = set()
        self.join, self.consumers, self.mark = groups.join, groups.consumers, groups.mark

    async def deliver(
        self,
        subjects: Sequence[str],
        group: str,
        consumer: str,
        limit: int,
        *,
        ack_timeout: timedelta,
        wait: timedelta = timedelta(0),
    ) -> Sequence[Delivery]:
        found = await self._groups.deliver(subjects, group, consumer, limit, ack_timeout=ack_timeout, wait=wait)
        now = self._clock.now()
        if not ack_timeout:
            self._said_goodbye.add(consumer)
        law(len(found) <= limit, "more than was asked for")
        for delivery in found:
            id = delivery.entry.id
            law(id not in self._account.acked, f"{id} was acked and came again")
            before = self._account.held.get(id)
            law(before is None or before[2] <= now, f"{id} was taken from {before} before its time")
            law(delivery.number == (1 if before is None else before[1] + 1), f"{id} was miscounted")
            self._account.held[id] = (consumer, delivery.number, delivery.until)
        return found

    async def extend(self, consumer: str, deliveries: Sequence[Delivery], *, ack_timeout: timedelta) -> Sequence[bool]:
        mine = await self._groups.extend(consumer, deliveries, ack_timeout=ack_timeout)
        for delivery, held in zip(deliveries, mine, strict=True):
            if held:
                holder, number, _ = self._account.held[delivery.entry.id]
                law((holder, number) == (consumer, delivery.number), f"{delivery.entry.id} was extended by a stranger")
                self._account.held[delivery.entry.id] = (consumer, number, self._clock.now() + ack_timeout)
        return mine

    async def answer(self, answers: Sequence[Answer]) -> Sequence[Outcome]:
        outcomes = await self._groups.answer(answers)
        for answer, outcome in zip(answers, outcomes, strict=True):
            if outcome is Outcome.DONE:
                self._settled(answer)
        return outcomes

    async def retire(self, subject: str, group: str, consumer: str) -> Outcome:
        outcome = await self._groups.retire(subject, group, consumer)
        if outcome is Outcome.DONE:
            for id, (holder, number, until) in self._account.held.items():
                if holder == consumer and id not in self._account.acked:
                    law(until <= self._clock.now() or holder in self._said_goodbye, f"{id} was taken from the living")
                    self._account.held[id] = ("", number, self._clock.now())
        return outcome

    def _settled(self, answer: Answer) -> None:
        law(answer.id not in self._account.acked, f"{answer.id} was answered after its ack")
        _, number, _ = self._account.held[answer.id]
        match answer:
            case Ack():
                law(answer.id in self._account.handled, f"{answer.id} was acked and nobody had handled it")
                self._account.acked.add(answer.id)
            case Nak():
                self._account.held[answer.id] = ("", number, self._clock.now() + answer.delay)
            case DeadLetter():
                law(answer.id not in self._account.letters, f"{answer.id} was set aside twice")
                self._account.letters.add(answer.id)
                self._account.acked.add(answer.id)


def law(holds: bool, what: str) -> None:
    """Says which law is broken."""
    if not holds:
        raise Broken(what)


class World:
    """One story."""

    def __init__(self, seed: int, bug: Bug, *, messages: int = 40) -> None:
        self.random = random.Random(seed)
        self.clock = VirtualClock()
        logs = Logs(self.clock)
        self.bug = bug
        self.streams = bug.streams(logs)
        self.account = Account()
        self.groups = WatchedGroups(bug.groups(logs), self.clock, self.account)
        self.poison = {b"%d" % n for n in range(messages) if self.random.random() < 0.08}
        self.messages = messages
        self.published: set[bytes] = set()
        self.plans: list[Seeded] = []
        self.calm = False
        self._frame = RunContext(MemoryJournal(self.clock), self.clock, Ids(self.clock))
        alerts = Alerts(MemoryRecords(self.clock, logs), self.streams, self.clock, "sweep")
        survey, tally = PlainSurvey(self.streams), RetentionTally()
        rules = Retention((RetentionRule(S, KEPT, exact=True),))
        self._aged_entries = AgedEntries(survey, rules, Trimmer(self.streams, alerts, self.clock, tally), alerts)
        watched: Any = self.groups
        census = Census(survey, watched, alerts, IdleObservations(MemoryRecords(self.clock, logs)))
        self._dead_consumers = DeadConsumers(census, watched, alerts, tally, gone_for=TIMEOUT)

    def network(self) -> Network:
        plan = Seeded(random.Random(self.random.random()), late_max=40.0, calm=self.calm)
        self.plans.append(plan)
        return Network(plan)

    async def run(self) -> None:
        """The storm, then rest: everything must come to an end."""
        await self.groups.join(S, G, StartAt(first=True))
        hosts = [asyncio.ensure_future(self._host()) for _ in range(3)]
        works = (self._publish, self._trim, self._sweep, self._bury)
        others = [asyncio.ensure_future(work()) for work in works]
        try:
            await self._until(STORM, hosts + others)
            self.calm = True
            for plan in self.plans:
                plan.calm = True
            end = STORM + REST
            while not await self._at_rest():
                law(asyncio.get_running_loop().time() < end, "it does not come to rest")
                await self._until(asyncio.get_running_loop().time() + 10, hosts + others)
        finally:
            for task in hosts + others:
                task.cancel()
            await asyncio.wait(hosts + others)
        await self._judge()

    async def _until(self, moment: float, tasks: Sequence[asyncio.Task[None]]) -> None:
        while (left := moment - asyncio.get_running_loop().time()) > 0:
            done, _ = await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            if done:
                await asyncio.sleep(left)

    async def _at_rest(self) -> bool:
        state = await self.streams.info(S)
        if state is None or len(self.published) < self.messages:
            return False
        return all(not group.pending and not group.lag for group in state.groups)

    async def _judge(self) -> None:
        letters = (await self.streams.read(DEAD, START, 1_000)).items
        sources = [entry.fields["entry_id"] for entry in letters if entry.fields]
        law(len(sources) == len(set(sources)) == len(self.account.letters), "a dead letter was written twice")
        law(len(self.account.acked) == self.messages, "a message was lost")

    async def _publish(self) -> None:
        network = self.network()
        publisher = Publisher(FaultyStreams(self.streams, network), self.clock)
        for n in range(self.messages):
            body = b"%d" % n
            while body not in self.published:
                with suppress(StoreUnavailable):
                    await publisher.publish(S, body, key=f"m{n}")
                    self.published.add(body)
            await asyncio.sleep(self.random.uniform(0, 25))

    async def _trim(self) -> None:
        while True:
            before = {entry.id for entry in (await self.streams.read(S, START, 1_000)).items}
            await self._run(self._aged_entries)
            after = {entry.id for entry in (await self.streams.read(S, START, 1_000)).items}
            law(before - after <= self.account.acked, "something was trimmed that nobody had acked")
            young = [id for id in before - after if id >= horizon(self.clock.now(), KEPT)]
            law(not young, "something was trimmed before its time")
            await asyncio.sleep(self.random.uniform(1, 20))

    async def _bury(self) -> None:
        """The sweep of dead consumers, beside one that knows nothing of it."""
        while True:
            await asyncio.sleep(self.random.uniform(20, 60))
            await self._run(self._dead_consumers)

    async def _run(self, sweep: AnySweep) -> None:
        report = await run_once(sweep, self._frame)
        law(not report.failed, f"{sweep.name} failed: {report.errors}")

    async def _sweep(self) -> None:
        """Retires consumers that have been silent for long."""
        while True:
            await asyncio.sleep(self.random.uniform(20, 60))
            for state in await self.groups.consumers(S, G):
                await self.groups.retire(S, G, state.consumer)

    async def _host(self) -> None:
        """Consumers one after the other: each runs a while, then is closed, or dies."""
        while True:
            network = self.network()
            groups = FaultyGroups(self.groups, network)  # type: ignore[arg-type]
            streams = FaultyStreams(self.streams, network)
            subscription = StreamSubscription(S, G, self._handle, SETTINGS)
            consumer = self.bug.consumer(streams, groups, self.clock, subscription)
            running = asyncio.ensure_future(consumer.run())
            try:
                await self._live(running, network)
                if self.calm or self.random.random() < 0.5:
                    network.wake()
                    await consumer.close()
            finally:
                network.dead = not running.done()
                running.cancel()
                await asyncio.wait([running])
                error = _why(running)
            if error is not None:
                raise error
            await network.close()
            await asyncio.sleep(self.random.uniform(0, 10))

    async def _live(self, running: asyncio.Task[None], network: Network) -> None:
        life = self.random.uniform(5, 200)
        while life > 0 and not running.done():
            step = min(life, self.random.uniform(1, 60))
            await asyncio.wait([running], timeout=step)
            life -= step
            if not self.calm and self.random.random() < 0.2:
                network.stall(self.random.uniform(15, 45))

    async def _handle(self, received: Received) -> None:
        await asyncio.sleep(self.random.choice([0, 0, 1, 5, 40]))
        if received.payload in self.poison or self.random.random() < 0.1:
            raise ValueError("no such user")
        self.account.doubled += received.id in self.account.handled
        self.account.handled.add(received.id)


def _why(task: asyncio.Task[None]) -> BaseException | None:
    """What ended a consumer, unless it was its own death."""
    error = None if task.cancelled() else task.exception()
    while isinstance(error, BaseExceptionGroup):
        broken = [each for each in error.exceptions if not isinstance(each, Crashed | asyncio.CancelledError)]
        error = broken[0] if broken else None
    return None if isinstance(error, Crashed) else error
