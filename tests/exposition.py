"""A strict reader of what /metrics says: what Prometheus and its linter would mind, as a list of complaints.

Everything `promtool check metrics` minds about our metrics, and more: unknown syntax, a sample without HELP and TYPE
before it, families torn apart, series that come twice, labels that differ within a family, sums that are wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')
_ABBREVIATED = {"s", "ms", "us", "ns", "sec", "secs", "b", "kb", "mb", "gb", "cnt", "pct", "temp", "freq"}
_NOT_BASE = {
    "milliseconds", "microseconds", "nanoseconds", "minutes", "hours", "days", "weeks",
    "kilobytes", "megabytes", "gigabytes", "kibibytes", "mebibytes", "gibibytes", "bits", "percent", "celsius",
}  # fmt: skip
_KINDS = ("counter", "gauge", "histogram")
_PARTS = ("_bucket", "_sum", "_count")
Series = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class Family:
    """One metric as it was read."""

    name: str
    help: str = ""
    kind: str = ""
    samples: dict[Series, float] = field(default_factory=dict)


def complaints(text: str) -> list[str]:
    """All that is wrong with a text; nothing, where all is well."""
    families: dict[str, Family] = {}
    wrong = list(_read(text, families))
    for family in families.values():
        wrong += (f"{family.name}: {what}" for what in _judge(family))
    return wrong


def _read(text: str, families: dict[str, Family]) -> Iterator[str]:
    if not text.endswith("\n"):
        yield "the last line does not end"
    current: Family | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("# HELP "):
            name, _, told = line[7:].partition(" ")
            if name in families:
                yield f"line {number}: {name} comes a second time"
            current = families[name] = Family(name, told)
        elif line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            if current is None or current.name != name or current.kind or current.samples:
                yield f"line {number}: the TYPE of {name} is out of place"
            else:
                current.kind = kind
        elif not (found := _SAMPLE.fullmatch(line)):
            yield f"line {number}: not a sample"
        else:
            yield from _sample(number, found, current)


def _sample(number: int, found: re.Match[str], current: Family | None) -> Iterator[str]:
    name, inner, value = found[1], found[2] or "", found[3]
    labels = tuple(sorted((each[1], each[2]) for each in _LABEL.finditer(inner)))
    if sum(len(each[0]) for each in _LABEL.finditer(inner)) != len(inner):
        yield f"line {number}: labels that cannot be read"
    if current is None or name not in _names(current):
        yield f"line {number}: {name} has no HELP and TYPE before it"
    elif (name, labels) in current.samples:
        yield f"line {number}: {name} with the same labels a second time"
    else:
        try:
            current.samples[name, labels] = float(value)
        except ValueError:
            yield f"line {number}: {value!r} is no number"


def _names(family: Family) -> tuple[str, ...]:
    return tuple(family.name + part for part in _PARTS) if family.kind == "histogram" else (family.name,)


def _judge(family: Family) -> Iterator[str]:
    name, words = family.name, family.name.split("_")
    if not family.help.strip():
        yield "has no help"
    if family.kind not in _KINDS:
        yield f"has the type {family.kind!r}"
    if not _NAME.fullmatch(name):
        yield "is not in snake case"
    if (family.kind == "counter") != name.endswith("_total"):
        yield "ends in _total, or is a counter, but not both"
    if name.endswith((*_PARTS, "_created")):
        yield "ends like a part of a histogram"
    if set(words) & {"counter", "gauge", "histogram", "summary"}:
        yield "has its type in its name"
    if set(words) & _ABBREVIATED:
        yield "has an abbreviated unit"
    if set(words) & _NOT_BASE:
        yield "has a unit that is not a base unit"
    if "seconds" in words and words.index("seconds") < len(words) - 1 - (words[-1] == "total"):
        yield "has its unit in the middle"
    keys = {tuple(key for key, _ in labels if key != "le") for _, labels in family.samples}
    if len(keys) > 1:
        yield f"has series with different labels: {sorted(keys)}"
    for series, value in family.samples.items():
        if family.kind == "counter" and (value < 0 or not math.isfinite(value)):
            yield f"counts {value} at {series[1]}"
    if family.kind == "histogram":
        yield from _add_up(family)


def _add_up(family: Family) -> Iterator[str]:
    groups: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    for (name, labels), value in family.samples.items():
        if name.endswith("_bucket"):
            rest = tuple(label for label in labels if label[0] != "le")
            groups.setdefault(rest, []).append((float(dict(labels)["le"]), value))
    for labels, buckets in groups.items():
        if buckets != sorted(buckets) or [count for _, count in buckets] != sorted(count for _, count in buckets):
            yield f"has buckets that do not grow at {labels}"
        if buckets[-1][0] != math.inf or family.samples.get((family.name + "_count", labels)) != buckets[-1][1]:
            yield f"has a count that is not its last bucket at {labels}"
        if (family.name + "_sum", labels) not in family.samples:
            yield f"has no sum at {labels}"
