"""The heartbeat table: a worker's claims, in memory that it shares with its heartbeat process.

The worker writes, the child reads, and neither waits for the other: the child must see every claim also while the
worker's interpreter is blocked by a handler. One entry per claim, of fixed size. Its first word says whether it is
empty, being written, or full, and counts its changes; a reader that sees the word change, or a checksum that does not
match, reads again, so a torn read is never used. The counter also distinguishes two claims that used the same place one
after the other.

`deadline` is when the handler's time is up, on the machine's monotonic clock, which is the same in both processes.
`group` is the process group of the handler, if it is a command: the child ends it if the worker is killed.

A claim gets heartbeats until its handler's time is up: a job whose worker hangs must lose its claim. A new claim does
not need one yet, which saves a fast worker a write per job.

Messages between worker and child are lines. The worker sends its orders first and nothing after; the end of that pipe
means stop. After each round the child reports whether the heartbeats succeeded, and which claims are gone. A message
lost because the pipe is full does no harm: gone claims are reported at every heartbeat until the worker clears them.
Orders go through the pipe and not on the command line, since a URL may have a password.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from zlib import crc32

from wrasse.ports.jobs import BATCH_MAX, Claim, JobQueue, WorkerInfo

_MAGIC = 0x3144_5242_5341_5257
_HEADER = struct.Struct("<QQQ")  # magic, places, bytes per place
_HEADER_BYTES = 64
_PLACE_BYTES = 512
_WORD = 8
_BODY = struct.Struct("<ddqqHHI")  # deadline, since, group, token, bytes of id, bytes of nonce, checksum of the texts
_DEADLINE_AT, _GROUP_AT = _WORD, 3 * _WORD
_TEXT_AT = _WORD + _BODY.size
_TEXT_MAX = _PLACE_BYTES - _TEXT_AT
_READS_MAX = 1_000
_EMPTY, _WRITING, _FULL = 0, 1, 2
_KIND = 3  # the two low bits of a word; the rest counts


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A claim as stored in the table: `place` and `word` identify this entry, and no other ever."""

    place: int
    word: int
    claim: Claim
    deadline: float
    since: float
    group: int = 0


