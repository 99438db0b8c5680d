"""A process opens and creates only what its roles and calls need: nothing appears where no setting put it, a store that
is not needed may be down, and a role waits for its own store while the others work."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli.command_line import wrasse
from conformance.object_stores import BUCKET, make_bucket
from processes.daemons import running, until
from servers.nats import Nats, nats
from servers.process import free_ports
from servers.proxy import Proxy
from servers.seaweed import READER, S3 as S3Server
from servers.valkey import Valkey, valkey
from wrasse import connect

READING = (
    "jobs list", "jobs show x", "jobs peek", "jobs stats", "jobs dead", "jobs fsck", "jobs requeue x --dry-run",
    "jobs purge done --dry-run", "jobs replay --dry-run", "periodic list", "streams info", "streams read orders.>",
    "archives list", "archives read >", "archives verify", "archives replay > --into=test.x --dry-run",
    "leases list", "leases show k", "leases get k", "leases attachments k", "leases fsck", "leases messages q",
    "orphans list", "journal", "journal --since=1h", "explain x", "doctor", "sweep --list", "sweep --dry-run",
    "config show", "config check",
)  # fmt: skip
HANDLER = "async def work(job):\n    return job.id\n"


def listed(place: Path) -> list[str]:
    return sorted(str(each.relative_to(place)) for each in place.rglob("*"))


@pytest.mark.parametrize("command", READING)
def test_a_command_that_only_reads_creates_nothing(place: Path, command: str) -> None:
    answer = wrasse(*command.split())
    assert listed(place) == []
    assert "Traceback" not in answer.err


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as server:
        yield server


@pytest.mark.parametrize("command", [*READING, "jobs enqueue hello", "streams publish orders.x hello", "sweep"])
def test_on_a_server_no_command_creates_a_file(place: Path, server: Valkey, command: str) -> None:
    answer = wrasse(*command.split(), env={"REDIS_ADDR": f"127.0.0.1:{server.port}"})
    assert listed(place) == []
    assert "Traceback" not in answer.err


@pytest.fixture(scope="module")
def unused() -> Iterator[Nats]:
    with nats() as server:
        yield server


@pytest.mark.parametrize("command", [each for each in READING if each != "config check"])
def test_on_a_nats_that_was_never_used_reading_makes_no_stream_and_no_bucket(
    place: Path, unused: Nats, command: str
) -> None:
    (place / "wrasse.yaml").write_text(
        f"backends: {{streams: '{unused.url}', jobs: 'sqlite:jobs.db', objects: 'file:kept'}}\n"
        "retention: {'orders.*': 7d}\n"
    )
    answer = wrasse(*command.split())
    assert [*unused.place.rglob("streams/*")] == []
    assert listed(place) == ["wrasse.yaml"]
    assert "Traceback" not in answer.err


def test_the_doctor_finds_a_nats_that_was_never_used_well_and_one_that_is_used_takes_a_write(place: Path) -> None:
    with nats() as server:
        (place / "wrasse.yaml").write_text(f"backends: {{streams: '{server.url}', objects: 'file:kept'}}\n")
        before = wrasse("doctor")
        assert wrasse("streams", "publish", "orders.paid", "42").code == 0
        after = wrasse("doctor")
        assert (before.code, "nothing is stored there yet" in before.out) == (0, True)
        assert (after.code, "a write takes" in after.out) == (0, True)
        assert "42" in wrasse("streams", "read", "orders.paid").out


@pytest.fixture(scope="module")
def kept(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Settings with a bucket in which there is something of everything, as somebody sees it who may only read it."""
    place = tmp_path_factory.mktemp("kept")
    bucket = asyncio.run(make_bucket(s3)).bucket
    url = f"s3://{bucket}/{os.urandom(4).hex()}?endpoint={s3.endpoint}"

    def settings(key: str, secret: str) -> str:
        store = f"'{url}&access_key={key}&secret_key={secret}'"
        return (
            f"backends: {{jobs: {store}, records: {store}, objects: {store}, streams: 'sqlite:{place}/streams.db'}}\n"
            "archiver: {streams: [{stream: 'orders.*', batch_size: 1}]}\nperiodic: {tick: {every: 1h}}\n"
        )

    with chdir(place):
        Path("wrasse.yaml").write_text(settings(s3.key, s3.secret))
        assert wrasse("jobs", "enqueue", "--id=x", "hello").code == 0
        assert wrasse("jobs", "enqueue", "--delay=1h", "hello").code == 0
        assert wrasse("leases", "acquire", "k", "--ttl=1h").code == 0
        assert wrasse("streams", "publish", "orders.paid", "42").code == 0
        with running(place, "--role=archiver") as daemon:
            until(lambda: wrasse("archives", "list", "--json").json["archives"], "an archive")
            daemon.signal(signal.SIGTERM)
            assert daemon.end() == 0
        assert wrasse("sweep").code == 0
    return settings(*READER)


