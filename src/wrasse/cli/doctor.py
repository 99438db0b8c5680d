"""wrasse doctor: checks, their results, and what to do."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict

import click

from wrasse.cli.context import CommandContext, finish, with_context
from wrasse.cli.output import show_table
from wrasse.clock import SystemClock
from wrasse.config.load import Config
from wrasse.config.redaction import hide
from wrasse.config.urls import StoreUrl
from wrasse.errors import ConfigError, UsageError, WrasseError
from wrasse.ports.backend import FAIL, Finding
from wrasse.runtime.doctor import examine
from wrasse.runtime.handler_app import with_app

KINDS = {
    "memory": "memory.connect:Memory",
    "sqlite": "sqlite.connect:Sqlite",
    "redis": "redis.connect:Redis",
    "nats": "nats.connect:Nats",
    "s3": "s3.connect:S3",
    "file": "directory.connect:Directory",
}


@click.command()
@with_context
def doctor(ctx: CommandContext) -> None:
    """Check configuration, handlers, backends, disk and clock, and whether workers run. Fails if a check fails.

    \b
    Examples:
      wrasse doctor
      wrasse doctor --json --config=production.yaml
    """
    config, apart = _with_app(ctx)
    findings = [*apart, *finish(examine(config, SystemClock()))]
    kinds = _kinds(config)
    answer = {
        "ok": not any(each.state == FAIL for each in findings),
        "checks": [{"check": e.check, "state": e.state, "what": hide(e.what), "do": hide(e.do)} for e in findings],
        "capabilities": {kind: declared(kind) for kind in kinds},
    }
    rows = [(each.state, each.check, hide(each.what), hide(each.do)) for each in findings]
    ctx.answer(answer, lambda: _show(rows, kinds))
    if not answer["ok"]:
        raise click.exceptions.Exit(1)


def _show(rows: list[tuple[str, str, str, str]], kinds: list[str]) -> None:
    show_table(("state", "check", "what", "do"), rows)
    if kinds:
        click.echo()
        show_table(*capability_table(kinds))


def _kinds(config: Config) -> list[str]:
    """The kinds of backends in use; none if the settings contradict each other, which is reported above."""
    try:
        return list(dict.fromkeys(kind_of(url) for url in config.homes.stores()))
    except WrasseError:
        return []


def _with_app(ctx: CommandContext) -> tuple[Config, list[Finding]]:
    """The settings with those of the App that worker.handler names, and a finding if the two contradict."""
    config = ctx.config()
    try:
        return with_app(config, "", ctx.file, ctx.overrides), []
    except ConfigError as why:
        return config, [Finding("app", FAIL, why.message, why.do)]
    except UsageError:
        return config, []  # reported with the handlers


def kind_of(url: StoreUrl) -> str:
    """The kind of backend that serves a URL."""
    return url.scheme if url.scheme in KINDS else "nats" if url.is_nats else "redis"


def declared(kind: str) -> Mapping[str, bool]:
    """The capabilities of a kind of backend, by name."""
    module, _, name = KINDS[kind].partition(":")
    backend = getattr(importlib.import_module(f"wrasse.backends.{module}"), name)
    return asdict(backend.capabilities)


def capability_table(kinds: Iterable[str]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heading and rows: each capability, and which of these kinds have it."""
    found = {kind: declared(kind) for kind in kinds}
    names = dict.fromkeys(name for each in found.values() for name in each)
    rows = [(name, *("yes" if each[name] else "no" for each in found.values())) for name in names]
    return ("capability", *found), rows
