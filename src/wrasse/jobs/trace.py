"""Trace context of jobs: the ids of the enqueueing span, in a job's headers; and a worker's interface to a tracer.

The headers are `trace_id` and `span_id`, or `traceparent` as in W3C Trace Context. Invalid ids are ignored: such a job
starts a trace of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from wrasse.ports.jobs import ClaimedJob, Complete, Settlement

TRACE_ID, SPAN_ID, TRACEPARENT = "trace_id", "span_id", "traceparent"
_TRACE = re.compile(r"(?!0{32})[0-9a-f]{32}")
_SPAN = re.compile(r"(?!0{16})[0-9a-f]{16}")
# Version ff is forbidden; later versions may add parts, which are not ours to read.
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


@dataclass(frozen=True, slots=True)
class TraceParent:
    """One span, as another process names it."""

    trace_id: str
    span_id: str
    sampled: bool = True

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


CURRENT: ContextVar[TraceParent | None] = ContextVar("wrasse_span", default=None)  # of the handler that runs here


def parent_of(headers: Mapping[str, str]) -> TraceParent | None:
    """The span that a job with these headers belongs to, if they name one."""
    if TRACE_ID in headers:
        return _valid(headers[TRACE_ID].lower(), headers.get(SPAN_ID, "").lower(), sampled=True)
    found = _PARENT.fullmatch(headers.get(TRACEPARENT, "").lower())
    return None if found is None else _valid(found[1], found[2], sampled=bool(int(found[3], 16) & 1))


def carried(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers of a job that is enqueued here: with the ids of the enqueueing handler's span, unless they name
    one."""
    span = CURRENT.get()
    if span is None or TRACE_ID in headers or TRACEPARENT in headers:
        return headers
    if not span.sampled:
        return {**headers, TRACEPARENT: str(span)}
    return {**headers, TRACE_ID: span.trace_id, SPAN_ID: span.span_id}


def _valid(trace_id: str, span_id: str, *, sampled: bool) -> TraceParent | None:
    if _TRACE.fullmatch(trace_id) and _SPAN.fullmatch(span_id):
        return TraceParent(trace_id, span_id, sampled)
    return None


class JobSpan(Protocol):
    """The time one handler takes for one job."""

    def enter(self) -> None:
        """Makes it the current one, in the context it is called in."""
        ...

    def end(self, outcome: str, error: str) -> None:
        """Ends it. `error` is the type of what the handler raised; empty on success."""
        ...


class Spans(Protocol):
    """A factory of spans. Neither of its calls waits or raises."""

    def start(self, claimed: ClaimedJob) -> JobSpan:
        """A span for one attempt."""
        ...


def outcome_of(settlement: Settlement | None) -> str:
    """The outcome of an attempt, one of a closed set: done, lost, or a reason."""
    if settlement is None:
        return "lost"
    return "done" if isinstance(settlement, Complete) else settlement.reason.value
