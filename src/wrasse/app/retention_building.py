"""From settings to the sweeps of streams. Alerts are remembered where engines on all hosts look."""

from __future__ import annotations

from datetime import timedelta

from wrasse.app.archiving import archive_streams
from wrasse.app.retention_settings import STREAM_SWEEPS, retention_of
from wrasse.app.settings import Settings
from wrasse.app.sweep_ports import Opened, scheduled, sweep_home
from wrasse.clock import Clock
from wrasse.engine.guard import PlainLockGuard
from wrasse.engine.loop import Scheduled
from wrasse.engine.pulses import backend_guards
from wrasse.engine.run import AnySweep
from wrasse.ports.backend import StreamStore
from wrasse.ports.guard import Guard
from wrasse.ports.surveys import Surveys
from wrasse.streams.alerts import ALERTS, Alerts
from wrasse.streams.group_census import LOOKS, Census, Looks
from wrasse.streams.retention import Retention
from wrasse.streams.survey import PlainSurvey
from wrasse.streams.trimmer import Trimmer
from wrasse.sweeps.aged_entries import AgedEntries
from wrasse.sweeps.dead_consumers import DeadConsumers


def retention(settings: Settings) -> Retention:
    """The rules of the settings, and which streams an archiver protects."""
    return retention_of(settings.retention, [each.stream for each in archive_streams(settings)])


def stream_sweeps(settings: Settings, opened: Opened) -> tuple[str, ...]:
    """The sweeps of streams that have something to do here. Without rules nothing is trimmed; but a server may still
    have the age of a rule that is gone."""
    aged = settings.retention or opened.streams.ages is not None
    return STREAM_SWEEPS if aged else (DeadConsumers.name,)


def build_stream_sweep(name: str, settings: Settings, opened: Opened, clock: Clock) -> Scheduled:
    """One sweep of streams with its settings, budget and guards."""
    own, store = settings.sweeps[name], opened.streams
    alerts = Alerts(store.records(ALERTS), store.streams, clock, name)
    sweep: AnySweep
    silence = timedelta(0)  # a trim judges by what is stored
    if name == AgedEntries.name:
        trimmer = Trimmer(store.streams, alerts, clock, opened.retention)
        rules, ages = retention(settings), store.ages
        sweep = AgedEntries(surveys_of(store), rules, trimmer, alerts, ages=ages, **own.fields)  # type: ignore[arg-type]
    else:
        looks = Looks(store.records(LOOKS))
        census = Census(surveys_of(store), store.groups, alerts, looks, store.capabilities.knows_holders)
        sweep = DeadConsumers(census, store.groups, alerts, opened.retention, **own.fields)  # type: ignore[arg-type]
        silence = sweep.gone_for  # that somebody was silent proves nothing while nobody could be heard
    guards: tuple[Guard, ...] = tuple(backend_guards(store, clock, silence, skew_max=settings.engine.skew_max))
    if store.plain_locks is not None:
        # The document's sweeper trims under the same lock under which it looks for what is stuck.
        guards = (PlainLockGuard(store.plain_locks, settings.sweeper.lock_ttl), *guards)
    return scheduled(sweep, own, guards, name, sweep_home(store, clock))


def surveys_of(store: StreamStore) -> Surveys:
    """What looks at all streams of a backend."""
    return store.surveys or PlainSurvey(store.streams)
