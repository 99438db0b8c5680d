"""Pages of a sorted set of jobs: the next few after a cursor, with their texts, in one round trip.

A cursor is a score and a member, not a rank: the page begins after it even if that member has moved.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.scripts import load
from wrasse.bounded import clamped_ms

SLICE_MAX = 2_000  # members per round trip: the most that one script returns


@dataclass(frozen=True, slots=True)
class ScoreRange:
    """A part of a set by score: its ends in Redis syntax, and the direction."""

    low: str = "-inf"
    high: str = "+inf"
    newest: bool = False


@dataclass(frozen=True, slots=True)
class PageStart:
    """The member after which a page begins; `begins`: the member is only the beginning of one."""

    score: str  # in the server's format: another program's may have a fraction, or be infinite
    member: bytes
    begins: bool = False

    def bound(self, *, newest: bool) -> bytes:
        """A bound between that member and the next one in this direction."""
        return self.member if newest else self.member + (b"\xff" if self.begins else b"\0")


@dataclass(frozen=True, slots=True)
class SortedMember:
    """A member with its score and its text; no text if the member is the text, or if it is missing."""

    member: bytes
    score: int
    text: bytes | None
    exact: str  # the score in the server's format


@dataclass(frozen=True, slots=True)
class SortedPage:
    """The next members, the server's time in milliseconds, and whether there are more: a page may end early."""

    found: tuple[SortedMember, ...]
    now: int
    more: bool

    @property
    def behind(self) -> PageStart | None:
        """Where the next page begins; None if this was the last."""
        return PageStart(self.found[-1].exact, self.found[-1].member) if self.more else None


async def slice_of(
    client: RedisClient, key: str, texts: str | None, span: ScoreRange, behind: PageStart | None, limit: int
) -> SortedPage:
    """At most `limit` members of the set at `key`, with their texts from the hash at `texts`."""
    cursor = ("", b"") if behind is None else (behind.score, behind.bound(newest=span.newest))
    way = "down" if span.newest else "up"
    reply = await client.run(load("slice"), [key, texts or key], [way, span.low, span.high, limit, *cursor])
    return SortedPage(tuple(_found(reply)), int(reply[0]), reply[1] == 1)


def _found(reply: list[bytes | None]) -> Iterator[SortedMember]:
    for at in range(2, len(reply), 3):
        member, score, text = reply[at : at + 3]
        if member is None or score is None:
            raise ValueError("an entry of a sorted set without its member or its score")
        yield SortedMember(member, clamped_ms(score), text, score.decode())


async def slices(
    client: RedisClient, key: str, texts: str | None, span: ScoreRange, behind: PageStart | None, chunk: int = SLICE_MAX
) -> AsyncIterator[SortedMember]:
    """Everything after the cursor, read in pages of `chunk`."""
    page_loop = PageLoop(client.options.where, f"the entries of {key}")
    while True:
        page_loop.turn(behind)
        found = await slice_of(client, key, texts, span, behind, chunk)
        for each in found.found:
            yield each
        behind = found.behind
        if behind is None:
            return
