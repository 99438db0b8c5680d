"""The status page and its JSON: whole, escaped, and asked for at most once in a while."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from unit.web.status_scene import NASTY, Shown
from wrasse.observability.json_format import to_json
from wrasse.ports.groups import StartAt
from wrasse.ports.jobs import Job
from wrasse.ports.streams import Draft
from wrasse.web.pages import ROWS_MAX, tables
from wrasse.web.server import snapshot_json
from wrasse.web.snapshot import LEASES as LEASES_MAX


class Tags(HTMLParser):
    """Checks that every tag that opens is closed, and collects them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "link", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} closes out of turn"


@pytest.fixture
async def shown() -> Shown:
    return Shown()


async def test_the_page_is_well_formed_when_there_is_nothing_yet(shown: Shown) -> None:
    tags = Tags(await shown.page())
    assert tags.open == []
    assert tags.seen.count("section") == 8


async def test_what_jobs_and_workers_are_called_cannot_become_markup(shown: Shown) -> None:
    await shown.leave_behind(NASTY, worker=NASTY)
    shown.clock.advance(timedelta(minutes=5))
    report = await shown.engine.sweep_now("stuck_jobs")
    await shown.leave_behind(NASTY + "again", worker=NASTY)
    await shown.leases.acquire("orders/42", NASTY, ttl=timedelta(minutes=10))
    await shown.store.groups.join("a.b", NASTY, StartAt(first=True))
    shown.clock.advance(timedelta(minutes=5))
    text = await shown.page()
    assert report.done == 1
    assert text.count("<script") == 1, "our own"
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#x27;" in text
    assert Tags(text).open == []


async def test_the_page_names_nothing_from_elsewhere(shown: Shown) -> None:
    text = await shown.page()
    assert "http" not in text.replace("http-equiv", "")
    assert "//" not in text.replace("</", "")
    assert not re.search("<style|style=|onclick|<script>", text), "the page's own policy would not let it count"


async def test_the_page_shows_queues_sweeps_workers_and_the_journal(shown: Shown) -> None:
    await shown.leave_behind("stuck")
    shown.clock.advance(timedelta(minutes=5))
    await shown.engine.sweep_now("stuck_jobs")
    text = await shown.page()
    words = ("stuck_jobs", "1 seen, 1 done", "every 10s", "requeue", "silent for", "oldest ready", "dead</span>")
    assert [each for each in words if each not in text] == []


async def test_a_job_of_a_silent_worker_is_shown_as_stuck_until_it_is_rescued(shown: Shown) -> None:
    await shown.leave_behind("report-7")
    before = await shown.page()
    shown.clock.advance(timedelta(minutes=5))
    during = await shown.page()
    await shown.engine.sweep_now("stuck_jobs")
    after = await shown.page()
    assert ['data-key="stuck" class="wide"' in each for each in (before, during, after)] == [False, True, False]
    assert ">report-7<" in during[during.index('id="stuck"') : during.index('id="queues"')]


async def test_leases_are_shown_with_owner_token_and_end_until_they_are_given_back(shown: Shown) -> None:
    lease = await shown.leases.acquire("orders/42", "ann", ttl=timedelta(minutes=2))
    await shown.leases.acquire("ends/first", "bob", ttl=timedelta(seconds=1))
    leases = json.loads(to_json(snapshot_json(await shown.refresh())))["leases"]
    assert [(each["key"], each["owner"], each["valid"]) for each in leases] == [
        ("ends/first", "bob", False), ("orders/42", "ann", True),
    ]  # fmt: skip
    text = await shown.page()
    words = ("orders/42", "ann", f">{lease.granted.token}<", "in 1m56s", "ended</span>")
    assert [each for each in words if each not in text] == []
    await shown.leases.release(lease.granted)
    assert "orders/42" not in await shown.page()


async def test_a_page_of_leases_is_the_most_that_is_read(shown: Shown) -> None:
    for n in range(LEASES_MAX + 1):
        await shown.leases.acquire(f"k/{n}", "ann", ttl=timedelta(seconds=10 + n))
    leases = (await shown.refresh()).leases
    assert leases is not None
    assert (len(leases.items), leases.more) == (LEASES_MAX, True)


