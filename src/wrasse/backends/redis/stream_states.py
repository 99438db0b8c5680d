"""Streams in numbers, as the scripts that include `describing` answer them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wrasse.backends.redis.stream_entries import id_of
from wrasse.clock import from_micros
from wrasse.ports.streams import GroupState, StreamState


def read_state(subject: str, reply: Iterator[Any], now: int, history: str = "") -> StreamState:
    """One stream, from the words that come next."""
    length, size, appended, first, last, groups = (next(reply) for _ in range(6))
    states = [_group(next(reply) for _ in range(7)) for _ in range(groups)]
    return StreamState(
        subject,
        length=length,
        bytes=size,
        appended=appended,
        first=id_of(first) if first else None,
        last=id_of(last) if last else None,
        groups=tuple(sorted(states, key=lambda state: state.name)),
        at=from_micros(now),
        history=history,
    )


def _group(words: Iterator[Any]) -> GroupState:
    name, delivered, pending, lowest, lag, consumers, lost = words
    first = id_of(lowest) if lowest else None
    read = id_of(delivered)
    return GroupState(
        name.decode("utf-8", "backslashreplace"),
        floor=read if first is None else first.previous,
        delivered=read,
        pending=int(pending),
        oldest_pending_at=None if first is None else first.at,
        consumers=int(consumers),
        lag=int(lag) if lag else None,
        lost=int(lost),
    )
