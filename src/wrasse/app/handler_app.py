"""The configuration of the App that a handler names: `wrasse run --handler=module:app` works where that App enqueues.

The App and the command may each name backends; for a port that only one of them names, both use it. Where they name
different places, the command is refused and the sources on both sides are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from wrasse.app.config import Config, load
from wrasse.app.homes import PORTS, Home, same_place
from wrasse.errors import ConfigError
from wrasse.jobs.handler_url import is_url
from wrasse.jobs.loading import load_named


@runtime_checkable
class Configured(Protocol):
    """An App, as this file sees it."""

    config: Config

    def configure(self, config: Config) -> None:
        """Uses these settings from now on."""
        ...


def with_app(config: Config, handler: str, file: str | None, overrides: Mapping[str, str]) -> Config:
    """The settings of a command whose handler is `handler`, or `worker.handler`: those that it was given and those of
    the App that the handler names, if it names one. That App then uses the same."""
    text = handler or ("" if config.settings.worker.exec else config.settings.worker.handler)
    app = load_named(text, "handler", example="shop.work:resize") if text and not is_url(text) else None
    if not isinstance(app, Configured):
        return config
    theirs = app.config
    if told := [*_differences(config, theirs)]:
        raise ConfigError(
            f"the App {text} and this command use different places: {'; '.join(told)}",
            do="let both name the same: one settings file, and connect() without a URL in the App",
        )
    named = {path: text for path, text in theirs.program.items() if path not in overrides}
    base = file if file is not None or named or theirs.file is None else theirs.file
    if named or base != file:
        config = load(base, overrides=overrides, program=named)
    app.configure(config)
    return config


def _differences(ours: Config, theirs: Config) -> Iterator[str]:
    for port in PORTS:
        mine, other = ours.homes.ports[port], theirs.homes.ports[port]
        if _says(mine) and _says(other) and not same_place(mine.url, other.url):
            yield f"{port} are in {other} ({other.by}) by the App, and in {mine} ({mine.by}) by this command"
    queues = ours.settings.worker.queues, theirs.settings.worker.queues
    if ours.named("worker.queues") and theirs.named("worker.queues") and queues[0] != queues[1]:
        here, there = (each.sources.get("worker.queues", "") for each in (ours, theirs))
        yield f"worker.queues is {dict(queues[1])} ({there}) by the App, and {dict(queues[0])} ({here}) by this command"


def _says(home: Home) -> bool:
    return not home.refused and home.by != "default"


