"""Loads settings from the file, environment and command line, or reports all mistakes in them at once.

Precedence: command line, WRASSE_ variables, the design documents' own variables, the file, defaults. Without a file,
defaults; a named file must exist. Unknown names are mistakes with a suggestion, except a fixed list of names of other
programs, which only give a warning.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import yaml

from wrasse.config.backend_urls import (
    SERVERS,
    BackendUrls,
    idle_keys,
    idle_names,
    idle_nats_names,
    is_redis,
    resolve,
    with_redis_names,
)
from wrasse.config.lease_settings import followed
from wrasse.config.plugins import installed_sweeps, own_sweep
from wrasse.config.redaction import remember
from wrasse.config.schema import Leaf, leaves, sections
from wrasse.config.setting_key import named_in
from wrasse.config.settings import STREAM_SWEEPS, Settings, SweepSettings
from wrasse.config.urls import parse_store
from wrasse.config.validate import Broken, broken_rules, unserved
from wrasse.config.yaml_file import Unfit, convert, entries, is_null, read_yaml, scalar
from wrasse.duration import format_duration
from wrasse.errors import ConfigError, UnknownName, UsageError, WrasseError
from wrasse.sweeps import CATALOGUE, Catalogued

_PREFIX = "WRASSE_"
# Not settings: read elsewhere, or set by workers for their commands.
_OTHERS = (
    "WRASSE_CONFIG",
    "WRASSE_JOB_ID",
    "WRASSE_ATTEMPT",
    "WRASSE_QUEUE",
    "WRASSE_KIND",
    "WRASSE_PRIORITY",
    "WRASSE_TOKEN",
)
_OF_TESTS = ("WRASSE_TEST_", "WRASSE_BENCH_")
_INJECTED = re.compile(r"_SERVICE_(HOST|PORT.*)$|_PORT(_\d+_(TCP|UDP).*)?$")
DEFAULT_FILE = "wrasse.yaml"
_ALL = "see `wrasse config show`, which names every setting"
FOREIGN = ("exactly_once", "tracing", "observability.tracing.")


@dataclass(frozen=True, slots=True)
class EnvironmentValue:
    """One setting in the environment and its variable."""

    leaf: Leaf
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Stray:
    """A variable that is not a setting; `near` is the most similar name."""

    name: str
    near: str | None


def from_environment(leaves: Mapping[str, Leaf], environ: Mapping[str, str]) -> Iterator[EnvironmentValue]:
    """Every setting in the environment; the prefixed name has precedence over the bare one."""
    for leaf in leaves.values():
        for name in (leaf.env, leaf.seed_env):
            # A bare name may belong to another program, where an empty value often means none.
            if name is not None and name in environ and (environ[name] or name == leaf.env or not leaf.key.filled):
                yield EnvironmentValue(leaf, name, environ[name])
                break


def strays(leaves: Mapping[str, Leaf], environ: Mapping[str, str]) -> Iterator[Stray]:
    """Variables with our prefix that are not settings."""
    known = {leaf.env for leaf in leaves.values()}
    for name in sorted(environ):
        ours = name in known or name in _OTHERS or name.startswith(_OF_TESTS)
        if ours or not name.startswith(_PREFIX) or _INJECTED.search(name):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
        yield Stray(name, near[0] if near else None)


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake: its source, what is wrong, what to do."""

    where: str
    what: str
    do: str


@dataclass(frozen=True, slots=True)
class Config:
    """Settings, and the source of each that was set."""

    settings: Settings
    sources: Mapping[str, str]
    warnings: tuple[str, ...]
    file: Path | None
    homes: BackendUrls
    own: tuple[Catalogued, ...] = ()
    program: Mapping[str, str] = field(default_factory=dict)  # from the URL of an App

    @property
    def catalogue(self) -> Mapping[str, Catalogued]:
        """Every sweep, by name: wrasse's, then the user's own."""
        return {**CATALOGUE, **{each.name: each for each in self.own}}

    def named(self, path: str) -> bool:
        """Whether the user set this setting, or any below it."""
        return named_in(self.sources)(path)