async def test_streams_are_shown_with_their_groups(shown: Shown) -> None:
    await shown.store.groups.join("orders.placed", "mail", StartAt(first=True))
    await shown.store.streams.append([Draft("orders.placed", b"PLANTED"), Draft("orders.placed", b"PLANTED")])
    await shown.store.groups.deliver(["orders.placed"], "mail", "me", 1, ack_timeout=timedelta(minutes=1))
    found = json.loads(to_json(snapshot_json(await shown.refresh())))["streams"]
    (stream,) = found
    assert (stream["subject"], stream["length"], stream["groups"][0]["pending"]) == ("orders.placed", 2, 1)
    text = await shown.page()
    assert [each for each in ("orders.placed", "<code>mail</code> 1 pending", "1 to read") if each not in text] == []
    assert "PLANTED" not in text + to_json(snapshot_json(await shown.refresh()))


async def test_a_backend_of_streams_that_is_down_hides_nothing_else(shown: Shown) -> None:
    await shown.leave_behind("a")
    shown.network.down = True
    snapshot = await shown.refresh()
    text = tables(snapshot)
    assert (snapshot.streams, snapshot.ready, snapshot.counts is None) == (None, True, False)
    assert text[text.index('id="streams"') : text.index('id="journal"')].count("its backend does not answer") == 1


async def test_a_long_table_is_cut_and_says_so(shown: Shown) -> None:
    await shown.store.jobs.enqueue([Job(f"j{n}", queue=f"q{n}") for n in range(ROWS_MAX + 7)], request="many")
    text = tables(await shown.refresh())
    assert text.count('<tr role="row" data-key="q') == ROWS_MAX
    assert "and 7 more in /status.json" in text


async def test_the_same_facts_are_the_same_text_however_much_time_has_passed(shown: Shown) -> None:
    await shown.store.jobs.enqueue([Job("a", queue="low")], request="a")
    first = tables(await shown.refresh())
    shown.clock.advance(timedelta(hours=3))
    assert tables(await shown.refresh()) == first


async def test_times_are_ours_even_where_the_backends_clock_is_not(shown: Shown) -> None:
    snapshot = await shown.refresh()
    await shown.leave_behind("a")
    at = (await shown.refresh()).at - timedelta(hours=1)
    counts = (await shown.refresh()).counts
    assert counts is not None
    off = replace(counts, at=at, workers=tuple(replace(each, heartbeat_at=at, deadline=at) for each in counts.workers))
    text = tables(replace(snapshot, counts=off), snapshot.at)
    workers = text[text.index('id="workers"') : text.index('id="sweeps"')]
    assert ">now</time>" in workers


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_on_what_is_behind_it(scheme: str) -> None:
    style = files("wrasse.web").joinpath("static", "status.css").read_text()
    light, dark = (dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in style.split("* {")[0].split("@media"))
    colours = light if scheme == "light" else dark
    assert light.keys() == dark.keys()
    inks, behind = ("ink", "soft", "good", "warn", "bad", "hold", "accent"), ("card", "page", "changed")
    faint = [(ink, back) for ink in inks for back in behind if contrast(colours[ink], colours[back]) < 4.5]
    assert faint == []


def contrast(one: str, other: str) -> float:
    """As WCAG 2 has it."""

    def light(colour: str) -> float:
        parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((light(one), light(other)))
    return (lighter + 0.05) / (darker + 0.05)


async def test_a_held_sweep_says_by_which_guard_and_since_when(shown: Shown) -> None:
    await shown.engine.sweep_now("stuck_jobs")
    shown.store.restart()
    await shown.engine.sweep_now("stuck_jobs")
    snapshot = await shown.refresh()
    (stuck,) = (each for each in snapshot.sweeps if each.name == "stuck_jobs")
    assert stuck.paused is not None
    text = re.sub("<[^>]+>", "", tables(snapshot, snapshot.at))
    assert "paused by backend_restarted since 2s ago" in text


async def test_the_json_says_what_the_page_says(shown: Shown) -> None:
    await shown.leave_behind("a")
    found = json.loads(to_json(snapshot_json(await shown.refresh())))
    assert [(each["queue"], each["running"]) for each in found["queues"]] == [(NASTY, 1)]
    assert [each["name"] for each in found["sweeps"]] == ["stuck_jobs", "finished_jobs"]
    assert found["ready"] is True


async def test_many_who_look_cost_one_look(shown: Shown) -> None:
    first = await shown.refresh()
    await shown.leave_behind("later")
    assert await shown.watch.refresh() is first
    assert await shown.refresh() is not first


async def test_a_worker_that_is_of_no_use_makes_the_process_not_ready(shown: Shown) -> None:
    shown.wrong = "no beats go out"
    snapshot = await shown.refresh()
    assert not snapshot.ready
    assert [check.detail for check in snapshot.checks if not check.ok] == ["no beats go out"]
