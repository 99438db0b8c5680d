"""Listings in the byte order of raw keys, complete, page by page, on every supported store.

S3 lists in that order, and a page is one request. Some stores keep a tree of folders and list in its order, with `a/b`
before `a-b`, and skip a folder when told to start after the object of the same name. There one level after the other is
listed, and folders are held back: the folder `a` comes at the position of `a/`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from heapq import heappop, heappush

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.s3.client import PAGE_MAX, Client
from wrasse.backends.s3.xml import ListedObject, ListedPage
from wrasse.errors import StoreBroken

STALE_PAGES_MAX = 1_000
"""Consecutive pages of a listing without a new name; a bucket with many deleted versions has some."""
FOLDERS_MAX = 1_000_000
"""Folders of one level that are kept in memory at once."""

Part = tuple[tuple[ListedObject, ...], bool]  # some objects, and whether there are more


class Lister:
    """Listings of one bucket."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def page(self, prefix: bytes, after: bytes | None, limit: int) -> Part:
        """At most `limit` objects with the prefix, after this key; none only if there are no more."""
        limit = min(limit, PAGE_MAX)
        if after is not None and after < prefix:
            after = None
        return await (self._flat if self._client.conditions.ordered else self._by_level)(prefix, after, limit)

    async def folders(self, prefix: bytes) -> list[bytes]:
        """The names of the non-empty folders one level below a prefix that ends in a slash."""
        found: list[bytes] = []
        async with aclosing(self._level(prefix, None, PAGE_MAX)) as level:
            async for each in level:
                if isinstance(each, bytes):
                    found.append(each[len(prefix) : -1])
                if len(found) > FOLDERS_MAX:
                    raise StoreBroken(
                        f"{self._client.where} lists more than {FOLDERS_MAX} folders at one level",
                        do="check that the prefix in the bucket's URL is the right one",
                    )
        return found

    async def _flat(self, prefix: bytes, after: bytes | None, limit: int) -> Part:
        async with aclosing(self._pages(prefix, after, limit, by_folder=False)) as pages:
            async for page in pages:
                _check_order(page.objects, after, self._client.where)
                if page.objects:
                    return page.objects, page.token is not None
        return (), False

    async def _pages(
        self, prefix: bytes, after: bytes | None, limit: int, *, by_folder: bool
    ) -> AsyncGenerator[ListedPage, None]:
        """The pages of one listing. A store that leads it in a circle, or continues without a new name, is an error:
        each listing has its own count, since tokens of different folders may be equal."""
        token: str | None = None
        stale, furthest = 0, b""
        page_loop = PageLoop(self._client.where, "a listing")
        while True:
            page_loop.turn(token)
            page = await self._client.list(prefix, after=after, token=token, limit=limit, by_folder=by_folder)
            last = max((*map(_place, page.objects), *map(_place, page.folders)), default=b"")
            stale, furthest = (0, last) if last > furthest else (stale + 1, furthest)
            if page.token is not None and stale > STALE_PAGES_MAX:
                raise page_loop.endless(f"{stale} pages in a row had nothing new")
            yield page
            token = page.token
            if token is None:
                return

    async def _by_level(self, prefix: bytes, after: bytes | None, limit: int) -> Part:
        found: list[ListedObject] = []
        if not nameable(prefix.rpartition(b"/")[0]):
            return (), False
        async with aclosing(self._walk(prefix, after, limit + 1)) as walk:
            async for each in walk:
                if len(found) == limit:
                    return tuple(found), True
                found.append(each)
        return tuple(found), False

    async def _walk(self, prefix: bytes, after: bytes | None, limit: int) -> AsyncGenerator[ListedObject, None]:
        """Everything below one folder, in order. `prefix` is the folder, or the beginning of names in it.

        A folder is walked once the next name on its level is past it, so only few of them are held back at a time.
        """
        async with AsyncExitStack() as opened:
            stack = [await self._open_level(opened, prefix, after, limit)]
            while stack:
                level = stack[-1]
                if level.next is None and not level.ended:
                    level.next = await anext(level.items, None)
                    level.ended = level.next is None
                if level.waiting and (level.next is None or level.waiting[0] < _place(level.next)):
                    stack.append(await self._open_level(opened, heappop(level.waiting), after, limit))
                elif level.next is None:
                    stack.pop()
                else:
                    each, level.next = level.next, None
                    if isinstance(each, bytes):
                        heappush(level.waiting, each)
                    elif after is None or each.key > after:
                        yield each

    async def _open_level(self, opened: AsyncExitStack, prefix: bytes, after: bytes | None, limit: int) -> _OpenLevel:
        level = prefix[: prefix.rfind(b"/") + 1]
        waiting: list[bytes] = []
        start: bytes | None = None
        if after is not None and after.startswith(level):
            name = after[len(level) :].partition(b"/")[0]
            start = level + name
            waiting = sorted(folder for folder in _folders_around(level, name, after) if folder.startswith(prefix))
        items = await opened.enter_async_context(aclosing(self._level(prefix, start, limit)))
        return _OpenLevel(items, waiting)

    async def _level(
        self, prefix: bytes, start: bytes | None, limit: int
    ) -> AsyncGenerator[ListedObject | bytes, None]:
        """Objects and folders of one level in the order of their names; folders end in a slash."""
        last = b""
        seen: set[bytes] = set()
        async with aclosing(self._pages(prefix, start, limit, by_folder=True)) as pages:
            async for page in pages:
                both: list[ListedObject | bytes] = [*page.objects, *(each for each in page.folders if each not in seen)]
                seen = set(page.folders)
                for each in sorted(both, key=_place):
                    if _place(each) < last:
                        raise _out_of_order(self._client.where)
                    last = _place(each)
                    if each != prefix and not _is_folder(each):
                        yield each


@dataclass(slots=True)
class _OpenLevel:
    """One level while it is listed: its next item, and the folders that are held back."""

    items: AsyncGenerator[ListedObject | bytes, None]
    waiting: list[bytes]
    next: ListedObject | bytes | None = None
    ended: bool = False


def _place(each: ListedObject | bytes) -> bytes:
    """The position on its level: a folder's is its name without the slash."""
    return each.rstrip(b"/") if isinstance(each, bytes) else each.key


def _folders_around(level: bytes, name: bytes, after: bytes) -> list[bytes]:
    """Folders that come after a key although their name is not after its part on this level."""
    found = []
    for end in range(1, len(name) + 1):
        folder = level + name[:end] + b"/"
        if folder > after or after.startswith(folder):
            found.append(folder)
    return found


def _is_folder(each: ListedObject | bytes) -> bool:
    """Whether this is the folder itself, which such a store lists like an object but without a tag."""
    return isinstance(each, ListedObject) and not each.etag


def nameable(key: bytes) -> bool:
    """Whether a store that keeps a tree of folders can keep this key unchanged."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    if b"\\" in key:
        return False  # a backslash is taken for a slash
    return all(0 < len(part) <= 255 and part not in (b".", b"..") for part in key.split(b"/")) if key else True


def _check_order(objects: tuple[ListedObject, ...], after: bytes | None, where: str) -> None:
    last = after
    for each in objects:
        if last is not None and each.key <= last:
            raise _out_of_order(where)
        last = each.key


def _out_of_order(where: str) -> StoreBroken:
    return StoreBroken(
        f"{where} lists keys out of order", do="open the store again, so that it is probed; then report it"
    )
