"""Doctor: checks that every configured backend gives what the promises need. Each check is ok, warn or fail, with
advice.

A failed check stops none of the others. What a check writes is deleted again at once.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sqlite3
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path

from wrasse import __version__
from wrasse.clock import Clock
from wrasse.config.backend_urls import table
from wrasse.config.dump import has_secrets
from wrasse.config.lease_settings import LeaseSettings
from wrasse.config.load import Config
from wrasse.config.settings import EMBEDDED, EMBEDDED_OBJECTS, Settings
from wrasse.config.urls import StoreUrl, parse_address, parse_objects, parse_store
from wrasse.duration import format_duration
from wrasse.engine.loop import SweepStatus
from wrasse.errors import OnlyReads, StoreUnavailable, WrasseError
from wrasse.ids import Ids
from wrasse.observability.json_format import ago
from wrasse.observability.tracing import INSTALL, missing_for_tracing
from wrasse.ports.backend import FAIL, OK, WARN, Backend, Finding, StreamStore
from wrasse.ports.guard import Examined
from wrasse.ports.jobs import JobQueue
from wrasse.ports.records import Collection
from wrasse.ports.streams import StreamState
from wrasse.runtime.backends import Stores, existing
from wrasse.runtime.engine import build_engine, families, retention, surveys_of
from wrasse.runtime.open_ports import ENGINE, JOBS, open_homes
from wrasse.runtime.orphans import spool_of
from wrasse.runtime.worker import build_handlers, configured, owner_name
from wrasse.streams.retention import Retention, server_age_for
from wrasse.sweeps.aged_entries import AgedEntries

ANSWER_MAX = 10.0  # seconds
_NO_ANSWER = "check that it is up and can be reached from here, and what else uses it"
ROOM_MIN = 64 << 20
ROOM_LOW = 1 << 30
SLOW = timedelta(milliseconds=250)
_PROBES = Collection.named(".wrasse/doctor")
# Write-ahead logging shares memory between processes, which these cannot.
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "afs", "glusterfs", "ceph")
PAGE = 1_000  # streams; the sweep sees all
_NAMED = 3
_BY_HAND = "nats stream edit --max-age=0"
_DATABASE = ("", "-wal", "-shm")
_HOW = "how to move it: docs/how-to/move-the-database.md"
_COUNTS = {
    "jobs": "SELECT count(*) FROM jobs",
    "records": "SELECT count(*) FROM records WHERE value IS NOT NULL AND collection NOT LIKE '.wrasse/%'",
    "streams": "SELECT count(*) FROM entries",
}


async def examine(config: Config, clock: Clock) -> list[Finding]:
    """Every check, one after the other."""
    where = config.homes
    found = [Finding("version", OK, f"wrasse {__version__}, Python {sys.version.split()[0]}"), *_settings(config)]
    found += [*mode_findings(config, where.paths()), *left_behind(config)]
    opened: dict[str, Backend] = {}
    async with Stores.of(config.settings.worker, clock, create=False) as stores:
        for row in table(where):
            found.append(Finding("place", OK, f"{row.port}: {row.refused or f'{row.backend} ({row.by})'}"))
        checked = [where.ports[port] for port in ("jobs", "records", "engine", "streams")]
        for url in dict.fromkeys(home.url for home in checked if home.url):
            found += await _backend(url, stores, clock, config.settings.engine.skew_max, opened)
        objects = where.ports["objects"].url
        if objects.startswith("s3:") and objects not in opened:
            found += await _objects(objects, stores)
        found += _jobs(where.ports["jobs"].url)
        if where.serves("streams") and where.streams in opened:
            found += await _ages(config, where.streams, stores)
        if {home.url for home in checked[:3] if home.url} <= set(opened):
            found += await _upkeep(config, stores, clock)
            for catalog in stores.examined:
                found += await _examined(catalog)
    return found


def _settings(config: Config) -> Iterator[Finding]:
    where = config.file.name if config.file else "no file, defaults"
    yield Finding("config", OK, f"{where}; {len(config.sources)} settings set")
    for warning in config.warnings:
        yield Finding("config", WARN, warning, "correct or remove it")
    if not __debug__:
        yield Finding(
            "python", WARN, "Python runs with -O, which disables wrasse's own assertions", "run it without -O"
        )
    if config.settings.observability.tracing.enabled:
        missing = missing_for_tracing()
        what, do = (f"{missing} is not installed", INSTALL) if missing else ("spans are sent", "")
        yield Finding("tracing", FAIL if missing else OK, what, do)
    yield from _lease_api(config.settings.leases)
    try:
        handlers = build_handlers(configured(config.settings))
    except WrasseError as why:
        yield Finding("handlers", FAIL, why.message, why.do)
        return
    if len(handlers):
        yield Finding("handlers", OK, f"{len(handlers)} importable")


def _lease_api(own: LeaseSettings) -> Iterator[Finding]:
    # HTTP modules are imported only where they are used: their import is slow.
    from wrasse.lease_server.access import access_of, check_access, in_clear
    from wrasse.runtime.leases import client_tls, token_in_clear

    try:
        access = access_of(own)
        address = parse_address(own.listen) if own.listen else None
        if address is not None:
            check_access(address, access)
        if own.server:
            client_tls(own)
    except WrasseError as why:
        yield Finding("leases", FAIL, why.message, why.do)
        return
    if token_in_clear(own) or (address is not None and in_clear(address, access)):
        what = "leases.insecure: tokens are sent without TLS, readable on the network"
        yield Finding("leases", WARN, what, "set leases.tls_cert and leases.tls_key, and https:// in leases.server")


def _jobs(url: str) -> Iterator[Finding]:
    if url.startswith("s3:"):
        costs = "a job costs 2 requests to enqueue, 3 to claim and 2 to complete; each idle worker lists once a second"
        yield Finding("jobs", OK, f"jobs live in a bucket: {costs}")


async def _backend(
    url: str, stores: Stores, clock: Clock, skew_max: timedelta, opened: dict[str, Backend]
) -> list[Finding]:
    parsed, found = parse_store(url), list[Finding]()
    if parsed.scheme == "memory":
        what = "memory: everything is lost when the process ends"
        found.append(Finding("backend", WARN, what, "use sqlite:wrasse.db"))
    found += _disk(parsed)
    if existing(parsed) != parsed:
        opened[url] = await stores.open(url)
        return [*found, _not_there(parsed), _no_clock(parsed)]
    try:
        async with asyncio.timeout(ANSWER_MAX):
            store = await stores.open(url)
            probed = await _probed(parsed, store)
            may = store.there and all(each.state == OK for each in probed)
            written = [await _written(parsed, store, clock)] if may else []
            skew = clock.now() - (await store.health_sample()).at
    except TimeoutError:
        found.append(Finding("backend", FAIL, f"{parsed} did not answer in {ANSWER_MAX:.0f} s", _NO_ANSWER))
        return found
    except WrasseError as why:
        found.append(Finding("backend", FAIL, why.message, why.do))
        return found
    opened[url] = store
    found += [*probed, *await _examined(store), *written]
    if not store.there:
        what = f"{parsed} answers; nothing is stored there yet, and what wrasse needs is made when something is"
        return [*found, Finding("backend", OK, what), _no_clock(parsed)]
    ok = abs(skew) <= skew_max
    what = f"this machine's clock is {format_duration(abs(skew))} from the backend's"
    found.append(Finding("clock", OK if ok else FAIL, what, "" if ok else "set the clock; sweeps pause until then"))
    return found


def _no_clock(url: StoreUrl) -> Finding:
    later = "once it exists, doctor writes a record to it, says how long that takes, and compares the clocks"
    return Finding("clock", OK, f"not checked, since {url} does not exist yet; {later}")


def _not_there(url: StoreUrl) -> Finding:
    """Doctor creates nothing."""
    what = f"{url} does not exist yet: it is made when something is first stored"
    parent = next(each for each in Path(url.path).absolute().parents if each.exists())
    if not os.access(parent, os.W_OK):
        return Finding("backend", FAIL, f"{what}, and {parent} cannot be written to", "give this user the right to")
    return Finding("backend", OK, what)


async def _examined(store: Backend | Examined) -> Sequence[Finding]:
    try:
        return await store.examine()
    except WrasseError as why:
        return (Finding("backend", WARN, f"it cannot be examined: {why.message}", why.do),)


async def _ages(config: Config, url: str, stores: Stores) -> Sequence[Finding]:
    """Findings about what a server of streams removes by age."""
    if not parse_store(url).is_nats:
        return ()
    try:
        return await age_findings(config.settings, await stores.open_streams(url))
    except WrasseError as why:
        return (Finding("retention", WARN, f"streams cannot be read: {why.message}", why.do),)


async def _objects(url: str, stores: Stores) -> list[Finding]:
    """Whether a bucket can be opened, and what it honours."""
    parsed = parse_objects(url)
    try:
        async with asyncio.timeout(ANSWER_MAX):
            return await _probed(parsed, await stores.open_object_store(url))
    except TimeoutError:
        return [Finding("objects", FAIL, f"{parsed} did not answer in {ANSWER_MAX:.0f} s", _NO_ANSWER)]
    except WrasseError as why:
        return [Finding("objects", FAIL, why.message, why.do)]


async def _probed(url: StoreUrl, store: Backend) -> list[Finding]:
    """What it honours, if the credentials allow the check."""
    try:
        honoured = str(await store.honours())
    except OnlyReads as why:
        what = f"{url} can be read with these credentials, and not changed: {why.message}"
        return [Finding("probe", WARN, what, f"they suffice to read only; else {why.do}")]
    return [Finding("probe", OK, f"{url}: {honoured}")] if honoured else []


async def _written(url: StoreUrl, store: Backend, clock: Clock) -> Finding:
    """Measures a create and a delete of a record."""
    records, key, started = store.records(_PROBES), Ids(clock).new(), clock.monotonic()
    written = await records.create(key, b"probe")
    if not written or written.version is None or not await records.delete(key, at=written.version):
        raise StoreUnavailable("the backend did not keep a record it was given", do="do not use it")
    await store.forget(_PROBES)
    took = timedelta(seconds=clock.monotonic() - started)
    state, do = (WARN, "see what else uses it") if took > SLOW else (OK, "")
    write = "a write" if url.served and not url.is_bucket else "a durable write"
    return Finding("backend", state, f"{url} answers; {write} takes {took.total_seconds() * 1000:.1f} ms", do)


def _disk(url: StoreUrl) -> Iterator[Finding]:
    if url.scheme != "sqlite":
        return
    folder = Path(url.path).absolute().parent
    if not folder.is_dir():
        return
    free = shutil.disk_usage(folder).free
    what = f"{free / (1 << 30):.1f} GiB free for {url}"
    if free < ROOM_MIN:
        yield Finding("disk", FAIL, what, "free some space: a full disk stops every enqueue")
    elif free < ROOM_LOW:
        yield Finding("disk", WARN, what, "free some space soon")
    else:
        yield Finding("disk", OK, what)
    kind = _filesystem(folder)
    if kind in _REMOTE:
        yield Finding(
            "disk", FAIL, f"{url} is on {kind}, where processes cannot share a database", "move it to a local disk"
        )


def _filesystem(folder: Path) -> str:
    """The type of a folder's file system, where the system has /proc."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return ""
    over = [line for line in mounts if os.path.commonpath([folder, line[1].replace("\\040", " ")]) == line[1]]
    return max(over, key=lambda line: len(line[1]))[2] if over else ""


