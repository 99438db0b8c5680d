"""What the doctor says of streams that a server keeps to an age by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from wrasse.ports.backend import OK, WARN
from wrasse.ports.streams import ServerAge, StreamState
from wrasse.runtime.doctor import judged
from wrasse.streams.retention import Retention, RetentionRule

NOW = datetime(2026, 2, 14, tzinfo=UTC)
DAY = timedelta(days=1)
RULES = Retention((RetentionRule("gbe.notify.*", DAY),), archived=("gbe.events.>",))


def stream(subject: str, age: timedelta | None, *, ours: bool) -> StreamState:
    return StreamState(subject, 1, 1, 1, None, None, (), NOW, server_age=ServerAge(age, ours))


@pytest.mark.parametrize(
    ("found", "enabled", "state", "says"),
    [
        (stream("gbe.notify.a", DAY, ours=True), True, OK, "keeps 1 streams"),
        (stream("gbe.notify.a", 2 * DAY, ours=True), True, WARN, "another age than retention says: gbe.notify.a"),
        (stream("other", DAY, ours=True), True, WARN, "another age"),
        (stream("gbe.notify.a", DAY, ours=True), False, WARN, "disabled, and the server still"),
        (stream("gbe.events.a", DAY, ours=False), True, WARN, "may still need: gbe.events.a"),
    ],
)
def test_the_doctor_says_what_the_server_removes(found: StreamState, enabled: bool, state: str, says: str) -> None:
    (finding,) = judged([found], RULES, enabled=enabled)

    assert finding.state == state
    assert says in finding.what


@pytest.mark.parametrize("quiet", [stream("gbe.events.a", None, ours=True), stream("gbe.notify.a", DAY, ours=False)])
def test_the_doctor_says_nothing_where_nothing_that_is_needed_is_removed(quiet: StreamState) -> None:
    assert not list(judged([quiet], RULES, enabled=True))


def test_the_doctor_names_few_streams_and_counts_the_rest() -> None:
    many = [stream(f"gbe.events.{n}", DAY, ours=False) for n in range(5)]

    (finding,) = judged(many, RULES, enabled=True)

    assert finding.what.endswith("gbe.events.0, gbe.events.1, gbe.events.2 and 2 more")
