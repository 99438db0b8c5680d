"""docs/reference/events.md: what wrasse tells others: reports, journal lines and log lines, with their fields."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from tools.docs.markdown import code, page, sentence, table
from wrasse.engine.report import Report
from wrasse.observability.logs import CANONICAL, LINES_MAX, OURS
from wrasse.ports.journal import Intent, Line
from wrasse.ports.outcome import Outcome

INTRO = """\
What wrasse tells others about what it did. None of it ever carries a payload, a secret or a path."""
REPORTS = """\
Each run of a sweep ends in a report. The last twenty of a sweep are kept in the engine's backend; the status page,
`/status.json` and `wrasse sweep --json` show them. It is logged when it says something new, and every ten minutes."""
JOURNAL = """\
Each action of a sweep has a line in the journal: the intent is written before the action, the outcome after it.
`wrasse journal --json` and `/status.json` give lines with these fields. An `outcome` of null is not known yet."""
LOGS = f"""\
`wrasse run` writes one JSON object per line to stderr (on a terminal, lines for eyes). Only the keys below ever appear;
any other key is dropped and counted (`wrasse_log_dropped_keys_total`). A message that repeats over {LINES_MAX} times
in a second is suppressed, and a counted line says so."""
TYPES = {
    "str": "text", "int": "number", "bool": "true or false", "datetime": "instant", "timedelta": "seconds",
    "Mapping[str, int]": "map of numbers", "tuple[str, ...]": "list of texts", "tuple[Planned, ...]": "list of actions",
    "Outcome": "text",
}  # fmt: skip
# What a field means where the code has no comment beside it.
MEANINGS = {
    "id": "grows with time: the line's place in the journal",
    "run": "the id of the run",
    "sweep": "the name of the sweep",
    "started_at": "when the run began",
    "ended_at": "when the run ended",
    "seen": "suspects looked at",
    "kept": "suspects found innocent or not ripe, by reason",
    "planned": "actions decided on",
    "done": "actions that took effect",
    "conflict": "actions whose precondition no longer held",
    "failed": "suspects or actions that failed",
    "unknown": "actions whose end is not known",
    "stopped_by": "what ended the run before the end of the listing, if anything",
    "why": "the same in words",
    "dry_run": "whether the run only planned",
    "cursor": "where the next run goes on; null: at the beginning",
    "errors": "the first few errors, by kind",
    "reason": "why, in words",
    "intended_at": "when the intent was written, before the action",
    "outcome": "how it ended; null: not known yet",
    "detail": "more about how it ended",
    "settled_at": "when the outcome was written",
}


class _Field(NamedTuple):
    name: str
    type: str


def render() -> str:
    """The page."""
    return page(
        "Reports, journal and logs",
        INTRO,
        [
            "## Reports", REPORTS, sentence(Report), table(["field", "type", "meaning"], _rows(Report)),
            "## Journal lines", JOURNAL, table(["field", "type", "meaning"], [*_rows(Intent), *_rows(Line)]),
            f"Outcomes: {', '.join(code(outcome.value) for outcome in Outcome)}. {sentence(Outcome)}",
            "## Log lines", LOGS,
            table(["keys", "from"], [[", ".join(map(code, CANONICAL)), "the design document of the job queue"],
                                     [", ".join(map(code, OURS)), "ours"]]),
        ],
    )  # fmt: skip


def _rows(cls: type) -> list[list[str]]:
    """Field, type and meaning: the comment that stands beside it in the code, or ours."""
    said = MEANINGS | dict(_comments(cls))
    said["outcome"] = MEANINGS["outcome"]
    return [[code(f.name), _type(str(f.type)), said[f.name]] for f in _fields(cls) if f.name != "intent"]


def _fields(cls: type) -> Iterator[_Field]:
    struct = issubclass(cls, msgspec.Struct)
    plain = () if struct else tuple(f.name for f in dataclasses.fields(cls))
    names: tuple[str, ...] = getattr(cls, "__struct_fields__", plain)
    return (_Field(name, cls.__annotations__[name]) for name in names)


def _type(annotation: str) -> str:
    plain, _, empty = annotation.partition(" | ")
    return TYPES[plain] + (" or null" if empty else "")


def _comments(cls: type) -> Iterator[tuple[str, str]]:
    for text in inspect.getsource(cls).splitlines():
        if found := re.match(r"    (\w+): [^#]*?# (.*)$", text):
            yield found[1], found[2]
