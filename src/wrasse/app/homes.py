"""Which backend is the home of what, from the settings: jobs, records, streams, objects, and what the engine keeps.

The engine's leases and cursors go where `engine.backend` says, else to the first home that was named (records, jobs,
streams), so that two hosts that share a store also share "the" one lease of a sweep. The journal goes there too, unless
that backend has none: then to the first named one that has, else to this host's own database.
"""

from __future__ import annotations

from dataclasses import dataclass

from wrasse.app.config import Config
from wrasse.app.nats_settings import is_nats, nats_options
from wrasse.app.redis_settings import is_redis, redis_options, selected
from wrasse.app.settings import EMBEDDED
from wrasse.app.store_url import parse_store


@dataclass(frozen=True, slots=True)
class Homes:
    """The URL of each home, secrets included."""

    jobs: str
    records: str
    streams: str
    objects: str
    engine: str
    journal: str


def homes(config: Config) -> Homes:
    """Where this configuration keeps things."""
    backends = config.settings.backends
    by_section = selected(config.sources)
    jobs = redis_options(config.settings, config.named).url() if by_section else _whole(backends.jobs, config)
    records, streams = _whole(backends.records, config), _whole(backends.streams, config)
    given = (
        (records, config.named("backends.records")),
        (jobs, by_section or config.named("backends.jobs")),
        (streams, config.named("backends.streams")),
    )
    named = [url for url, was_named in given if was_named]
    engine = _whole(config.settings.engine.backend, config) or next(iter(named), records)
    keeping = [url for url in (engine, *named, records) if parse_store(url).keeps_journal]
    return Homes(jobs, records, streams, backends.objects, engine, next(iter(keeping), EMBEDDED))


def _whole(url: str, config: Config) -> str:
    """A URL of a Redis or a NATS with what the settings say beside it; any other as it is."""
    if is_nats(url):
        archived = (*config.settings.archiver.streams, *config.settings.archival)
        patterns = tuple(dict.fromkeys(each.stream for each in archived if each.stream))
        return nats_options(config.settings.nats, config.named, url, patterns).url()
    return redis_options(config.settings, config.named, url).url() if is_redis(url) else url
