"""Every key, flag and variable of the design documents, set to a value that is not its default, has an effect: from the
file and from the environment. docs/design/seeds.md names these tests beside those of what uses the key.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
import redis
import yaml
from click.testing import CliRunner

from cli.command_line import wrasse
from otlp import SeenSpan, decoded
from processes.daemons import running, until
from runtime.test_daemon_watched import QUICK, web
from servers.process import free_ports
from servers.valkey import Valkey, valkey
from wire.conftest import FIXTURES
from wrasse import App
from wrasse.backends.memory.connect import Memory
from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.options import RedisOptions
from wrasse.breaker import BreakerSettings
from wrasse.cli.run import FLAGS, lease_flags
from wrasse.clock import SystemClock
from wrasse.config.load import Config, load
from wrasse.config.orphans import root_of
from wrasse.config.settings import LagThreshold, Settings
from wrasse.engine.guard import PlainLockGuard, Traffic
from wrasse.errors import ConfigError
from wrasse.jobs.handlers import Registry
from wrasse.jobs.tally import Tally
from wrasse.jobs.worker.running_job import RunningJob
from wrasse.leases.transactions import manager
from wrasse.runtime.backends import Stores
from wrasse.runtime.engine import build_lease_sweep, build_orphans, build_task_sweep, retention, stray_search
from wrasse.runtime.open_ports import OpenPorts, open_homes
from wrasse.runtime.stream_tasks import task_home
from wrasse.runtime.worker import breaker_settings, build_worker
from wrasse.sweeps.aged_records import AgedRecords

FORMS = ("file", "environment")
SEEDS = yaml.safe_load((FIXTURES / "seeds.yaml").read_text())
MEMORY = {f"backends.{port}": "memory:" for port in ("jobs", "records", "streams")}
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)

pytestmark = pytest.mark.usefixtures("place")


def said(form: str, keys: Mapping[str, object]) -> dict[str, str]:
    """Writes the keys into wrasse.yaml, or gives the variables of the documents that say the same."""
    if form == "environment":
        return {path.replace(".", "_").upper(): json.dumps(value).strip('"') for path, value in keys.items()}
    tree: dict[str, Any] = {}
    for path, value in keys.items():
        *sections, name = path.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    Path("wrasse.yaml").write_text(yaml.safe_dump(tree))
    return {}


def loaded(form: str, keys: Mapping[str, object], **overrides: str) -> Config:
    return load(environ=said(form, keys), overrides={**overrides})


# 002: job queue


@pytest.mark.parametrize("form", FORMS)
def test_addr_username_password_and_db_say_where_jobs_go(form: str) -> None:
    with valkey() as server, redis.Redis(port=server.port) as first:
        first.acl_setuser(
            "someone", enabled=True, passwords=["+hidden"], keys=["*"], channels=["*"], categories=["+@all"]
        )
        first.acl_setuser("default", enabled=False)
        keys = {"addr": f"127.0.0.1:{server.port}", "username": "someone", "password": "hidden", "db": 3}
        env = said(form, {f"redis.{name}": value for name, value in keys.items()})
        assert wrasse("jobs", "enqueue", "x", env=env).code == 0
        with redis.Redis(port=server.port, username="someone", password="hidden", db=3) as own:
            assert own.llen("jobqueue:low_priority") == 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("key", "value", "option", "meant"),
    [
        ("pool_size_multiplier", 1_000, "pool_size", None),
        ("min_idle_conns", 2, "min_idle", 2),
        ("dial_timeout", "4s", "dial_timeout", timedelta(seconds=4)),
        ("read_timeout", "9s", "read_timeout", timedelta(seconds=9)),
        ("write_timeout", "8s", "write_timeout", timedelta(seconds=8)),
        ("max_retries", 5, "max_retries", 5),
    ],
)
def test_a_key_of_the_redis_section_reaches_the_client(
    form: str, key: str, value: object, option: str, meant: object
) -> None:
    keys = {"redis.addr": "localhost:6390", f"redis.{key}": value}
    found = getattr(RedisOptions.of(loaded(form, keys).homes.jobs), option)
    assert found == meant if meant is not None else found % 1_000 == 0


@pytest.mark.parametrize("idle", [0, 2])
async def test_as_many_idle_connections_stay_open_as_the_file_says(idle: int, redis_server: Valkey) -> None:
    keys = {"redis.addr": f"127.0.0.1:{redis_server.port}", "redis.min_idle_conns": idle}
    with redis.Redis(port=redis_server.port) as other:
        before = len(other.client_list())
        link = await OwnRedisClient.open(RedisOptions.of(loaded("file", keys).homes.jobs))
        try:
            await asyncio.gather(*(link.block("BLPOP", f"idle{number}", 0.05, timeout=0.05) for number in range(4)))
            async with asyncio.timeout(30):
                while len(other.client_list()) - before != 1 + idle:  # noqa: ASYNC110  # on a server
                    await asyncio.sleep(0.01)
        finally:
            await link.close()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("key", "value", "setting", "meant"),
    [
        ("count", 5, "concurrency", 5),
        ("heartbeat_ttl", "20s", "heartbeat_timeout", timedelta(seconds=20)),
        ("max_retries", 2, "retry.failures_max", 2),
        ("backoff.base", "1s", "retry.base", timedelta(seconds=1)),
        ("backoff.max", "20s", "retry.max", timedelta(seconds=20)),
        ("priorities", ["low", "high"], "queues", ("low", "high")),
        ("queues", {"high": "a", "low": "b"}, "queues", ("a", "b")),
        ("brpoplpush_timeout", "250ms", "wait", timedelta(milliseconds=250)),
    ],
)
async def test_a_key_of_the_worker_section_reaches_the_worker(
    form: str, key: str, value: object, setting: str, meant: object
) -> None:
    config = loaded(form, {f"worker.{key}": value}, **MEMORY)
    async with Stores(SystemClock()) as stores:
        opened = await open_homes(config, stores, "jobs")
        found: Any = build_worker(config, opened, SystemClock(), Registry(), Tally()).worker.settings
    for name in setting.split("."):
        found = getattr(found, name)
    assert found == meant


@pytest.fixture
def server() -> Iterator[tuple[Valkey, redis.Redis]]:
    with valkey() as own, redis.Redis(port=own.port, decode_responses=True) as client:
        yield own, client


@pytest.mark.parametrize("form", FORMS)
async def test_lists_queues_and_heartbeats_have_the_names_of_the_worker_section(
    form: str, server: tuple[Valkey, redis.Redis]
) -> None:
    own, client = server
    names = {
        "queues": {"high": "jobqueue:urgent", "low": "jobqueue:usual"},
        "processing_list_pattern": "jobqueue:worker:%s:doing",
        "heartbeat_key_pattern": "jobqueue:alive:%s",
        "completed_list": "jobqueue:finished_list",
        "dead_letter_list": "jobqueue:dlq",
        "max_retries": 0,
    }
    keys = {"redis.addr": f"127.0.0.1:{own.port}"} | {f"worker.{name}": value for name, value in names.items()}
    app, seen = App(loaded(form, keys)), list[int]()

    @app.handler("x")
    async def work(job: RunningJob) -> None:
        seen.append(sum(map(client.llen, client.scan_iter("jobqueue:worker:*:doing"))))
        seen.append(len([*client.scan_iter("jobqueue:alive:*")]))
        if job.id == "bad":
            raise ValueError

    async with app:
        for id, priority in (("good", "low"), ("bad", "high")):
            await app.jobs.enqueue("x", b"x", id=id, priority=priority)
        waiting = client.llen("jobqueue:urgent"), client.llen("jobqueue:usual")
        async with asyncio.TaskGroup() as group:
            worker = app.worker(signals=False)
            working = group.create_task(worker.run())
            async with asyncio.timeout(60):
                while client.llen("jobqueue:finished_list") + client.llen("jobqueue:dlq") < 2:  # noqa: ASYNC110  # on a server
                    await asyncio.sleep(0.01)
            worker.stop("5s")
            await working
    assert (waiting, client.llen("jobqueue:finished_list"), client.llen("jobqueue:dlq")) == ((1, 1), 1, 1)
    assert (min(seen[::2]) >= 1, set(seen[1::2])) == (True, {1})


@pytest.mark.parametrize("form", FORMS)
def test_the_producer_section_says_which_files_become_which_jobs(
    form: str, server: tuple[Valkey, redis.Redis], place: Path
) -> None:
    own, client = server
    (place / "inbox").mkdir()
    for name in ("a.txt", "b.doc", "c.pdf", "draft.txt"):
        (place / "inbox" / name).touch()
    queues = {name: f"jobqueue:{name}" for name in ("high", "mid", "low")}
    keys = {
        "redis.addr": f"127.0.0.1:{own.port}", "worker.priorities": [*queues], "worker.queues": queues,
        "producer.scan_dir": "inbox", "producer.include_globs": ["**/*.txt", "**/*.doc"],
        "producer.exclude_globs": ["**/draft*"], "producer.default_priority": "mid",
        "producer.high_priority_exts": [".txt"], "producer.rate_limit_per_sec": 1,
        "producer.rate_limit_key": "jobqueue:limit",
    }  # fmt: skip
    begun = time.monotonic()
    assert wrasse("run", "--role=producer", env=said(form, keys)).code == 0
    assert client.exists("jobqueue:limit"), "the second of two files took the budget of this second"
    assert time.monotonic() - begun > 0.5, "the rate is one a second"
    found = {name: [Path(json.loads(raw)["filepath"]).name for raw in client.lrange(key, 0, -1)]
             for name, key in queues.items()}  # fmt: skip
    assert found == {"high": ["a.txt"], "mid": ["b.doc"], "low": []}


@pytest.mark.parametrize("form", FORMS)
def test_a_key_of_the_breaker_section_reaches_the_breaker(form: str) -> None:
    keys = {"failure_threshold": 0.25, "window": "2m", "cooldown_period": "10s", "min_samples": 5}
    found, default = (
        breaker_settings(settings.circuit_breaker)
        for settings in (
            loaded(form, {f"circuit_breaker.{name}": own for name, own in keys.items()}).settings,
            Settings(),
        )
    )
    assert found == BreakerSettings(0.25, 2 * MINUTE, timedelta(seconds=10), 5)
    assert default == BreakerSettings(0.5, MINUTE, timedelta(seconds=30), 20)


@pytest.mark.parametrize("form", FORMS)
def test_the_keys_of_the_observability_section_have_an_effect(form: str, place: Path) -> None:
    (port,), spans = free_ports(1), list[SeenSpan]()

    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/v1/traces":
            spans.extend(decoded(body))
        return 200, b""

    with web(answer) as url:
        keys = {"metrics_port": port, "log_level": "error", "tracing.enabled": True, "tracing.endpoint": url}
        env = said(form, {f"observability.{name}": value for name, value in keys.items()})
        with (place / "wrasse.yaml").open("a") as file:
            file.write(QUICK.format(url=url))
        assert wrasse("jobs", "enqueue", "--id=a", "--kind=shop", "x").code == 0
        with running(place, "--role=worker", env=env) as daemon:
            until(lambda: wrasse("jobs", "show", "a", "--json").json["state"] == "done", "a job that is done")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as metrics:
                assert b"wrasse_build_info" in metrics.read()
            daemon.signal()
            assert daemon.end() == 0
            assert daemon.err == "", "nothing was an error, so that there is no line"
    assert [span.attributes["job_id"] for span in spans if "job_id" in span.attributes] == ["a"]


@pytest.mark.parametrize("form", FORMS)
def test_the_interval_of_the_samples_is_that_of_the_file(form: str, place: Path) -> None:
    env = said(form, {"observability.queue_sample_interval": "1h"})
    length = 'queue_length{queue="low"}'
    with running(place, "--role=sweeper", env=env) as rare:
        before = rare.metrics().get(length, 0)
        often = "--set=observability.queue_sample_interval=10ms"
        with running(place, "--role=sweeper", often) as daemon:
            assert wrasse("jobs", "enqueue", "--id=a", "--kind=shop", "x").code == 0
            until(lambda: daemon.metrics().get(length) == 1, "a job that waits")
        assert (before, rare.metrics().get(length, 0)) == (0, 0)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"worker.count": 0}, "worker.count"),
        ({"worker.priorities": []}, "worker.priorities"),
        ({"worker.priorities": ["urgent"]}, "worker.queues"),
        ({"worker.heartbeat_ttl": "4s"}, "worker.heartbeat_ttl"),
        ({"worker.heartbeat_ttl": "10s", "worker.brpoplpush_timeout": "6s"}, "worker.brpoplpush_timeout"),
        ({"producer.rate_limit_per_sec": -1}, "producer.rate_limit_per_sec"),
    ],
)
def test_a_value_that_the_document_forbids_is_refused_by_its_name(keys: Mapping[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        loaded("file", keys)


def test_the_knobs_of_the_reaper_have_the_documents_defaults() -> None:
    own = Settings().reaper
    assert (own.scan_count, own.pass_budget, own.page_jitter, own.jitter) == (100, timedelta(seconds=0.2), 0.5, 0.25)


def test_the_knobs_of_the_reaper_reach_the_search_for_strays() -> None:
    knobs = {"reaper.scan_count": 7, "reaper.pass_budget": "3s", "reaper.page_delay": "40ms", "reaper.page_jitter": 0.9}
    strays = Memory(SystemClock()).strays
    search = stray_search(loaded("file", knobs).settings.reaper, strays, SystemClock())
    assert (search.limit, search.runtime_max, search.pause, search.pause_jitter) == (
        7, timedelta(seconds=3), timedelta(milliseconds=40), 0.9,
    )  # fmt: skip


# 000: sweeper and archiver


@pytest.mark.parametrize("name", ["interval", "lock_ttl", "stuck_threshold"])
async def test_a_key_of_the_sweeper_section_reaches_its_sweep(name: str, redis_server: Valkey) -> None:
    there = {f"backends.{port}": f"{redis_server.url}?root=keys" for port in ("jobs", "records", "streams")}

    async def found(keys: Mapping[str, object]) -> timedelta:
        config = loaded("file", {**keys, "task_types": {"mail": {}}}, **there)
        async with Stores(SystemClock()) as stores:
            opened = await open_homes(config, stores, "tasks")
            sweep = build_task_sweep("stuck_jobs", config.settings, opened, SystemClock())
        (lock,) = [guard for guard in sweep.guards if isinstance(guard, PlainLockGuard)]
        home = task_home(config)
        assert home is not None
        return {"interval": sweep.interval, "lock_ttl": lock._ttl, "stuck_threshold": home.types[0].threshold}[name]

    default = {"interval": timedelta(seconds=30), "lock_ttl": MINUTE, "stuck_threshold": 5 * MINUTE}[name]
    assert (await found({}), await found({f"sweeper.{name}": "70s"})) == (default, timedelta(seconds=70))


BLOCK = {
    "stream": "gbe.events.audit.*", "destination": "file:kept", "batch_size": 2, "batch_timeout": "300ms",
    "format": "jsonl", "compression": "none", "partition": "daily",
}  # fmt: skip


@pytest.mark.parametrize("section", ["archival", "archiver.streams"])
def test_a_key_of_an_archived_stream_has_an_effect(section: str, place: Path) -> None:
    said("file", {section: [BLOCK]})
    for number in range(3):
        assert wrasse("streams", "publish", "gbe.events.audit.change", f"m{number}").code == 0
    assert wrasse("streams", "publish", "gbe.events.auth.login", "not archived").code == 0
    with running(place, "--role=archiver") as daemon:
        found = until(lambda: [*(place / "kept").glob("archive/audit/*/*/*/gbe*.jsonl")][1:] and sorted(
            (place / "kept").glob("archive/**/gbe*")), "two archives")  # fmt: skip
        daemon.signal()
        assert daemon.end() == 0
    assert sorted(len(path.read_bytes().splitlines()) for path in found) == [1, 2]
    said("file", {section: [{**BLOCK, "destination": "s3", "bucket": "gbe-archive"}]})
    ((_, home),) = load(environ={}).homes.archives
    assert home.url.startswith("s3://gbe-archive")
    for key, value in {"format": "parquet", "partition": "hourly"}.items():
        said("file", {section: [{**BLOCK, key: value}]})
        with pytest.raises(ConfigError, match=key):
            load(environ={})


def test_the_lag_of_the_document_is_the_default() -> None:
    assert Settings().archiver.lag_threshold == LagThreshold(10_000, HOUR)


PATTERNS = (
    ("gbe.notify.topic.*", "gbe.notify.topic.a"), ("gbe.notify.broadcast.*", "gbe.notify.broadcast.a"),
    ("gbe.events.system.*", "gbe.events.system.sweep"), ("gbe.events.api.*", "gbe.events.api.a"),
    ("gbe.events.audit.*", "gbe.events.audit.change"), ("gbe.tasks.*.queue", "gbe.tasks.mail.queue"),
    ("gbe.tasks.*.progress", "gbe.tasks.mail.progress"), ("gbe.tasks.*.terminal", "gbe.tasks.mail.terminal"),
    ("gbe._deadletter.*", "gbe._deadletter.tasks"),
)  # fmt: skip


def test_a_pattern_of_the_retention_section_is_the_rule_of_its_streams() -> None:
    rules = retention(
        loaded("file", {"retention": {pattern: f"{n + 1}h" for n, (pattern, _) in enumerate(PATTERNS)}}).settings
    )
    found = [rules.of(subject) for _, subject in PATTERNS]
    assert [bound.rule.age for bound in found if bound] == [(n + 1) * HOUR for n in range(len(PATTERNS))]
    assert rules.of("gbe.else") is None


# 001 and 003: leases


@pytest.mark.parametrize("form", ["flag", *FORMS])
@pytest.mark.parametrize("name", FLAGS)
async def test_a_flag_of_the_idle_sweeps_reaches_them(form: str, name: str) -> None:
    value, meant = {
        "txn_replay_interval": ("7s", [timedelta(seconds=7)]),
        "sweeper_interval": ("7m", [7 * MINUTE] * 3),
        "idle_sweep_grace": ("9m", [9 * MINUTE] * 3),
        "idle_sweep_max_ops": ("77", [77] * 3),
        "idle_sweep_max_runtime": ("40s", [timedelta(seconds=40)] * 3),
        "idle_sweep_op_delay": ("50ms", [timedelta(seconds=0.05)] * 3),
        "disk_retention": ("10d", [(True, 240 * HOUR, HOUR)]),
        "disk_janitor_interval": ("11m", [(False, timedelta(0), 11 * MINUTE)]),
    }[name]
    defaults = {
        "txn_replay_interval": [timedelta(seconds=5)], "sweeper_interval": [5 * MINUTE] * 3,
        "idle_sweep_grace": [5 * MINUTE] * 3, "idle_sweep_max_ops": [1_000] * 3,
        "idle_sweep_max_runtime": [timedelta(seconds=30)] * 3, "idle_sweep_op_delay": [timedelta(seconds=0.1)] * 3,
        "disk_retention": [(False, timedelta(0), MINUTE)], "disk_janitor_interval": [(False, timedelta(0), MINUTE)],
    }  # fmt: skip
    assert await _swept(load(environ={}, overrides=MEMORY), name) == defaults[name]
    assert await _swept(_flagged(form, name, value), name) == meant


def _flagged(form: str, name: str, value: str) -> Config:
    if form == "flag":
        given: dict[str, str] = {}
        command = click.command()(lease_flags(lambda leases: given.update(leases)))
        assert CliRunner().invoke(command, [f"--{name.replace('_', '-')}={value}"]).exit_code == 0
        return load(environ={}, overrides={**MEMORY, **given})
    if form == "environment":
        return load(environ={f"WRASSE_LEASES_{name.upper()}": value}, overrides=MEMORY)
    return loaded("file", {f"leases.{name}": int(value) if value.isdigit() else value}, **MEMORY)


async def _swept(config: Config, name: str) -> list[object]:
    """What the sweeps of leases, or their replay, have of this setting."""
    async with Stores(SystemClock()) as stores:
        opened = await open_homes(config, stores, "leases")
        assert opened.leasing is not None
        if name == "txn_replay_interval":
            return [timedelta(seconds=opened.leasing.leases._replay._interval)]
        kinds = (
            ["aged_records"] if name.startswith("disk") else ["expired_leases", "open_transactions", "spent_decisions"]
        )
        found: list[object] = []
        for each in (build_lease_sweep(kind, config.settings, opened, SystemClock()) for kind in kinds):
            if isinstance(each.sweep, AgedRecords):
                found.append((each.enabled, each.sweep.retention, each.interval))
                continue
            (traffic,) = [guard for guard in each.guards if isinstance(guard, Traffic)]
            found.append({
                "sweeper_interval": each.interval, "idle_sweep_grace": traffic._grace,
                "idle_sweep_max_ops": each.budget.actions_max, "idle_sweep_max_runtime": each.budget.runtime_max,
                "idle_sweep_op_delay": each.budget.pause,
            }[name])  # fmt: skip
        return found


def test_the_bounds_of_a_replay_are_the_documents() -> None:
    assert (manager.OPERATIONS_MAX, manager.SECONDS_MAX) == (128, 2.0)


# 004: collection of archives


class NoScanner:
    """What a root's sweep asks its scanner for when it is built."""

    guards = ()


