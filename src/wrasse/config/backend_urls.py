"""Which backend serves each port, resolved from the settings, with the source that decided it. Pure.

The rule, for jobs, records, streams and objects (docs/concepts/where-things-live.md):

1. what is named for the port: a flag or the URL of an App, else WRASSE_BACKENDS_<PORT>, else `backends.<port>`
2. else a `redis:` section or REDIS_ADDR, for jobs, records and streams
3. else the first backend that is named for records, jobs or streams and can serve the port
4. else, if none is named, the embedded defaults `sqlite:wrasse.db` and `file:wrasse-data`
5. else none: using the port is refused, and the error says which setting names a backend for it

The engine's backend, the sightings of orphans, leases and the destinations of archives follow from these.

The URL of a Redis or a NATS is completed from its section. A `redis:` section and a URL that name different servers, or
different databases of one server, are a contradiction. If the section `nats:` and a URL both set an option, the URL has
precedence; but another domain or root is another place, and so a contradiction. Names of Redis keys that are not set
follow from the root.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wrasse.backends.nats.options import SCHEMES as NATS_SCHEMES, NatsOptions, Tls as NatsTls
from wrasse.backends.redis.options import SCHEMES, RedisOptions, Tls, parse_addresses
from wrasse.backends.s3.address import S3Address
from wrasse.config.redaction import hide
from wrasse.config.setting_key import named_in
from wrasse.config.settings import EMBEDDED, EMBEDDED_OBJECTS, ArchiveStream, NatsSettings, RedisSettings, Settings
from wrasse.config.urls import StoreUrl, parse_objects, parse_store, same_host
from wrasse.errors import ConfigError, WrasseError

_KEYS = ("processing_list_pattern", "heartbeat_key_pattern", "completed_list", "dead_letter_list")
_ENDINGS = {"high": ":high_priority", "low": ":low_priority"}  # the design document's two queues
PORTS = ("jobs", "records", "streams", "objects")
SERVERS = ("records", "jobs", "streams")  # in this order they serve ports for which no backend is named
_EXAMPLES = {
    "jobs": "redis://host:6379/0 or sqlite:wrasse.db",
    "records": "redis://host:6379/0 or sqlite:wrasse.db",
    "streams": "redis://host:6379/0, nats://host:4222 or sqlite:wrasse.db",
    "objects": "s3://bucket/prefix or file:wrasse-data",
}
HOLDS = {
    "jobs": "jobs, results, heartbeats of workers, when periodic jobs ran",
    "records": "records, stream tasks",
    "streams": "messages and their groups",
    "objects": "archives, state of leases, large parameters of tasks",
    "leases": "keys of leases",
    "engine": "cursors, leases and alerts of archivers",
    "journal": "actions of sweeps",
}
_DEFAULT = "default"
_CLIENT = ("client", "credential_provider")
_LOGINS = ("username", "password", "token", "nkey", "creds")
_OTHERS = ("name", "domain", "root", "storage", "replicas", "dial_timeout", "read_timeout", "ping_interval")


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


@dataclass(frozen=True, slots=True)
class BackendUrl:
    """The backend of one port and the source that decided. `refused` says why there is none, `do` what to write."""

    port: str
    url: str = field(repr=False)  # with its secrets
    by: str
    refused: str = ""
    do: str = ""

    def __str__(self) -> str:
        """The URL without secrets; a path is absolute."""
        if self.refused or not self.url:
            return "none"
        other = self.url.startswith(("http:", "https:", "postgres", "mysql", "mariadb"))
        if other or (self.port == "references" and not self.url.startswith("sqlite:")):
            return hide(self.url)
        if self.url.startswith("s3:"):
            return hide(str(S3Address.parse(self.url.removeprefix("s3://")).reached()))  # endpoint: part of the place
        parse = parse_objects if self.port in ("objects", "archives") else parse_store
        beside: dict[str, str] = {}  # what else is part of the place
        if is_redis(self.url):
            beside = {"root": RedisOptions.of_query(self.url).get("root", "")}
        elif is_nats(self.url):
            options, plain = NatsOptions.of(self.url), NatsOptions()
            beside = {"domain": options.domain, "root": options.root if options.root != plain.root else ""}
        query = "&".join(f"{name}={text}" for name, text in beside.items() if text)
        return f"{parse(self.url).resolved()}{f'?{query}' if query else ''}"

    def opened(self) -> str:
        """The URL to open; ConfigError if no backend serves the port."""
        if self.refused:
            raise ConfigError(self.refused, do=self.do)
        return self.url


@dataclass(frozen=True, slots=True)
class BackendUrls:
    """The backend of every port. Reading the URL of a port that no backend serves raises ConfigError."""

    ports: Mapping[str, BackendUrl]
    sightings: Mapping[str, BackendUrl]  # by root of `orphans:`
    scanned_stores: Mapping[str, BackendUrl]  # by root: the store that is scanned
    references: Mapping[str, BackendUrl]  # by root: the database that names what is in use
    archives: Sequence[tuple[str, BackendUrl]]  # by pattern of streams

    def serves(self, port: str) -> bool:
        """Whether a backend serves this port."""
        return not self.ports[port].refused

    def stores(self) -> Iterator[StoreUrl]:
        """The stores of all ports that have one, each once."""
        urls = dict.fromkeys(home.url for port, home in self.ports.items() if home.url and port != "leases")
        return (parse_objects(url) if url.startswith(("s3:", "file:")) else parse_store(url) for url in urls)

    def paths(self) -> Iterator[StoreUrl]:
        """The databases and directories on this machine in which wrasse keeps anything."""
        homes = (*self.ports.values(), *self.sightings.values(), *(home for _, home in self.archives))
        urls = dict.fromkeys(home.url for home in homes if home.url.startswith(("sqlite:", "file:")))
        return (parse_store(url) for url in urls)

    @property
    def jobs(self) -> str:
        """URL of the jobs, secrets included, as are those of the others."""
        return self.ports["jobs"].opened()

    @property
    def records(self) -> str:
        """URL of leases and other records."""
        return self.ports["records"].opened()

    @property
    def streams(self) -> str:
        """URL of the streams."""
        return self.ports["streams"].opened()

    @property
    def objects(self) -> str:
        """URL of the objects."""
        return self.ports["objects"].opened()

    @property
    def engine(self) -> str:
        """URL of what the engine keeps about itself."""
        return self.ports["engine"].opened()

    @property
    def journal(self) -> str:
        """URL of the journal."""
        return self.ports["journal"].opened()


def resolve(settings: Settings, sources: Mapping[str, str]) -> BackendUrls:
    """Applies the rule. The URLs must be valid; `contradictions` between sources are reported elsewhere."""
    named = {port: home for port in PORTS if (home := _named(port, settings, sources)) is not None}
    section = section_source(settings, sources)
    if section:
        url = redis_options(settings, named_in(sources)).url()
        named |= {port: BackendUrl(port, url, section) for port in SERVERS if port not in named}
    ports = {port: named.get(port) or _derived(port, named) for port in PORTS}
    engine = _engine(settings, sources, named, ports["records"])
    ports |= {"engine": engine, "journal": replace(engine, port="journal")}
    ports["leases"] = _leases(settings, sources, ports["records"])
    return BackendUrls(
        ports,
        _sightings(settings, sources, named, engine),
        _scanned_stores(settings, sources, ports["objects"]),
        _references(settings, sources),
        _archives(settings, sources, ports["objects"]),
    )


@dataclass(frozen=True, slots=True)
class UrlRow:
    """One row of the table for users, without secrets."""

    port: str
    backend: str
    by: str
    holds: str
    refused: str = ""


def table(homes: BackendUrls) -> Iterator[UrlRow]:
    """Every port, its backend, the deciding source, and what is stored there."""
    extra = []
    for root in homes.sightings:
        extra += [
            (f"objects of {root}", homes.scanned_stores[root], "objects that may be orphans"),
            (f"references of {root}", homes.references[root], "which objects are in use: read only"),
            (f"sightings of {root}", homes.sightings[root], "since when objects are orphans"),
        ]
    extra += [(f"archives of {pattern}", home, "archives of these streams") for pattern, home in homes.archives]
    for name, home, holds in (*((port, homes.ports[port], holds) for port, holds in HOLDS.items()), *extra):
        yield UrlRow(name, str(home), hide(home.by), holds, f"{home.refused}; {home.do}" if home.refused else "")


def same_place(one: str, other: str) -> bool:
    """Whether two URLs name the same place in one backend, regardless of spelling."""
    if is_redis(one) and is_redis(other):
        here, there = RedisOptions.of(one), RedisOptions.of(other)
        return same_server(here, there) and here.root == there.root
    if is_nats(one) and is_nats(other):
        mine, theirs = NatsOptions.of(one), NatsOptions.of(other)
        met = {(same_host(host), port) for host, port in mine.nodes} & {
            (same_host(host), port) for host, port in theirs.nodes
        }
        return bool(met) and (mine.root, mine.domain) == (theirs.root, theirs.domain)
    stores = [(parse_objects if url.startswith(("s3:", "file:")) else parse_store)(url) for url in (one, other)]
    return stores[0].resolved().place == stores[1].resolved().place


def _named(port: str, settings: Settings, sources: Mapping[str, str]) -> BackendUrl | None:
    path = f"backends.{port}"
    url = getattr(settings.backends, port)
    if not url or path not in sources:
        return None
    return BackendUrl(port, _whole(url, settings, sources), f"{sources[path]}: {path}")


def _derived(port: str, named: Mapping[str, BackendUrl]) -> BackendUrl:
    """Rules 3 to 5."""
    given = [named[each] for each in SERVERS if each in named]
    if not given:
        return BackendUrl(port, EMBEDDED_OBJECTS if port == "objects" else EMBEDDED, _DEFAULT)
    for home in given:
        url = _serving(port, home.url)
        if url:
            return BackendUrl(port, url, f"follows {home.port} ({home.by})")
    those = ", ".join(dict.fromkeys(f"{home} ({home.by})" for home in given))
    return BackendUrl(
        port, "", "no named backend can", f"no backend serves {port}: {those} cannot",
        f"write backends.{port}: {_EXAMPLES[port]}",
    )  # fmt: skip


def _serving(port: str, url: str) -> str:
    """The URL under which the backend of `url` serves another port; empty if it cannot."""
    store = parse_store(url)
    if port == "jobs":
        return "" if store.is_nats else url
    if port == "streams":
        return "" if store.is_bucket else url
    if port == "objects" and store.scheme == "sqlite":
        # Objects of a database file are in a directory beside it; for the embedded database that is the default.
        beside = os.path.join(os.path.dirname(store.path), EMBEDDED_OBJECTS.removeprefix("file:"))
        return f"file://{beside}" if beside.startswith("/") else f"file:{beside}"
    return url if port == "records" or store.is_bucket or store.scheme == "memory" else ""


def _engine(
    settings: Settings, sources: Mapping[str, str], named: Mapping[str, BackendUrl], records: BackendUrl
) -> BackendUrl:
    """The shared backend: the first named server, so that hosts share one lease instead of each having its own."""
    if settings.engine.backend:
        source = sources.get("engine.backend", _DEFAULT)
        return BackendUrl("engine", _whole(settings.engine.backend, settings, sources), f"{source}: engine.backend")
    given = [named[each] for each in SERVERS if each in named]
    first = next((home for home in given if parse_store(home.url).served), given[0] if given else records)
    by = first.by if first.by == _DEFAULT else f"follows {first.port} ({first.by})"
    return BackendUrl("engine", first.url, by)


def _leases(settings: Settings, sources: Mapping[str, str], records: BackendUrl) -> BackendUrl:
    if settings.leases.server:
        return BackendUrl("leases", settings.leases.server, f"{sources.get('leases.server', _DEFAULT)}: leases.server")
    return BackendUrl(
        "leases", records.url, records.by if records.by == _DEFAULT else f"follows records ({records.by})"
    )


def _sightings(
    settings: Settings, sources: Mapping[str, str], named: Mapping[str, BackendUrl], engine: BackendUrl
) -> Mapping[str, BackendUrl]:
    """A table of sightings per root of orphans: SQLite, PostgreSQL or memory."""
    found = {}
    given = [engine, *(named[each] for each in SERVERS if each in named)]
    local = next((home for home in given if parse_store(home.url).scheme in ("sqlite", "memory")), None)
    for root, own in settings.orphans.items():
        path = f"orphans.{root}.sightings"
        if own.sightings:
            found[root] = BackendUrl("sightings", own.sightings, f"{sources.get('orphans', _DEFAULT)}: {path}")
        elif local is not None:
            found[root] = BackendUrl("sightings", local.url, local.by)
        else:
            found[root] = BackendUrl(
                "sightings", "", "no named backend can", f"no backend serves the sightings of orphans.{root}: "
                f"{', '.join(dict.fromkeys(map(str, given)))} cannot",
                f"write {path}: sqlite:wrasse.db, or postgresql://… if several hosts scan for orphans",
            )  # fmt: skip
    return found


def _scanned_stores(settings: Settings, sources: Mapping[str, str], objects: BackendUrl) -> Mapping[str, BackendUrl]:
    """The store of each root of orphans."""
    follows = objects.by if objects.by == _DEFAULT else f"follows objects ({objects.by})"
    by = f"{sources.get('orphans', _DEFAULT)}: orphans"
    return {
        root: BackendUrl("objects", own.store, f"{by}.{root}.store") if own.store else replace(objects, by=follows)
        for root, own in settings.orphans.items()
    }


def _references(settings: Settings, sources: Mapping[str, str]) -> Mapping[str, BackendUrl]:
    """The application's database, of each root of orphans."""
    source = sources.get("orphans", _DEFAULT)
    return {
        root: BackendUrl("references", own.database, f"{source}: orphans.{root}.database")
        for root, own in settings.orphans.items()
    }


