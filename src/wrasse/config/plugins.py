"""The ports and settings of a sweep class; checks the user's own sweeps before anything runs.

Fields without a default are ports, those with one are settings. Records need their collection in the annotation:
`carts: Annotated[Records, Collection.named("carts")]`.

A class that is not a valid sweep is refused with all of its mistakes at once. An installed sweep (entry point of the
group `wrasse.sweeps`) runs only if its name is under `sweeps:` in the file: installing a package deletes nothing.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from wrasse.config.settings import SweepSettings
from wrasse.engine.run import AnySweep
from wrasse.errors import ConfigError
from wrasse.jobs.handler_name import load_named
from wrasse.ports.groups import Groups
from wrasse.ports.jobs import JobQueue
from wrasse.ports.journal import Journal
from wrasse.ports.objects import Objects
from wrasse.ports.records import Collection, Records
from wrasse.ports.streams import Streams
from wrasse.sweeps import Catalogued

PORTS: tuple[type, ...] = (JobQueue, Records, Streams, Groups, Objects, Journal)
GROUP = "wrasse.sweeps"
INTERVAL = timedelta(minutes=1)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_METHODS = {"find": ("after", "limit"), "decide": ("suspect", "at"), "apply": ("actions",)}
_RESERVED = frozenset(field.name for field in dataclasses.fields(SweepSettings))
_SCALARS = (str, int, float, bool, timedelta)


def installed_sweeps() -> Mapping[str, str]:
    """The sweeps of installed packages: name to `module:Class`."""
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    found = entry_points(group=GROUP)
    return {each.name: f"{each.module}:{each.attr}" for each in found}


def own_sweep(name: str, use: str) -> Catalogued:
    """The sweep as a catalogue entry. Refused if the name or the class is invalid."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"a sweep is named {name!r}", do="use lower-case letters, digits and _, at most 64")
    kind = load_sweep(use)
    about = (inspect.getdoc(kind) or "").partition("\n")[0]
    return Catalogued(name, kind, about or f"what {use} decides", "its precondition no longer holds", INTERVAL, use=use)


def load_sweep(use: str) -> type[AnySweep]:
    """The class that `module:Class` names, with the working directory importable."""
    found = load_named(use, "sweep", example="shop.sweeps:OldCarts")
    wrong = [f"it {what}" for what in _wrong(found)]
    if wrong:
        raise ConfigError(
            f"{use} is not a sweep: {'; '.join(wrong)}", do="see docs/how-to/write-a-sweep.md and wrasse.engine.sweep"
        )
    return typing.cast("type[AnySweep]", found)


def _wrong(found: object) -> Iterator[str]:
    """All mistakes of the class."""
    if not isinstance(found, type):
        yield f"is a {type(found).__name__}, not a class"
        return
    if "__dataclass_fields__" not in vars(found) or not vars(found)["__dataclass_params__"].frozen:
        yield "is not a frozen dataclass"
        return
    yield from _wrong_methods(found)
    if not isinstance(getattr(found, "name", None), str):
        yield "has no `name: ClassVar[str]`"
    if not isinstance(getattr(found, "each", None), bool):
        yield "has no `each: ClassVar[bool]`, whether every action has its own journal line"
    if not hasattr(found, "batch_max") and "batch_max" not in vars(found)["__dataclass_fields__"]:
        yield "has no `batch_max`, the maximum actions of one apply"
    try:
        yield from _wrong_fields(found)
    except NameError as error:
        yield f"has an annotation that cannot be read: {error}"


def _wrong_methods(found: type) -> Iterator[str]:
    for name, parameters in _METHODS.items():
        method = getattr(found, name, None)
        if not inspect.isfunction(method):
            yield f"has no method {name}({', '.join(('self', *parameters))})"
            continue
        if inspect.iscoroutinefunction(method) is (name == "decide"):
            yield "has an async decide, which must be pure" if name == "decide" else f"has a {name} that is not async"
        try:
            inspect.signature(method).bind(None, *parameters)
        except TypeError:
            yield f"has a {name} that does not take ({', '.join(('self', *parameters))})"


def _wrong_fields(found: type) -> Iterator[str]:
    for port in port_fields(found):
        if port.kind not in PORTS:
            names = ", ".join(kind.__name__ for kind in PORTS)
            yield f"has a field {port.field!r} without a default that is not a port; ports are {names}"
        elif port.wants_collection and port.collection is None:
            yield f"has records {port.field!r} without a collection; write Annotated[Records, Collection.named('…')]"
    for setting in setting_fields(found):
        if setting.field in _RESERVED:
            yield f"has a setting {setting.field!r}, which every sweep has already"
        elif not _can_be_set(setting.hint):
            yield f"has a setting {setting.field!r} of an unsupported type; use text, numbers, bool or timedelta"


def _can_be_set(hint: object) -> bool:
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        plain = [arm for arm in arms if arm is not type(None)]
        return len(plain) == 1 and len(arms) == 2 and _can_be_set(plain[0])
    if origin is tuple:
        return arms == (str, ...)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return arms == (str, str)
    return hint in _SCALARS


@dataclass(frozen=True, slots=True)
class PortField:
    """A field for a port."""

    field: str
    kind: object
    collection: Collection | None = None

    @property
    def wants_collection(self) -> bool:
        """Whether the port is provided per collection."""
        return self.kind is Records


@dataclass(frozen=True, slots=True)
class SettingField:
    """A field for a setting."""

    field: str
    hint: object
    default: object


def port_fields(sweep: type) -> Iterator[PortField]:
    """The fields without a default."""
    hints = typing.get_type_hints(sweep, include_extras=True)
    for field in dataclasses.fields(sweep):
        if _required(field):
            hint = hints[field.name]
            extras = getattr(hint, "__metadata__", ())
            kind = typing.get_args(hint)[0] if extras else hint
            yield PortField(field.name, kind, next((e for e in extras if isinstance(e, Collection)), None))


def setting_fields(sweep: type) -> Iterator[SettingField]:
    """The fields with a default, except those that the wiring sets."""
    hints = typing.get_type_hints(sweep)
    for field in dataclasses.fields(sweep):
        if not _required(field) and not field.metadata.get("wired"):
            made = field.default_factory
            default = field.default if made is dataclasses.MISSING else made()
            yield SettingField(field.name, hints[field.name], default)


def _required(field: dataclasses.Field[object]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
