"""Namespaces on S3: the top-level folders. Other folders there are listed, too: telling them apart would cost a request
each, and reading their due index shows soon enough.

The pages of a listing come from one cached listing, which is renewed when it is too old.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from wrasse.backends.s3.client import Client
from wrasse.backends.s3.object_listing import Lister
from wrasse.ports.namespaces import META, namespace_of, page_of
from wrasse.ports.page import Page

KEPT = timedelta(minutes=1)


class S3Namespaces:
    """The port."""

    def __init__(self, client: Client, lister: Lister, prefix: bytes) -> None:
        self._client, self._lister, self._prefix = client, lister, prefix
        self._listed: tuple[datetime, Sequence[str]] | None = None

    async def page(self, after: str | None, limit: int) -> Page[str]:
        now = self._client.wire.time.now()
        if after is None or self._listed is None or not timedelta(0) <= now - self._listed[0] < KEPT:
            folders = [folder.decode("utf-8", "replace") for folder in await self._lister.folders(self._prefix)]
            names = [name for name in folders if namespace_of(name + META)]
            now = self._client.wire.time.now()
            self._listed = (now, names)
        return page_of(self._listed[1], after, limit, now)