class HeartbeatTable:
    """A fixed number of places for claims. One process writes, any number read."""

    __slots__ = ("_fd", "_free", "_map", "_words", "places")

    def __init__(self, fd: int, places: int, *, fresh: bool) -> None:
        self._fd = fd
        self.places = places
        self._map = mmap.mmap(fd, _HEADER_BYTES + places * _PLACE_BYTES)
        self._words = memoryview(self._map).cast("Q")
        if fresh:
            _HEADER.pack_into(self._map, 0, _MAGIC, places, _PLACE_BYTES)
        self._free = list(range(places - 1, -1, -1))

    @classmethod
    def make(cls, places: int) -> HeartbeatTable:
        """A new table, in anonymous memory."""
        assert places >= 1, "a table has places"
        fd = os.memfd_create("wrasse-board")
        os.ftruncate(fd, _HEADER_BYTES + places * _PLACE_BYTES)
        return cls(fd, places, fresh=True)

    @classmethod
    def attach(cls, fd: int) -> HeartbeatTable:
        """The table of another process, by its descriptor; read only."""
        magic, places, size = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
        assert (magic, size) == (_MAGIC, _PLACE_BYTES), "not a heartbeat table of this version"
        return cls(fd, places, fresh=False)

    @property
    def fd(self) -> int:
        """The descriptor to pass to the reading process."""
        return self._fd

    @property
    def free(self) -> int:
        """How many more claims can be posted."""
        return len(self._free)

    def post(self, claim: Claim, deadline: float, since: float) -> int:
        """Adds a claim; returns its place."""
        place = self._free.pop()
        id, nonce = claim.id.encode("utf-8", "surrogatepass"), claim.nonce.encode()
        text = id + nonce
        assert id, "every job has an id"
        assert len(text) <= _TEXT_MAX, "ids and nonces are bounded"
        at = _HEADER_BYTES + place * _PLACE_BYTES
        word = self._words[at // _WORD] & ~_KIND
        self._words[at // _WORD] = word | _WRITING
        _BODY.pack_into(
            self._map, at + _WORD, deadline, since, 0, claim.token, len(id), len(nonce), _sum(text, claim.token)
        )
        self._map[at + _TEXT_AT : at + _TEXT_AT + len(text)] = text
        self._words[at // _WORD] = word + _KIND + 1 | _FULL
        return place

    def extend(self, place: int, deadline: float) -> None:
        """Changes an entry's deadline: one aligned word, which no reader can see half written."""
        struct.pack_into("<d", self._map, _HEADER_BYTES + place * _PLACE_BYTES + _DEADLINE_AT, deadline)

    def note_group(self, place: int, group: int) -> None:
        """Stores the process group of the handler; 0 for none. One aligned word, as above."""
        struct.pack_into("<q", self._map, _HEADER_BYTES + place * _PLACE_BYTES + _GROUP_AT, group)

    def word(self, place: int) -> int:
        """The word of a place, as `TableEntry` carries it."""
        return self._words[(_HEADER_BYTES + place * _PLACE_BYTES) // _WORD]

    def clear(self, place: int) -> None:
        """Removes an entry."""
        at = (_HEADER_BYTES + place * _PLACE_BYTES) // _WORD
        assert self._words[at] & _KIND == _FULL, "only a full entry is removed"
        self._words[at] &= ~_KIND
        self._free.append(place)

    def read(self) -> list[TableEntry]:
        """All entries. A place that keeps changing is left for the next round: its claim is new."""
        found = (self._read(place) for place in range(self.places))
        return [posted for posted in found if posted is not None]

    def _read(self, place: int) -> TableEntry | None:
        at = _HEADER_BYTES + place * _PLACE_BYTES
        for _ in range(_READS_MAX):
            word = self._words[at // _WORD]
            if word & _KIND == _EMPTY:
                return None
            copy = self._map[at + _WORD : at + _PLACE_BYTES]
            if word & _KIND == _FULL and self._words[at // _WORD] == word and (posted := _parse(copy, place, word)):
                return posted
        return None

    def close(self) -> None:
        """Releases the memory."""
        self._words.release()
        self._map.close()
        os.close(self._fd)


def _sum(text: bytes, token: int) -> int:
    return crc32(text, token & 0xFFFF_FFFF)


def _parse(copy: bytes, place: int, word: int) -> TableEntry | None:
    deadline, since, group, token, id_bytes, nonce_bytes, checksum = _BODY.unpack_from(copy)
    end = _BODY.size + id_bytes + nonce_bytes
    text = copy[_BODY.size : end]
    if end > len(copy) or _sum(text, token) != checksum:
        return None
    id, nonce = text[:id_bytes].decode("utf-8", "surrogatepass"), text[id_bytes:].decode()
    return TableEntry(place, word, Claim(id, token, nonce), deadline, since, group)


HEARTBEATS_PER_TIMEOUT = 3
_YOUNG = 0.1  # of a heartbeat timeout: sent in the next round at the latest, when more than half of it is left


def needs_heartbeat(posted: Sequence[TableEntry], heartbeat_timeout: timedelta, now: float) -> list[TableEntry]:
    """The entries that get a heartbeat; pure."""
    young = heartbeat_timeout.total_seconds() * _YOUNG
    return [p for p in posted if now < p.deadline and now - p.since >= young]


async def send_heartbeats(
    jobs: JobQueue, table: HeartbeatTable, worker: WorkerInfo, heartbeat_timeout: timedelta, now: float
) -> list[TableEntry]:
    """Sends the heartbeats that are needed; returns the entries whose claim is no longer current."""
    posted = needs_heartbeat(table.read(), heartbeat_timeout, now)
    gone: list[TableEntry] = []
    for start in range(0, max(len(posted), 1), BATCH_MAX):
        batch = posted[start : start + BATCH_MAX]
        answer = await jobs.heartbeat(worker, [p.claim for p in batch], heartbeat_timeout=heartbeat_timeout)
        gone += [p for p, mine in zip(batch, answer.mine, strict=True) if not mine]
    return gone


_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class HeartbeatOrders:
    """Whose claims to send heartbeats for, how often, and where."""

    url: str
    worker: WorkerInfo
    heartbeat_timeout: timedelta
    table: int  # the descriptor of the table in the child

    def line(self) -> bytes:
        """The line that is sent."""
        who = self.worker
        words = [self.url, who.id, who.host, who.pid, who.slots, self.heartbeat_timeout // _MICROSECOND, self.table]
        return json.dumps(words).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> HeartbeatOrders:
        """Parses the line that was sent."""
        url, id, host, pid, slots, micros, table = json.loads(line)
        return cls(url, WorkerInfo(id, host, pid, slots), timedelta(microseconds=micros), table)


@dataclass(frozen=True, slots=True)
class HeartbeatSent:
    """The backend accepted the heartbeats."""


@dataclass(frozen=True, slots=True)
class HeartbeatFailed:
    """The backend did not answer; the child retries."""


@dataclass(frozen=True, slots=True)
class ClaimEnded:
    """The claim of this entry is no longer current."""

    place: int
    word: int


@dataclass(frozen=True, slots=True)
class ChildFailed:
    """The child cannot work, and a restart would not help."""

    message: str
    do: str


HeartbeatMessage = HeartbeatSent | HeartbeatFailed | ClaimEnded | ChildFailed


def encode_message(word: HeartbeatMessage) -> bytes:
    """A message as a line."""
    match word:
        case HeartbeatSent():
            return b"beating\n"
        case HeartbeatFailed():
            return b"down\n"
        case ClaimEnded(place, number):
            return b"gone %d %d\n" % (place, number)
        case ChildFailed(message, do):
            return b"unable " + json.dumps([message[:2_000], do[:2_000]]).encode() + b"\n"


def parse_message(line: bytes) -> HeartbeatMessage:
    """The message in a line."""
    what, _, rest = line.strip().partition(b" ")
    match what:
        case b"beating":
            return HeartbeatSent()
        case b"down":
            return HeartbeatFailed()
        case b"gone":
            place, number = rest.split()
            return ClaimEnded(int(place), int(number))
        case b"unable":
            message, do = json.loads(rest)
            return ChildFailed(message, do)
    raise AssertionError(f"the heartbeat process said {what[:40]!r}")
