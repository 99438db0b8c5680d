"""The flags of the design document's admin commands, as `wrasse run --role=admin` takes them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import click

from wrasse.cli.context import DURATION

T = TypeVar("T")
ADMIN = "admin"
COMMANDS = ("stats", "peek", "purge-dlq", "purge-all", "bench", "stats-keys")


@dataclass(frozen=True, slots=True)
class Bench:
    """The number of jobs, their rate, size, and the timeout. A rate of 0 is unlimited."""

    count: int = 1000
    rate: int = 500
    priority: str = "low"
    timeout: timedelta = timedelta(seconds=60)
    payload_size: int = 1024


@dataclass(frozen=True, slots=True)
class AdminOrders:
    """The command line's options."""

    command: str = ""
    queue: str = ""
    count: int = 10
    yes: bool = False
    dry_run: bool = False
    force: bool = False
    bench: Bench = Bench()
    handler: str = ""
    exec: str = ""


def admin_options(function: Callable[..., T]) -> Callable[..., T]:
    """Adds the flags; the function gets them as `admin`."""

    @click.option("--admin-cmd", default="", metavar="COMMAND", help=f"With --role=admin: {', '.join(COMMANDS)}.")
    @click.option("--queue", default="", help="peek: a priority, completed, dead_letter (or dlq), or a key.")
    @click.option("--n", "count", default=10, show_default=True, type=click.IntRange(1, 1000), help="peek: how many.")
    @click.option("--yes", is_flag=True, help="purge-dlq, purge-all: confirm; there is no undo.")
    @click.option("--dry-run", is_flag=True, help="purge-dlq, purge-all: show what would be deleted.")
    @click.option("--force", is_flag=True, help="purge-all: even with live workers.")
    @click.option("--bench-count", default=1000, show_default=True, type=click.IntRange(1), help="bench: jobs.")
    @click.option(
        "--bench-rate", default=500, show_default=True, type=click.IntRange(0), help="bench: jobs per second."
    )
    @click.option("--bench-priority", default="low", show_default=True, help="bench: their priority.")
    @click.option("--bench-timeout", default="60s", show_default=True, type=DURATION, help="bench: timeout.")
    @click.option(
        "--bench-payload-size",
        default=1024,
        show_default=True,
        type=click.IntRange(0),
        help="bench: bytes of each payload.",
    )
    @functools.wraps(function)
    def wrapper(
        *args: Any,
        admin_cmd: str,
        queue: str,
        count: int,
        yes: bool,
        dry_run: bool,
        force: bool,
        bench_count: int,
        bench_rate: int,
        bench_priority: str,
        bench_timeout: timedelta,
        bench_payload_size: int,
        **options: Any,
    ) -> T:
        bench = Bench(bench_count, bench_rate, bench_priority, bench_timeout, bench_payload_size)
        orders = AdminOrders(admin_cmd, queue, count, yes, dry_run, force, bench)
        return function(*args, admin=orders, **options)

    return wrapper
