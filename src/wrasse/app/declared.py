"""What each kind of backend declares that it can do, also of one that is down or was never opened."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from wrasse.app.store_url import StoreUrl

KINDS = {
    "memory": "memory.connect:Memory",
    "sqlite": "sqlite.connect:Sqlite",
    "redis": "redis.connect:Redis",
    "nats": "nats.connect:Nats",
    "s3": "s3.connect:S3",
    "file": "directory.connect:Directory",
}


def kind_of(url: StoreUrl) -> str:
    """The kind of backend that serves a URL."""
    return url.scheme if url.scheme in KINDS else "nats" if url.is_nats else "redis"


def declared(kind: str) -> Mapping[str, bool]:
    """The capabilities of a kind of backend, by name."""
    module, _, name = KINDS[kind].partition(":")
    backend = getattr(importlib.import_module(f"wrasse.backends.{module}"), name)
    return asdict(backend.capabilities)


def table(kinds: Iterable[str]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A head and rows: each capability, and which of these kinds have it."""
    found = {kind: declared(kind) for kind in kinds}
    names = dict.fromkeys(name for each in found.values() for name in each)
    rows = [(name, *("yes" if each[name] else "no" for each in found.values())) for name in names]
    return ("capability", *found), rows