@dataclass(slots=True)
class _Draft:
    """The configuration under construction. Later sources overwrite earlier ones, so they are read in reverse
    precedence."""

    values: dict[str, object] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    own: tuple[Catalogued, ...] = ()

    def take(self, leaf: Leaf, node: yaml.Node, where: str, *, flat: bool) -> None:
        self.sources[leaf.path] = where
        self.values.pop(leaf.path, None)
        try:
            value = convert(node, leaf.type, hidden=leaf.key.secret, flat=flat, filled=leaf.key.filled)
            if leaf.key.choices and value not in leaf.key.choices:
                raise Unfit(f"is {value!r}", f"use one of: {', '.join(leaf.key.choices)}")
            remember(value, secret=leaf.key.secret)
            self.values[leaf.path] = value
        except Unfit as why:
            self.mistakes.append(Mistake(where, f"{leaf.path} {why.what}", why.do))


def load(
    file: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
    program: Mapping[str, str] | None = None,
) -> Config:
    """Reads and checks everything. `overrides` are from the command line and `program` from the URL of an App: path to
    text."""
    environ = os.environ if environ is None else environ
    draft = _Draft()
    path = _find(file, environ)
    if path is not None:
        root = read_yaml(path)
        if root is not None:
            _read_file(root, path.name, draft)
    _read_environment(environ, draft)
    _read_overrides(program or {}, "URL of the App", draft)
    _read_overrides(overrides or {}, "command line", draft)
    settings = _with_names(_build(draft.values, draft.own), draft.sources)
    if not draft.mistakes:
        draft.mistakes += [_mistake(rule, draft.sources) for rule in broken_rules(settings, draft.sources)]
    if draft.mistakes:
        raise _as_error(draft.mistakes)
    homes = resolve(settings, draft.sources)
    if missing := [_mistake(each, draft.sources) for each in unserved(settings, draft.sources, homes)]:
        raise _as_error(missing)
    draft.warnings += _doubts(settings, draft.sources, homes)
    return Config(settings, dict(draft.sources), tuple(draft.warnings), path, homes, draft.own, dict(program or {}))


