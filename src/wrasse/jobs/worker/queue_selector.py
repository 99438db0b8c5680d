"""Rate limits and weights of queues, and which queue a claim serves first. Pure.

`10/s`, `100/h`, `5/10s`: in any interval of that length, all workers together claim at most so many jobs of the queue.

Weights decide which queue a claim serves first: over all claims, each queue comes first in proportion to its weight,
evenly spread. If the first queue is empty, the others follow in their order. Without weights the order is strict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from wrasse.duration import parse_duration
from wrasse.errors import ConfigError
from wrasse.ports.jobs import Rate

RATE_MAX = 100_000  # jobs: a backend remembers as many moments
WEIGHT_MAX = 1_000
_DIGITS_MAX = 9


def parse_rate(queue: str, text: str) -> Rate:
    """A limit such as 10/s."""
    count, slash, span = (part.strip() for part in text.partition("/"))
    if not slash or not count.isdecimal() or len(count) > _DIGITS_MAX or not 1 <= int(count) <= RATE_MAX:
        raise ConfigError(
            f"{text!r} is no limit", do=f"write jobs per time, such as 10/s or 100/5m, with 1 to {RATE_MAX} jobs"
        )
    per = parse_duration(span if span[:1].isdigit() else f"1{span}")
    if per <= timedelta(0):
        raise ConfigError(f"{text!r} is a limit per no time", do="write e.g. 10/s")
    return Rate(queue, int(count), per)


def parse_weight(text: str) -> int:
    """A weight: a whole number."""
    weight = text.strip()
    if not weight.isdecimal() or len(weight) > _DIGITS_MAX or not 1 <= int(weight) <= WEIGHT_MAX:
        raise ConfigError(f"{text!r} is no weight", do=f"write a whole number from 1 to {WEIGHT_MAX}")
    return int(weight)


class QueueSelector:
    """Selects which queue comes first, claim by claim."""

    __slots__ = ("_credit", "_queues", "_weights")

    def __init__(self, queues: Sequence[str], weights: Mapping[str, int]) -> None:
        self._queues = tuple(queues)
        self._weights = {queue: weights.get(queue, 1) for queue in queues} if weights else {}
        self._credit = dict.fromkeys(self._weights, 0)

    def following(self) -> tuple[str, ...]:
        """The order of the next claim."""
        if not self._weights:
            return self._queues
        # Smooth weighted round robin: each queue earns its weight, the highest credit is first and pays the sum.
        for queue, weight in self._weights.items():
            self._credit[queue] += weight
        first = max(self._queues, key=lambda queue: self._credit[queue])
        self._credit[first] -= sum(self._weights.values())
        return (first, *(queue for queue in self._queues if queue != first))
