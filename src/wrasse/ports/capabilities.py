"""Capabilities: what a backend can do beyond what every backend of its ports must do, declared as one frozen value.

Promise. The value is a constant of the backend: whoever needs something reads the field, and nobody tries and catches.
A field is False (or its lowest value) unless a backend declares it. A conformance test that needs a capability names
its field, and runs on the backends that declare it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one backend can do."""

    ack_outcome: bool = False
    """`Groups.answer` tells for each answer whether the entry was pending, whoever settled it. Without it `done` says
    that the server took the answer; `lost` is told only of what this process knows to be settled or never had."""

    ack_timeout_per_call: bool = False
    """`deliver` and `extend` set the deadline of each delivery. Without it a group has one ack time-out, given when it
    is made (`join`), and another one is refused."""

    knows_holders: bool = False
    """The group keeps who holds what: `consumers` lists them, `retire` hands over what a silent one holds, `extend`
    tells whether a delivery is still the caller's. Without it only the ack time-out frees what a dead consumer held."""

    marks_any_group: bool = False
    """`mark` moves every group. Without it only one that was joined with `cursor=True`, which then delivers nothing."""

    uncounted_return: bool = False
    """A delivery whose caller was cancelled returns with its count as before. Without it, it counts as one delivery."""

    begins_later: bool = False
    """A group may begin at a moment that is still to come. Without it that is refused."""


FULL_GROUPS = Capabilities(
    ack_outcome=True,
    ack_timeout_per_call=True,
    knows_holders=True,
    marks_any_group=True,
    uncounted_return=True,
    begins_later=True,
)
