"""The status page and its JSON: whole, escaped, and asked for at most once in a while."""

from __future__ import annotations

import json
from datetime import timedelta
from html.parser import HTMLParser

import pytest

from wrasse.app.building import Opened, build_engine
from wrasse.app.config import load
from wrasse.app.plain import to_json
from wrasse.app.status import Snapshot, Subject, Watch, snapshot_json
from wrasse.app.status_page import page, tables
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.ports.jobs import Job, WorkerInfo

NASTY = "<script>alert(1)</script>&\"'"
SILENCE = timedelta(seconds=30)


class Shown:
    """A process on the memory backend, and a look at it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = Memory(self.clock)
        settings = load("none", environ={}).settings
        opened = Opened(self.store, self.store, self.store)
        self.engine = build_engine(settings, opened, self.clock, "me")
        self.wrong: str | None = None
        subject = Subject(
            clock=self.clock,
            roles=("all",),
            backend="memory:",
            jobs=self.store,
            journal=self.store,
            engine=self.engine,
            worker=lambda: self.wrong,
        )
        self.watch = Watch(subject, timedelta(seconds=2))

    async def leave_behind(self, id: str, worker: str = "w") -> None:
        await self.store.jobs.put([Job(id, queue=NASTY)], request=id)
        await self.store.jobs.beat(WorkerInfo(worker), (), silence=SILENCE)
        await self.store.jobs.take([NASTY], 1, worker=worker, silence=SILENCE, request=f"take {id}")

    async def look(self) -> Snapshot:
        self.clock.advance(timedelta(seconds=2))
        return await self.watch.look()


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
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} closes out of turn"


@pytest.fixture
async def shown() -> Shown:
    return Shown()


async def test_the_page_is_well_formed_when_there_is_nothing_yet(shown: Shown) -> None:
    tags = Tags(page(await shown.look(), "nonce"))
    assert tags.open == []
    assert tags.seen.count("section") == 5


async def test_what_jobs_and_workers_are_called_cannot_become_markup(shown: Shown) -> None:
    await shown.leave_behind(NASTY, worker=NASTY)
    shown.clock.advance(timedelta(minutes=5))
    report = await shown.engine.sweep_now("stuck_jobs")
    text = page(await shown.look(), "nonce")
    assert report.done == 1
    assert text.count("<script") == 1, "our own"
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#x27;" in text
    assert Tags(text).open == []


async def test_the_page_names_nothing_from_elsewhere(shown: Shown) -> None:
    text = page(await shown.look(), "nonce")
    assert "http" not in text.replace("http-equiv", "")
    assert "//" not in text.replace("</", "")
    assert "style=" not in text.replace("<style", ""), "the page's own policy would not let it count"


async def test_the_page_shows_queues_sweeps_workers_and_the_journal(shown: Shown) -> None:
    await shown.leave_behind("stuck")
    shown.clock.advance(timedelta(minutes=5))
    await shown.engine.sweep_now("stuck_jobs")
    text = tables(await shown.look())
    words = ("stuck_jobs", "1 seen, 1 done", "every 10s", "requeue", "silent for", "oldest ready", "silent</span>")
    assert [each for each in words if each not in text] == []


async def test_a_held_sweep_says_by_which_guard_and_since_when(shown: Shown) -> None:
    await shown.engine.sweep_now("stuck_jobs")
    shown.store.restart()
    await shown.engine.sweep_now("stuck_jobs")
    snapshot = await shown.look()
    (stuck,) = (each for each in snapshot.sweeps if each.name == "stuck_jobs")
    assert stuck.held is not None
    assert "held by backend_restarted</span> since 2s ago" in tables(snapshot)


async def test_the_json_says_what_the_page_says(shown: Shown) -> None:
    await shown.leave_behind("a")
    found = json.loads(to_json(snapshot_json(await shown.look())))
    assert [(each["queue"], each["held"]) for each in found["queues"]] == [(NASTY, 1)]
    assert [each["name"] for each in found["sweeps"]] == ["stuck_jobs", "finished_jobs"]
    assert found["ready"] is True


async def test_many_who_look_cost_one_look(shown: Shown) -> None:
    first = await shown.look()
    await shown.leave_behind("later")
    assert await shown.watch.look() is first
    assert await shown.look() is not first


async def test_a_worker_that_is_of_no_use_makes_the_process_not_ready(shown: Shown) -> None:
    shown.wrong = "no beats go out"
    snapshot = await shown.look()
    assert not snapshot.ready
    assert [check.detail for check in snapshot.checks if not check.ok] == ["no beats go out"]