# The job is not dead, and the key has no state.
@pytest.mark.parametrize("command", sorted({*READING} - {"jobs requeue x --dry-run", "leases get k"}))
def test_of_a_bucket_it_is_enough_to_have_the_right_to_read(place: Path, kept: str, command: str) -> None:
    (place / "wrasse.yaml").write_text(kept)
    answer = wrasse(*command.split())
    assert (answer.code, answer.err) == (0, "")
    assert listed(place) == ["wrasse.yaml"]


def test_what_a_bucket_holds_is_shown_to_whoever_may_only_read_it(place: Path, kept: str) -> None:
    (place / "wrasse.yaml").write_text(kept)
    assert {each["id"] for each in wrasse("jobs", "list", "--json").json["jobs"]} >= {"x"}
    assert [each["key"] for each in wrasse("leases", "list", "--json").json["keys"]] == ["k"]
    assert "42" in wrasse("archives", "read", "orders.paid").out
    checks = wrasse("doctor", "--json").json["checks"]
    (probe,) = [each for each in checks if each["check"] == "probe"]
    assert (probe["state"], "can be read with these credentials, and not changed" in probe["what"]) == ("warn", True)
    refused = wrasse("jobs", "enqueue", "hello")
    assert (refused.code, "denies access" in refused.err) == (1, True)


def test_on_a_redis_no_reading_command_writes_a_key(place: Path) -> None:
    with valkey() as own, socket.create_connection(("127.0.0.1", own.port)) as asking, asking.makefile("rb") as answers:
        asking.sendall(b"XADD orders:paid 1-1 data 42\r\nXADD orders:sent 1-1 data 43\r\n")
        assert [answers.readline()[:1] for _ in range(4)] == [b"$", b"1", b"$", b"1"]
        at = {"REDIS_ADDR": f"127.0.0.1:{own.port}"}
        for command in READING:
            assert "Traceback" not in wrasse(*command.split(), env=at).err
        asking.sendall(b"DBSIZE\r\n")
        assert answers.readline() == b":2\r\n"
        assert wrasse("streams", "info", "--json", env=at).out.count("orders.") == 2
        assert "43" in wrasse("streams", "read", "orders.sent", env=at).out


@pytest.mark.parametrize("command", ["plan", "plan nothing", "arm nothing", "disarm nothing", "undo nothing"])
def test_a_command_about_orphans_that_names_no_root_creates_nothing(place: Path, command: str) -> None:
    assert wrasse("orphans", *command.split()).code in (2, 3)
    assert listed(place) == []


async def test_a_program_that_enqueues_on_redis_leaves_no_database_behind(place: Path, server: Valkey) -> None:
    async with connect(f"redis://127.0.0.1:{server.port}/0") as app:
        await app.jobs.enqueue("resize", {"path": "a.png"})
    assert listed(place) == []


def test_a_job_is_put_while_a_store_that_it_does_not_need_is_down(place: Path, server: Valkey) -> None:
    (port,) = free_ports(1)
    (place / "wrasse.yaml").write_text(_orphans(server, port))
    before = listed(place)
    answer = wrasse("jobs", "enqueue", "hello")
    assert (answer.code, answer.err) == (0, "")
    assert wrasse("jobs", "stats").code == 0
    assert listed(place) == before


def test_the_files_of_a_scan_for_orphans_are_beside_its_sightings(place: Path, server: Valkey) -> None:
    (place / "kept").mkdir()
    with sqlite3.connect(place / "kept" / "app.db") as database:
        database.execute("CREATE TABLE files (key TEXT)")
    settings = {
        "redis": {"addr": f"127.0.0.1:{server.port}"},
        "backends": {"objects": f"file://{place}/kept/objects"},
        "orphans": {"files": {"template": "files/{file*}", "unit": "object", "database": "sqlite:kept/app.db",
                              "sightings": "sqlite:kept/sightings.db", "queries": ["SELECT key FROM files"]}},
    }  # fmt: skip
    (place / "wrasse.yaml").write_text(json.dumps(settings))
    (place / "kept" / "objects").mkdir()
    assert wrasse("orphans", "plan", "files").code == 0
    assert wrasse("doctor").code == 0
    assert (place / "kept" / "wrasse-spool").is_dir()
    assert sorted(os.listdir(place)) == ["kept", "wrasse.yaml"]


