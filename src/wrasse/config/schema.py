"""The settings as a flat table, one leaf per setting, built from the structs and from the fields of every sweep.

Everything that reads, checks, shows or documents settings uses this table, so that none is missed.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from wrasse.config.plugins import setting_fields
from wrasse.config.setting_key import Key, key_of
from wrasse.config.settings import Settings, SweepSettings
from wrasse.sweeps import CATALOGUE, Catalogued

# Descriptions of the fields of sweeps as settings. A name has the same meaning in every sweep.
FIELDS = {
    "heartbeat_timeout": (
        "how long a worker may send no heartbeat before its jobs are stuck; follows worker.heartbeat_ttl unless set"
    ),
    "rescues_max": "how many workers a job may lose before it is dead-lettered; follows worker.rescues_max unless set",
    "done_kept": "how long done jobs are kept",
    "dead_kept": "how long dead jobs are kept",
    "ids_kept": "how long the id of a deleted job stays reserved, if its producer chose it",
    "retention": "how long unused keys are kept; follows leases.disk_retention unless set",
    "batch_max": "maximum actions per batch",
    "entries_max": "maximum entries trimmed per step",
    "alerts_every": "how often an alert is repeated while its cause lasts",
    "gone_for": "how long after its announced deadline a silent consumer is removed",
    "stale_after": "age of a pending entry of a group without a live consumer at which an alert is sent",
    "ignore": "groups that are ignored",
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting: its path in the file, its type, its default, and its description."""

    path: str
    type: object
    default: object
    key: Key

    @property
    def env(self) -> str:
        """Its name in the environment."""
        return "WRASSE_" + self.path.replace(".", "_").upper()

    @property
    def seed_env(self) -> str | None:
        """Its bare name in the environment, if a design document defines it."""
        return self.path.replace(".", "_").upper() if self.key.seed else None


@lru_cache(maxsize=16)
def leaves(own: tuple[Catalogued, ...] = ()) -> Mapping[str, Leaf]:
    """Every setting by its path, in the order of the structs; those of the user's own sweeps last."""
    found = [leaf for leaf in _of_struct("", Settings, Settings()) if leaf.path != "sweeps"]
    for entry in (*CATALOGUE.values(), *own):
        prefix = f"sweeps.{entry.name}."
        plain = SweepSettings(
            use=entry.use,
            interval=entry.interval,
            actions_max=entry.budget.actions_max,
            runtime_max=entry.budget.runtime_max,
            pause=entry.budget.pause,
        )
        skipped = {prefix + "fields"} if entry.use else {prefix + "fields", prefix + "use"}
        found += [leaf for leaf in _of_struct(prefix, SweepSettings, plain) if leaf.path not in skipped]
        found += _of_sweep(prefix, entry.kind)
    return {leaf.path: leaf for leaf in found}


def _of_struct(prefix: str, struct: type, plain: object) -> Iterator[Leaf]:
    hints = typing.get_type_hints(struct)
    for field in dataclasses.fields(struct):
        hint, value = hints[field.name], getattr(plain, field.name)
        if dataclasses.is_dataclass(value):
            yield from _of_struct(f"{prefix}{field.name}.", type(value), value)
            continue
        yield Leaf(prefix + field.name, hint, value, key_of(field))


def _of_sweep(prefix: str, sweep: type) -> Iterator[Leaf]:
    """Fields with a default are settings; those without are ports, which the wiring sets."""
    for setting in setting_fields(sweep):
        doc = FIELDS.get(setting.field, f"a setting of {sweep.__module__}:{sweep.__qualname__}")
        yield Leaf(prefix + setting.field, setting.hint, setting.default, Key(doc))


def sections(own: tuple[Catalogued, ...] = ()) -> Mapping[str, frozenset[str]]:
    """For every inner path ('' is the whole file) the names that are allowed below it."""
    below: dict[str, set[str]] = {"": set()}
    for path in leaves(own):
        parts = path.split(".")
        for depth, part in enumerate(parts):
            below.setdefault(".".join(parts[:depth]), set()).add(part)
    return {path: frozenset(names) for path, names in below.items()}
