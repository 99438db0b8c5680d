"""Records on Redis: a hash of values, two sorted sets that order them by name and by due time, and each name's newest
writes. Every write is one script, so that all of it happens or nothing.

A version is a number that only grows and a salt of the writer: after a failover the number may be one that was given
before, and must still not be taken for it. Nothing here expires by itself: deleted names are remembered for the newest
GONE_MAX of a collection, so that asking again is safe.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from wrasse.backends.redis.connection import Link
from wrasse.backends.redis.namespaces import namespaces_key
from wrasse.backends.redis.scripts import load
from wrasse.clock import from_micros, to_micros
from wrasse.errors import UsageError
from wrasse.ports.namespaces import namespace_of
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import (
    NONCES_KEPT,
    Collection,
    Record,
    Written,
    check_record,
    key_of,
    refuse_emit,
    stored_name,
)
from wrasse.ports.streams import Draft

GONE_MAX = 10_000
PAGE_MAX = 10_000
PAGE_BYTES_MAX = 32 << 20  # values in one page, unless a single one is longer

_DUE_LETTERS = 19
_BEFORE_1970 = 10**18
_NOBODYS = 1 << 53  # above every number: what is no version of ours was never anybody's


class RedisRecords:
    """One collection of records."""

    def __init__(self, link: Link, collection: Collection) -> None:
        root = f"{link.options.root}:records:{collection.data}"
        self._link = link
        self._values, self._names, self._due = root, f"{root}:names", f"{root}:due"
        self._keys = (
            self._values, self._names, self._due, f"{root}:writes", f"{root}:gone", f"{root}:meta",
            namespaces_key(link.options.root),
        )  # fmt: skip
        self._listed_as = collection.data if namespace_of(collection.data) else ""

    @property
    def emits(self) -> bool:
        return False

    @property
    def resolution(self) -> timedelta:
        return timedelta(0)

    async def create(
        self,
        key: str,
        value: bytes,
        *,
        due_at: datetime | None = None,
        nonce: str | None = None,
        emit: Sequence[Draft] = (),
    ) -> Written:
        check_record(key, value)
        refuse_emit(emit)
        return await self._write(key, "", nonce, value, due_at)

    async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
        name = _name(key)
        stored = await self._link.ask("HGET", self._values, name)
        return None if stored is None else _record(name, stored)

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        at: str,
        due_at: datetime | None = None,
        nonce: str | None = None,
        entry_stays: bool = False,
        emit: Sequence[Draft] = (),
    ) -> Written:
        check_record(key, value)
        refuse_emit(emit)
        return await self._write(key, at or "-", nonce, value, due_at)

    async def leave(self, key: str, due_at: datetime) -> None:
        """Nothing to do: the due time is part of the record."""

    async def delete(self, key: str, *, at: str, nonce: str | None = None) -> Written:
        return await self._write(key, at or "-", nonce, None, None)

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[Record]:
        start = _name(prefix)
        lower = b"(" + after.encode() if after is not None and after.encode() >= start else b"[" + start
        # No byte of UTF-8 is 0xff, so the last one can always be counted up.
        upper = b"(" + start[:-1] + bytes([start[-1] + 1]) if start else b"+"
        return await self._page(self._names, lower, upper, limit, 0, lambda record: stored_name(record.key))

    async def due(self, before: datetime | None, after: str | None, limit: int) -> Page[Record]:
        lower = b"-" if after is None else b"(" + _moment(after)
        upper = b"" if before is None else b"(" + _due(before) + b"\xff"
        return await self._page(self._due, lower, upper, limit, _DUE_LETTERS, _due_cursor)

    async def _write(
        self, key: str, at: str, nonce: str | None, value: bytes | None, due_at: datetime | None
    ) -> Written:
        # A write without a nonce cannot be asked again, and an empty one names none.
        args = (
            _name(key), at, _number(at), nonce or "", secrets.token_hex(4), "delete" if value is None else "write",
            b"" if due_at is None else _due(due_at), value or b"", NONCES_KEPT, GONE_MAX, self._listed_as,
        )  # fmt: skip
        micros, outcome, version = await self._link.run(load("record_write"), self._keys, args)
        return Written(Outcome(outcome.decode()), version.decode() or None, from_micros(int(micros)))

    async def _page(
        self, index: str, lower: bytes, upper: bytes, limit: int, letters: int, cursor: Callable[[Record], str]
    ) -> Page[Record]:
        if limit < 1:
            raise UsageError(f"a page of {limit} records", do="ask for at least one")
        args = (lower, upper, min(limit, PAGE_MAX), PAGE_BYTES_MAX, letters)
        micros, more, *rows = await self._link.run(load("record_page"), (self._values, index), args)
        found = tuple(_record(name, stored) for name, stored in zip(rows[::2], rows[1::2], strict=True))
        return Page(found, tuple(cursor(record) for record in found), from_micros(int(micros)), more == b"1")


def _name(key: str) -> bytes:
    return stored_name(key).encode()


def _record(name: bytes, stored: bytes) -> Record:
    header, _, value = stored.partition(b"\n")
    version, _, due = header.decode().partition(" ")
    return Record(key_of(name.decode()), value, version, _instant(due) if due else None)


def _number(at: str) -> int:
    number = at.partition("-")[0]
    return int(number) if number.isdecimal() and len(number) < 16 else _NOBODYS


def _due(instant: datetime) -> bytes:
    """A moment in 19 digits whose byte order is that of time."""
    micros = to_micros(instant)
    return b"1%018d" % micros if micros >= 0 else b"0%018d" % (_BEFORE_1970 + micros)


def _instant(due: str) -> datetime:
    return from_micros(int(due[1:]) - (0 if due[0] == "1" else _BEFORE_1970))


def _due_cursor(record: Record) -> str:
    assert record.due_at is not None, "a record in the due index is due at some time"
    return f"{to_micros(record.due_at)}:{stored_name(record.key)}"


def _moment(cursor: str) -> bytes:
    due, colon, name = cursor.partition(":")
    if not colon or not due.lstrip("-").isdecimal() or len(due) > 18:
        raise UsageError(f"{cursor!r} is not a cursor", do="use one that a page of due records gave")
    return _due(from_micros(int(due))) + name.encode()
