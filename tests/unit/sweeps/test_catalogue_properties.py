"""Every sweep of the catalogue is held to what wrasse.testing asks of sweeps: the same kit that users have."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

import pytest

from orphan_field import HOUR, Field
from wrasse.leases.leases import Leases
from wrasse.ports.groups import StartAt
from wrasse.ports.jobs import Complete, DeadLetterJob, Job, JobFilter, JobState, Reason, RequeueDead, WorkerInfo
from wrasse.ports.streams import Draft
from wrasse.streams.alerts import ALERTS, Alerts
from wrasse.streams.group_census import IDLE_OBSERVATIONS, Census, IdleObservations, PlainSurvey
from wrasse.streams.retention import Retention, RetentionRule, RetentionTally, Trimmer
from wrasse.sweeps import CATALOGUE
from wrasse.sweeps.aged_entries import AgedEntries
from wrasse.sweeps.aged_records import AgedRecords
from wrasse.sweeps.dead_consumers import DeadConsumers
from wrasse.sweeps.expired_leases import ExpiredLeases
from wrasse.sweeps.finished_jobs import FinishedJobs
from wrasse.sweeps.open_transactions import OpenTransactions
from wrasse.sweeps.orphan_objects import OrphanObjects
from wrasse.sweeps.spent_decisions import SpentDecisions
from wrasse.sweeps.stuck_jobs import StuckJobs
from wrasse.testing import SweepCase, World, check_sweep

HEARTBEAT_TIMEOUT = timedelta(seconds=30)
DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)


async def taken(world: World, *ids: str, worker: str) -> None:
    await world.store.jobs.enqueue([Job(id) for id in ids], request=f"put-{ids}")
    await world.store.jobs.claim(
        ["low"], len(ids), worker=worker, heartbeat_timeout=HEARTBEAT_TIMEOUT, request=f"take-{ids}"
    )


async def beats(world: World, *workers: str) -> None:
    for worker in workers:
        held = await world.store.jobs.page(JobState.RUNNING, JobFilter(), None, 100)
        claims = [job.claim for job in held if job.worker == worker]
        await world.store.jobs.heartbeat(WorkerInfo(worker), claims, heartbeat_timeout=HEARTBEAT_TIMEOUT)


async def one_worker_fell_silent(world: World) -> None:
    await taken(world, "a", "b", "c", worker="silent")
    await taken(world, "d", worker="beating")
    await world.store.jobs.enqueue([Job("e")], request="put")
    world.clock.advance(HEARTBEAT_TIMEOUT)
    await beats(world, "beating")


async def it_beats_again(world: World) -> None:
    await beats(world, "silent")


async def some_are_finished(world: World) -> None:
    jobs = world.store.jobs
    for name in ("dead", "old", "young"):
        await jobs.enqueue([Job(f"{name}-{n}") for n in range(3)], request=f"put-{name}")
        mine = await jobs.claim(["low"], 3, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=f"take-{name}")
        ends = [
            DeadLetterJob(each.claim, Reason.FAILED) if name == "dead" else Complete(each.claim) for each in mine.jobs
        ]
        await jobs.settle(ends, request=f"settle-{name}")
        world.clock.advance(DAY)


async def the_dead_are_revived(world: World) -> None:
    dead = await world.store.jobs.page(JobState.DEAD, JobFilter(), None, 100)
    await world.store.jobs.move([RequeueDead(job.claim) for job in dead])


FIELDS: dict[int, Field] = {}


def orphans_of(world: World) -> OrphanObjects:
    """A field whose clock, objects and references are the world's."""
    place = Path(tempfile.mkdtemp(prefix="wrasse-orphans-"))
    field = FIELDS[id(world)] = Field(place, objects=world.store.objects, clock=world.clock)
    return OrphanObjects(field.scanner)


async def two_are_superseded(world: World) -> None:
    field = FIELDS[id(world)]
    for op in ("a", "b", "c"):
        await field.put("ws", op)
    field.refer("ws", "c")
    await field.arm()
    await field.scanner.scan(note=True)
    world.clock.advance(2 * HOUR)
    await field.scanner.scan(note=True)


async def they_are_restored(world: World) -> None:
    FIELDS[id(world)].refer("ws", "a")
    FIELDS[id(world)].refer("ws", "b")


