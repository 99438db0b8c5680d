"""Counters of the consumers of this process, read by metrics.

An answer is counted once the backend has said `done`.
"""

from __future__ import annotations


class StreamTally:
    """Numbers that only grow."""

    __slots__ = ("acked", "again", "dead", "delivered", "dropped", "failed", "invalid", "nacked", "unavailable")

    def __init__(self) -> None:
        self.delivered = 0  # deliveries, of which
        self.again = 0  # were not the first of their entry
        self.acked = 0
        self.nacked = 0
        self.dead = 0  # set aside as dead letters
        self.failed = 0  # handlers that raised or took too long
        self.invalid = 0  # entries that are not envelopes
        self.dropped = 0  # dead letters that would have been set aside once more
        self.unavailable = 0  # calls that failed because the backend was unavailable
