"""Options of `wrasse run` for leases: the flags of the design document, each the same as a setting under `leases`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

T = TypeVar("T")

FLAGS = {
    "txn_replay_interval": "How often transactions that a crash left open are finished amid traffic",
    "sweeper_interval": "How often the idle sweeps run",
    "idle_sweep_grace": "How long leases must have been idle before they start",
    "idle_sweep_max_ops": "How many actions one of their runs may take",
    "idle_sweep_max_runtime": "How long one run may take",
    "idle_sweep_op_delay": "Rest after every entry",
    "disk_retention": "How long a key that nobody touches is kept",
    "disk_janitor_interval": "How often aged keys are looked for",
}


def lease_flags(function: Callable[..., T]) -> Callable[..., T]:
    """Adds the options; the function gets what was given, by setting, as `leases`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> T:
        given = {name: options.pop(name) for name in FLAGS}
        leases = {f"leases.{name}": text for name, text in given.items() if text is not None}
        return function(*args, **options, leases=leases)

    wrapped: Callable[..., T] = wrapper
    for name, about in reversed(FLAGS.items()):
        metavar = "N" if name.endswith("ops") else "DURATION"
        flag = f"--{name.replace('_', '-')}"
        wrapped = click.option(flag, metavar=metavar, help=f"{about}; the setting leases.{name}.")(wrapped)
    return wrapped
