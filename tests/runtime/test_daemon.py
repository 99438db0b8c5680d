"""wrasse run as a process: it starts or says why not, works, is watched, and stops when it is told."""

from __future__ import annotations

import json
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cli.command_line import typed, wrasse
from processes.daemons import running, until

HANDLERS = """
import asyncio, time

async def work(job):
    if job.kind == "fail":
        raise ValueError("secret of " + job.payload.decode())
    if job.kind == "slow":
        await asyncio.sleep(float(job.payload))
    if job.kind == "deaf":
        open("began", "w").close()
        time.sleep(float(job.payload))
    return {"attempt": job.attempt}

def plain(job):
    return job.payload.decode()
"""
QUICK = "worker: {backoff: {base: 10ms, max: 10ms}}\n"
PAYLOAD, PATH = "PLANTED-7f3a", "/home/planted/list.csv"


@pytest.fixture
def shop(place: Path) -> Path:
    """A directory with handlers."""
    (place / "shop.py").write_text(HANDLERS)
    (place / "wrasse.yaml").write_text(QUICK)
    return place


def enqueue(id: str, kind: str = "", payload: str = "x", *args: str) -> None:
    assert wrasse("jobs", "enqueue", f"--id={id}", f"--kind={kind}", payload, *args).code == 0


def job(id: str) -> dict[str, object]:
    found: dict[str, object] = wrasse("jobs", "show", id, "--json").json
    return found


def in_place(id: str, place: str) -> dict[str, object] | None:
    found = job(id)
    return found if found["state"] == place else None


def test_a_worker_runs_jobs_and_stops_cleanly(shop: Path) -> None:
    enqueue("a")
    with running(shop, "--handler=shop:work") as daemon:
        until(lambda: in_place("a", "done"), "the job done")
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0
        assert [line["msg"] for line in daemon.lines if line["msg"] in ("started", "stopping", "stopped")] == [
            "started", "stopping", "stopped",
        ]  # fmt: skip
    assert json.loads(str(job("a")["result"])) == {"attempt": 1}


def test_a_stop_lets_a_running_handler_finish_within_its_grace(shop: Path) -> None:
    with running(shop, "--handler=shop:work") as daemon:
        enqueue("slow", "slow", "1.5")
        until(lambda: in_place("slow", "running"), "the job taken")
        daemon.signal(signal.SIGINT)
        assert daemon.end() == 0
    assert job("slow")["state"] == "done"


def test_a_stop_gives_back_what_does_not_finish_in_time_free_of_charge(shop: Path) -> None:
    with running(shop, "--handler=shop:work", "--set=worker.grace=200ms") as daemon:
        enqueue("slow", "slow", "60")
        until(lambda: in_place("slow", "running"), "the job taken")
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0
    left = job("slow")
    assert (left["state"], left["failures"], left["interruptions"]) == ("ready", 0, 1)


def test_a_second_signal_ends_the_process_at_once_with_1(shop: Path) -> None:
    with running(shop, "--handler=shop:work") as daemon:
        enqueue("slow", "slow", "60")
        until(lambda: in_place("slow", "running"), "the job taken")
        daemon.signal(signal.SIGTERM)
        daemon.said("stopping")
        # One that comes with the first is its echo; sooner or later one does not.
        until(lambda: daemon.process.poll() is not None or daemon.signal(signal.SIGTERM), "its end")
        assert daemon.end() == 1


def test_two_signals_in_one_breath_are_one(shop: Path) -> None:
    with running(shop, "--handler=shop:work") as daemon:
        enqueue("slow", "slow", "1.5")
        until(lambda: in_place("slow", "running"), "the job taken")
        daemon.signal(signal.SIGTERM)
        daemon.signal(signal.SIGINT)
        assert daemon.end() == 0
    assert job("slow")["state"] == "done"


def test_a_second_signal_is_heard_while_a_handler_blocks_the_loop(shop: Path) -> None:
    with running(shop, "--handler=shop:work") as daemon:
        enqueue("deaf", "deaf", "60")
        until((shop / "began").exists, "the handler that blocks")
        daemon.signal(signal.SIGTERM)
        # Python runs its handlers between two steps; the first must be taken in before the second counts.
        until(lambda: daemon.process.poll() is not None or daemon.signal(signal.SIGTERM), "its end")
        assert daemon.end() == 1


def test_the_first_line_names_the_queues_of_tasks_too(shop: Path) -> None:
    with running(shop, "--handler=shop:work", "--set=task_types={mail: {workers: 3}}") as daemon:
        line = daemon.said("started")
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0
    assert (line["queues"], line["slots"]) == (["high", "low", "mail"], 19)


