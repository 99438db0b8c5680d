"""The settings of roots of orphans, and the Root that follows from them. Pure.

Defaults differ: the preset of the design document has short delays, other queries have long ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from wrasse.config.redaction import hide
from wrasse.config.setting_key import setting
from wrasse.config.urls import parse_objects
from wrasse.errors import ConfigError
from wrasse.orphans.root import Caps, Graces, Root, Workspaces, WriterTime, parse_template, workspaces_queries
from wrasse.ports.catalog import Query

WORKSPACES = "workspaces"
SEED_DELAY = timedelta(hours=2)
SEED_TEMPLATE = "archives/{id}/{op_id}/{file}"
_PLAIN = Graces()
T = TypeVar("T")
ROOT_KEYS = "store, template, unit, preset, database, queries, pins, superseded, soft_deleted, quarantine"
_CONCAT = "{} || {} || {} || {} || {}"


@dataclass(frozen=True, slots=True)
class OrphanSeed:
    """The two settings of the archives' design document, in seconds, for roots with the preset `workspaces`."""

    interval: int = setting(0, "seconds between two runs of orphan_objects; 0: its own interval", seed=True)
    orphan_delay: int = setting(0, "seconds for which an archive must have been an orphan; 0: 7200", seed=True)


@dataclass(frozen=True, slots=True)
class OrphanRoot:
    """One place to scan for orphans."""

    store: str = setting("", "URL of the store; without it: backends.objects", filled=True)
    template: str = setting("", "the template of keys")
    unit: str = setting("directory", "what is removed together", choices=("directory", "object"))
    owner: str = setting("", "the name in the template that identifies the owner; none: no owner")
    marker: str = setting(".meta", "suffix of the file that marks a unit as complete")
    preset: str = setting("", "preset for the references", choices=("", WORKSPACES))
    database: str = setting("", "URL of the database with the references")
    table: str = setting(WORKSPACES, "the table of the preset")
    columns: tuple[str, ...] = setting((), "which of the columns operation and op_started_at the table has")
    queries: tuple[str, ...] = setting((), "tables, or queries with a column key")
    pins: str = setting("", "a table with more keys to keep, in the same database")
    pins_file: str = setting("", "a file with more keys to keep, one per line; a directory ends in /")
    lock: str = setting("", "name of an advisory lock of PostgreSQL that a run needs, too")
    superseded: timedelta | None = setting(None, "grace of units that their owner replaced")
    soft_deleted: timedelta | None = setting(None, "grace of units of a row that has ended")
    owner_unknown: timedelta | None = setting(None, "grace of units without an owner")
    age_min: timedelta | None = setting(None, "minimum age of objects to be judged")
    keep_newest: int | None = setting(None, "how many of the newest units of a live owner are kept")
    quarantine: timedelta = setting(timedelta(days=7), "how long they can be restored; 0: they are deleted at once")
    quarantine_by: str = setting("move", "move to .trash/, or mark in place", choices=("move", "mark"))
    uploads_after: timedelta = setting(timedelta(days=7), "age at which an unfinished upload is aborted; 0: never")
    objects_max: int = setting(1_000, "a plan beyond this many objects and beyond share_max needs approval")
    share_max: float = setting(0.01, "a plan beyond this share of all objects needs approval")
    bytes_max: int = setting(100 << 30, "a plan beyond this many bytes and beyond share_max needs approval")
    group_max: int = setting(1_000, "a plan with more units than this of one owner needs approval")
    rows_share_min: float = setting(0.8, "minimum share of the references of the last run")
    match_share_min: float = setting(0.95, "minimum share of the matches of the last run")
    vanished_max: int = setting(50, "units that may lose their owner between two runs")
    vanished_share_max: float = setting(0.01, "or this share of the protected ones")
    writer_timeout: timedelta = setting(timedelta(minutes=30), "maximum duration of one attempt of a writer")
    writer_retries: int = setting(3, "retries of a writer")
    interval: timedelta | None = setting(None, "how often it is scanned; without it: as the sweep")
    sightings: str = setting(
        "", "sqlite: or postgresql: URL for sightings; without it: the SQLite database that is in use", filled=True
    )
    spool: str = setting(
        "",
        "directory for the files of a run; without it: wrasse-spool beside the SQLite database of the sightings, else "
        "in the cache of the user",
        filled=True,
    )


