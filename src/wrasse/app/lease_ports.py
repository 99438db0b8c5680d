"""What the parts of a process that deal with leases share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wrasse.engine.guard import Activity
from wrasse.leases.leases import Leases
from wrasse.ports.namespaces import Namespaces


@dataclass(frozen=True, slots=True)
class Leasing:
    """Leases, which namespaces there are, and whether anybody uses them."""

    leases: Leases
    namespaces: Namespaces
    activity: Activity
    requests: Callable[[], int | None] = lambda: None  # how many were sent to a bucket so far
