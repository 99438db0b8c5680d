"""The options of Redis and of NATS that follow from the settings.

A `redis:` section or REDIS_ADDR names Redis for jobs, records and streams; a URL such as `backends.jobs: redis://…` is
completed from the section. If the two name different servers, or different databases of one server, that is a
contradiction. Names of keys that are not set follow from the root.

`backends.streams: nats://…` or `backends.records: nats://…` names a NATS; the section `nats:` completes the URL. If
both set an option, the URL has precedence; but another domain or root is another place, and so a contradiction.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping

from wrasse.backends.nats.options import SCHEMES as NATS_SCHEMES, NatsOptions, Tls as NatsTls
from wrasse.backends.redis.options import SCHEMES, RedisOptions, Tls, parse_addresses
from wrasse.config.addresses import same_host
from wrasse.config.redaction import hide
from wrasse.config.setting_key import named_in
from wrasse.config.settings import NatsSettings, RedisSettings, Settings
from wrasse.errors import WrasseError

_KEYS = ("processing_list_pattern", "heartbeat_key_pattern", "completed_list", "dead_letter_list")
_ENDINGS = {"high": ":high_priority", "low": ":low_priority"}  # the design document's two queues


def section_source(settings: Settings, sources: Mapping[str, str]) -> str:
    """The Redis setting that names a server: redis.addr, or a `redis:` section that completes no URL. Empty if there is
    none; a bare REDIS_PASSWORD of another program does not count."""
    if "redis.addr" in sources:
        return f"{sources['redis.addr']}: redis.addr"
    if "redis" in sources and not any(is_redis(url) for _, url in _urls(settings, sources)):
        return f"{sources['redis']}: redis"
    return ""


def is_redis(url: str) -> bool:
    """Whether this is the URL of a Redis."""
    return url.partition(":")[0] in SCHEMES


def redis_options(settings: Settings, named: Callable[[str], bool], url: str = "") -> RedisOptions:
    """The options of Redis and the names of its keys: from the URL, or from the section alone."""
    own, worker = settings.redis, settings.worker
    base = _completed(url, own, named) if url else _by_section(own)
    keys = {name: getattr(worker, name) for name in _KEYS if named(f"worker.{name}")}
    return dataclasses.replace(
        base,
        root=own.root if named("redis.root") or not url else base.root,
        queues=worker.queues,
        default_priority=settings.producer.default_priority,
        **{name: keys.get(name, "") for name in _KEYS},
    )


def same_server(one: RedisOptions, other: RedisOptions) -> bool:
    """Whether two spellings name one place. For a Cluster or sentinels, one common address is enough."""
    kinds = [(each.db, each.tls is not None, each.cluster, each.sentinel) for each in (one, other)]
    return kinds[0] == kinds[1] and _meet(one, other)


def _meet(one: RedisOptions, other: RedisOptions) -> bool:
    mine, theirs = ({(same_host(host), port) for host, port in each.nodes} for each in (one, other))
    return bool(mine & theirs) if one.cluster or one.sentinel else mine == theirs


def contradictions(settings: Settings, sources: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Where the Redis settings and a URL name different places: the setting, what is wrong and what to do."""
    named, own = named_in(sources), settings.redis
    by_addr = "redis.addr" in sources
    urls = _urls(settings, sources)
    for path, url in urls:
        if is_nats(url):
            yield from _apart(path, url, settings.nats, sources)
        if not is_redis(url):
            if path == "backends.jobs" and section_source(settings, sources):
                source = section_source(settings, sources)
                yield path, f"is {hide(url)}, and {source} names Redis for jobs", "keep one of them"
            continue
        base, root = _completed(url, own, named), RedisOptions.of_query(url).get("root", own.root)
        if by_addr and not _meet(_by_section(own), base):
            if path == "backends.jobs":
                what = f"is {hide(url)}, and {sources['redis.addr']}: redis.addr is {own.addr}"
                yield path, what, "keep one of them, or name the same server in both"
            continue
        for name, mine, theirs in (
            ("db", own.db, base.db),
            ("tls.enabled", own.tls.enabled, base.tls is not None),
            ("cluster", own.cluster, base.cluster),
            ("sentinel", own.sentinel, base.sentinel),
            ("root", *(RedisOptions(root=root, cluster=base.cluster).root for root in (own.root, root))),
        ):
            if mine == theirs or not (by_addr or f"redis.{name}" in sources):
                continue
            said = f"redis.{name} is" if f"redis.{name}" in sources else f"redis.addr means redis.{name}"
            what = f"is {hide(url)}, and {sources[said.split()[0]]}: {said} {mine!r}, where the URL has {theirs!r}"
            yield path, what, f"write the same in both: redis.{name}, or the URL alone"


