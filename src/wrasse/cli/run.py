"""wrasse run: a worker, sweeps, a producer, an archiver and the status page, until stopped."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

import click

from wrasse.cli.admin import ADMIN, COMMANDS, AdminOrders, admin, admin_options
from wrasse.cli.context import CommandContext, finish, with_context
from wrasse.config.load import load
from wrasse.observability.logs import start_logging
from wrasse.runtime.handler_app import with_app

T = TypeVar("T")

FLAGS = {
    "txn_replay_interval": "How often transactions that a crash left open are finished during traffic",
    "sweeper_interval": "How often the idle sweeps run",
    "idle_sweep_grace": "How long leases must be idle before they start",
    "idle_sweep_max_ops": "Maximum actions of one of their runs",
    "idle_sweep_max_runtime": "Maximum duration of one run",
    "idle_sweep_op_delay": "Pause after every entry",
    "disk_retention": "How long an unused key is kept",
    "disk_janitor_interval": "How often aged keys are searched for",
}


def lease_flags(function: Callable[..., T]) -> Callable[..., T]:
    """Adds the options; the function gets the given ones, by setting, as `leases`."""

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


def administer(ctx: CommandContext, roles: str, orders: AdminOrders) -> None:
    """Runs the admin command."""
    if roles != ADMIN:
        raise click.UsageError("--admin-cmd is for --role=admin alone\ndo: write --role=admin")
    if orders.command not in COMMANDS:
        known = f"use one of: {', '.join(COMMANDS)}"
        wrong = f"there is no admin command {orders.command!r}" if orders.command else "--role=admin needs --admin-cmd"
        raise click.UsageError(f"{wrong}\ndo: {known}")
    finish(admin(ctx, orders))


@click.command()
@click.option(
    "--role",
    "roles",
    default="all",
    show_default=True,
    help="all, worker, sweeper, producer, archiver or leases; several with commas; or admin, with --admin-cmd.",
)
@click.option("--handler", default="", metavar="MODULE:NAME", help="The function that handles jobs, or a URL.")
@click.option("--exec", "command", default="", metavar="COMMAND", help="The command that handles jobs.")
@click.option(
    "--watch", is_flag=True, help="The producer continues: it enqueues files that are created, changed or moved in."
)
@click.option("--concurrency", metavar="N", help="Number of concurrent jobs; the setting worker.count.")
@click.option(
    "--listen", metavar="HOST:PORT", help="Address of the status page; empty for none; the setting http.listen."
)
@lease_flags
@admin_options
@with_context
def run(
    ctx: CommandContext,
    roles: str,
    handler: str,
    command: str,
    watch: bool,
    concurrency: str | None,
    listen: str | None,
    admin: AdminOrders,
    leases: Mapping[str, str],
) -> None:
    """Run until SIGTERM or SIGINT: a worker if there is a handler, sweeps, an archiver if archiver.streams is set, a
    producer if there is a producer: section, and the lease API if leases.listen is set. A producer alone, without
    --watch, enqueues the files of producer.scan_dir and ends.

    After the first signal running handlers may finish within worker.grace; the second ends everything at once.

    \b
    Examples:
      wrasse run --handler=shop.work:resize
      wrasse run --role=worker --exec='convert {filepath} out.png' --concurrency=4
      wrasse run --role=sweeper --listen=127.0.0.1:9342
      wrasse run --role=archiver,sweeper
      wrasse run --role=producer --set=producer.scan_dir=./inbox
      wrasse run --role=producer --watch
      wrasse run --role=leases --set=backends.records=s3://bucket/locks --idle-sweep-grace=1m
      wrasse run --role=admin --admin-cmd=peek --queue=low --n=3
    """
    from wrasse.clock import SystemClock
    from wrasse.runtime.daemon import Daemon, RunOptions, parse_roles
    from wrasse.runtime.doctor import left_behind

    if handler and command:
        raise click.UsageError("--handler and --exec exclude each other\ndo: use one of them")
    given = {"worker.count": concurrency, "http.listen": listen}
    overrides = {**ctx.overrides, **leases, **{path: text for path, text in given.items() if text is not None}}
    if roles == ADMIN or admin.command:
        administer(CommandContext(ctx.file, overrides, ctx.json), roles, replace(admin, handler=handler, exec=command))
        return
    config = load(ctx.file, overrides=overrides)
    if not command:
        config = with_app(config, handler, ctx.file, overrides)
    human = sys.stderr.isatty() and not ctx.json
    logs = start_logging(config.settings.observability.log_level, human=human)
    for warning in config.warnings:
        logging.getLogger("wrasse.config").warning(warning)
    for left in left_behind(config):
        logging.getLogger("wrasse.config").warning(f"{left.what}; {left.do}")
    daemon = Daemon(config, RunOptions(parse_roles(roles), handler, command, watch), SystemClock(), logs)
    asyncio.run(daemon.run())
    summary = daemon.produced()
    if summary is not None:
        ctx.answer(asdict(summary), lambda: click.echo(str(summary)))
