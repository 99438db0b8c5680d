"""A bounded slice of a listing, with the clock of the backend that gave it."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from wrasse.errors import UsageError

T = TypeVar("T")
_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII).fullmatch
_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items, in the listing's order.

    `cursors[i]` continues the listing after `items[i]`, so that a reader that stops in the middle of a page continues
    exactly there. `more` says whether the listing continued when the page was read.
    """

    items: tuple[T, ...]
    cursors: tuple[str, ...]
    at: datetime
    more: bool

    def __post_init__(self) -> None:
        assert len(self.items) == len(self.cursors), "every item has a cursor"
        assert self.items or not self.more, "an empty page cannot be followed by another"

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @classmethod
    def of(cls, found: Sequence[T], limit: int, at: datetime, cursor: Callable[[T], str]) -> Page[T]:
        """The first `limit` of what was found; one beyond them says that the listing continues."""
        shown = tuple(found[:limit])
        return cls(shown, tuple(map(cursor, shown)), at, len(found) > limit)

    @classmethod
    def cut(cls, found: Sequence[tuple[str, T]], limit: int, at: datetime) -> Page[T]:
        """The same of items that were found each with its cursor."""
        shown = found[:limit]
        return cls(tuple(item for _, item in shown), tuple(cursor for cursor, _ in shown), at, len(found) > limit)

    @property
    def cursor(self) -> str | None:
        """Where the next page starts; None when this was the last."""
        return self.cursors[-1] if self.more else None


async def pages(
    read: Callable[[str | None], Awaitable[Page[T]]], after: str | None = None, most: int | None = None
) -> AsyncIterator[Page[T]]:
    """Every page of a listing, from its beginning or from behind a cursor on; `read` gives the one after a cursor. No
    more than `most`."""
    for _ in itertools.count() if most is None else range(most):
        page = await read(after)
        yield page
        after = page.cursor
        if after is None:
            return


def check_limit(limit: int, of: str, most: int = sys.maxsize) -> int:
    """How many a page shows, at most `most`; refuses one of nothing. `of` says what is listed."""
    if limit < 1:
        raise UsageError(f"a page of {limit} {of}", do="ask for at least one")
    return min(limit, most)


def no_cursor(text: str) -> UsageError:
    """The error for a text that no listing gave as a cursor."""
    return UsageError(f"{text[:40]!r} is not a cursor", do="use one that a page of the same listing gave")


def other_listing(cursor: str | None) -> UsageError:
    """The error for a cursor of another listing."""
    return UsageError(f"the cursor {cursor!r} belongs to another listing", do="start the listing again without it")


def number_in(cursor: str, text: str) -> int:
    """A number in a cursor, of 64 bits, as stores compare with; UsageError if it is none."""
    if _NUMBER(text) is None or not -_MAX - 1 <= int(text) <= _MAX:
        raise no_cursor(cursor)
    return int(text)