def test_archives_are_listed_and_read_while_the_streams_are_down(place: Path) -> None:
    (port,) = free_ports(1)
    (place / "wrasse.yaml").write_text(
        f"backends: {{streams: 'redis://127.0.0.1:{port}/0', objects: 'file:kept'}}\n"
        "archival: [{stream: 'orders.*'}]\n"
    )
    assert [wrasse("archives", *words).code for words in (["list"], ["read", ">"])] == [0, 0]
    (place / "wrasse.yaml").write_text("backends: {records: 'file:kept'}\n")
    assert wrasse("archives", "list").code == 0, "no backend has streams here, and none is needed"
    assert listed(place) == ["wrasse.yaml"]


def test_hosts_that_share_streams_sweep_each_its_own_jobs(
    place: Path, server: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    for host in ("one", "two"):
        (place / host).mkdir()
        monkeypatch.chdir(place / host)
        Path("wrasse.yaml").write_text(
            f"backends: {{jobs: 'sqlite:jobs.db', streams: 'redis://127.0.0.1:{server.port}/0'}}\n"
        )
        assert wrasse("jobs", "enqueue", "x").code == 0
        ran.append(_said_of("stuck_jobs"))
        assert wrasse("sweep", "stuck-jobs").code == 0
        ran.append(_said_of("stuck_jobs"))
    assert [text.startswith("stuck_jobs has never run") for text in ran] == [True, False, True, False]


def test_hosts_that_share_streams_run_each_its_own_periodic_jobs(
    place: Path, server: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in ("one", "two"):
        (place / host).mkdir()
        monkeypatch.chdir(place / host)
        (place / host / "shop.py").write_text(HANDLER)
        Path("wrasse.yaml").write_text(
            f"backends: {{jobs: 'sqlite:jobs.db', streams: 'redis://127.0.0.1:{server.port}/0'}}\n"
            "periodic: {tick: {every: 1s}}\n"
        )
    with (
        running(place / "one", "--role=worker", "--handler=shop:work"),
        running(place / "two", "--role=worker", "--handler=shop:work"),
    ):
        for host in ("one", "two"):
            monkeypatch.chdir(place / host)
            until(lambda: wrasse("periodic", "list", "--json").json["periodic"][0]["last"], f"a run on host {host}")
            until(lambda: wrasse("jobs", "list", "--json").json["jobs"], f"a job on host {host}")


def test_leases_at_a_server_are_swept_there_and_nothing_is_made_here(place: Path, server: Valkey) -> None:
    (place / "wrasse.yaml").write_text(
        "leases: {server: 'http://127.0.0.1:1'}\n"
        f"redis: {{addr: '127.0.0.1:{server.port}'}}\nbackends: {{records: 'sqlite:own.db'}}\n"
    )
    assert wrasse("sweep").code == 0
    alone = wrasse("sweep", "expired-leases")
    assert (alone.code, "are swept by http://127.0.0.1:1" in alone.err) == (2, True)
    assert listed(place) == ["wrasse.yaml"]


def test_the_line_that_says_what_started_names_only_sweeps_that_run_there(place: Path) -> None:
    (place / "wrasse.yaml").write_text("leases: {server: 'http://127.0.0.1:1'}\n")
    with running(place, "--role=sweeper") as daemon:
        assert daemon.said("started")["sweeps"] == ["stuck_jobs", "finished_jobs", "dead_consumers"]


def test_a_process_that_serves_leases_while_its_settings_name_another_server_is_refused(place: Path) -> None:
    (place / "wrasse.yaml").write_text("leases: {server: 'http://127.0.0.1:1', listen: '127.0.0.1:0'}\n")
    for role in ("leases", "all"):
        answer = wrasse("run", f"--role={role}")
        assert (answer.code, "would serve others, from its own store" in answer.err) == (2, True)
    assert listed(place) == ["wrasse.yaml"]


@pytest.mark.parametrize(
    "command",
    ["jobs enqueue hello", "jobs list", "periodic list", "explain x", "streams publish a.b c", "streams info",
     "leases acquire k", "leases list", "journal", "sweep", "sweep --dry-run", "archives list"],
)  # fmt: skip
def test_a_command_on_memory_is_refused_for_no_other_process_sees_it(place: Path, command: str) -> None:
    answer = wrasse(*command.split(), "--set=backends.jobs=memory:")
    assert answer.code == 2
    assert "in memory: (" in answer.err
    assert "which is private to each process" in answer.err
    assert wrasse("doctor", "--set=backends.jobs=memory:").code == 0


def _said_of(sweep: str) -> str:
    """What the doctor says of a sweep."""
    checks = wrasse("doctor", "--json").json["checks"]
    return next(each["what"] for each in checks if each["check"] == "sweeps" and each["what"].startswith(f"{sweep} "))


def test_roles_work_while_another_waits_for_its_store(
    place: Path, server: Valkey, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(make_bucket(s3))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret)
    (place / "shop.py").write_text(HANDLER)
    with sqlite3.connect(place / "app.db") as database:
        database.execute("CREATE TABLE files (key TEXT)")
    with refusing(int(s3.endpoint.rpartition(":")[2])) as proxy:
        (place / "wrasse.yaml").write_text(_orphans(server, proxy.port, archiver=True))
        assert wrasse("streams", "publish", "orders.paid", "42").code == 0
        assert wrasse("jobs", "enqueue", "--id=first", "x").code == 0
        with running(place, "--role=all", "--handler=shop:work") as daemon:
            until(lambda: _place("first") == "done", "a job done while S3 is down")
            assert str(proxy.port) in daemon.said("waiting for the backend")["error"]
            code, text = daemon.get("/readyz")
            assert (code, "archiver" in text, str(proxy.port) in text) == (503, True, True)
            proxy.refuse = False
            until(lambda: wrasse("archives", "list", "--json").json["archives"], "an archive once S3 is up")
            until(lambda: daemon.get("/readyz")[0] == 200, "nothing is waited for")
            daemon.signal(signal.SIGTERM)
            assert daemon.end() == 0


@pytest.mark.parametrize("records", ["sqlite:other.db", "file:others"])
def test_sweeps_of_a_file_wait_while_the_store_of_their_engine_is_down(place: Path, records: str) -> None:
    with valkey() as away:
        away.kill()
        jobs = f"redis://127.0.0.1:{away.port}/0"
        (place / "wrasse.yaml").write_text(
            f"backends: {{jobs: '{jobs}', records: '{records}', streams: 'sqlite:other.db'}}\n"
            "leases: {listen: '127.0.0.1:0'}\n"
        )
        with running(place, "--role=leases,sweeper") as daemon:
            until(lambda: "sweep streams" in daemon.get("/readyz")[1], "sweeps that wait for their engine")
            away.start()
            until(lambda: daemon.get("/readyz")[0] == 200, "sweeps that run once the server is up")
            daemon.signal(signal.SIGTERM)
            assert daemon.end() == 0


class Failing(BaseHTTPRequestHandler):
    """An S3 that is up and of no use."""

    def do_GET(self) -> None:
        self.send_error(500)

    do_PUT = do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.mark.parametrize("answers", [False, True])
def test_a_process_whose_every_store_is_down_ends_when_it_is_asked_to(place: Path, answers: bool) -> None:
    (port,) = free_ports(1)
    url = f"s3://bucket/p?endpoint=http://127.0.0.1:{port}&access_key=k&secret_key=s"
    (place / "wrasse.yaml").write_text(f"backends: {{jobs: '{url}'}}\n")
    (place / "shop.py").write_text(HANDLER)
    with failing(port) if answers else nullcontext(), running(place, "--role=worker", "--handler=shop:work") as daemon:
        assert str(port) in daemon.said("waiting for the backend")["error"]
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0


@contextmanager
def failing(port: int) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", port), Failing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def _orphans(server: Valkey, port: int, *, archiver: bool = False) -> str:
    objects = f"s3://{BUCKET}/{os.urandom(4).hex()}?endpoint=http://127.0.0.1:{port}"
    settings: dict[str, object] = {
        "redis": {"addr": f"127.0.0.1:{server.port}"},
        "backends": {"records": f"redis://127.0.0.1:{server.port}/0", "streams": f"redis://127.0.0.1:{server.port}/0",
                     "objects": objects},
        "orphans": {"files": {"template": "files/{file*}", "unit": "object", "database": "sqlite:app.db",
                              "sightings": "sqlite:sightings.db", "queries": ["SELECT key FROM files"]}},
    }  # fmt: skip
    if archiver:
        settings["archiver"] = {"streams": [{"stream": "orders.*", "batch_size": 1}]}
    return json.dumps(settings)


def _place(id: str) -> str:
    return str(wrasse("jobs", "show", id, "--json").json["state"])


@contextmanager
def refusing(target: int) -> Iterator[Proxy]:
    """A way to the server at `target` that refuses connections until it is told otherwise."""
    proxy, stop, started = Proxy(target), asyncio.Event(), threading.Event()
    proxy.refuse = True
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        await proxy.start()
        started.set()
        await stop.wait()
        await proxy.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        started.wait()
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
