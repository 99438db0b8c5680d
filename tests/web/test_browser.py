"""The status page in a real browser: what happens to processes shows by itself, and so does that it is no longer so."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from cli.command_line import typed
from processes.daemons import Daemon, running
from wrasse.sweeps import CATALOGUE

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
PATIENCE = 60_000  # ms
# The first attempt never ends; whoever gets the job after that does it.
HANDLERS = """
import asyncio

async def work(job):
    if job.attempt == 1:
        await asyncio.sleep(3600)
"""
SOON = "worker: {heartbeat_ttl: 5s}\nsweeps: {stuck_jobs: {interval: 1s}}\n"
WORKER = ("--role=worker", "--handler=shop:work")
# It shows and leaves the rescue to others, so that what is stuck stays so until somebody has seen it.
WATCHER = ("--role=sweeper", "--set=sweeps.stuck_jobs.enabled=false", "--set=observability.queue_sample_interval=200ms")
# It shows what others do and does nothing itself, not even a run that finds nothing.
IDLE = (*WATCHER, *(f"--set=sweeps.{name}.enabled=false" for name in CATALOGUE))

NOTE_MARKS = """
window.marks = [];
addEventListener("animationstart", ({target}) => marks.push(target.dataset.key || target.dataset.label));
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip("there is no chromium here: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def shop(place: Path) -> Path:
    """A directory with a handler and quick settings."""
    (place / "shop.py").write_text(HANDLERS)
    (place / "wrasse.yaml").write_text(SOON)
    return place


class Seen:
    """A page on a screen, and every complaint of the browser about it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda line: line.type == "error" and self.complaints.append(line.text))

    def open(self, daemon: Daemon) -> None:
        self.page.goto(daemon.address)
        self.expect_shown("#live", "live")

    def expect_shown(self, where: str, text: str) -> None:
        """Waits until the page shows it."""
        expect(self.page.locator(where)).to_contain_text(text, timeout=PATIENCE)

    def expect_gone(self, where: str) -> None:
        expect(self.page.locator(where)).to_have_count(0, timeout=PATIENCE)


@pytest.fixture
def seen(browser: Browser) -> Iterator[Seen]:
    context = browser.new_context()
    yield Seen(context.new_page())
    context.close()


def do(*args: str) -> None:
    assert typed(*args, cwd=Path.cwd()).code == 0


def put(id: str) -> None:
    do("jobs", "enqueue", f"--id={id}", "x")


def cell(row: str, column: str) -> str:
    return f'tr[data-key="{row}"] td[data-label="{column}"]'


def test_a_worker_is_killed_and_the_page_shows_it_until_its_job_is_done(shop: Path, seen: Seen) -> None:
    with running(shop, *WATCHER) as watcher:
        seen.open(watcher)
        with running(shop, *WORKER) as worker:
            put("report-7")
            seen.expect_shown(cell("low", "running"), "1")
            seen.expect_shown("#workers ~ table", "alive")
            worker.signal(signal.SIGKILL)
            worker.end()
        seen.expect_shown("#workers ~ table", "dead")
        seen.expect_shown("#stuck ~ table", "report-7")
        seen.expect_shown('[data-tell="stuck"]', "1")
        with running(shop, *WORKER):
            seen.expect_gone("#stuck")
            seen.expect_shown(cell("low", "done"), "1")
            seen.expect_shown("#journal ~ table", "requeue")
            seen.expect_shown("#journal ~ table", "rescue 1 of 3")
        assert seen.complaints == []


def test_what_changed_is_marked_for_a_moment_and_said_aloud(shop: Path, seen: Seen) -> None:
    put("a")
    with running(shop, *IDLE) as watcher:
        seen.open(watcher)
        # The mark may be gone before we look, so the page itself notes every one it makes.
        seen.page.evaluate(NOTE_MARKS)
        put("b")
        seen.expect_shown(cell("low", "ready"), "2")
        seen.expect_shown("#told", "ready: 2")
        seen.page.wait_for_function("marks.includes('ready')")
        seen.expect_gone(".changed")
        assert set(seen.page.evaluate("marks")) == {"ready"}, "the tile and the cell of the queue, and nothing else"


def test_rows_that_stay_are_not_made_anew(shop: Path, seen: Seen) -> None:
    put("a")
    with running(shop, *WATCHER) as watcher:
        seen.open(watcher)
        seen.page.evaluate("document.querySelector('#queues ~ table tr[data-key=low]').mine = true")
        put("b")
        seen.expect_shown(cell("low", "ready"), "2")
        assert seen.page.evaluate("document.querySelector('#queues ~ table tr[data-key=low]').mine") is True


def test_a_lost_connection_is_shown_and_mends_by_itself(shop: Path, seen: Seen) -> None:
    with running(shop, *WATCHER) as watcher:
        seen.open(watcher)
        port = watcher.address.rsplit(":", 1)[1]
        watcher.signal(signal.SIGTERM)
        assert watcher.end() == 0
        seen.expect_shown("#live", "connection lost")
        expect(seen.page.locator("body.lost")).to_have_count(1)
    put("meanwhile")
    with running(shop, *WATCHER, f"--listen=127.0.0.1:{port}"):
        seen.expect_shown("#live", "live")
        seen.expect_shown(cell("low", "ready"), "1")
        seen.expect_gone("body.lost")


def test_a_process_that_hangs_counts_as_lost(shop: Path, seen: Seen) -> None:
    with running(shop, *WATCHER) as watcher:
        seen.page.clock.install()
        seen.open(watcher)
        watcher.signal(signal.SIGSTOP)
        seen.page.clock.fast_forward(20_000)
        seen.expect_shown("#live", "connection lost")
        watcher.signal(signal.SIGCONT)
        seen.expect_shown("#live", "live")


def test_a_page_that_gets_no_stream_asks_now_and_then(shop: Path, seen: Seen) -> None:
    with running(shop, *WATCHER) as watcher:
        seen.page.route("**/events", lambda route: route.fulfill(status=503))
        seen.page.goto(watcher.address)
        seen.expect_shown("#live", "every 3 s")
        put("a")
        seen.expect_shown(cell("low", "ready"), "1")


def test_without_scripts_the_page_still_reads_well(shop: Path, browser: Browser) -> None:
    put("a")
    with running(shop, *WATCHER) as watcher:
        context = browser.new_context(java_script_enabled=False)
        page = context.new_page()
        page.goto(watcher.address)
        found = page.locator(cell("low", "oldest ready")).inner_text()
        context.close()
    assert found == "now" or found.endswith(" ago")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_nothing_is_wider_than_the_screen(shop: Path, browser: Browser, scheme: str, width: int) -> None:
    long = "a-very-long-name-that-somebody-gave-without-thinking-of-telephones-" * 3
    put(long)
    do("streams", "publish", long.replace("-", ".") + "end", "x")
    with running(shop, *WORKER, env={"WRASSE_OBSERVABILITY_QUEUE_SAMPLE_INTERVAL": "200ms"}) as worker:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
        page = context.new_page()
        page.goto(worker.address)
        expect(page.locator("#workers ~ table")).to_contain_text("alive", timeout=PATIENCE)
        expect(page.locator("#streams ~ table")).to_contain_text("very", timeout=PATIENCE)
        beyond = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        names = page.get_by_role("table").evaluate_all("all => all.map(each => each.ariaLabel)")
        landmarks = [page.get_by_role(role).count() for role in ("banner", "main", "navigation")]
        headers = page.get_by_role("columnheader").count()
        context.close()
    assert beyond <= 0
    assert {"Queues", "Workers", "Sweeps", "Streams"} <= set(names)
    assert (landmarks, headers > 15) == ([1, 1, 1], True)
