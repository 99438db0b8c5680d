"""Which backend is the home of what, from the settings: jobs, records, streams, objects, and what the engine keeps.

The engine's leases, cursors and journal go where `engine.backend` says, else to the first home that was named (records,
jobs, streams), so that two hosts that share a store also share "the" one lease of a sweep.
"""

from __future__ import annotations

from dataclasses import dataclass

from wrasse.app.config import Config
from wrasse.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Homes:
    """The URL of each home."""

    jobs: str
    records: str
    streams: str
    objects: str
    engine: str


def homes(config: Config) -> Homes:
    """Where this configuration keeps things. Redis settings without a named home for jobs would select Redis."""
    backends = config.settings.backends
    if config.named("redis") and not config.named("backends.jobs"):
        source = next(where for path, where in config.sources.items() if path == "redis" or path.startswith("redis."))
        raise ConfigError(
            f"{source}: the redis settings select Redis for jobs, and this version has no redis backend",
            do="remove them, or name another home: backends.jobs: sqlite:wrasse.db",
        )
    engine = config.settings.engine.backend
    if not engine:
        named = ("records", backends.records), ("jobs", backends.jobs), ("streams", backends.streams)
        engine = next((url for port, url in named if config.named(f"backends.{port}")), backends.records)
    return Homes(backends.jobs, backends.records, backends.streams, backends.objects, engine)