def test_a_busy_port_is_an_error_at_the_start(shop: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = typed("run", "--handler=shop:work", f"--listen={address}", cwd=shop)
        metrics = typed("run", "--listen=", f"--set=observability.metrics_port={address.split(':')[1]}", cwd=shop)
    assert answer.code == metrics.code == 2
    assert f"error: cannot listen on {address}: Address already in use" in answer.err
    assert "cannot listen" in metrics.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--handler=shop:wrok",), "there is no handler 'wrok' in shop"),
        (("--handler=shpo:work",), "'shop'"),
        (("--handler=shop",), "not of the form module:name"),
        (("--handler=shop:HANDLERS",), "HANDLERS"),
        (("--handler=broken:work",), "cannot be imported"),
        (("--handler=shop:work", "--exec=true"), "exclude each other"),
        (("--exec='",), "quotes"),
        (("--role=worker",), "a worker needs a handler"),
        (("--role=workr",), "write 'worker'"),
        (("--role=,",), "no role"),
        (("--concurrency=0",), "worker.count is 0"),
        (("--set=worker.handlers={a: 'shop:nope'}",), "'nope'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_run_is_said_at_the_start(shop: Path, args: tuple[str, ...], words: str) -> None:
    (shop / "broken.py").write_text("1 / 0")
    answer = wrasse("run", *args)
    assert answer.code == 2
    assert words in answer.err
    assert "do: " in answer.err


def test_without_a_handler_only_sweeps_run_and_it_says_so(shop: Path) -> None:
    with running(shop) as daemon:
        warning = daemon.said("no handler is set, so jobs are not run: only sweeps are")
        assert (warning["level"], daemon.said("started")["slots"]) == ("warn", 0)


def test_kinds_have_handlers_of_their_own_and_a_command_takes_the_rest(shop: Path) -> None:
    enqueue("named", "plain", "hello")
    enqueue("rest", "other", "to stdin")
    handlers = "--set=worker.handlers={plain: 'shop:plain'}"
    with running(shop, handlers, "--exec=sh -c 'cat > \"$1\".txt' sh {id}") as daemon:
        until(lambda: in_place("named", "done") and in_place("rest", "done"), "both done")
        daemon.signal()
        assert daemon.end() == 0
    assert job("named")["result"] == '"hello"'
    assert (shop / "rest.txt").read_text() == "to stdin"


def test_an_app_may_be_named_as_the_handler(place: Path) -> None:
    (place / "shop.py").write_text(
        "import wrasse\napp = wrasse.connect()\n@app.handler('greet')\nasync def greet(job): return 'hello'\n"
    )
    enqueue("a", "greet")
    with running(place, "--handler=shop:app"):
        until(lambda: in_place("a", "done"), "the job done")
    assert job("a")["result"] == '"hello"'


def test_handlers_of_messages_run_beside_those_of_jobs(place: Path) -> None:
    (place / "shop.py").write_text(
        "import pathlib\nimport wrasse\napp = wrasse.connect()\n"
        "@app.on('orders.*.paid', start='first')\n"
        "async def paid(message): pathlib.Path('paid').write_bytes(message.payload)\n"
    )
    assert wrasse("streams", "publish", "orders.eu.paid", "order 42").code == 0
    with running(place, "--role=worker", "--handler=shop:app"):
        until(lambda: (place / "paid").exists() and (place / "paid").read_text(), "the message handled")
    assert (place / "paid").read_text() == "order 42"


def test_counters_match_what_happened(shop: Path) -> None:
    for n in range(9):
        enqueue(f"good-{n}")
    enqueue("bad", "fail")
    with running(shop, "--handler=shop:work") as daemon:
        until(lambda: in_place("bad", "dead"), "the bad job dead")
        until(lambda: daemon.metrics().get('jobs_dead_letter_total{queue="low"}'), "its burial counted")
        metrics = daemon.metrics()
    low = '{queue="low"}'
    names = ("consumed", "completed", "retried", "dead_letter")
    counted = {name: metrics.get(f"jobs_{name}_total{low}", 0) for name in names}
    assert counted == {"consumed": 13, "completed": 9, "retried": 3, "dead_letter": 1}
    assert metrics['jobs_failed_total{queue="low",reason="failed"}'] == 4
    assert metrics[f"job_processing_duration_seconds_count{low}"] == 13


def test_probes_page_and_json_answer_and_the_page_only_this_machine(shop: Path) -> None:
    enqueue("bad", "fail", PAYLOAD)
    with running(shop, "--handler=shop:work") as daemon:
        until(lambda: in_place("bad", "dead"), "the bad job dead")
        until(lambda: daemon.get("/readyz")[0] == 200, "it is ready")
        assert daemon.get("/healthz") == (200, "ok\n")
        status, page = daemon.get("/")
        assert (status, "stuck_jobs" in page, "finished_jobs" in page, "<td" in page) == (200, True, True, True)
        assert json.loads(daemon.get("/events?once")[1])["main"].startswith("<section")
        shown = json.loads(daemon.get("/status.json")[1])
        assert (shown["roles"], shown["queues"][0]["queue"]) == (["all"], "low")
        assert [daemon.get(path, host="evil.example")[0] for path in ("/", "/status.json", "/events")] == [403] * 3
        assert daemon.get("/nowhere")[0] == 404
        assert PAYLOAD not in page + json.dumps(shown) + daemon.get("/metrics")[1]


def test_a_process_whose_database_is_gone_is_alive_but_not_ready_until_it_is_back(shop: Path) -> None:
    with running(shop, "--handler=shop:work", "--set=worker.heartbeat_ttl=5s") as daemon:
        until(lambda: daemon.get("/readyz")[0] == 200, "it is ready")
        (shop / "wrasse.db").rename(shop / "away.db")
        until(lambda: daemon.get("/readyz")[0] == 503, "it is not")
        checks = json.loads(daemon.get("/readyz")[1])["checks"]
        assert {"name": "worker", "ok": False, "detail": "no heartbeats go out, so it claims nothing"} in checks
        assert daemon.get("/healthz")[0] == 200
        (shop / "away.db").rename(shop / "wrasse.db")
        until(lambda: daemon.get("/readyz")[0] == 200, "it is ready again, without a restart")


def test_metrics_may_have_a_port_of_their_own_without_the_page(shop: Path) -> None:
    with running(shop, "--set=http.metrics_listen=127.0.0.1:0") as daemon:
        own = daemon.said("started")["address"][1]
        with urllib.request.urlopen(f"http://{own}/metrics", timeout=30) as answer:
            assert b"wrasse_build_info" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(f"http://{own}/", timeout=30)
        refused.value.close()


def test_beyond_loopback_only_metrics_and_probes_are_served(shop: Path) -> None:
    with running(shop, "--listen=0.0.0.0:0", env={"WORKER_COUNT": "2"}) as daemon:
        found = {path: daemon.get(path)[0] for path in ("/", "/status.json", "/metrics", "/healthz")}
        assert found == {"/": 404, "/status.json": 404, "/metrics": 200, "/healthz": 200}
        assert daemon.said("set")["source"] == "environment variable WORKER_COUNT"


def test_payloads_secrets_and_paths_never_reach_the_log(shop: Path) -> None:
    enqueue("bad", "fail", f"{PAYLOAD} {PATH}")
    enqueue(PATH, "fail", PAYLOAD)
    (shop / "noisy.py").write_text(
        "import logging\nfrom shop import work as inner\n"
        "async def work(job):\n"
        "    logging.getLogger('noisy').error('got %s', job.payload)\n"
        "    return await inner(job)\n"
    )
    env = {"REDIS_ADDR": "h:1", "REDIS_PASSWORD": "PLANTED-secret", "WRASSE_BACKENDS_JOBS": "sqlite:wrasse.db"}
    options = ("--handler=noisy:work", "--set=observability.log_level=debug")
    with running(shop, *options) as daemon:
        until(lambda: in_place("bad", "dead") and in_place(PATH, "dead"), "both dead")
        daemon.signal()
        assert daemon.end() == 0
        text = daemon.err
        assert all({"level", "ts", "msg"} <= set(line) for line in daemon.lines)
    assert "got %s" in text, "the handler's own warning is heard, without its data"
    conflict = typed("run", cwd=shop, env=env).err
    assert not [planted for planted in (PAYLOAD, PATH, "PLANTED") if planted in text + conflict]


def test_on_a_database_that_is_none_it_ends_with_one_clear_error(shop: Path) -> None:
    (shop / "wrasse.db").write_bytes(b"no database at all\n" * 300)
    answer = typed("run", "--handler=shop:work", "--listen=", cwd=shop)
    assert answer.code == 1
    assert "is not a database" in answer.err
    assert "Traceback" not in answer.err


def test_two_processes_share_the_jobs(shop: Path) -> None:
    one_at_a_time = ("--handler=shop:work", "--concurrency=1")
    with running(shop, *one_at_a_time), running(shop, *one_at_a_time):
        until(lambda: len(wrasse("jobs", "stats", "--json").json["workers"]) == 2, "two workers beating")
        for n in range(10):
            enqueue(f"j-{n}", "slow", "0.2")
        until(lambda: all(in_place(f"j-{n}", "done") for n in range(10)), "all done")
    workers = {job(f"j-{n}")["worker"] for n in range(10)}
    attempts = [job(f"j-{n}")["attempts"] for n in range(10)]
    assert (len(workers), attempts) == (2, [1] * 10)
