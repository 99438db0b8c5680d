"""Stands for the backend of a port that no backend serves: empty to whoever reads, refused to whoever writes.

Status page, metrics, sweeps and `doctor` read every port; with no backend there is nothing there. A write is refused
with the setting that is missing.
"""

from __future__ import annotations

from typing import cast

from wrasse.app.homes import Home, Homes
from wrasse.app.wiring import Store, Stores, open_store
from wrasse.errors import ConfigError

_READS = ("get", "page", "overdue", "counts", "read", "info", "subjects", "consumers", "dedup_window")


async def open_port(port: str, homes: Homes, stores: Stores) -> Store:
    """The backend of jobs, records or streams."""
    home = homes.ports[port]
    if home.refused:
        return cast(Store, Unserved(home, await open_store("memory:", stores.clock)))
    return await (stores.open_streams(home.url) if port == "streams" else stores.open(home.url))


class Unserved:
    """A store whose port has no backend."""

    def __init__(self, home: Home, empty: Store) -> None:
        self._home, self._empty = home, empty

    def __getattr__(self, name: str) -> object:
        found = getattr(self._empty, name)
        return _Refusing(found, self._home) if name in ("jobs", "streams", "groups") else found


class _Refusing:
    """One port of it."""

    def __init__(self, empty: object, home: Home) -> None:
        self._empty, self._home = empty, home

    def __getattr__(self, name: str) -> object:
        found = getattr(self._empty, name)
        return found if name in _READS or not callable(found) else self._refuse

    async def _refuse(self, *args: object, **options: object) -> None:
        raise ConfigError(self._home.refused, do=self._home.do)