async def _work(jobs: JobQueue) -> Sequence[Finding]:
    """Whether there are workers for the ready jobs, and stuck jobs."""
    counts, overdue = await jobs.counts(), await jobs.overdue(None, 100)
    alive = sum(1 for worker in counts.workers if worker.deadline > counts.at)
    ready = sum(each.ready for each in counts.queues)
    dead = sum(each.dead for each in counts.queues)
    state, do = (WARN, "start a worker: wrasse run") if ready and not alive else (OK, "")
    found = [Finding("workers", state, f"{alive} alive; {ready} jobs are ready, {dead} dead", do)]
    if overdue.items:
        many = f"{len(overdue)}{'+' if overdue.more else ''}"
        what = f"{many} running jobs have workers that stopped their heartbeat"
        do = "run `wrasse run --role=sweeper`, or `wrasse sweep stuck-jobs` now"
        found.append(Finding("stuck jobs", WARN, what, do))
    return found


async def _upkeep(config: Config, stores: Stores, clock: Clock) -> list[Finding]:
    """Checks workers and sweeps."""
    found: list[Finding] = []
    try:
        opened = await open_homes(config, stores, ENGINE)
        if config.homes.serves(JOBS):
            found += await _work((await open_homes(config, stores, JOBS, into=opened)).jobs.jobs)
        engine = build_engine(config.settings, opened, clock, owner_name())
        for family in families(config, clock):
            try:
                async with asyncio.timeout(ANSWER_MAX):
                    engine.add(family.build(await open_homes(config, stores, *family.needs, into=opened)))
            except TimeoutError:
                what = f"{family.name}: its backend did not answer in {ANSWER_MAX:.0f} s"
                found.append(Finding("sweeps", FAIL, what, _NO_ANSWER))
            except WrasseError as why:
                found.append(Finding("sweeps", FAIL, f"{family.name}: {why.message}", why.do))
        await engine.refresh()
    except WrasseError as why:
        return [*found, Finding("jobs", FAIL, why.message, why.do)]
    return found + [_sweep(each, clock.now()) for each in engine.status()]