def leases_of(world: World) -> Leases:
    return Leases(world.records, world.store.objects, world.clock)


async def holds(world: World, *keys: str, ttl: timedelta, give_back: bool = False) -> None:
    leases = leases_of(world)
    for key in keys:
        lease = await leases.acquire(key, "me", ttl=ttl)
        await leases.update(lease.granted, b"{}")
        if give_back:
            await leases.release(lease.granted)
    await leases.close()


async def some_leases_ended(world: World) -> None:
    await holds(world, "a", "b/c", ttl=HEARTBEAT_TIMEOUT)
    await holds(world, "d", ttl=10 * HEARTBEAT_TIMEOUT)
    world.clock.advance(HEARTBEAT_TIMEOUT)


async def they_are_taken_again(world: World) -> None:
    await holds(world, "a", "b/c", ttl=HEARTBEAT_TIMEOUT)


async def some_keys_are_old(world: World) -> None:
    await holds(world, "a", "b/c", ttl=HEARTBEAT_TIMEOUT, give_back=True)
    await holds(world, "d", ttl=HEARTBEAT_TIMEOUT)
    world.clock.advance(2 * DAY)
    await holds(world, "e", ttl=HEARTBEAT_TIMEOUT, give_back=True)


async def they_are_used_again(world: World) -> None:
    await holds(world, "a", "b/c", ttl=HEARTBEAT_TIMEOUT, give_back=True)


TRANSACTIONS = {name: f"{name:0>19}0" for name in ("a1", "b2", "c3")}


async def transacts(world: World, name: str, *keys: str, ttl: timedelta, end: bool = False) -> None:
    leases = leases_of(world)
    for key in keys:
        lease = await leases.acquire(key, "me", ttl=ttl, transaction=TRANSACTIONS[name])
        await leases.update(lease.granted, b"{}")
    if end:
        await leases.decide(TRANSACTIONS[name], commit=True)
    await leases.close()


async def some_transactions_are_overdue(world: World) -> None:
    await transacts(world, "a1", "a", "b", ttl=HEARTBEAT_TIMEOUT)
    await transacts(world, "b2", "c", "d", ttl=HEARTBEAT_TIMEOUT)
    await transacts(world, "c3", "e", "f", ttl=10 * HEARTBEAT_TIMEOUT)
    world.clock.advance(HEARTBEAT_TIMEOUT)


async def they_are_committed_after_all(world: World) -> None:
    for name in ("a1", "b2"):
        leases = leases_of(world)
        await leases.decide(TRANSACTIONS[name], commit=True)
        await leases.close()


async def some_decisions_are_old(world: World) -> None:
    await transacts(world, "a1", "a", "b", ttl=HEARTBEAT_TIMEOUT, end=True)
    await transacts(world, "b2", "c", ttl=HEARTBEAT_TIMEOUT, end=True)
    world.clock.advance(DAY)
    await transacts(world, "c3", "d", ttl=HEARTBEAT_TIMEOUT, end=True)


async def they_were_asked_for(world: World) -> None:
    for name in ("a1", "b2"):
        await leases_of(world).transactions.transaction_log.outcome(TRANSACTIONS[name])


async def some_entries_are_old(world: World) -> None:
    streams, groups = world.store.streams, world.store.groups
    for subject in ("gbe.a", "gbe.b", "gbe.tasks.mail.queue", "gbe._deadletter.tasks"):
        ids = await streams.append([Draft(subject, b"old")])
    await groups.join("gbe.tasks.mail.queue", "mail-workers", StartAt(first=True))
    await groups.join("gbe._deadletter.tasks", "archiver", StartAt(first=True))
    await groups.mark("gbe._deadletter.tasks", "archiver", ids[0])
    world.clock.advance(DAY + HEARTBEAT_TIMEOUT)
    await streams.append([Draft("gbe.a", b"young"), Draft("gbe.c", b"young")])


async def somebody_else_trims_them(world: World) -> None:
    for subject in ("gbe.a", "gbe.b", "gbe._deadletter.tasks"):
        await world.store.streams.trim(subject, age=DAY, below=None, protect=(), limit=10)


def aged_entries_of(world: World) -> AgedEntries:
    streams = world.store.streams
    alerts = Alerts(world.records(ALERTS), streams, world.clock, AgedEntries.name)
    trimmer = Trimmer(streams, alerts, world.clock, RetentionTally())
    rules = (RetentionRule("gbe.>", DAY, exact=True),)
    return AgedEntries(PlainSurvey(streams), Retention(rules), trimmer, alerts)


