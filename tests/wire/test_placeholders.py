"""What counts as random is little, and nothing else is taken for it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from wire.conftest import FIXTURES
from wire.placeholders import Placeholders

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SHARE_MAX = 0.25  # of the text
KINDS = {"random", "ulid", "uuid", "xid", "n", "id", "file", "00", "server", "of"}
OF_SERVERS = {"time", "us", "ms", "ns", "s", "turn", "minute", "hour"}  # where time is a server's own


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.txt")), ids=lambda path: path.stem)
def test_little_of_a_fixture_is_a_placeholder(path: object) -> None:
    text = path.read_text()  # type: ignore[attr-defined]
    found = re.findall("‹([^›]*)›", text)
    times = path.stem in ("jobs_few_states_s3", "orphans_directory", "sightings_postgresql")  # type: ignore[attr-defined]
    kinds = {re.split("[- ]", each)[0] for each in found}
    assert kinds <= KINDS | (OF_SERVERS if times else set())
    assert sum(len(each) + 2 for each in found) < SHARE_MAX * len(text)


@pytest.mark.parametrize(
    "text",
    ["worker-1", "f00d", "20260101", "held", "1234567890123", "gbe.tasks.email.queue", "0af7651916cd43dd", "10.5"],
)
def test_what_is_not_random_stays(text: str) -> None:
    assert Placeholders(NOW)(text) == text


def test_the_same_value_has_the_same_name_in_the_order_of_appearance() -> None:
    names = Placeholders()
    assert names("f0000002 f0000001 f0000002") == "‹random-8-1› ‹random-8-2› ‹random-8-1›"


@pytest.mark.parametrize(
    ("span", "told"), [(0, "now"), (40, "now"), (3_600, "+60m"), (3_660, "+60m"), (-7_200, "-120m"), (86_400, "+1440m")]
)
def test_instants_of_a_server_are_told_by_their_distance(span: int, told: str) -> None:
    at = NOW + timedelta(seconds=span)
    names = Placeholders(NOW)
    assert names(at.isoformat()) == f"‹time {told}›"
    assert names(f"{int(at.timestamp() * 1_000)}-0") == f"‹ms {told}›-0"
