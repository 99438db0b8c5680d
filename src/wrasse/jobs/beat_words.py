"""What a worker and its beat child say to each other, in lines.

The worker says one thing, first: its orders. Afterwards it is silent, and the end of that pipe means stop. The child
says after each look whether the backend took its beats, and which postings are gone. A word that is lost because the
pipe is full does no harm: what is gone is said again at every beat until the worker takes it down.

The orders go through the pipe and not on the command line, since a URL may hold a password.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

from wrasse.ports.jobs import WorkerInfo

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Orders:
    """Whose holds to beat for, how often, and where."""

    url: str
    worker: WorkerInfo
    silence: timedelta
    board: int  # the descriptor of the board in the child

    def line(self) -> bytes:
        """As it is sent."""
        who = self.worker
        words = [self.url, who.id, who.host, who.pid, who.slots, self.silence // _MICROSECOND, self.board]
        return json.dumps(words).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> Orders:
        """As it was sent."""
        url, id, host, pid, slots, micros, board = json.loads(line)
        return cls(url, WorkerInfo(id, host, pid, slots), timedelta(microseconds=micros), board)


@dataclass(frozen=True, slots=True)
class Beating:
    """The backend took the beats."""


@dataclass(frozen=True, slots=True)
class Down:
    """The backend did not answer; the child goes on trying."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The hold of this posting is no longer current."""

    place: int
    word: int


@dataclass(frozen=True, slots=True)
class Unable:
    """The child cannot work, and trying again would not help."""

    message: str
    do: str


Word = Beating | Down | Gone | Unable


def spell(word: Word) -> bytes:
    """A word as a line."""
    match word:
        case Beating():
            return b"beating\n"
        case Down():
            return b"down\n"
        case Gone(place, number):
            return b"gone %d %d\n" % (place, number)
        case Unable(message, do):
            return b"unable " + json.dumps([message[:2_000], do[:2_000]]).encode() + b"\n"


def read_word(line: bytes) -> Word:
    """The word that a line spells."""
    what, _, rest = line.strip().partition(b" ")
    match what:
        case b"beating":
            return Beating()
        case b"down":
            return Down()
        case b"gone":
            place, number = rest.split()
            return Gone(int(place), int(number))
        case b"unable":
            message, do = json.loads(rest)
            return Unable(message, do)
    raise AssertionError(f"the beat child said {what[:40]!r}")