def _archives(settings: Settings, sources: Mapping[str, str], objects: BackendUrl) -> Sequence[tuple[str, BackendUrl]]:
    found = []
    for section, each in (
        *(("archiver.streams", each) for each in settings.archiver.streams),
        *(("archival", each) for each in settings.archival),
    ):
        found.append((each.stream, destination(each, f"{sources.get(section, _DEFAULT)}: {section}", objects)))
    return tuple(found)


def destination(each: ArchiveStream, source: str, objects: BackendUrl) -> BackendUrl:
    """The store of one entry's archives."""
    if each.destination and each.destination != "s3":
        return BackendUrl("archives", each.destination, f"{source}.destination")
    if not each.destination:
        follows = objects.by if objects.by == _DEFAULT else f"follows objects ({objects.by})"
        return BackendUrl("archives", objects.url, follows, objects.refused, objects.do)
    if each.bucket:
        # Another bucket of the same store: the connection parameters of backends.objects apply here, too.
        _, question, reached = objects.url.partition("?") if objects.url.startswith("s3:") else ("", "", "")
        return BackendUrl("archives", f"s3://{each.bucket}{question}{reached}", f"{source}.bucket")
    if objects.url.startswith("s3:"):
        return BackendUrl("archives", objects.url, f"{source}.destination, follows objects ({objects.by})")
    return BackendUrl(
        "archives", "", "the destination s3 has no bucket", f"the destination s3 of {each.stream!r} has no bucket, and "
        f"backends.objects is not on S3 but {objects}",
        "write bucket: beside it, or backends.objects: s3://bucket/prefix",
    )  # fmt: skip


def _whole(url: str, settings: Settings, sources: Mapping[str, str]) -> str:
    """The URL of a Redis or a NATS completed by the settings; any other unchanged."""
    if is_nats(url):
        archived = (*settings.archiver.streams, *settings.archival)
        patterns = tuple(dict.fromkeys(each.stream for each in archived if each.stream))
        return nats_options(settings.nats, named_in(sources), url, patterns).url()
    return redis_options(settings, named_in(sources), url).url() if is_redis(url) else url
