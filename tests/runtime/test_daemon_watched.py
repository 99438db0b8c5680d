"""wrasse run and what happens around it: handlers behind a URL, spans at the end, a breaker that everybody sees."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli.command_line import wrasse
from exposition import complaints
from otlp import SeenSpan, decoded
from processes.daemons import Daemon, running, until

Answer = Callable[[str, bytes], tuple[int, bytes]]
QUICK = "worker: {{backoff: {{base: 10ms, max: 10ms}}, handlers: {{shop: '{url}/shop'}}}}\n"
TRACED = "observability: {{tracing: {{enabled: true, endpoint: '{url}'}}}}\n"


@contextmanager
def web(answer: Answer) -> Iterator[str]:
    """A server that answers POSTs: path and body in, status and body out."""

    class Served(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, said = answer(self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Served)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def enqueue(id: str, payload: str = "x") -> None:
    assert wrasse("jobs", "enqueue", f"--id={id}", "--kind=shop", payload).code == 0


def settled(id: str, where: str) -> dict[str, object] | None:
    found: dict[str, object] = wrasse("jobs", "show", id, "--json").json
    return found if found["state"] == where else None


def test_jobs_are_done_by_a_url_and_their_spans_are_sent_before_the_process_ends(place: Path) -> None:
    spans: list[SeenSpan] = []

    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/v1/traces":
            spans.extend(decoded(body))
            return 200, b""
        return (200, b"done " + body) if body != b"bad" else (422, b"not a picture")

    with web(answer) as url:
        (place / "wrasse.yaml").write_text((QUICK + TRACED).format(url=url))
        enqueue("good", "a")
        enqueue("bad", "bad")
        with running(place, "--role=worker") as daemon:
            done = until(lambda: settled("good", "done"), "the job done")
            dead = until(lambda: settled("bad", "dead"), "the job dead")
            metrics = daemon.get("/metrics")[1]
            daemon.signal(signal.SIGTERM)
            assert daemon.end() == 0
    assert done["result"] == "done a"
    assert str(dead["error"]).endswith("answered 422: not a picture")
    assert {(span.attributes["job_id"], span.attributes["outcome"]) for span in spans} == {
        ("good", "done"), ("bad", "failed"),
    }  # fmt: skip
    assert complaints(metrics) == []


@pytest.fixture
def down(place: Path) -> Iterator[tuple[Daemon, dict[str, bool]]]:
    """A worker whose handler has failed until its breaker opened."""
    world = {"down": True}

    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        return (503, b"") if world["down"] else (200, b"")

    breaker = "circuit_breaker: {{min_samples: 4, cooldown_period: 1s, unready_after: 1ms}}\n"
    often = "observability: {{queue_sample_interval: 50ms}}\n"
    with web(answer) as url:
        (place / "wrasse.yaml").write_text((QUICK + breaker + often).format(url=url))
        enqueue("a")
        with running(place, "--role=worker") as daemon:
            until(lambda: daemon.metrics()['circuit_breaker_trips_total{queue="low"}'] >= 1, "an opened breaker")
            yield daemon, world


def test_an_open_breaker_is_seen_in_metrics_checks_and_from_the_command_line(
    down: tuple[Daemon, dict[str, bool]],
) -> None:
    daemon, world = down
    for number in range(40):
        enqueue(f"more {number}")
    status, checks = until(lambda: unready(daemon), "a check that says so")
    assert (status, "open for more than 1ms: low" in checks) == (503, True)
    told = until(lambda: wrasse("jobs", "stats", "--json").json["breakers"], "the command line tells it")
    assert [(each["queue"], each["worker"]) for each in told] == [("low", told[0]["worker"])]
    assert daemon.said("the breaker opened: too many jobs fail, and its queue is paused")["queue"] == "low"
    world["down"] = False
    until(lambda: daemon.metrics()['circuit_breaker_state{queue="low"}'] == 0, "a closed breaker")
    until(lambda: wrasse("jobs", "stats", "--json").json["breakers"] == [], "the command line tells that")
    assert until(lambda: daemon.get("/readyz")[0] == 200, "a process that is of use")


def unready(daemon: Daemon) -> tuple[int, str] | None:
    status, text = daemon.get("/readyz")
    failed = [check["detail"] for check in json.loads(text)["checks"] if not check["ok"]]
    return (status, " ".join(failed)) if status == 503 else None