def root_of(name: str, own: OrphanRoot, seed: OrphanSeed, objects: str = "") -> Root:
    """The Root for these settings; ConfigError if they are invalid. `objects` is the store if they name none; a change
    of the store changes the configuration."""
    preset = own.preset == WORKSPACES
    template = own.template or (SEED_TEMPLATE if preset else "")
    where = f"orphans.{name}"
    if not template:
        raise ConfigError(f"{where} has no template", do=f"write template: {SEED_TEMPLATE!r}")
    if not own.database:
        raise ConfigError(f"{where} has no database", do="write database: sqlite:app.db or postgresql://...")
    if preset == bool(own.queries):
        raise ConfigError(f"{where} needs either a preset or queries", do="write preset: workspaces, or queries:")
    if seed.interval < 0 or seed.orphan_delay < 0:
        raise ConfigError("gc.interval and gc.orphan_delay are seconds", do="use 0 or more")
    if preset and not template.removeprefix(template.partition("{")[0]).startswith("{id}/{op_id}/"):
        raise ConfigError(f"{where}: the preset does not fit the template {template!r}", do=f"write {SEED_TEMPLATE!r}")
    shape = parse_template(template, unit=own.unit, owner=own.owner)
    delay = timedelta(seconds=seed.orphan_delay) or SEED_DELAY
    return Root(
        name,
        shape,
        prefix_of(own),
        store=hide(own.store or objects),
        marker=own.marker,
        graces=_graces(own, delay if preset else None),
        writer=WriterTime(own.writer_timeout, own.writer_retries),
        age_min=_or(own.age_min, delay if preset else timedelta(hours=24)),
        keep_newest=_or(own.keep_newest, 0 if preset else 1),
        quarantine=own.quarantine,
        quarantine_by=own.quarantine_by,
        uploads_after=own.uploads_after,
        caps=_caps(own),
        source=hide(f"{own.database} {queries_of(own)}"),
    )


def clashing(roots: Mapping[str, OrphanRoot], objects: str) -> Iterator[tuple[str, str]]:
    """Pairs of nested roots: what one protects, the other would remove. `objects` is the default store."""
    places: list[tuple[str, str]] = []
    for name, own in roots.items():
        with suppress(ConfigError):  # reported elsewhere
            places.append((name, parse_objects(own.store or objects).place + prefix_of(own)))
    for number, (name, place) in enumerate(places):
        for other, beside in places[:number]:
            if place.startswith(beside) or beside.startswith(place):
                yield other, name


def prefix_of(own: OrphanRoot) -> str:
    """The directories before the first name in a root's template."""
    template = own.template or SEED_TEMPLATE
    return template.partition("{")[0].rpartition("/")[0] + "/"


def queries_of(own: OrphanRoot) -> tuple[Query, ...]:
    """The queries for its references."""
    pins = (Query("pin", own.pins),) if own.pins else ()
    if own.preset == WORKSPACES:
        fixed = (own.template or SEED_TEMPLATE).partition("{")[0]
        concat = "CONCAT({}, {}, {}, {}, {})" if own.database.startswith(("mysql", "mariadb")) else _CONCAT
        return (*workspaces_queries(Workspaces(own.table, fixed, own.columns), concat=concat), *pins)
    return (*(Query(f"query {number}", sql) for number, sql in enumerate(own.queries, 1)), *pins)


def _graces(own: OrphanRoot, delay: timedelta | None) -> Graces:
    return Graces(
        _or(own.superseded, delay or _PLAIN.superseded),
        _or(own.soft_deleted, delay or _PLAIN.soft_deleted),
        _or(own.owner_unknown, _PLAIN.owner_unknown),
    )


def _caps(own: OrphanRoot) -> Caps:
    return Caps(
        own.objects_max,
        own.share_max,
        own.bytes_max,
        own.group_max,
        own.rows_share_min,
        own.match_share_min,
        own.vanished_max,
        own.vanished_share_max,
    )


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
