"""Files, memory and disks that run out interrupt jobs and never fail them: each runs as soon as there is room again."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli.command_line import wrasse
from processes.daemons import Daemon, running, until

HANDLERS = """
import errno, os

def opens(job):
    open("/dev/null").close()

def fills(job):
    if not os.path.exists("room"):
        raise RuntimeError("cannot save") from OSError(errno.ENOSPC, "No space left on device")
    with open("/dev/null", "wb") as file:
        file.write(b"x")

async def hungry(job):
    if not os.path.exists("room"):
        raise MemoryError
"""
QUICK = "worker: {backoff: {base: 10ms, max: 10ms}, max_retries: 0}\n"


@pytest.fixture
def shop(place: Path) -> Path:
    (place / "shop.py").write_text(HANDLERS)
    (place / "wrasse.yaml").write_text(QUICK)
    return place


def enqueue(id: str) -> None:
    assert wrasse("jobs", "enqueue", f"--id={id}", "x").code == 0


def job(id: str) -> dict[str, object]:
    found: dict[str, object] = wrasse("jobs", "show", id, "--json").json
    return found


def files_of(daemon: Daemon, limit: int) -> None:
    """How many files the process may open from now on; what is open stays open."""
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


class _Fine(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    """A handler behind a URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Fine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("how", ["--handler=shop:opens", "--exec=true", "--handler={url}"])
def test_jobs_of_a_worker_without_descriptors_are_released_and_run_later(shop: Path, how: str, url: str) -> None:
    with running(shop, how.format(url=url)) as daemon:
        enqueue("warm")
        until(lambda: job("warm")["state"] == "done", "a job done")
        files_of(daemon, 3)
        enqueue("a")
        until(lambda: [line for line in daemon.lines if "was released" in line["msg"]] or None, "the release")
        files_of(daemon, 1_024)
        until(lambda: job("a")["state"] == "done", "the job done")
        assert (job("a")["failures"], job("a")["rescues"]) == (0, 0)


@pytest.mark.parametrize("handler", ["fills", "hungry"])
def test_a_full_disk_or_memory_costs_no_retry(shop: Path, handler: str) -> None:
    enqueue("a")
    with running(shop, f"--handler=shop:{handler}") as daemon:
        until(lambda: [line for line in daemon.lines if "was released" in line["msg"]] or None, "the release")
        (shop / "room").touch()
        until(lambda: job("a")["state"] == "done", "the job done")
    assert (job("a")["failures"], job("a")["rescues"]) == (0, 0)
