"""Listings in the byte order of raw keys, complete, page by page, on every store that is let in.

S3 lists in that order, and a page is one request. Some stores keep a tree of folders and list in its order, with `a/b`
before `a-b`, and skip a folder when told to start after the object of the same name. There one level after the other
is listed, and folders wait for their turn: the folder `a` comes where `a/` stands.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from heapq import heappop, heappush

from wrasse.backends.s3.client import PAGE_MAX, Client
from wrasse.backends.s3.replies import Listed
from wrasse.errors import StoreBroken

Part = tuple[tuple[Listed, ...], bool]  # some objects, and whether there are more


class Lister:
    """Listings of one bucket. `ordered` says whether the store itself lists in byte order."""

    def __init__(self, client: Client, *, ordered: bool) -> None:
        self._client = client
        self._ordered = ordered

    async def page(self, prefix: bytes, after: bytes | None, limit: int) -> Part:
        """At most `limit` objects that begin with the prefix, after this key; none only if there are no more."""
        limit = min(limit, PAGE_MAX)
        if after is not None and after < prefix:
            after = None
        return await (self._flat if self._ordered else self._by_level)(prefix, after, limit)

    async def folders(self, prefix: bytes) -> list[bytes]:
        """The names one level below a prefix that ends in a slash and under which there is anything."""
        found: list[bytes] = []
        token: str | None = None
        while True:
            page = await self._client.list(prefix, token=token, by_folder=True)
            found += [folder[len(prefix) : -1] for folder in page.folders]
            token = page.token
            if token is None:
                return found

    async def _flat(self, prefix: bytes, after: bytes | None, limit: int) -> Part:
        token: str | None = None
        while True:
            page = await self._client.list(prefix, after=after, token=token, limit=limit)
            _check_order(page.objects, after, self._client.where)
            if page.objects or page.token is None:
                return page.objects, page.token is not None
            token = page.token

    async def _by_level(self, prefix: bytes, after: bytes | None, limit: int) -> Part:
        found: list[Listed] = []
        if not nameable(prefix.rpartition(b"/")[0]):
            return (), False
        async with aclosing(self._walk(prefix, after, limit + 1)) as walk:
            async for each in walk:
                if len(found) == limit:
                    return tuple(found), True
                found.append(each)
        return tuple(found), False

    async def _walk(self, prefix: bytes, after: bytes | None, limit: int) -> AsyncGenerator[Listed, None]:
        """Everything below one folder, in order. `prefix` is the folder, or a beginning of names in it."""
        level = prefix[: prefix.rfind(b"/") + 1]
        waiting: list[bytes] = []
        start: bytes | None = None
        if after is not None and after.startswith(level):
            name = after[len(level) :].partition(b"/")[0]
            start = level + name
            for folder in _folders_around(level, name, after):
                if folder.startswith(prefix):
                    heappush(waiting, folder)
        async for each in self._level(prefix, start, limit):
            if isinstance(each, bytes):
                heappush(waiting, each)
                continue
            while waiting and waiting[0] < each.key:
                async for below in self._walk(heappop(waiting), after, limit):
                    yield below
            if after is None or each.key > after:
                yield each
        while waiting:
            async for below in self._walk(heappop(waiting), after, limit):
                yield below

    async def _level(self, prefix: bytes, start: bytes | None, limit: int) -> AsyncIterator[Listed | bytes]:
        """Objects and folders of one level in the order of their names; folders end in a slash."""
        token: str | None = None
        seen: set[bytes] = set()
        while True:
            page = await self._client.list(prefix, after=start, token=token, limit=limit, by_folder=True)
            both: list[tuple[bytes, Listed | bytes]] = [(each.key, each) for each in page.objects]
            both += [(folder.rstrip(b"/"), folder) for folder in page.folders if folder not in seen]
            seen = set(page.folders)
            for _, each in sorted(both, key=lambda pair: pair[0]):
                if each != prefix and not _is_folder(each):
                    yield each
            token = page.token
            if token is None:
                return


def _folders_around(level: bytes, name: bytes, after: bytes) -> list[bytes]:
    """Folders that come after a key although their name is not after its part on this level."""
    found = []
    for end in range(1, len(name) + 1):
        folder = level + name[:end] + b"/"
        if folder > after or after.startswith(folder):
            found.append(folder)
    return found


def _is_folder(each: Listed | bytes) -> bool:
    """Whether this is the folder itself, which such a store shows like an object but without a tag."""
    return isinstance(each, Listed) and not each.etag


def nameable(key: bytes) -> bool:
    """Whether a store that keeps a tree of folders can keep this key as it is."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    if b"\\" in key:
        return False  # taken for a slash
    return all(0 < len(part) <= 255 and part not in (b".", b"..") for part in key.split(b"/")) if key else True


def _check_order(objects: tuple[Listed, ...], after: bytes | None, where: str) -> None:
    last = after
    for each in objects:
        if last is not None and each.key <= last:
            raise StoreBroken(
                f"{where} lists keys out of order", do="open the store again, so that it is probed; then report it"
            )
        last = each.key
