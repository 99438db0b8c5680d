"""The findings of the doctor about a Redis: the consequences of its settings."""

from __future__ import annotations

import dataclasses

import pytest

from wrasse.backends.redis.connect import RedisHealth, judge
from wrasse.ports.backend import FAIL, OK, WARN, Finding

GOOD = RedisHealth(
    server="valkey",
    version=(9, 1, 2),
    role="master",
    clustered=False,
    cluster_state="",
    memory_used=10,
    memory_max=100,
    policy="noeviction",
    append_only=True,
    append_sync="always",
    save="",
    saving_fails=False,
    replicas=1,
    replicas_needed=1,
    sees_settings=True,
)


def found(check: str, *, cluster: bool = False, **changes: object) -> Finding:
    changed = dataclasses.replace(GOOD, **changes)  # type: ignore[arg-type]
    return next(each for each in judge(changed, cluster=cluster) if each.check == check)


def test_a_good_server_has_nothing_to_do() -> None:
    assert {(each.state, each.do) for each in judge(GOOD, cluster=False)} == {(OK, "")}


@pytest.mark.parametrize(
    ("check", "changes", "state", "word"),
    [
        ("redis", {"server": "redis", "version": (6, 0, 16)}, FAIL, "6.2"),
        ("redis", {"role": "slave"}, FAIL, "master"),
        ("eviction", {"policy": "allkeys-lru"}, FAIL, "noeviction"),
        ("eviction", {"policy": "volatile-lru"}, WARN, "noeviction"),
        ("eviction", {"memory_used": 95}, WARN, "maxmemory"),
        ("persistence", {"append_sync": "no"}, WARN, "appendfsync"),
        ("persistence", {"append_only": False, "save": "3600 1"}, WARN, "appendonly"),
        ("persistence", {"append_only": False}, WARN, "appendonly"),
        ("persistence", {"saving_fails": True}, FAIL, "log"),
        ("cluster", {"clustered": True, "cluster_state": "ok"}, FAIL, "redis.cluster"),
    ],
)
def test_what_is_not_well_says_what_it_costs_and_what_to_do(
    check: str, changes: dict[str, object], state: str, word: str
) -> None:
    finding = found(check, **changes)
    assert (finding.state, word in finding.do) == (state, True)


def test_a_cluster_that_does_not_serve_every_slot_fails() -> None:
    whole = found("cluster", cluster=True, clustered=True, cluster_state="ok")
    torn = found("cluster", cluster=True, clustered=True, cluster_state="fail")
    assert (whole.state, torn.state) == (OK, FAIL)


def test_settings_that_cannot_be_seen_are_to_be_checked_by_hand() -> None:
    blind = dataclasses.replace(GOOD, sees_settings=False, append_sync="")
    assert [each.state for each in judge(blind, cluster=False)].count(WARN) == 1
