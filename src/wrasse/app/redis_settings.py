"""What the settings say about Redis, as the one value that opens it.

A `redis:` section or REDIS_ADDR makes Redis the home of jobs; `backends.jobs: redis://…` does too, and takes from the
section what a URL does not say. Names of keys that nobody set follow from the root.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping

from wrasse.app.settings import Redis, Settings
from wrasse.backends.redis.options import SCHEMES, RedisOptions, Tls, parse_addresses
from wrasse.errors import WrasseError

_KEYS = ("processing_list_pattern", "heartbeat_key_pattern", "completed_list", "dead_letter_list")
_ENDINGS = {"high": ":high_priority", "low": ":low_priority"}  # the design document's two queues


def selected(sources: Mapping[str, str]) -> bool:
    """Whether Redis settings make Redis the home of jobs. One bare REDIS_PASSWORD of another program does not."""
    return "backends.jobs" not in sources and ("redis" in sources or "redis.addr" in sources)


def is_redis(url: str) -> bool:
    """Whether the URL is that of a Redis."""
    return url.partition(":")[0] in SCHEMES


def redis_options(settings: Settings, named: Callable[[str], bool], url: str = "") -> RedisOptions:
    """How to reach Redis and what its keys are called: by the URL, or by the section alone."""
    own, worker = settings.redis, settings.worker
    base = _by_url(RedisOptions.of(url), own, named) if url else _by_section(own)
    keys = {name: getattr(worker, name) for name in _KEYS if named(f"worker.{name}")}
    return dataclasses.replace(
        base,
        root=own.root if named("redis.root") or not url else base.root,
        queues=worker.queues,
        default_priority=settings.producer.default_priority,
        **{name: keys.get(name, "") for name in _KEYS},
    )


def idle_names(settings: Settings, sources: Mapping[str, str]) -> tuple[str, ...]:
    """What somebody set for Redis while nothing lives there."""
    backends = settings.backends
    homes = backends.jobs, backends.records, backends.streams, settings.engine.backend
    if selected(sources) or any(is_redis(url) for url in homes):
        return ()
    keys = {f"worker.{name}" for name in _KEYS}
    return tuple(sorted(path for path in sources if path in keys or path.startswith("redis.")))


def with_redis_names(settings: Settings, sources: Mapping[str, str]) -> Settings:
    """The settings with the names that jobs on Redis have unless somebody named them."""

    def named(path: str) -> bool:
        return any(known == path or known.startswith(path + ".") for known in sources)

    url = settings.backends.jobs if is_redis(settings.backends.jobs) else ""
    if not (url or selected(sources)):
        return settings
    try:
        bare = dataclasses.replace(settings, worker=dataclasses.replace(settings.worker, queues={}))
        options = redis_options(bare, named, url)
    except WrasseError:
        return settings  # told where rules are checked
    worker = dataclasses.replace(settings.worker, **{name: getattr(options, name) for name in _KEYS})
    if not named("worker.queues"):
        worker = dataclasses.replace(worker, queues={name: options.root + end for name, end in _ENDINGS.items()})
    return dataclasses.replace(settings, worker=worker)


def _by_section(own: Redis) -> RedisOptions:
    return RedisOptions(
        nodes=parse_addresses(own.addr, sentinel=bool(own.sentinel)),
        db=own.db,
        username=own.username,
        password=own.password,
        tls=_tls(own) if own.tls.enabled else None,
        cluster=own.cluster,
        sentinel=own.sentinel,
        sentinel_username=own.sentinel_username,
        sentinel_password=own.sentinel_password,
        root=own.root,
        dial_timeout=own.dial_timeout,
        read_timeout=own.read_timeout,
        write_timeout=own.write_timeout,
        max_retries=own.max_retries,
        pool_size=_pool_size(own),
        min_idle=own.min_idle_conns,
    )


def _by_url(base: RedisOptions, own: Redis, named: Callable[[str], bool]) -> RedisOptions:
    """The URL, and from the section what somebody set there and a URL leaves open: secrets, TLS files, times."""
    times = ("dial_timeout", "read_timeout", "write_timeout", "max_retries")
    changed: dict[str, object] = {name: getattr(own, name) for name in times if named(f"redis.{name}")}
    if named("redis.pool_size_multiplier"):
        changed["pool_size"] = _pool_size(own)
    if named("redis.min_idle_conns"):
        changed["min_idle"] = own.min_idle_conns
    if not base.username and not base.password:
        changed |= {"username": own.username, "password": own.password}
    if named("redis.tls") and base.tls is not None:
        changed["tls"] = _tls(own)
    return dataclasses.replace(base, **changed)  # type: ignore[arg-type]  # by name


def _tls(own: Redis) -> Tls:
    return Tls(own.tls.ca, own.tls.cert, own.tls.key, own.tls.verify)


def _pool_size(own: Redis) -> int:
    return max(2, own.pool_size_multiplier * (os.cpu_count() or 1))