def _sweep(each: SweepStatus, now: datetime) -> Finding:
    if each.paused is not None:
        what = f"{each.name} is paused by {each.paused.guard} since {ago(each.paused.since, now)}: {each.paused.reason}"
        return Finding("sweeps", WARN, what, "it continues by itself when that is over")
    if each.last is not None and not each.last.good:
        return Finding("sweeps", FAIL, f"the last run of {each.name} failed: {each.last.why}", "see `wrasse journal`")
    last = "has never run" if each.last is None else f"ran {ago(each.last.ended_at, now)}"
    return Finding("sweeps", OK, f"{each.name} {last}")


async def age_findings(settings: Settings, store: StreamStore) -> Sequence[Finding]:
    """The findings about a backend of streams; none where servers do not remove entries by age."""
    if store.ages is None:
        return ()
    page = await surveys_of(store).survey(">", None, PAGE)
    return tuple(judged(page.items, retention(settings), enabled=settings.sweeps[AgedEntries.name].enabled))


def judged(streams: Sequence[StreamState], rules: Retention, *, enabled: bool) -> Iterator[Finding]:
    """The findings about these streams. Pure."""
    aged = [state for state in streams if state.server_age is not None and state.server_age.age is not None]
    ours = [state for state in aged if state.server_age is not None and state.server_age.ours]
    if foreign := [state for state in aged if state not in ours and _protected(state, rules)]:
        what = f"the server removes entries by age that an archiver or workers may still need: {_subjects(foreign)}"
        yield Finding("retention", WARN, what, f"remove the maximal age: {_BY_HAND}")
    if ours and not enabled:
        what = f"aged_entries is disabled, and the server still removes entries by age: {_subjects(ours)}"
        do = f"remove their rules and run `wrasse sweep aged-entries` once, or {_BY_HAND}"
        yield Finding("retention", WARN, what, do)
    elif other := [state for state in ours if _is_other(state, rules)]:
        what = f"the server keeps streams to another age than retention says: {_subjects(other)}"
        yield Finding("retention", WARN, what, "run `wrasse sweep aged-entries`, or wait for its next run")
    elif ours:
        yield Finding("retention", OK, f"the server itself keeps {len(ours)} streams to their age")


