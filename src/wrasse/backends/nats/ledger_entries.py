"""What may be written into the ledger of a group, and its bytes.

A ledger is a list of commands. Whoever reads them in order comes to the same state, so a command says everything that
its effect depends on: also what the time was for the one who gave it. The `kind` comes first in the bytes, so that a
listener tells those that make something due from the rest without reading them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from wrasse.bounded import UNREADABLE
from wrasse.errors import StoreBroken

VERSION = 1
ACK, NAK = 0, 1

Span = tuple[int, int, int]  # entries that follow each other: the first's sequence, how many, the ms of their ids


@dataclass(frozen=True, slots=True)
class Join:
    """The group begins after this position, and with nothing below `start_ms`."""

    ms: int
    seq: int
    start_ms: int = 0


@dataclass(frozen=True, slots=True)
class Deliver:
    """Up to `limit` entries to the consumer: first those that are due, then of `new`. It is alive until `until`."""

    at: int
    consumer: str
    limit: int
    until: int
    new: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Extend:
    """The consumer keeps these until `until`; each span with its delivery's number."""

    at: int
    consumer: str
    until: int
    held: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Answers, in order: what it is, the span it is about, and the delay of a nak."""

    at: int
    answers: tuple[tuple[int, int, int, int, int], ...]

    @property
    def frees(self) -> bool:
        """Whether something is due by it."""
        return any(answer[0] == NAK for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Mark:
    """Everything up to here is acked."""

    ms: int
    seq: int


@dataclass(frozen=True, slots=True)
class Retire:
    """The consumer is removed if it is silent, and what it held is due."""

    at: int
    consumer: str


@dataclass(frozen=True, slots=True)
class Back:
    """A delivery that reached nobody: due at once, its count as before."""

    at: int
    consumer: str
    handed: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Skip:
    """What is at or below this position came before the group's beginning. `done`: what follows did not."""

    ms: int
    seq: int
    done: bool


@dataclass(frozen=True, slots=True)
class Gone:
    """These entries are not stored any more."""

    spans: tuple[tuple[int, int], ...]


Command = Join | Deliver | Extend | Settle | Mark | Retire | Back | Skip | Gone
_KINDS: dict[str, type[Any]] = {
    "j": Join, "d": Deliver, "e": Extend, "a": Settle, "m": Mark, "r": Retire, "b": Back, "s": Skip, "g": Gone,
}  # fmt: skip
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}
SNAPSHOT, FREEING = "S", ("n", "r", "b")  # kinds: the whole state, and those after which something is due


def packed(name: str, command: Command) -> bytes:
    """A command as it is stored; `name` is the question's own, by which its answer is found again."""
    kind = type(command)
    letter = "n" if isinstance(command, Settle) and command.frees else _LETTERS[kind]
    values = [getattr(command, field) for field in kind.__slots__]
    return json.dumps([letter, VERSION, name, values], separators=(",", ":")).encode()


def packed_snapshot(state: object) -> bytes:
    """The whole state as it is stored."""
    return json.dumps([SNAPSHOT, VERSION, "", state], separators=(",", ":")).encode()


def unpacked(body: bytes) -> tuple[str, str, Any]:
    """The kind, the name, and the command or the state."""
    try:
        kind, version, name, values = json.loads(body)
        if version != VERSION:
            raise StoreBroken(
                f"a ledger of a group was written by another version ({version})", do="run one version of wrasse only"
            )
        if kind == SNAPSHOT:
            return kind, name, values
        return kind, name, _KINDS["a" if kind == "n" else kind](*[_frozen(value) for value in values])
    except UNREADABLE as error:
        raise StoreBroken("a ledger of a group cannot be read", do="look at the stream of books") from error


def _frozen(value: object) -> object:
    return tuple(tuple(each) for each in value) if isinstance(value, list) else value


def frees(body: bytes) -> bool:
    """Whether something is due after this command."""
    return body[2:3].decode("latin-1") in FREEING
