"""Retention as a person uses it: settings, a plan, a run, the reason why a stream is kept."""

from __future__ import annotations

import asyncio
import secrets
from datetime import timedelta
from pathlib import Path

import pytest
import redis

from cli.command_line import wrasse
from servers.valkey import Valkey
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import ManualClock, SystemClock
from wrasse.ports.groups import StartAt
from wrasse.ports.streams import Draft

pytestmark = pytest.mark.usefixtures("place")

SETTINGS = """
retention:
  "gbe.notify.topic.*": 72h
  "gbe.events.audit.*": {age: 7d, exact: true}
archiver:
  streams:
    - stream: "gbe.events.audit.*"
"""


@pytest.fixture
def old_streams(place: Path) -> None:
    """Streams with entries of ten days ago, and the settings that keep them for less."""
    (place / "wrasse.yaml").write_text(SETTINGS, "utf-8")

    async def making() -> None:
        store = await Sqlite.open("wrasse.db", ManualClock(SystemClock().now() - timedelta(days=10)))
        await store.streams.append(
            [Draft(name, b"old") for name in ("gbe.notify.topic.a", "gbe.events.audit.change", "gbe.tasks.mail.queue")]
        )
        await store.groups.join("gbe.tasks.mail.queue", "mail-workers", StartAt(first=True))
        await store.groups.deliver(
            ["gbe.tasks.mail.queue"], "mail-workers", "host-1", 1, ack_timeout=timedelta(seconds=30)
        )
        await store.close()

    asyncio.run(making())


@pytest.mark.usefixtures("old_streams")
def test_a_plan_a_run_and_the_reasons_for_what_is_kept() -> None:
    plan = wrasse("sweep", "aged-entries", "--dry-run", "--json").json["reports"][0]["plan"]
    assert [(each["verb"], each["suspect"]) for each in plan] == [
        ("alert", "gbe.events.audit.change"),
        ("trim", "gbe.notify.topic.a"),
    ]

    assert wrasse("sweep", "aged-entries").code == 0

    lengths = {each["subject"]: each["length"] for each in wrasse("streams", "info", "--json").json["streams"]}
    assert (lengths["gbe.notify.topic.a"], lengths["gbe.events.audit.change"]) == (0, 1)
    told = wrasse("explain", "gbe.events.audit.change").out
    assert "7d by gbe.events.audit.*" in told
    assert "the group 'archiver' protects it, and does not exist" in told
    assert wrasse("explain", "gbe.tasks.mail.queue", "--json").json["next"] == [
        "nothing: no rule of `retention` matches it, so it is never trimmed"
    ]


@pytest.mark.usefixtures("old_streams")
def test_a_consumer_that_was_never_heard_of_again_is_retired_and_its_group_told_of() -> None:
    report = wrasse("sweep", "dead-consumers", "--json").json["reports"][0]

    assert (report["done"], report["failed"]) == (2, 0)
    errors = wrasse("streams", "read", "gbe.events.system.error", "--json").out
    assert "no consumer of it lives" in errors


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{'a.>': 3x}", "'3x' is not a duration"),
        ("{'a.>.b': 3d}", "a > that is not its last token"),
        ("{'a.b': {exact: true}}", "its age is missing or 0"),
        ("{'a.b': {age: 3d, protekt: [x]}}", "protekt"),
    ],
)
def test_a_rule_that_is_not_right_is_refused_with_what_to_write(
    text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRASSE_RETENTION", text)

    answer = wrasse("sweep", "aged-entries")

    assert (answer.code, told in answer.err) == (2, True), answer.err


def test_nothing_is_trimmed_while_a_sweeper_of_the_origin_has_the_lock(place: Path, redis_server: Valkey) -> None:
    prefix = f"t{secrets.token_hex(6)}:"
    url = f"{redis_server.url}?root={prefix}w&streams_prefix={prefix}"
    (place / "wrasse.yaml").write_text(f'backends: {{streams: "{url}"}}\nretention: {{"gbe.notify.*": 1h}}\n', "utf-8")
    with redis.Redis.from_url(redis_server.url) as client:
        client.xadd(f"{prefix}gbe:notify:a", {"envelope": b"{}"}, id="1000-0")
        client.set(f"{prefix}gbe:lock:sweeper", "origin-1", px=600_000)

        held, kept = wrasse("sweep", "aged-entries").code, client.xlen(f"{prefix}gbe:notify:a")
        planned = wrasse("sweep", "aged-entries", "--dry-run").out
        client.delete(f"{prefix}gbe:lock:sweeper")

        assert (held, kept, "is held by origin-1" in planned) == (3, 1, True)
        assert wrasse("sweep", "aged-entries", "--dry-run").code == 0
        assert client.get(f"{prefix}gbe:lock:sweeper") is None, "a dry run takes no lock"
        assert (wrasse("sweep", "aged-entries").code, client.xlen(f"{prefix}gbe:notify:a")) == (0, 0)
        assert client.get(f"{prefix}gbe:lock:sweeper") is None, "a run that is over has released it"