def _protected(state: StreamState, rules: Retention) -> bool:
    bound = rules.of(state.subject)
    return bool(rules.protecting(state.subject, None if bound is None else bound.rule))


def _is_other(state: StreamState, rules: Retention) -> bool:
    assert state.server_age is not None, "called for streams with an age"
    return state.server_age.age != server_age_for(state, rules.of(state.subject))


def _subjects(streams: Sequence[StreamState]) -> str:
    more = f" and {len(streams) - _NAMED} more" if len(streams) > _NAMED else ""
    return ", ".join(state.subject for state in streams[:_NAMED]) + more


def mode_findings(config: Config, stores: Iterable[StoreUrl]) -> Iterator[Finding]:
    """Every path of this configuration that is open to all users; one line if none is."""
    files, folders = set[str](), {str(spool_of(name, config)) for name in config.settings.orphans}
    for store in stores:
        if store.scheme == "sqlite":
            files |= {store.path + ending for ending in _DATABASE}
        elif store.scheme == "file":
            folders.add(store.path)
    wide = [path for path in sorted(files) if _mode(path) & stat.S_IRWXO]
    entered = [path for path in sorted(folders) if _mode(path) & stat.S_IRWXO]
    readable = config.file is not None and has_secrets(config) and _mode(config.file) & stat.S_IRWXO
    if wide:
        names = shlex.join(wide)
        yield Finding(
            "modes", WARN, f"every user of this machine may read {names}: payloads are in it", f"chmod 600 {names}"
        )
    for path in entered:
        name = shlex.quote(path)
        do = f"chmod 700 {name}; for a group of readers: chgrp GROUP {name} && chmod 2750 {name}"
        yield Finding("modes", WARN, f"every user of this machine may read {name} (mode {_mode(path):04o})", do)
    if readable and config.file is not None:
        name = shlex.quote(str(config.file))
        yield Finding(
            "modes", WARN, f"every user of this machine may read {name}, and it has secrets", f"chmod 600 {name}"
        )
    shown = [path for path in secret_files(config.settings) if _mode(path) & stat.S_IRWXO]
    if shown:
        names = shlex.join(shown)
        yield Finding("modes", WARN, f"every user of this machine may read {names}: a secret", f"chmod 600 {names}")
    if (files or folders) and not (wide or entered or readable or shown):
        yield Finding("modes", OK, "files and directories are closed to other users of this machine")


