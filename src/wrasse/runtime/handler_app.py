"""The configuration of the App that a handler names: `wrasse run --handler=module:app` works where that App enqueues.

The App and the command may each name backends; a port that only one of them names is used by both. If they name
different backends, the command is refused with the sources of both.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from wrasse.config.backend_urls import PORTS, BackendUrl, same_place
from wrasse.config.load import Config, load
from wrasse.errors import ConfigError
from wrasse.jobs.handler_name import is_url, load_named


def with_app(config: Config, handler: str, file: str | None, overrides: Mapping[str, str]) -> Config:
    """The settings of a command whose handler is `handler`, or `worker.handler`: its own and those of the App that the
    handler names, or that registered it. That App then uses the same."""
    text = handler or ("" if config.settings.worker.exec else config.settings.worker.handler)
    app = load_named(text, "handler", example="shop.work:resize") if text and not is_url(text) else None
    # The API is imported only here: most commands do not need it.
    from wrasse.api.app import Registering

    if not isinstance(app, Registering):
        # A function that an App of its module registered uses that App's backends, too.
        beside = vars(sys.modules.get(getattr(app, "__module__", ""), object)).values()
        apps = (each for each in beside if isinstance(each, Registering))
        app = next((each for each in apps if app in each.registry.functions.values()), None)
    if app is None:
        return config
    theirs = app.config
    if differences := [*_differences(config, theirs)]:
        raise ConfigError(
            f"the App {text} and this command use different places: {'; '.join(differences)}",
            do="let both name the same: one settings file, and connect() without a URL in the App",
        )
    named = {path: text for path, text in theirs.program.items() if path not in overrides}
    base = file if file is not None or named or theirs.file is None else theirs.file
    if named or base != file:
        config = load(base, overrides=overrides, program=named)
    app.configure(config)
    return config


def unseen_app(config: Config) -> Iterator[str]:
    """A warning for commands that do not import programs, if `worker.handler` seems to name an App with backends of
    its own, while these settings name none. Read from the source, since an import may have side effects."""
    home, text = config.homes.ports["jobs"], config.settings.worker.handler
    if home.by != "default" or not text or is_url(text):
        return
    module, _, name = text.partition(":")
    stem = Path(*module.split("."))
    found = next((each for each in (stem.with_suffix(".py"), stem / "__init__.py") if each.is_file()), None)
    with suppress(OSError, ValueError, SyntaxError):
        tree = ast.parse(found.read_bytes()) if found is not None else ast.Module([], [])
        assigned = [each for each in tree.body if isinstance(each, ast.Assign | ast.AnnAssign)]
        for each in assigned:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
            if named and isinstance(each.value, ast.Call) and (each.value.args or each.value.keywords):
                yield (
                    f"worker.handler {text} makes an App with settings of its own, which `wrasse run` uses; this "
                    f"command does not import it and uses {home}: name the backends in wrasse.yaml, and write "
                    "connect() in the program"
                )


def _differences(ours: Config, theirs: Config) -> Iterator[str]:
    # Two files loaded side by side: a setting of only one of them would not apply to the other.
    apart = None not in (ours.file, theirs.file) and not theirs.program and not _one_file(ours, theirs)
    for port in (*PORTS, "leases", "engine"):
        mine, other = ours.homes.ports[port], theirs.homes.ports[port]
        conflicting = (
            (_names_backend(mine, ours) or _names_backend(other, theirs))
            if apart
            else _names_backend(mine, ours) and _names_backend(other, theirs)
        )
        if conflicting and not _same(mine, other):
            yield f"{port} are in {other} ({other.by}) by the App, and in {mine} ({mine.by}) by this command"
    for path in ("worker.queues", "producer.default_priority", "task_types"):
        here, there = (_setting_text(path, each) for each in (ours, theirs))
        named = [ours.named(path), theirs.named(path)]
        if here != there and (any(named) if apart else all(named)):
            yield f"{path} is {there} by the App, and {here} by this command"


def _one_file(ours: Config, theirs: Config) -> bool:
    return ours.file is not None and theirs.file is not None and ours.file.resolve() == theirs.file.resolve()


def _setting_text(path: str, config: Config) -> str:
    value: object = config.settings
    for name in path.split("."):
        value = getattr(value, name)
    return f"{dict(value) if isinstance(value, Mapping) else value!r}"


def _names_backend(home: BackendUrl, config: Config) -> bool:
    by_itself = home.port in PORTS or config.named({"leases": "leases.server", "engine": "engine.backend"}[home.port])
    return not home.refused and home.by != "default" and by_itself


def _same(one: BackendUrl, other: BackendUrl) -> bool:
    if one.refused or other.refused or one.url.startswith("http") or other.url.startswith("http"):
        return one.url.rstrip("/") == other.url.rstrip("/")
    return same_place(one.url, other.url)