def _find(file: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    named, by = (file, "it is named on the command line or by the program") if file is not None else (None, "")
    if named is None and "WRASSE_CONFIG" in environ:
        named, by = environ["WRASSE_CONFIG"], "WRASSE_CONFIG names it"
    path = Path(DEFAULT_FILE if named is None else named)
    if named != "" and (path.exists() or path.is_symlink()):
        return path
    if named is not None:
        raise ConfigError(
            f"the configuration file {named or 'with an empty name'} does not exist; {by}",
            do="write its path relative to this directory, or omit it for wrasse.yaml or defaults",
        )
    if path.with_suffix(".yml").exists():
        raise ConfigError(
            "wrasse.yml is in this directory, and settings are read from wrasse.yaml",
            do="rename it, or name it with --config=wrasse.yml",
        )
    return None


def _with_names(settings: Settings, sources: Mapping[str, str]) -> Settings:
    """The settings with the names of keys and queues that jobs have where they live."""
    bare = dataclasses.replace(settings, worker=dataclasses.replace(settings.worker, queues={}))
    try:
        jobs = resolve(bare, sources).ports["jobs"].url
    except WrasseError:
        return settings  # reported where rules are checked
    return with_redis_names(settings, sources, jobs) if is_redis(jobs) else settings


def _read_file(root: yaml.Node, name: str, draft: _Draft) -> None:
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{name} is not a map of settings", do="begin with a section such as `worker:`")
    draft.own = _own_sweeps(root, name, draft)
    known = leaves(draft.own)
    below = sections(draft.own)

    def walk(node: yaml.MappingNode, prefix: str) -> Iterator[None]:
        twice = _doubles(node)
        for entry in entries(node):
            path, where = prefix + entry.name, f"{name} line {entry.line}"
            if entry.name in twice:
                draft.mistakes.append(Mistake(where, f"{path} is written twice", "keep one of the lines"))
                twice.discard(entry.name)
            if path in known:
                draft.take(known[path], entry.value, where, flat=False)
            elif path in below:
                if isinstance(entry.value, yaml.MappingNode):
                    yield from walk(entry.value, path + ".")
                elif not is_null(entry.value):
                    draft.mistakes.append(
                        Mistake(where, f"{path} is a section", "write its settings below it, indented")
                    )
                draft.sources.setdefault(path, where)
            elif path.startswith(FOREIGN):
                draft.warnings.append(f"{where}: {path} belongs to another program and is ignored")
            else:
                draft.mistakes.append(_unknown(entry.name, below[prefix[:-1]], prefix[:-1], where))
        yield

    for _ in walk(root, ""):
        pass


def _own_sweeps(root: yaml.MappingNode, name: str, draft: _Draft) -> tuple[Catalogued, ...]:
    """The user's own sweeps below `sweeps:`: by their `use`, or from an installed package."""
    below = [e.value for e in entries(root) if e.name == "sweeps" and isinstance(e.value, yaml.MappingNode)]
    found: dict[str, Catalogued] = {}
    for entry in (each for node in below for each in entries(node) if each.name not in CATALOGUE):
        given = entries(entry.value) if isinstance(entry.value, yaml.MappingNode) else ()
        uses = [each.value.value for each in given if each.name == "use" and isinstance(each.value, yaml.ScalarNode)]
        use = str(uses[0]) if uses else installed_sweeps().get(entry.name)
        if use is None:
            continue  # an unknown name, reported where names are checked
        try:
            found[entry.name] = own_sweep(entry.name, use)
        except UsageError as why:
            draft.mistakes.append(Mistake(f"{name} line {entry.line}", f"sweeps.{entry.name}: {why.message}", why.do))
    return tuple(found.values())


def _doubles(node: yaml.MappingNode) -> set[str]:
    names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
    return {name for name, times in Counter(names).items() if times > 1}


def _unknown(name: str, known: frozenset[str], section: str, where: str) -> Mistake:
    why = UnknownName(name, known, where=section or "the configuration", do=_ALL)
    return Mistake(where, why.message, why.do)


def _read_environment(environ: Mapping[str, str], draft: _Draft) -> None:
    for found in from_environment(leaves(draft.own), environ):
        draft.take(found.leaf, scalar(found.text), f"environment variable {found.name}", flat=True)
    for stray in strays(leaves(draft.own), environ):
        if stray.near is not None:
            draft.mistakes.append(Mistake("environment", f"there is no setting {stray.name}", f"write {stray.near}"))
        else:
            draft.warnings.append(f"the environment variable {stray.name} is not a setting and is ignored")


def _read_overrides(overrides: Mapping[str, str], source: str, draft: _Draft) -> None:
    known = leaves(draft.own)
    for path, text in overrides.items():
        if path not in known:
            raise UnknownName(path, known, where=f"the {source}", do=_ALL)
        draft.take(known[path], scalar(text), source, flat=True)


def _mistake(rule: Broken, sources: Mapping[str, str]) -> Mistake:
    return Mistake(_where(rule.path, sources), f"{rule.path} {rule.what}", rule.do)


def _doubts(settings: Settings, sources: Mapping[str, str], homes: BackendUrls) -> Iterator[str]:
    """Warnings about valid settings that have less effect than they suggest."""
    urls = [home.url for home in homes.ports.values()]
    if lonely := idle_keys(homes.ports["jobs"].url, sources):
        yield f"only jobs on Redis use {', '.join(lonely)}, and jobs are elsewhere"
    if lonely := idle_names(urls, sources):
        yield f"only Redis uses {', '.join(lonely)}, and nothing is stored there"
    if lonely := idle_nats_names(urls, sources):
        yield f"only NATS uses {', '.join(lonely)}, and nothing is stored there"
    shared = next((home for port in SERVERS if parse_store((home := homes.ports[port]).url or "memory:").served), None)
    engine = homes.ports["engine"]
    if settings.engine.backend and shared is not None and not parse_store(engine.url).served:
        yield (
            f"{engine.by} is {engine} on this host, while {shared.port} are on {shared}: each host has a journal of "
            "its own; without engine.backend they share one"
        )
    timeout, claim = settings.sweeps["stuck_jobs"].fields["heartbeat_timeout"], settings.worker.heartbeat_ttl
    if isinstance(timeout, timedelta) and timeout < claim:
        yield (
            "sweeps.stuck_jobs.heartbeat_timeout is shorter than worker.heartbeat_ttl; "
            f"a claim lasts {format_duration(claim)}"
        )


def _where(path: str, sources: Mapping[str, str]) -> str:
    """The source of a setting; for a section, the sources of its settings."""
    below = dict.fromkeys(source for known, source in sources.items() if known.startswith(f"{path}."))
    return sources.get(path) or ", ".join(below) or "defaults"


def _build(values: Mapping[str, object], own: tuple[Catalogued, ...]) -> Settings:
    known = leaves(own)

    def value(path: str) -> object:
        return values.get(path, known[path].default)

    sweeps = {name: _sweep_settings(f"sweeps.{name}.", value, known) for name in sections(own).get("sweeps", ())}
    plain = _struct(Settings(), "", value, known)
    assert isinstance(plain, Settings)
    inherited = {"heartbeat_timeout": plain.worker.heartbeat_ttl, "rescues_max": plain.worker.rescues_max}
    reaper = {key: getattr(plain.reaper, key) for key in ("interval", "jitter")}
    streams = {name: {"interval": plain.sweeper.interval} for name in STREAM_SWEEPS}
    for name, follows in {"stuck_jobs": reaper, **streams, **followed(plain.leases)}.items():
        # Two names for the same numbers: the design document's, and that of the sweep, which has precedence.
        mine = {key: value for key, value in follows.items() if f"sweeps.{name}.{key}" not in values}
        fields = {key: mine.pop(key, own) for key, own in sweeps[name].fields.items()}
        sweeps[name] = dataclasses.replace(sweeps[name], fields=fields, **mine)
    for name, sweep in sweeps.items():
        # Claims last `heartbeat_ttl`, and the rescue budget is one number: sweeps use them unless set.
        unset = {
            key: own for key, own in inherited.items() if key in sweep.fields and f"sweeps.{name}.{key}" not in values
        }
        sweeps[name] = dataclasses.replace(sweep, fields={**sweep.fields, **unset})
    return dataclasses.replace(plain, sweeps={name: sweeps[name] for name in sorted(sweeps)})


def _struct(plain: object, prefix: str, value: Callable[[str], object], known: Mapping[str, Leaf]) -> object:
    """The struct with every field from `value`; nested structs likewise."""
    assert dataclasses.is_dataclass(plain)
    assert not isinstance(plain, type)
    changed: dict[str, object] = {}
    for each in dataclasses.fields(plain):
        own = getattr(plain, each.name)
        if dataclasses.is_dataclass(own):
            changed[each.name] = _struct(own, f"{prefix}{each.name}.", value, known)
        elif prefix + each.name in known:
            changed[each.name] = value(prefix + each.name)
    return dataclasses.replace(plain, **changed)


def _sweep_settings(prefix: str, value: Callable[[str], object], known: Mapping[str, Leaf]) -> SweepSettings:
    own = _struct(SweepSettings(), prefix, value, known)
    assert isinstance(own, SweepSettings)
    shared = {each.name for each in dataclasses.fields(SweepSettings)}
    names = [path.removeprefix(prefix) for path in known if path.startswith(prefix)]
    return dataclasses.replace(own, fields={name: value(prefix + name) for name in names if name not in shared})


def _as_error(mistakes: list[Mistake]) -> ConfigError:
    if len(mistakes) == 1:
        only = mistakes[0]
        return ConfigError(f"{only.where}: {only.what}", do=only.do)
    lines = [f"  {each.where}: {each.what}; {each.do}" for each in mistakes]
    return ConfigError(
        "\n".join([f"the configuration has {len(mistakes)} mistakes", *lines]),
        do="correct them, then run `wrasse config check`",
    )