def secret_files(settings: Settings) -> Sequence[str]:
    """The files with keys, seeds and tokens that these settings name."""
    nats, leases = settings.nats, settings.leases
    tokens = (each.token_file for each in leases.tokens.values())
    named = (nats.creds, nats.nkey, nats.tls.key, settings.redis.tls.key, leases.tls_key, leases.client_key, *tokens)
    return sorted({each for each in named if each})


def _mode(path: str | Path) -> int:
    """The permissions; 0 if it does not exist."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return 0


def left_behind(config: Config) -> Iterator[Finding]:
    """A default database or directory that has data and is not used by these settings."""
    used = {*_used_paths(config)}
    database, objects = (Path(url.partition(":")[2]).absolute() for url in (EMBEDDED, EMBEDDED_OBJECTS))
    if database.is_file() and database.resolve() not in used and (stored := _stored_counts(database)):
        ports = ", ".join(f"backends.{port}: {EMBEDDED}" for port in stored)
        counts = ", ".join(f"{count} {port}" for port, count in stored.items())
        yield Finding(
            "place", WARN, f"{database.name} in the working directory has {counts}, and these settings do not use it",
            f"to keep using it write {ports}; {_HOW}; if it is not needed, remove it",
        )  # fmt: skip
    if objects.is_dir() and objects.resolve() not in used and any(objects.iterdir()):
        yield Finding(
            "place", WARN, f"{objects.name} in the working directory has objects, and these settings do not use it",
            f"to keep using it write backends.objects: {EMBEDDED_OBJECTS}; if it is not needed, remove it",
        )  # fmt: skip


def _used_paths(config: Config) -> Iterator[Path]:
    """The files and directories that the settings name."""
    where, roots = config.homes, config.settings.orphans.values()
    homes = (*where.ports.values(), *where.sightings.values(), *(home for _, home in where.archives))
    for url in (*(home.url for home in homes), *(text for own in roots for text in (own.store, own.database))):
        if url.startswith(("sqlite:", "file:")):
            with suppress(WrasseError):  # a URL of SQLAlchemy may have another form
                # Unlike Path.resolve, this answers also for a link that leads to itself.
                yield Path(os.path.realpath((parse_objects if url.startswith("file:") else parse_store)(url).path))


def _stored_counts(database: Path) -> dict[str, int]:
    """What a database of wrasse stores, with counts; empty for any other. Neither file nor directory changes."""
    # Without a -wal file no process has it open, and reading it as it is creates none.
    state = "mode=ro" if database.with_name(f"{database.name}-wal").exists() else "immutable=1"
    found = {}
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{database.as_uri()}?{state}", uri=True)) as opened:
        for port, query in _COUNTS.items():
            found[port] = int(opened.execute(query).fetchone()[0])
    return {port: count for port, count in found.items() if count}
