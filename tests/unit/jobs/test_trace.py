"""Which span a job belongs to, from its headers."""

from __future__ import annotations

from contextvars import copy_context

import pytest
from hypothesis import given, strategies as st

from wrasse.jobs.trace import CURRENT, TraceParent, carried, outcome_of, parent_of
from wrasse.ports.jobs import Budget, Claim, Complete, DeadLetterJob, Reason, Requeue

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HOLD = Claim("a", 1, "n")


def test_the_ids_of_the_headers_name_the_parent() -> None:
    assert parent_of({"trace_id": TRACE, "span_id": SPAN}) == TraceParent(TRACE, SPAN)
    assert parent_of({"trace_id": TRACE.upper(), "span_id": SPAN.upper()}) == TraceParent(TRACE, SPAN)


@pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("00", False), ("03", True)])
def test_a_traceparent_names_it_too_with_its_flag(flags: str, sampled: bool) -> None:
    assert parent_of({"traceparent": f"00-{TRACE}-{SPAN}-{flags}"}) == TraceParent(TRACE, SPAN, sampled)


def test_a_later_version_of_traceparent_is_read_as_far_as_it_is_known() -> None:
    assert parent_of({"traceparent": f"cc-{TRACE}-{SPAN}-01-more"}) == TraceParent(TRACE, SPAN)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"trace_id": "", "span_id": ""},
        {"trace_id": TRACE},
        {"trace_id": TRACE, "span_id": SPAN[:-1]},
        {"trace_id": TRACE + "0", "span_id": SPAN},
        {"trace_id": "0" * 32, "span_id": SPAN},
        {"trace_id": TRACE, "span_id": "0" * 16},
        {"trace_id": TRACE[:-1] + "g", "span_id": SPAN},
        {"trace_id": TRACE + "\n", "span_id": SPAN},
        {"traceparent": f"ff-{TRACE}-{SPAN}-01"},
        {"traceparent": f"00-{'0' * 32}-{SPAN}-01"},
        {"traceparent": "nonsense"},
    ],
)
def test_ids_that_are_not_valid_name_nothing(headers: dict[str, str]) -> None:
    assert parent_of(headers) is None


@given(st.dictionaries(st.sampled_from(["trace_id", "span_id", "traceparent"]), st.text()))
def test_no_header_can_break_anything(headers: dict[str, str]) -> None:
    parent = parent_of(headers)
    assert parent is None or parent_of({"traceparent": str(parent)}) == parent


@pytest.mark.parametrize("sampled", [True, False])
def test_what_is_put_inside_a_span_names_it(sampled: bool) -> None:
    span = TraceParent(TRACE, SPAN, sampled)

    def inside() -> None:
        CURRENT.set(span)
        assert parent_of(carried({"a": "b"})) == span
        assert carried({"a": "b"})["a"] == "b"
        assert carried({"traceparent": "mine"}) == {"traceparent": "mine"}

    copy_context().run(inside)
    assert carried({"a": "b"}) == {"a": "b"}


def test_an_outcome_is_done_lost_or_a_reason() -> None:
    ended = (
        Complete(HOLD),
        None,
        Requeue(HOLD, Budget.FAILURES, Reason.TIMEOUT),
        DeadLetterJob(HOLD, Reason.INVALID_PAYLOAD),
    )
    assert [outcome_of(each) for each in ended] == ["done", "lost", "timeout", "invalid_payload"]
