"""Retention: which rule is about a stream, who protects it, and how far it may be trimmed. Decisions by property."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from wrasse.clock import to_micros
from wrasse.ports.streams import EntryId, GroupState, ServerAge, StreamState
from wrasse.streams.retention import (
    Bound,
    Retention,
    RetentionRule,
    Stand,
    judge,
    lost_entries,
    rule_for,
    server_age_for,
)

DAY = timedelta(days=1)
NOW = datetime(2026, 2, 14, tzinfo=UTC)


def rules(*patterns: str) -> tuple[RetentionRule, ...]:
    return tuple(RetentionRule(pattern, DAY) for pattern in patterns)


def id_at(moment: datetime, seq: int = 1) -> EntryId:
    return EntryId(to_micros(moment) // 1_000, seq)


def stream(first: datetime, **floors: datetime) -> StreamState:
    groups = tuple(GroupState(name, id_at(floor), id_at(floor), 0) for name, floor in floors.items())
    return StreamState("s", 9, 9, 9, id_at(first), id_at(NOW), groups, NOW)


@pytest.mark.parametrize(
    ("subject", "winner"),
    [
        ("gbe.events.audit.change", "gbe.events.audit.change"),
        ("gbe.events.audit.other", "gbe.events.audit.*"),
        ("gbe.events.api.call", "gbe.events.*.call"),
        ("gbe.events.api.other", "gbe.events.>"),
        ("gbe.tasks.mail.queue", "gbe.>"),
        ("other.stream", None),
    ],
)
def test_the_rule_that_names_a_stream_most_closely_is_about_it(subject: str, winner: str | None) -> None:
    given_rules = rules("gbe.>", "gbe.events.>", "gbe.events.*.call", "gbe.events.audit.*", "gbe.events.audit.change")

    found = rule_for(given_rules, subject)

    assert (None if found is None else found.pattern) == winner


tokens = st.sampled_from(["a", "b", "*"])
patterns = st.builds(
    lambda parts, rest: ".".join([*parts, *rest]),
    st.lists(tokens, min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
)


@given(st.lists(patterns, unique=True, max_size=8), st.randoms(use_true_random=False))
def test_which_rule_wins_does_not_depend_on_the_order_they_are_written_in(written: list[str], chance: object) -> None:
    shuffled = sorted(written, key=lambda _: chance.random())  # type: ignore[attr-defined]

    assert rule_for(rules(*written), "a.b.a") == rule_for(rules(*shuffled), "a.b.a")


@pytest.mark.parametrize(
    ("subject", "protected_by"),
    [
        ("gbe.tasks.mail.queue", ("mail-workers",)),
        ("gbe.tasks.mail.progress", ()),
        ("gbe._deadletter.tasks", ("archiver",)),
        ("gbe.events.audit.change", ("archiver",)),
        ("gbe.events.api.call", ()),
        ("other.tasks.mail.queue", ()),
    ],
)
def test_who_protects_a_stream_follows_from_what_it_is(subject: str, protected_by: tuple[str, ...]) -> None:
    bound = Retention(rules(">"), ("gbe.events.audit.*",)).of(subject)

    assert bound is not None
    assert bound.protect == protected_by


def test_groups_that_a_rule_names_protect_as_well() -> None:
    rule = RetentionRule(">", DAY, protect=("monitors", "archiver"))

    assert Retention((rule,), (">",)).protecting("gbe.tasks.mail.queue", rule) == (
        "monitors", "archiver", "mail-workers",
    )  # fmt: skip


moments = st.timedeltas(min_value=timedelta(0), max_value=10 * DAY).map(lambda ago: NOW - ago)


@given(moments, moments, moments, st.booleans())
def test_nothing_is_due_that_a_group_still_needs(first: datetime, one: datetime, two: datetime, exact: bool) -> None:
    bound = Bound(RetentionRule(">", DAY, exact=exact), ("one", "two"))

    found = judge(stream(first, one=one, two=two), bound, NOW)

    if found.stand is Stand.DUE:
        assert id_at(first) <= min(id_at(one), id_at(two))
        assert NOW - first >= DAY
    if found.stand is Stand.HELD:
        assert id_at(first) > min(id_at(one), id_at(two))


@given(moments, st.timedeltas(min_value=timedelta(0), max_value=DAY))
def test_what_is_due_stays_due(first: datetime, later: timedelta) -> None:
    bound = Bound(RetentionRule(">", DAY), ())

    if judge(stream(first), bound, NOW).stand is Stand.DUE:
        assert judge(stream(first), bound, NOW + later).stand is Stand.DUE


@given(moments)
def test_an_approximate_rule_is_never_due_before_an_exact_one(first: datetime) -> None:
    def stand(exact: bool) -> Stand:
        return judge(stream(first), Bound(RetentionRule(">", DAY, exact=exact), ()), NOW).stand

    assert stand(exact=True) is Stand.DUE or stand(exact=False) is Stand.YOUNG


@given(moments)
def test_a_protecting_group_that_is_missing_protects_everything(first: datetime) -> None:
    bound = Bound(RetentionRule(">", DAY, exact=True), ("archiver",))

    assert judge(stream(first), bound, NOW).stand in (Stand.YOUNG, Stand.MISSING)


@given(moments, moments)
def test_a_protecting_group_whose_floor_proves_nothing_protects_everything(first: datetime, floor: datetime) -> None:
    bound, state = Bound(RetentionRule(">", DAY, exact=True), ("hasty",)), stream(first, hasty=floor, other=floor)
    state = replace(state, groups=(replace(state.groups[0], protects=False), state.groups[1]))

    assert judge(state, bound, NOW).stand in (Stand.YOUNG, Stand.UNPROVEN)
    assert judge(state, replace(bound, protect=("other",)), NOW).stand is not Stand.UNPROVEN


ages = st.timedeltas(min_value=timedelta(seconds=1), max_value=10 * DAY)


@given(ages, ages, st.booleans(), st.booleans())
def test_a_server_keeps_a_stream_at_least_as_long_as_its_rule(
    age: timedelta, least: timedelta, exact: bool, loss: bool
) -> None:
    free = replace(stream(NOW), server_age=ServerAge(ours=True, least=least))
    rule = RetentionRule("s", age, exact=exact, allow_data_loss=loss)

    assert server_age_for(free, Bound(rule, ())) == max(age, least)


@pytest.mark.parametrize("loss", [False, True])
def test_a_server_keeps_for_ever_what_anybody_has_a_say_in(loss: bool) -> None:
    rule, server = RetentionRule("s", DAY, allow_data_loss=loss), ServerAge(ours=True)
    bound, free = Bound(rule, ()), replace(stream(NOW), server_age=server)
    held = [
        server_age_for(free, None),
        server_age_for(free, Bound(rule, ("archiver",))),
        server_age_for(replace(stream(NOW, g=NOW), server_age=server), bound),
        server_age_for(replace(free, server_age=replace(server, read=True)), bound),
        server_age_for(stream(NOW), bound),
    ]

    assert held == [None] * 5


def state(appended: int, *groups: GroupState) -> StreamState:
    return StreamState("s", 0, 0, appended, None, None, groups, NOW)


def group(pending: int, lag: int | None) -> GroupState:
    return GroupState("g", EntryId(0, 0), EntryId(0, 0), pending, lag=lag)


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (state(9, group(2, 3)), state(9, group(0, 0)), 5),
        (state(9, group(2, 3)), state(12, group(0, 3)), 5),
        (state(9, group(0, 3)), state(9, group(0, 1)), 2),
        (state(9, group(2, None)), state(9, group(0, None)), 7),
        (state(9), state(9), 7),
        (None, None, 7),
    ],
)
def test_what_was_pending_or_unread_counts_as_lost(
    before: StreamState | None, after: StreamState | None, lost: int
) -> None:
    assert lost_entries(before, after, ["g"], 7) == lost


def test_without_a_protecting_group_nothing_is_lost() -> None:
    assert lost_entries(state(9), state(9), [], 7) == 0
