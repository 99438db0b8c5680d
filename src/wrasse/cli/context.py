"""The options of every command: the configuration, and the form of the answer."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import click

from wrasse.config.load import Config, load
from wrasse.config.urls import parse_store
from wrasse.duration import parse_duration
from wrasse.errors import BadDuration, ConfigError, UsageError
from wrasse.observability.json_format import to_json
from wrasse.runtime.backends import TELL
from wrasse.runtime.handler_app import unseen_app

T = TypeVar("T")
_PORT_OF = {
    "jobs": "jobs", "periodic": "jobs", "explain": "jobs", "streams": "streams", "archives": "objects",
    "leases": "leases", "journal": "journal", "sweep": "engine",
}  # fmt: skip  # the port that a command reads, by its first word
_NAMES = {"id", "ids", "key", "queue", "subject", "pattern", "prefix", "names"}  # parameters that name what is stored


@dataclass(frozen=True, slots=True)
class CommandContext:
    """How the command was called: its configuration, and whether to answer with JSON."""

    file: str | None
    overrides: Mapping[str, str]
    json: bool

    def config(self, more: Mapping[str, str] | None = None) -> Config:
        """The configuration; warnings are written to stderr."""
        config = load(self.file, overrides={**self.overrides, **(more or {})})
        for warning in (*config.warnings, *_warnings(config)):
            click.echo(f"warning: {warning}", err=True)
        return config

    def answer(self, value: object, text: Callable[[], None]) -> None:
        """Writes `value` as JSON, or calls `text` to write for a person."""
        if self.json:
            write_json(value)
        else:
            text()


def with_context(function: Callable[..., T]) -> Callable[..., T]:
    """Adds the options of every command; the function gets them as its first argument."""

    @click.option("--config", "file", metavar="FILE", help="Settings file.  [default: wrasse.yaml]")
    @click.option("--set", "sets", metavar="SETTING=VALUE", multiple=True, help="Set one setting; may be repeated.")
    @click.option("--json", "as_json", is_flag=True, help="Answer with JSON on stdout.")
    @click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
    @functools.wraps(function)
    def wrapper(*args: Any, file: str | None, sets: Sequence[str], as_json: bool, **options: Any) -> T:
        for name in _NAMES & options.keys():
            for each in options[name] if isinstance(options[name], tuple) else (options[name] or "",):
                each.encode()  # names that are not UTF-8 are refused before the store is opened
        return function(CommandContext(file, dict(_pair(each) for each in sets), as_json), *args, **options)

    return wrapper


def _warnings(config: Config) -> Iterator[str]:
    """Warnings about the backend that this command uses; memory: is refused."""
    context = click.get_current_context(silent=True)
    command = "".join((context.command_path if context is not None else "").split()[1:2])
    if command not in _PORT_OF:
        return
    home = config.homes.ports[_PORT_OF[command]]
    if home.url.startswith("memory:"):
        raise ConfigError(
            f"`wrasse {command}` has nothing to read: {home.port} are in memory: ({home.by}), "
            "which is private to each process",
            do="name a backend that processes share, such as sqlite:wrasse.db",
        )
    yield from unseen_app(config)
    local = home.by != "default" and home.url.startswith(("sqlite:", "file:"))
    if local and not os.path.exists(parse_store(home.url).path):
        yield f"{home} ({home.by}) does not exist yet, so nothing is stored there"


def _pair(text: str) -> tuple[str, str]:
    path, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text!r} has no value", do="write --set worker.count=4")
    return path.strip(), value


def finish(work: Coroutine[object, object, T]) -> T:
    """Runs the command's work in an event loop. Log output of engine and worker is suppressed, because the command
    answers with its result."""
    own = logging.getLogger("wrasse")
    own.handlers, own.propagate = [logging.NullHandler()], False
    mark = TELL.set(lambda where: click.echo(f"still waiting for an answer from {where}", err=True))
    try:
        return asyncio.run(work)
    finally:
        TELL.reset(mark)


def write_json(value: object) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(to_json(value, indent=2 if sys.stdout.isatty() else None) + "\n")
    sys.stdout.flush()


class Duration(click.ParamType[timedelta]):
    """A duration on the command line."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """30s, 5m, 7d."""
        if isinstance(value, timedelta):
            return value
        try:
            return parse_duration(str(value))
        except BadDuration as why:
            self.fail(f"{why.message}\ndo: {why.do}", param, ctx)


DURATION = Duration()
