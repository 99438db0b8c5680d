"""One consistent view of all references of a database, as a stream.

The database sorts by bytes and is not trusted to: a key out of order is an error, and so is a stream that is shorter or
longer than the count of the same view.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import suppress
from datetime import datetime

from wrasse.backends.sql.asking import Endings
from wrasse.backends.sql.link import Link, SqlThread
from wrasse.errors import StoreBroken, WrasseError
from wrasse.ports.catalog import Reference
from wrasse.ports.page import Page, check_limit, number_in
from wrasse.ports.reference_rows import Source

END_MAX = 10.0  # seconds to hang up
VIEW_MAX = 900.0  # seconds for one statement of a snapshot, sorting included

Shown = tuple[Reference, str]
Parts = Generator[list[Shown], None, None]


class SqlSnapshot:
    """The view. It has a connection of its own, and the thread of its catalog."""

    def __init__(self, link: Link, sources: Sequence[Source], thread: SqlThread) -> None:
        self._link = link
        self._sources = sources
        self._thread = thread
        self._turn = asyncio.Lock()
        self._at: datetime | None = None
        self._all = ""
        self._parts: Parts = _nothing()
        self._waiting: list[Shown] = []  # what follows, the first part of it
        self._stands: str | None = None  # the cursor after which that is
        self.endings: Endings = None  # how prefixes end, once all were seen

    @property
    def at(self) -> datetime:
        """The database's clock when the view was opened."""
        assert self._at is not None, "a snapshot is opened before it is read"
        return self._at

    async def open(self) -> None:
        """Opens the view."""
        await self._run(self._open)

    async def page(self, after: str | None, limit: int) -> Page[Reference]:
        """References in the byte order of their keys."""
        check_limit(limit, "references")
        async with self._turn:
            pages: list[Page[Reference]] = []
            await self._run(lambda: pages.append(self._page(after, limit)))
            return pages[0]

    async def close(self) -> None:
        """Ends the view."""
        await self._thread.run(self._close, self._link, END_MAX)

    async def _run(self, call: object) -> None:
        assert callable(call), "a step of the view"
        await self._thread.run(lambda: self._link.guarded(call), self._link, VIEW_MAX)

    def _open(self) -> None:
        link = self._link
        self._at = link.dialect.begin(link, VIEW_MAX)
        plain = [link.dialect.plain(each, link.names(each.sql)) for each in self._sources]
        self._all = " UNION ALL ".join(plain)

    def _close(self) -> None:
        parts, self._parts, self._waiting, self._stands = self._parts, _nothing(), [], None
        self._link.close()  # first, so that the end of the stream is no more talk with the server
        with suppress(WrasseError):
            self._link.guarded(parts.close)

    def _page(self, after: str | None, limit: int) -> Page[Reference]:
        if after is None or after != self._stands:
            self._start(after)
        shown: list[Shown] = []
        while self._waiting and len(shown) < limit:
            room = limit - len(shown)
            shown += self._waiting[:room]
            self._waiting = self._waiting[room:] or next(self._parts, [])
        self._stands = shown[-1][1] if shown else None
        return Page(
            tuple([reference for reference, _ in shown]),
            tuple([cursor for _, cursor in shown]),
            self.at,
            bool(self._waiting),
        )

    def _start(self, after: str | None) -> None:
        """Goes to the first reference after a cursor."""
        self._parts.close()  # MySQL has one stream at a time
        if after is None:
            sql, values = self._link.dialect.counted(self._all)
            count = self._link.rows(sql, values)[0][0]
            assert isinstance(count, int), "a count is a number"
            self._parts = self._whole(count)
            self._waiting = next(self._parts, [])
            return
        place = _place(after)
        self._parts = self._from(place[0])
        self._waiting = []
        for part in self._parts:
            self._waiting = [each for each in part if _place(each[1]) > place]
            if self._waiting:
                return

    def _whole(self, count: int) -> Parts:
        """Everything, and an error if that is not as much as was counted."""
        seen, endings = 0, {"/"}
        for part in self._from(""):
            seen += len(part)
            endings.update([each.key[-1] for each, _ in part if each.prefix and each.key])
            yield part
        if seen != count:
            raise StoreBroken(
                f"{self._link.address.shown} gave {seen} of {count} references; nothing was judged",
                do="see what stands between wrasse and the database",
            )
        self.endings = frozenset(endings)

    def _from(self, key: str) -> Parts:
        """References with their cursor: a key, and which of those with this key it is."""
        read = self._sources[0].reference
        last, number = "", 0
        sql, values = self._link.dialect.ordered(self._all, key)
        for part in self._link.stream(sql, values):
            shown: list[Shown] = []
            for row in part:
                reference = read(row)
                own = reference.key
                if own < last:  # the order of code points is that of their UTF-8
                    raise StoreBroken(
                        f"{self._link.address.shown} does not sort keys by their bytes; nothing was judged",
                        do="name a database that does",
                    )
                number = number + 1 if own == last else 1
                last = own
                shown.append((reference, f"{number}:{own}"))
            yield shown


def _nothing() -> Parts:
    yield from ()


def _place(cursor: str) -> tuple[str, int]:
    number, colon, key = cursor.partition(":")
    return key, number_in(cursor, number if colon else "")