@pytest.mark.parametrize(
    ("environ", "meant"),
    [({}, (HOUR, 2 * HOUR)), ({"GC_INTERVAL": "1800", "GC_ORPHAN_DELAY": "10800"}, (HOUR / 2, 3 * HOUR))],
)
def test_the_variables_of_the_collector_set_interval_and_delay(
    environ: Mapping[str, str], meant: tuple[timedelta, timedelta]
) -> None:
    Path("wrasse.yaml").write_text("orphans: {archives: {preset: workspaces, database: 'sqlite:app.db'}}")
    settings, clock = load(environ=environ).settings, SystemClock()
    memory = Memory(clock)
    opened = OpenPorts(stores={"engine": memory})
    opened.scanners["archives"] = NoScanner()  # type: ignore[assignment]  # nothing is looked at
    opened.sweep_homes["archives"] = None  # type: ignore[assignment]
    sweep = build_orphans("archives", settings, opened, clock)
    root = root_of("archives", settings.orphans["archives"], settings.gc, "s3://bucket")
    assert (sweep.interval, root.graces.superseded) == meant


# All of them


def _paths(tree: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict) and f"{before}{name}" not in ("retention", "worker.queues"):
            yield from _paths(value, f"{before}{name}.")
        else:
            yield before + name


@pytest.mark.parametrize("sections", [*([each] for each in SEEDS), [*SEEDS], [*reversed(SEEDS)]], ids=" ".join)
def test_the_documents_load_together_and_apart(sections: list[str]) -> None:
    text = {section: SEEDS[section] for section in sections}
    Path("wrasse.yaml").write_text(yaml.safe_dump(text, sort_keys=False))
    alone = {} if "redis" in text else {"backends.streams": "memory:"} if {*text} & {"retention", "archival"} else {}
    config = load(environ={}, overrides=alone)
    assert [path for path in _paths(text) if not config.named(path)] == []
    whole = load(FIXTURES / "seeds.yaml", environ={})
    for path in _paths(text):
        one, other = config.settings, whole.settings
        for name in path.split("."):
            one, other = getattr(one, name), getattr(other, name)
        assert one == other, path
