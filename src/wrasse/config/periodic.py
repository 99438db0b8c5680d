"""Periodic jobs from the settings."""

from __future__ import annotations

from wrasse.config.settings import PeriodicSettings
from wrasse.errors import ConfigError
from wrasse.jobs.new_job import encoded
from wrasse.jobs.periodic import Every, Missed, Periodic, parse_cron


def as_periodic(name: str, own: PeriodicSettings) -> Periodic:
    """The periodic job for these settings."""
    if bool(own.cron) == (own.every is not None):
        raise ConfigError(
            f"the periodic job {name!r} has {'both cron and every' if own.cron else 'neither cron nor every'}",
            do='write one of them, such as cron: "0 3 * * *" or every: 5m',
        )
    if own.every is not None and own.tz != "UTC":
        raise ConfigError(f"the periodic job {name!r} has every and a time zone", do="tz goes with cron")
    schedule = Every(own.every) if own.every is not None else parse_cron(own.cron, own.tz)
    return Periodic(name, schedule, own.kind or name, encoded(own.data), own.priority or None, Missed(own.missed))
