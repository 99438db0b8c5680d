"""A daemon waits for its server. Machines start in any order, and a server that is away comes back; what is wrong with
a login, a certificate or a setting does not mend itself, and is said at once.
"""

from __future__ import annotations

import asyncio
import logging

from wrasse.app.building import Opened, open_homes
from wrasse.app.config import Config
from wrasse.app.homes import homes
from wrasse.app.store_url import parse_store
from wrasse.app.unserved import open_port
from wrasse.app.wiring import Stores
from wrasse.errors import StoreUnavailable

_PAUSE = 1.0  # seconds between two tries
_SAID_EVERY = 30  # tries between two lines that say so
_log = logging.getLogger("wrasse.daemon")


async def open_patiently(config: Config, stores: Stores, stop: asyncio.Event) -> Opened | None:
    """Every home, as soon as its server answers; None if `stop` is set before that. A file is not waited for."""
    where = homes(config)
    urls = [where.ports[port].url for port in ("jobs", "records", "engine", "streams")]
    served = any(parse_store(url).served for url in urls if url)
    tries = 0
    while not stop.is_set():
        try:
            await open_port("streams", where, stores)
            return await open_homes(config, stores, streams=True)
        except StoreUnavailable as error:
            if not served:
                raise
            if tries % _SAID_EVERY == 0:
                _log.warning("waiting for the backend", extra={"error": f"{error.message}; {error.do}"})
        tries += 1
        try:
            async with asyncio.timeout(_PAUSE):
                await stop.wait()
        except TimeoutError:
            pass
    return None
