"""What a process of ours sets for itself, and a library must not set for whoever uses it.

A worker's event loop computes while SQLite's thread needs the interpreter for a moment after every statement. Python
lets a thread wait 5 ms for it by default, which is longer than the statement took: handing it over sooner makes a
worker with short jobs a quarter faster or more (`python3 dev.py bench jobs_sqlite`), and costs nothing where nobody
waits.
"""

from __future__ import annotations

import sys

SWITCH_SECONDS = 0.00005


def hand_over_sooner() -> None:
    """Lets threads that wait for the interpreter have it after 50 microseconds."""
    sys.setswitchinterval(SWITCH_SECONDS)
