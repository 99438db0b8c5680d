"""Sweeps of one's own: found by `use: module:Class` or by an installed entry point, checked before anything runs.

A class that is no sweep is refused with everything it lacks at once. An installed sweep (entry point of the group
`wrasse.sweeps`) runs only once its name stands under `sweeps:` in the file: installing a package deletes nothing.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import timedelta

from wrasse.app.settings import SweepSettings
from wrasse.app.sweep_ports import PORTS, port_fields, setting_fields
from wrasse.engine.run import AnySweep
from wrasse.errors import ConfigError
from wrasse.jobs.loading import load_named
from wrasse.sweeps import Catalogued

GROUP = "wrasse.sweeps"
INTERVAL = timedelta(minutes=1)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_METHODS = {"find": ("after", "limit"), "decide": ("suspect", "at"), "apply": ("actions",)}
_RESERVED = frozenset(field.name for field in dataclasses.fields(SweepSettings))
_SCALARS = (str, int, float, bool, timedelta)


def installed_sweeps() -> Mapping[str, str]:
    """What installed packages offer: name to `module:Class`."""
    from importlib.metadata import entry_points  # slow to import, and hardly ever needed

    found = entry_points(group=GROUP)
    return {each.name: f"{each.module}:{each.attr}" for each in found}


def own_sweep(name: str, use: str) -> Catalogued:
    """The sweep as the catalogue has those of wrasse. Refused if the name or the class is not right."""
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
            f"{use} is no sweep: {'; '.join(wrong)}", do="see docs/how-to/write-a-sweep.md and wrasse.engine.sweep"
        )
    return typing.cast("type[AnySweep]", found)


def _wrong(found: object) -> Iterator[str]:
    """Everything that keeps it from being a sweep."""
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
        yield "has no `each: ClassVar[bool]`, which says whether every action has a journal line of its own"
    if not hasattr(found, "batch_max") and "batch_max" not in vars(found)["__dataclass_fields__"]:
        yield "has no `batch_max`, how many actions one apply gets"
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
            yield f"asks for {port.field!r} without a default, and that is no port; ports are {names}"
        elif port.wants_collection and port.collection is None:
            yield f"asks for records {port.field!r} of no collection; write Annotated[Records, Collection.named('…')]"
    for setting in setting_fields(found):
        if setting.field in _RESERVED:
            yield f"has a setting {setting.field!r}, a name that every sweep has already"
        elif not _can_be_set(setting.hint):
            yield f"has a setting {setting.field!r} no file can hold; use text, numbers, bool or timedelta"


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
