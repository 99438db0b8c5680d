"""Marks: the position of a group that reads by cursor (the archiver's). One message each in the stream of books.

A mark is written on condition that it is unchanged since it was read, so of two concurrent writers one fails.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from wrasse.backends.nats.client.jetstream import STREAM_NOT_FOUND, JetStream, JsError
from wrasse.backends.nats.layout import NatsNames, text_of, token
from wrasse.backends.nats.page_reader import PageReader
from wrasse.bounded import UNREADABLE
from wrasse.errors import StoreBroken
from wrasse.ports.streams import EntryId

_VERSION = 1


@dataclass(frozen=True, slots=True)
class GroupCursor:
    """The position of a group, and the revision of its mark."""

    at: EntryId
    revision: int


class Marks:
    """The marks of one backend."""

    def __init__(self, js: JetStream, layout: NatsNames, reader: PageReader) -> None:
        self._js = js
        self._layout = layout
        self._reader = reader

    async def get(self, subject: str, group: str) -> GroupCursor | None:
        """The mark of a group, read from the leader."""
        asked = {"last_by_subj": self._layout.mark(subject, group)}
        message = await self._reader.one(self._layout.books, asked, leader=True)
        if message is None:
            return None
        try:
            version, ms, seq = json.loads(message.body)
            if version != _VERSION:
                raise ValueError
            return GroupCursor(EntryId(int(ms), int(seq)), message.seq)
        except UNREADABLE as error:
            raise StoreBroken(
                f"the position of the group {group} of {subject} cannot be read in {self._layout.books}",
                do="see what writes there; then delete the mark, and the group is joined anew: nats stream purge "
                f"{self._layout.books} --subject={self._layout.mark(subject, group)}; until then nothing is trimmed",
            ) from error

    async def put(self, subject: str, group: str, at: EntryId, revision: int = 0) -> bool:
        """Writes a mark after this revision; False if another process was faster."""
        headers = {"Nats-Rollup": "sub", "Nats-Expected-Last-Subject-Sequence": str(revision)}
        body = json.dumps([_VERSION, at.ms, at.seq], separators=(",", ":")).encode()
        try:
            await self._js.store(self._layout.mark(subject, group), body, headers)
        except JsError as refused:
            if not refused.wrong_sequence:
                raise
            return False
        return True

    async def groups(self, subject: str) -> list[str]:
        """The groups of a stream that have a mark, in order."""
        verb, asked = f"STREAM.INFO.{self._layout.books}", {"subjects_filter": self._layout.marks(subject)}
        try:
            found = {name.rpartition(".")[2] async for page in self._js.pages(verb, "subjects", asked) for name in page}
        except JsError as refused:
            if refused.code != STREAM_NOT_FOUND:
                raise
            return []  # the stream of books does not exist yet
        return sorted(group for name in found if (group := _group(name)) is not None)


def _group(name: str) -> str | None:
    """The group that a mark names; None if another program wrote a name that is no group's. Pure."""
    try:
        group = text_of(name)
    except UNREADABLE:
        return None
    return group if token(group) == name else None
