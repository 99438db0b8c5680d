"""Builds scanners of orphans: each root with its store, its references and its sightings, opened."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from wrasse.clock import Clock
from wrasse.config.load import Config
from wrasse.config.orphans import OrphanRoot, queries_of, root_of
from wrasse.config.redaction import hide
from wrasse.config.urls import parse_store
from wrasse.errors import ConfigError, UnknownName
from wrasse.orphans.root import PinnedCatalog
from wrasse.orphans.scan import Ports
from wrasse.orphans.scanner import Scanner
from wrasse.ports.catalog import Catalog
from wrasse.ports.guard import Guard
from wrasse.runtime.backends import KeepsRecords, Stores

ORPHANS = "orphan_objects"


async def open_scanner(name: str, config: Config, stores: Stores, clock: Clock) -> tuple[Scanner, KeepsRecords]:
    """The scanner of one root, and the backend of records beside its sightings."""
    settings = config.settings
    if name not in settings.orphans:
        raise UnknownName(name, settings.orphans, what="root", where="orphans")
    own, where = settings.orphans[name], config.homes
    store = own.store or where.objects
    root = root_of(name, own, settings.gc, store)
    objects = await stores.open_objects(store)
    catalog = await stores.open_catalog(own.database, queries_of(own))
    leader = _leader(name, own, catalog)
    if own.pins_file:
        catalog = PinnedCatalog(catalog, Path(own.pins_file))
    sightings, beside = await stores.open_sightings(where.sightings[name].opened())
    scanner = Scanner(
        root,
        Ports(objects=objects, catalog=catalog, sightings=sightings, spool=spool_of(name, config), clock=clock),
        leader,
    )
    stores.at_end(scanner.close)
    return scanner, beside


def spool_of(name: str, config: Config) -> Path:
    """The directory for the files of a root's runs: beside its sightings or in the user's cache, never by default in
    the working directory."""
    own, sightings = config.settings.orphans[name].spool, config.homes.sightings[name].opened()
    if own:
        return Path(own)
    if sightings.startswith("sqlite:"):
        return Path(parse_store(sightings).path).parent / "wrasse-spool"
    place = hashlib.sha256(hide(sightings).encode()).hexdigest()[:12]  # roots of other settings may have the same name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wrasse-spool" / place


def _leader(name: str, own: OrphanRoot, catalog: Catalog) -> Guard | None:
    if not own.lock:
        return None
    leader = catalog.leader(own.lock)
    if leader is None:
        raise ConfigError(
            f"orphans.{name}.lock is set, and its database has no advisory locks",
            do="leave it out: wrasse has its own lease",
        )
    return leader


def instance_of(root: str) -> str:
    """The name of one root's sweep in leases, state, journal and metrics."""
    return f"{ORPHANS}@{root}"