async def asks(world: World, *consumers: str) -> None:
    for subject in ("gbe.a", "gbe.b"):
        for consumer in consumers:
            await world.store.groups.deliver([subject], "g", consumer, 1, ack_timeout=HEARTBEAT_TIMEOUT)


async def some_consumers_fell_silent(world: World) -> None:
    for subject in ("gbe.a", "gbe.b"):
        await world.store.groups.join(subject, "g", StartAt(first=True))
    await world.store.streams.append([Draft("gbe.a", b"1")])
    await asks(world, "one", "two")
    world.clock.advance(HEARTBEAT_TIMEOUT + 10 * MINUTE)
    await asks(world, "alive")


async def they_ask_again(world: World) -> None:
    await asks(world, "one", "two")


def dead_consumers_of(world: World) -> DeadConsumers:
    streams, groups = world.store.streams, world.store.groups
    alerts = Alerts(world.records(ALERTS), streams, world.clock, DeadConsumers.name)
    census = Census(PlainSurvey(streams), groups, alerts, IdleObservations(world.records(IDLE_OBSERVATIONS)))
    return DeadConsumers(census, groups, alerts, RetentionTally())


CASES = {
    "aged_entries": SweepCase(
        aged_entries_of, some_entries_are_old, somebody_else_trims_them, ("gbe.tasks.mail.queue", "gbe.c"), grace=DAY
    ),
    "dead_consumers": SweepCase(
        dead_consumers_of,
        some_consumers_fell_silent,
        they_ask_again,
        ("gbe.a g alive", "gbe.b g alive"),
        grace=HEARTBEAT_TIMEOUT + 10 * MINUTE,
    ),
    "open_transactions": SweepCase(
        lambda world: OpenTransactions(leases_of(world)),
        some_transactions_are_overdue,
        they_are_committed_after_all,
        (TRANSACTIONS["c3"],),
        grace=HEARTBEAT_TIMEOUT,
    ),
    "spent_decisions": SweepCase(
        lambda world: SpentDecisions(leases_of(world)),
        some_decisions_are_old,
        they_were_asked_for,
        (TRANSACTIONS["c3"],),
        grace=DAY,
    ),
    "expired_leases": SweepCase(
        lambda world: ExpiredLeases(leases_of(world), world.store.namespaces),
        some_leases_ended,
        they_are_taken_again,
        ("default/d",),
        grace=HEARTBEAT_TIMEOUT,
    ),
    "aged_records": SweepCase(
        lambda world: AgedRecords(leases_of(world), world.store.namespaces, retention=2 * DAY),
        some_keys_are_old,
        they_are_used_again,
        ("default/d", "default/e"),
        grace=2 * DAY,
    ),
    "orphan_objects": SweepCase(orphans_of, two_are_superseded, they_are_restored, ("archives/ws/c/",), grace=2 * HOUR),
    "stuck_jobs": SweepCase(
        lambda world: StuckJobs(world.store.jobs),
        one_worker_fell_silent,
        it_beats_again,
        ("d", "e"),
        grace=HEARTBEAT_TIMEOUT,
    ),
    "finished_jobs": SweepCase(
        lambda world: FinishedJobs(world.store.jobs, dead_kept=2 * DAY, done_kept=10 * DAY),
        some_are_finished,
        the_dead_are_revived,
        held=tuple(f"{name}-{n}" for name in ("old", "young") for n in range(3)),
        grace=2 * DAY,
    ),
}
ACTIONS = {
    "expired_leases": 2, "aged_records": 2, "orphan_objects": 2, "stuck_jobs": 3, "finished_jobs": 3,
    "open_transactions": 2, "spent_decisions": 2, "aged_entries": 3, "dead_consumers": 4,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CASES))
async def test_a_sweep_of_the_catalogue_keeps_what_every_sweep_promises(name: str) -> None:
    assert (await check_sweep(CASES[name])).actions == ACTIONS[name]


def test_every_sweep_of_the_catalogue_is_held_to_them() -> None:
    assert sorted(CASES) == sorted(CATALOGUE), "write a SweepCase here for every sweep in the catalogue"
