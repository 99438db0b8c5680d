"""Which backend serves each port, resolved from the settings, with the source that decided it. Pure.

The rule, for jobs, records, streams and objects (docs/concepts/where-things-live.md):

1. what is named for the port: a flag or the URL of an App, else WRASSE_BACKENDS_<PORT>, else `backends.<port>`

2. else a `redis:` section or REDIS_ADDR, for jobs, records and streams

3. else the first backend that is named for records, jobs or streams and can serve the port

4. else, if none is named, the embedded defaults `sqlite:wrasse.db` and `file:wrasse-data`

5. else none: using the port is refused, and the error says which setting names a backend for it

The engine's backend, the sightings of orphans, leases and the destinations of archives follow from these.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wrasse.backends.nats.options import NatsOptions
from wrasse.backends.redis.options import RedisOptions
from wrasse.backends.s3.address import S3Address
from wrasse.config.addresses import same_host
from wrasse.config.redaction import hide
from wrasse.config.server_options import is_nats, is_redis, nats_options, redis_options, same_server, section_source
from wrasse.config.setting_key import named_in
from wrasse.config.settings import EMBEDDED, EMBEDDED_OBJECTS, ArchiveStream, Settings
from wrasse.config.urls import StoreUrl, parse_objects, parse_store
from wrasse.errors import ConfigError

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
    looked_through: Mapping[str, BackendUrl]  # by root: the store whose objects may be taken away
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
        _looked_through(settings, sources, ports["objects"]),
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
            (f"objects of {root}", homes.looked_through[root], "objects that may be orphans"),
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


def _looked_through(settings: Settings, sources: Mapping[str, str], objects: BackendUrl) -> Mapping[str, BackendUrl]:
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