def _apart(path: str, url: str, own: NatsSettings, sources: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Where the section `nats:` and a URL name different places in one NATS."""
    base, plain = NatsOptions.of(url), NatsOptions()
    for name in ("domain", "root"):
        mine, theirs = getattr(own, name), getattr(base, name)
        if f"nats.{name}" in sources and theirs not in (mine, getattr(plain, name)):
            said = f"{sources[f'nats.{name}']}: nats.{name} is {mine!r}"
            what = f"is {hide(url)}, and {said}, where the URL has {theirs!r}"
            yield path, what, f"write the same in both: nats.{name}, or the URL alone"


def _urls(settings: Settings, sources: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The named URLs, by their settings."""
    backends = settings.backends
    found = (
        ("backends.jobs", backends.jobs),
        ("backends.records", backends.records),
        ("backends.streams", backends.streams),
        ("engine.backend", settings.engine.backend),
    )
    return tuple((path, url) for path, url in found if url and path in sources)


def idle_names(urls: Iterable[str], sources: Mapping[str, str]) -> tuple[str, ...]:
    """What is set for Redis although none of `urls` is one."""
    if any(is_redis(url) for url in urls):
        return ()
    return tuple(sorted(path for path in sources if path.startswith("redis.")))


def idle_keys(jobs: str, sources: Mapping[str, str]) -> tuple[str, ...]:
    """What is set for jobs on Redis although they are elsewhere."""
    return () if is_redis(jobs) else tuple(sorted(sources.keys() & {f"worker.{name}" for name in _KEYS}))


def with_redis_names(settings: Settings, sources: Mapping[str, str], url: str) -> Settings:
    """The settings with the names that jobs in the Redis of this URL have by default."""
    named = named_in(sources)
    try:
        options = RedisOptions.of(url)
    except WrasseError:
        return settings  # reported where rules are checked
    worker = dataclasses.replace(settings.worker, **{name: getattr(options, name) for name in _KEYS})
    if not named("worker.queues"):
        worker = dataclasses.replace(worker, queues={name: options.root + end for name, end in _ENDINGS.items()})
    return dataclasses.replace(settings, worker=worker)


_CLIENT = ("client", "credential_provider")


def _by_section(own: RedisSettings) -> RedisOptions:
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
        reply_bytes_max=own.reply_bytes_max,
        client=own.client,
        credential_provider=own.credential_provider,
    )


def _completed(url: str, own: RedisSettings, named: Callable[[str], bool]) -> RedisOptions:
    """The URL, completed from the section: login, TLS files, timeouts, and whether it is a Cluster. If redis.addr names
    another server, the login of the section is not used."""
    said = RedisOptions.of_query(url)
    if own.cluster and "cluster" not in said:
        url += ("&" if "?" in url else "?") + "cluster=true"
    base = RedisOptions.of(url)
    times = ("dial_timeout", "read_timeout", "write_timeout", "max_retries", "reply_bytes_max", *_CLIENT)
    changed: dict[str, object] = {
        name: getattr(own, name) for name in times if named(f"redis.{name}") and name not in said
    }
    if named("redis.pool_size_multiplier") and "pool_size" not in said:
        changed["pool_size"] = _pool_size(own)
    if named("redis.min_idle_conns") and "min_idle" not in said:
        changed["min_idle"] = own.min_idle_conns
    if not named("redis.addr") or _meet(_by_section(own), base):
        if not base.username and not base.password:
            changed |= {"username": own.username, "password": own.password}
        if base.sentinel and not base.sentinel_username and not base.sentinel_password:
            changed |= {"sentinel_username": own.sentinel_username, "sentinel_password": own.sentinel_password}
        if named("redis.tls") and base.tls is not None and not said.keys() & {"ca", "cert", "key", "verify"}:
            changed["tls"] = _tls(own)
    return dataclasses.replace(base, **changed)  # type: ignore[arg-type]  # by name


def _tls(own: RedisSettings) -> Tls:
    return Tls(own.tls.ca, own.tls.cert, own.tls.key, own.tls.verify)


def _pool_size(own: RedisSettings) -> int:
    return max(2, own.pool_size_multiplier * (os.cpu_count() or 1))


_LOGINS = ("username", "password", "token", "nkey", "creds")
_OTHERS = ("name", "domain", "root", "storage", "replicas", "dial_timeout", "read_timeout", "ping_interval")


def is_nats(url: str) -> bool:
    """Whether this is the URL of a NATS."""
    return url.partition(":")[0] in NATS_SCHEMES


def nats_options(
    own: NatsSettings, named: Callable[[str], bool], url: str, patterns: tuple[str, ...] = ()
) -> NatsOptions:
    """The options of NATS: from the URL, completed from the section. `patterns` are those of archived streams: each is
    one stream there."""
    base, plain = NatsOptions.of(url), NatsOptions()
    changed: dict[str, object] = {
        name: getattr(own, name)
        for name in _OTHERS
        if named(f"nats.{name}") and getattr(base, name) == getattr(plain, name)
    }
    if not any(getattr(base, name) for name in _LOGINS):
        changed |= {name: getattr(own, name) for name in _LOGINS}
    if named("nats.tls") and (base.tls is None or base.tls == NatsTls()):
        tls = own.tls
        changed["tls"] = NatsTls(tls.ca, tls.cert, tls.key, tls.verify, tls.first)
    changed["patterns"] = base.patterns or patterns
    return dataclasses.replace(base, **changed)  # type: ignore[arg-type]  # by name


def idle_nats_names(homes: Iterable[str], sources: Mapping[str, str]) -> tuple[str, ...]:
    """What is set for NATS although nothing is stored there."""
    if any(is_nats(url) for url in homes):
        return ()
    return tuple(sorted(path for path in sources if path.startswith("nats.")))
