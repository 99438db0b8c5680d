"""Builds an archiver from the settings: its rules, the stores it writes to, and its ports."""

from __future__ import annotations

from collections.abc import Sequence

from wrasse.archives.announce import LagLimits
from wrasse.archives.archiver import ArchivePorts, Archiver, ArchiverOptions
from wrasse.archives.batch import BatchLimits
from wrasse.archives.codec import Compression, check_compression
from wrasse.archives.cursor import CURSORS
from wrasse.archives.naming import DayLayout, Form
from wrasse.archives.rule import PREFIX, Rule
from wrasse.clock import Clock
from wrasse.config.load import Config
from wrasse.config.redaction import hide
from wrasse.config.settings import ArchiveStream, Settings
from wrasse.engine.loop import ENGINE_LEASES
from wrasse.leases.manager import LeaseManager
from wrasse.runtime.backends import Stores
from wrasse.streams.alerts import ALERTS


def archive_streams(settings: Settings) -> tuple[ArchiveStream, ...]:
    """The streams to archive, from both sections of the settings."""
    return (*settings.archiver.streams, *settings.archival)


async def build_archiver(config: Config, stores: Stores, clock: Clock, owner: str) -> Archiver:
    """An archiver for the streams that the settings name."""
    own = config.settings.archiver
    limits = LagLimits(own.lag_threshold.messages, own.lag_threshold.age, own.lag_repeat)
    ports = await open_ports(config, stores, clock)
    return Archiver(ports, await build_rules(config, stores), clock, owner, ArchiverOptions(lag=limits))


async def open_ports(config: Config, stores: Stores, clock: Clock) -> ArchivePorts:
    """The ports of archivers. Cursors and leases are stored with the engine's, shared by all hosts."""
    where = config.homes
    streams, engine = await stores.open_streams(where.streams), await stores.open(where.engine)
    lease_manager = LeaseManager(engine.records(ENGINE_LEASES), clock, margin=engine.margin)
    alerts, cursors = engine.records(ALERTS), engine.records(CURSORS)
    return ArchivePorts(streams.streams, streams.groups, cursors, lease_manager, alerts=alerts)


async def build_rules(config: Config, stores: Stores) -> Sequence[Rule]:
    """The rules with their stores, opened."""
    found = []
    for each, (_, home) in zip(archive_streams(config.settings), config.homes.archives, strict=True):
        url = home.opened()
        limits = BatchLimits(each.batch_size, each.batch_bytes, each.batch_timeout)
        objects = await stores.open_objects(url)
        best_effort, form = each.archive_best_effort, form_of(each)
        found.append(
            Rule(
                pattern=each.stream,
                objects=objects,
                destination=hide(url),
                prefix=each.prefix,
                domain=each.domain,
                limits=limits,
                form=form,
                best_effort=best_effort,
            )
        )
    return found


def form_of(each: ArchiveStream) -> Form:
    """The format of archives of these streams; ConfigError if this installation cannot write them."""
    form = Form(DayLayout(each.layout), Compression(each.compression))
    check_compression(form.codec)
    return form


async def archive_rules(config: Config, stores: Stores) -> Sequence[Rule]:
    """Every place where archives may be: those of the rules, each once, or the default one."""
    rules = await build_rules(config, stores)
    places = {(rule.destination, rule.prefix): rule for rule in rules}
    if not places:
        url = config.homes.objects
        return (Rule(">", await stores.open_objects(url), hide(url), PREFIX),)
    return tuple(places.values())
