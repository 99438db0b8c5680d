"""Builds the engine and its sweeps from settings and open backends: the needs, ports, guards and home of each.

A sweep's fields without a default are ports and are filled by their annotation; its other fields are its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import timedelta
from functools import partial

from wrasse.clock import Clock
from wrasse.config.load import Config
from wrasse.config.plugins import PortField, load_sweep, port_fields
from wrasse.config.settings import STREAM_SWEEPS, ReaperSettings, Settings, SweepSettings
from wrasse.config.urls import parse_store
from wrasse.engine.guard import MassDeath, PlainLockGuard, Traffic, backend_guards
from wrasse.engine.loop import Engine, Scheduled, SweepBackend
from wrasse.engine.run import AnySweep, RunBudget, RunContext
from wrasse.ids import Ids
from wrasse.jobs.stream_tasks.queue import AgedTasks, TaskQueue
from wrasse.ports.backend import Backend, ObjectStore, StreamStore
from wrasse.ports.groups import Groups
from wrasse.ports.guard import Guard, HealthCheck
from wrasse.ports.inconsistency import Strays
from wrasse.ports.jobs import JobQueue
from wrasse.ports.journal import Journal
from wrasse.ports.objects import Objects
from wrasse.ports.records import Records
from wrasse.ports.streams import Streams, Surveys
from wrasse.runtime.archiver import archive_streams
from wrasse.runtime.backends import Stores
from wrasse.runtime.open_ports import (
    ENGINE as ENGINE,
    JOBS as JOBS,
    LEASES,
    OBJECTS,
    ORPHANS,
    RECORDS,
    STREAMS as STREAMS,
    TASKS as TASKS,
    OpenPorts as OpenPorts,
    open_homes,
    sweep_home,
)
from wrasse.runtime.orphans import ORPHANS as ORPHAN_SWEEP, instance_of
from wrasse.runtime.stream_tasks import task_home
from wrasse.runtime.worker import owner_name
from wrasse.streams.alerts import ALERTS, Alerts
from wrasse.streams.group_census import IDLE_OBSERVATIONS, Census, IdleObservations, PlainSurvey
from wrasse.streams.retention import Retention, RetentionRule, Trimmer
from wrasse.sweeps import CATALOGUE
from wrasse.sweeps.aged_entries import AgedEntries
from wrasse.sweeps.aged_records import AgedRecords
from wrasse.sweeps.dead_consumers import DeadConsumers
from wrasse.sweeps.expired_leases import ExpiredLeases
from wrasse.sweeps.finished_jobs import FinishedJobs
from wrasse.sweeps.open_transactions import OpenTransactions
from wrasse.sweeps.orphan_objects import OrphanObjects
from wrasse.sweeps.spent_decisions import SpentDecisions
from wrasse.sweeps.stuck_jobs import StraySearch, StuckJobs

JOB_SWEEPS = ("stuck_jobs", "finished_jobs")  # what every worker process also runs
LEASE_SWEEPS = (  # what every process that serves leases also runs
    ExpiredLeases.name,
    OpenTransactions.name,
    SpentDecisions.name,
    AgedRecords.name,
)
IDLE = "idle"  # the group of sweeps that run without traffic only


@dataclass(frozen=True, slots=True)
class Family:
    """Sweeps that need the same backends: they start together, and do not wait for other backends."""

    name: str
    needs: tuple[str, ...]
    sweeps: tuple[str, ...]  # by their names in the catalogue
    build: Callable[[OpenPorts], Sequence[Scheduled]]


Build = Callable[[str, Settings, OpenPorts, Clock], Scheduled | None]
"""Builds the sweep of this name, or of this root; None if it has nothing to do."""


def families(config: Config, clock: Clock, only: Container[str] | None = None) -> Sequence[Family]:
    """The sweeps named in `only`, or all: wrasse's, then the user's."""
    settings, where = config.settings, config.homes
    wanted = [name for name in config.catalogue if only is None or name in only]
    apart = (ORPHAN_SWEEP, *LEASE_SWEEPS, *STREAM_SWEEPS)
    found: list[Family] = []

    def add(name: str, needs: tuple[str, ...], names: Sequence[str], build: Build, sweep: str = "") -> None:
        if names:
            made = partial(_built, names, build, settings, clock)
            found.append(Family(name, needs, (sweep,) if sweep else tuple(names), made))

    # Leases at leases.server are swept there.
    leases = [name for name in LEASE_SWEEPS if name in wanted and not settings.leases.server]
    add("leases", (LEASES,), leases, build_lease_sweep)
    streams = [name for name in STREAM_SWEEPS if name in wanted and where.serves(STREAMS)]
    if not settings.retention and AgedEntries.name in streams and not parse_store(where.streams).is_nats:
        streams.remove(
            AgedEntries.name
        )  # without a rule it trims nothing; NATS may still have the age of a former rule
    add("streams", (STREAMS,), streams, build_stream_sweep)
    for name in wanted:
        # Without a backend of jobs there is nothing to sweep; a user's sweep is refused.
        if name not in apart and (settings.sweeps[name].use or where.serves(JOBS)):
            add(name, needs_of(kind_of(name, settings)), [name], build_sweep)
    for root in settings.orphans if ORPHAN_SWEEP in wanted else ():
        add(instance_of(root), (f"{ORPHANS}/{root}",), [root], build_orphans, ORPHAN_SWEEP)
    if task_home(config) is not None:
        add("tasks", (TASKS,), [name for name in JOB_SWEEPS if name in wanted], build_task_sweep)
    return found


def _built(
    names: Sequence[str], build: Build, settings: Settings, clock: Clock, opened: OpenPorts
) -> Sequence[Scheduled]:
    made = (build(name, settings, opened, clock) for name in names)
    return [each for each in made if each is not None]


def kind_of(name: str, settings: Settings) -> type[AnySweep]:
    """The class of a sweep, wrasse's or the user's."""
    use = settings.sweeps[name].use
    return load_sweep(use) if use else CATALOGUE[name].kind


async def open_engine(
    config: Config, stores: Stores, clock: Clock, only: Container[str] | None = None, into: OpenPorts | None = None
) -> tuple[Engine, OpenPorts]:
    """The engine with the sweeps named in `only`, or with all, and their open ports."""
    found = families(config, clock, only)
    needs = [need for family in found for need in family.needs]
    opened = await open_homes(config, stores, ENGINE, *needs, into=into)
    engine = build_engine(config.settings, opened, clock, owner_name())
    for family in found:
        engine.add(family.build(opened))
    return engine, opened


def build_engine(settings: Settings, opened: OpenPorts, clock: Clock, owner: str) -> Engine:
    """The engine, without sweeps."""
    home = sweep_home(opened.engine, clock)
    return Engine(
        (),
        home=home,
        context=RunContext(opened.journal, clock, Ids(clock)),
        owner=owner,
        lease_ttl=settings.engine.lease,
        journal_kept=settings.engine.journal_kept,
    )


def build_sweep(name: str, settings: Settings, opened: OpenPorts, clock: Clock) -> Scheduled:
    """One sweep with its settings, budget and guards."""
    own = settings.sweeps[name]
    kind = kind_of(name, settings)
    sweep = kind(**fill_ports(kind, opened), **own.fields)
    health_guards = [
        backend_guards(health_check, clock, skew_max=settings.engine.skew_max)
        for health_check in health_checks(kind, opened)
    ]
    guards: tuple[Guard, ...] = tuple(guard for each in health_guards for guard in each)
    if isinstance(sweep, StuckJobs):
        if opened.jobs.strays is not None:
            sweep = replace(sweep, search=stray_search(settings.reaper, opened.jobs.strays, clock))
        # A missing heartbeat proves nothing after an outage, so these pause for one heartbeat timeout after it.
        health = backend_guards(opened.jobs, clock, sweep.heartbeat_timeout, skew_max=settings.engine.skew_max)
        guards = (*health, MassDeath(opened.jobs.jobs, sweep.heartbeat_timeout))
    return scheduled(sweep, own, guards, name, swept_home(kind, opened, clock))


def build_orphans(name: str, settings: Settings, opened: OpenPorts, clock: Clock) -> Scheduled:
    """The sweep of one root of orphans."""
    own, root, scanner = settings.sweeps[ORPHAN_SWEEP], settings.orphans[name], opened.scanners[name]
    seed = timedelta(seconds=settings.gc.interval) if root.preset else timedelta(0)
    health_guards = backend_guards(opened.engine, clock, skew_max=settings.engine.skew_max)
    batch_max = own.fields["batch_max"]
    assert isinstance(batch_max, int), "a number by its type"
    sweep = OrphanObjects(scanner, batch_max)
    guards, home = (*health_guards, *scanner.guards), opened.sweep_homes[name]
    return scheduled(sweep, own, guards, instance_of(name), home, interval=root.interval or seed or None)


def build_lease_sweep(name: str, settings: Settings, opened: OpenPorts, clock: Clock) -> Scheduled:
    """A sweep of leases. Those of the idle group run without traffic only; the one for retention always."""
    own, leasing = settings.sweeps[name], opened.leasing
    assert leasing is not None, "built only with leases"
    guards = backend_guards(opened.records, clock, skew_max=settings.engine.skew_max)
    idle: dict[str, AnySweep] = {
        ExpiredLeases.name: ExpiredLeases(leasing.leases, leasing.namespaces),
        OpenTransactions.name: OpenTransactions(leasing.leases),
        SpentDecisions.name: SpentDecisions(leasing.leases),
    }
    group = IDLE
    if name == AgedRecords.name:
        retention = own.fields["retention"]
        assert isinstance(retention, timedelta), "a time by its type"
        sweep: AnySweep = AgedRecords(leasing.leases, leasing.namespaces, retention)
        group = ""
    else:
        sweep = idle[name]
        guards = (*guards, Traffic(leasing.activity, settings.leases.idle_sweep_grace, clock))
    return replace(scheduled(sweep, own, guards, name, sweep_home(opened.records, clock)), group=group)


def scheduled(
    sweep: AnySweep,
    own: SweepSettings,
    guards: Sequence[Guard],
    name: str,
    home: SweepBackend | None,
    *,
    interval: timedelta | None = None,
) -> Scheduled:
    """A sweep with the cadence and the budget of its settings, or with an interval of its own."""
    return Scheduled(
        sweep,
        interval=own.interval if interval is None else interval,
        jitter=own.jitter,
        budget=RunBudget(own.actions_max, own.runtime_max, own.pause),
        guards=tuple(guards),
        enabled=own.enabled,
        name=name,
        home=home,
    )


def stray_search(own: ReaperSettings, strays: Strays, clock: Clock) -> StraySearch:
    """The search for stray jobs, with the limits of the settings."""
    return StraySearch(
        strays=strays,
        clock=clock,
        limit=own.scan_count,
        runtime_max=own.pass_budget,
        pause=own.page_delay,
        pause_jitter=own.page_jitter,
    )


def fill_ports(sweep: type, opened: OpenPorts) -> dict[str, object]:
    """The ports of a sweep, from the open backends."""
    return {port.field: _port(port, opened) for port in port_fields(sweep)}


def health_checks(sweep: type, opened: OpenPorts) -> Sequence[HealthCheck]:
    """The backends a sweep depends on, each once."""
    found = [_opened(need, opened) for need in needs_of(sweep)]
    return [health_check for index, health_check in enumerate(found) if health_check not in found[:index]]


def needs_of(sweep: type) -> tuple[str, ...]:
    """What must be open for a sweep."""
    return tuple(dict.fromkeys(_need(port.kind) for port in port_fields(sweep)))


def swept_home(sweep: type, opened: OpenPorts, clock: Clock) -> SweepBackend | None:
    """The leases and states of a sweep: in the backend of its first port; None if it has only the journal."""
    needs = [need for need in needs_of(sweep) if need != ENGINE]
    return sweep_home(_opened(needs[0], opened), clock) if needs else None


def _need(kind: object) -> str:
    if kind is Objects:
        return OBJECTS
    if kind in (Streams, Groups):
        return STREAMS
    return JOBS if kind is JobQueue else ENGINE if kind is Journal else RECORDS


def _opened(need: str, opened: OpenPorts) -> Backend | ObjectStore:
    return opened.objects if need == OBJECTS else opened.stores[need]


def _port(port: PortField, opened: OpenPorts) -> object:
    if port.kind is JobQueue:
        return opened.jobs.jobs
    if port.kind is Journal:
        return opened.journal
    if port.kind is Streams:
        return opened.streams.streams
    if port.kind is Groups:
        return opened.streams.groups
    if port.kind is Objects:
        return opened.objects.objects
    assert port.kind is Records, f"{port.field} is a port"
    assert port.collection is not None, "records are of a collection"
    return opened.records.records(port.collection)


def retention(settings: Settings) -> Retention:
    """The rules of the settings, and which streams an archiver protects."""
    rules = (RetentionRule(pattern, *astuple(own)) for pattern, own in settings.retention.items())
    return Retention(tuple(rules), tuple(each.stream for each in archive_streams(settings)))


def build_stream_sweep(name: str, settings: Settings, opened: OpenPorts, clock: Clock) -> Scheduled | None:
    """One sweep of streams with its settings, budget and guards. Without rules nothing is trimmed; but a server may
    still have the age of a rule that is gone."""
    own, store = settings.sweeps[name], opened.streams
    if name == AgedEntries.name and not settings.retention and store.ages is None:
        return None
    alerts = Alerts(store.records(ALERTS), store.streams, clock, name)
    sweep: AnySweep
    timeout = timedelta(0)  # a trim judges by what is stored
    if name == AgedEntries.name:
        trimmer = Trimmer(store.streams, alerts, clock, opened.retention)
        rules, ages = retention(settings), store.ages
        sweep = AgedEntries(surveys_of(store), rules, trimmer, alerts, ages=ages, **own.fields)  # type: ignore[arg-type]
    else:
        observations = IdleObservations(store.records(IDLE_OBSERVATIONS))
        census = Census(
            surveys=surveys_of(store),
            groups=store.groups,
            alerts=alerts,
            idle_observations=observations,
            knows_holders=store.capabilities.knows_holders,
        )
        sweep = DeadConsumers(census, store.groups, alerts, opened.retention, **own.fields)  # type: ignore[arg-type]
        timeout = sweep.gone_for  # a missing call proves nothing after an outage
    guards: tuple[Guard, ...] = tuple(backend_guards(store, clock, timeout, skew_max=settings.engine.skew_max))
    if store.named_locks is not None:
        # The document's sweeper trims under the same lock under which it searches stuck tasks.
        guards = (PlainLockGuard(store.named_locks, settings.sweeper.lock_ttl), *guards)
    return scheduled(sweep, own, guards, name, sweep_home(store, clock))


def surveys_of(store: StreamStore) -> Surveys:
    """The survey of all streams of a backend."""
    return store.surveys or PlainSurvey(store.streams)


def build_task_sweep(name: str, settings: Settings, opened: OpenPorts, clock: Clock) -> Scheduled:
    """A sweep of stream tasks: an instance of its own, since each backend has its own interval."""
    assert opened.tasks is not None, "built only with tasks"
    build = _stuck_tasks if name == StuckJobs.name else _finished_tasks
    return build(settings, opened, opened.tasks, clock)


def _stuck_tasks(settings: Settings, opened: OpenPorts, tasks: TaskQueue, clock: Clock) -> Scheduled:
    timeout = settings.sweeper.stuck_threshold
    sweep = StuckJobs(
        tasks,
        # The deadline of each task is its record's own; nothing is added to it here.
        heartbeat_timeout=timedelta(0),
        search=stray_search(settings.reaper, tasks.strays, clock),
        retries={name: each.max_retries for name, each in settings.task_types.items()},
        reports=tasks.reports,
    )
    guards: tuple[Guard, ...] = (
        *backend_guards(opened.records, clock, timeout, skew_max=settings.engine.skew_max),
        MassDeath(tasks.workers, timeout),
    )
    if opened.records.named_locks is not None:
        guards = (PlainLockGuard(opened.records.named_locks, settings.sweeper.lock_ttl), *guards)
    own, home = settings.sweeps[StuckJobs.name], sweep_home(opened.records, clock)
    return scheduled(sweep, own, guards, f"{StuckJobs.name}@tasks", home, interval=settings.sweeper.interval)


def _finished_tasks(settings: Settings, opened: OpenPorts, tasks: TaskQueue, clock: Clock) -> Scheduled:
    own = settings.sweeps[FinishedJobs.name]
    sweep = FinishedJobs(AgedTasks(tasks.ports, tasks.types), **own.fields)  # type: ignore[arg-type]
    guards = backend_guards(opened.records, clock, skew_max=settings.engine.skew_max)
    return scheduled(sweep, own, guards, f"{FinishedJobs.name}@tasks", sweep_home(opened.records, clock))
