"""Which backend serves each port: the rule as a table, and every contradiction with its sources."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest

from wrasse.api.app import connect
from wrasse.cli.doctor import declared, kind_of
from wrasse.config.backend_urls import PORTS, SERVERS, same_place, table
from wrasse.config.load import Config, load
from wrasse.config.urls import parse_store
from wrasse.errors import ConfigError

REDIS, NATS, S3 = "redis://r:1/0", "nats://n:4222", "s3://bbb/p"
FILE, SQLITE, MEMORY = "file:dir", "sqlite:x.db", "memory:"
EMBEDDED = ("sqlite:wrasse.db", "sqlite:wrasse.db", "sqlite:wrasse.db", "file:wrasse-data")
NONE = ""


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("REDIS_ADDR", "WRASSE_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def loaded(text: str, environ: Mapping[str, str] | None = None, overrides: Mapping[str, str] | None = None) -> Config:
    Path("wrasse.yaml").write_text(text)
    return load(environ=environ or {}, overrides=overrides)


def places(config: Config, ports: tuple[str, ...] = PORTS) -> tuple[str, ...]:
    """The URL of each port without what is added to reach it."""
    return tuple(config.homes.ports[port].url.partition("?")[0].rstrip("/") for port in ports)


# settings file, environment, flags -> jobs, records, streams, objects
TABLE: list[tuple[str, Mapping[str, str], Mapping[str, str], tuple[str, str, str, str]]] = [
    ("", {}, {}, EMBEDDED),
    (f"backends: {{jobs: '{REDIS}'}}", {}, {}, (REDIS, REDIS, REDIS, NONE)),
    (f"backends: {{records: '{REDIS}'}}", {}, {}, (REDIS, REDIS, REDIS, NONE)),
    (f"backends: {{streams: '{REDIS}'}}", {}, {}, (REDIS, REDIS, REDIS, NONE)),
    (f"backends: {{objects: '{S3}'}}", {}, {}, (*EMBEDDED[:3], S3)),
    (f"backends: {{streams: '{NATS}'}}", {}, {}, (NONE, NATS, NATS, NONE)),
    (f"backends: {{records: '{NATS}', jobs: '{REDIS}'}}", {}, {}, (REDIS, NATS, NATS, NONE)),
    (f"backends: {{jobs: '{S3}'}}", {}, {}, (S3, S3, NONE, S3)),
    (f"backends: {{records: '{S3}'}}", {}, {}, (S3, S3, NONE, S3)),
    (f"backends: {{jobs: '{FILE}'}}", {}, {}, (FILE, FILE, NONE, FILE)),
    (f"backends: {{records: '{S3}', streams: '{NATS}'}}", {}, {}, (S3, S3, NATS, S3)),
    (f"backends: {{jobs: '{SQLITE}'}}", {}, {}, (SQLITE, SQLITE, SQLITE, "file:wrasse-data")),
    ("backends: {jobs: 'sqlite:///var/a.db'}", {}, {}, (*("sqlite:///var/a.db",) * 3, "file:///var/wrasse-data")),
    (f"backends: {{jobs: '{MEMORY}'}}", {}, {}, (MEMORY, MEMORY, MEMORY, MEMORY)),
    ("redis: {addr: 'r:1'}", {}, {}, (REDIS, REDIS, REDIS, NONE)),
    ("redis:", {}, {}, (*("redis://localhost:6379/0",) * 3, NONE)),
    ("", {"REDIS_ADDR": "r:1"}, {}, (REDIS, REDIS, REDIS, NONE)),
    ("", {"WRASSE_REDIS_ADDR": "r:1"}, {}, (REDIS, REDIS, REDIS, NONE)),
    ("", {"REDIS_ADDR": ""}, {}, EMBEDDED),
    ("", {"REDIS_PASSWORD": "theirs"}, {}, EMBEDDED),
    ("redis: {addr: 'x:9'}", {"REDIS_ADDR": "r:1"}, {}, (REDIS, REDIS, REDIS, NONE)),
    ("redis: {addr: 'x:9'}", {}, {"redis.addr": "r:1"}, (REDIS, REDIS, REDIS, NONE)),
    (f"redis: {{addr: 'r:1'}}\nbackends: {{jobs: '{REDIS}'}}", {}, {}, (REDIS, REDIS, REDIS, NONE)),
    (f"redis: {{addr: 'r:1'}}\nbackends: {{records: '{SQLITE}'}}", {}, {}, (REDIS, SQLITE, REDIS, "file:wrasse-data")),
    (f"redis: {{addr: 'r:1'}}\nbackends: {{streams: '{NATS}'}}", {}, {}, (REDIS, REDIS, NATS, NONE)),
    (f"redis: {{addr: 'r:1'}}\nbackends: {{streams: 'redis://other:2/0', objects: '{S3}'}}", {}, {},
     (REDIS, REDIS, "redis://other:2/0", S3)),
    (f"redis: {{max_retries: 5}}\nbackends: {{streams: '{REDIS}'}}", {}, {}, (REDIS, REDIS, REDIS, NONE)),
    (f"redis: {{max_retries: 5}}\nbackends: {{streams: '{REDIS}', jobs: '{SQLITE}'}}", {}, {},
     (SQLITE, SQLITE, REDIS, "file:wrasse-data")),
    (f"backends: {{jobs: '{SQLITE}'}}", {"WRASSE_BACKENDS_JOBS": REDIS}, {}, (REDIS, REDIS, REDIS, NONE)),
    (f"backends: {{jobs: '{SQLITE}'}}", {"WRASSE_BACKENDS_JOBS": NATS}, {"backends.jobs": REDIS},
     (REDIS, REDIS, REDIS, NONE)),
    ("redis: {addr: 'r:1'}\nretention: {'gbe.events.*': 7d}", {}, {}, (REDIS, REDIS, REDIS, NONE)),
    ("redis: {addr: 'r:1'}\nsweeper: {interval: 30s}", {}, {}, (REDIS, REDIS, REDIS, NONE)),
    ("redis: {addr: 'r:1'}\ntask_types: {compute: {workers: 1}}", {}, {}, (REDIS, REDIS, REDIS, NONE)),
    ("redis: {addr: 'r:1'}\narchival: [{stream: 'gbe.events.*', destination: s3, bucket: bbb}]", {}, {},
     (REDIS, REDIS, REDIS, NONE)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "environ", "flags", "expected"), TABLE)
def test_each_port_is_served_by_the_backend_that_the_rule_says(
    text: str, environ: Mapping[str, str], flags: Mapping[str, str], expected: tuple[str, ...]
) -> None:
    assert places(loaded(text, environ, flags)) == expected


@pytest.mark.parametrize("urls", [*itertools.product(("", SQLITE, REDIS, NATS, S3, FILE, MEMORY), repeat=3)])
def test_every_combination_of_backends_follows_the_rule_or_is_refused(urls: tuple[str, str, str]) -> None:
    given = dict(zip(SERVERS, urls, strict=True))
    if given["jobs"] == NATS or given["streams"] in (S3, FILE):
        with pytest.raises(ConfigError, match=r"does not support (jobs|streams)"):
            loaded("", overrides={f"backends.{port}": url for port, url in given.items() if url})
        return
    config = loaded("", overrides={f"backends.{port}": url for port, url in given.items() if url})
    named = [given[port] for port in SERVERS if given[port]]
    cannot = {"jobs": (NATS,), "records": (), "streams": (S3, FILE)}
    for port in SERVERS:
        first = next((url for url in named if url not in cannot[port]), NONE if named else "sqlite:wrasse.db")
        assert places(config, (port,)) == (given[port] or first,)
    shared = [url for url in named if url in (REDIS, NATS, S3)]
    assert places(config, ("engine",)) == ([*shared, *named, "sqlite:wrasse.db"][0],)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (REDIS, (REDIS, REDIS, REDIS, NONE)),
        (NATS, (NONE, NATS, NATS, NONE)),
        (S3, (S3, S3, NONE, S3)),
        (FILE, (FILE, FILE, NONE, FILE)),
        (MEMORY, (MEMORY, MEMORY, MEMORY, MEMORY)),
        (SQLITE, (SQLITE, SQLITE, SQLITE, "file:wrasse-data")),
    ],
)
def test_the_url_of_an_app_names_every_port_that_it_can_serve(
    url: str, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("wrasse.yaml").write_text("backends: {jobs: 'sqlite:other.db'}")
    monkeypatch.setenv("REDIS_ADDR", "of-another-program:1")
    config = connect(url).config
    assert places(config) == expected
    assert all("URL of the App" in config.homes.ports[port].by for port in PORTS if places(config, (port,)) != (NONE,))


def test_a_port_that_the_url_of_an_app_cannot_serve_is_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WRASSE_BACKENDS_JOBS", SQLITE)
    monkeypatch.setenv("WRASSE_BACKENDS_RECORDS", SQLITE)
    assert places(connect(NATS).config) == (SQLITE, NATS, NATS, "file:wrasse-data")


# What is refused, with every source


@pytest.mark.parametrize(
    ("text", "environ", "flags", "told"),
    [
        (
            "redis: {addr: 'h:1'}\nbackends: {jobs: 'redis://other:1/0'}", {}, {},
            ["wrasse.yaml line 2: backends.jobs", "redis://other:1/0", "wrasse.yaml line 1: redis.addr is h:1"],
        ),
        (
            "backends: {jobs: 'redis://other:1/0'}", {"REDIS_ADDR": "h:1"}, {},
            ["wrasse.yaml line 1: backends.jobs", "environment variable REDIS_ADDR: redis.addr is h:1"],
        ),
        (
            "redis: {addr: 'h:1'}", {}, {"backends.jobs": "sqlite:a.db"},
            ["command line: backends.jobs is sqlite:a.db", "wrasse.yaml line 1: redis.addr"],
        ),
        (
            "redis: {db: 1}\nbackends: {jobs: 'sqlite:a.db'}", {}, {},
            ["wrasse.yaml line 2: backends.jobs", "wrasse.yaml line 1: redis names Redis"],
        ),
        (
            "redis: {db: 2}\nbackends: {jobs: 'redis://h'}", {}, {},
            ["wrasse.yaml line 2: backends.jobs", "wrasse.yaml line 1: redis.db is 2", "has 0"],
        ),
        (
            "backends: {streams: 'redis://h/1'}", {"REDIS_DB": "2"}, {},
            ["backends.streams", "environment variable REDIS_DB: redis.db is 2", "has 1"],
        ),
        (
            "redis: {tls: {enabled: true}}\nbackends: {jobs: 'redis://h'}", {}, {},
            ["backends.jobs", "redis.tls.enabled is True"],
        ),
        (
            "redis: {root: a}\nbackends: {jobs: 'redis://h?root=b'}", {}, {},
            ["backends.jobs is redis://h?root=b", "line 1: redis.root is 'a'", "has 'b'"],
        ),
        *(
            (
                f"redis: {{addr: '127.0.0.1:6379'}}\nbackends: {{{port}: '{url}'}}", {}, {},
                [f"wrasse.yaml line 2: backends.{port} is {url}", f"wrasse.yaml line 1: redis.addr means {said}"],
            )
            for port, url, said in [
                ("jobs", "redis://localhost:6379/1", "redis.db 0, where the URL has 1"),
                ("records", "redis://localhost/1", "redis.db 0, where the URL has 1"),
                ("streams", "redis://[::1]:6379/15", "redis.db 0, where the URL has 15"),
                ("jobs", "rediss://localhost:6379", "redis.tls.enabled False, where the URL has True"),
                ("jobs", "redis://localhost?cluster=true", "redis.cluster False, where the URL has True"),
                ("jobs", "redis://localhost?root=mine", "redis.root 'jobqueue', where the URL has 'mine'"),
            ]
        ),
        (
            "backends: {jobs: 'redis://h/1'}", {"REDIS_ADDR": "h"}, {},
            ["wrasse.yaml line 1: backends.jobs", "environment variable REDIS_ADDR: redis.addr means redis.db 0"],
        ),
        (
            "redis: {addr: 'h', db: 1}", {}, {"backends.jobs": "redis://h"},
            ["command line: backends.jobs", "wrasse.yaml line 1: redis.db is 1, where the URL has 0"],
        ),
        (
            "redis: {addr: 'h:1', password: hunter2}\nbackends: {jobs: 'redis://u:hunter2@o'}", {}, {},
            ["backends.jobs is redis://***@o"],
        ),
    ],
)  # fmt: skip
def test_two_sources_that_name_different_places_are_refused_and_both_are_named(
    text: str, environ: Mapping[str, str], flags: Mapping[str, str], told: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(text, environ, flags)
    for each in told:
        assert each in str(refused.value)
    assert "hunter2" not in str(refused.value)


NAMED = ("backends.jobs", "backends.records", "backends.streams", "backends.objects", "engine.backend", "leases.server",
         "redis.addr")  # fmt: skip


@pytest.mark.parametrize("path", NAMED)
def test_a_place_whose_name_is_empty_is_refused_and_not_the_default(path: str) -> None:
    section, _, name = path.partition(".")
    variable = f"WRASSE_{section}_{name}".upper()
    with pytest.raises(ConfigError, match=rf"variable {variable}: {path} is empty"):
        loaded("backends: {jobs: 'redis://h:1'}", {variable: ""})
    with pytest.raises(ConfigError, match=rf"command line: {path} is empty"):
        loaded("", {}, {path: ""})
    with pytest.raises(ConfigError, match=rf"wrasse.yaml line 1: {path} is empty"):
        loaded(f"{section}: {{{name}: ''}}")


def test_an_empty_variable_of_other_programs_leaves_the_address_of_the_file() -> None:
    assert places(loaded("redis: {addr: 'prod:1'}", {"REDIS_ADDR": ""})) == (*("redis://prod:1/0",) * 3, NONE)


@pytest.mark.parametrize(
    "text",
    [
        "archival: [{stream: 'a.*', destination: s3, bucket: ''}]",
        "archiver: {streams: [{stream: 'a.*', destination: ''}]}",
        "orphans: {files: {store: '', template: 'f/{f}', database: 'sqlite:a.db', queries: [q]}}",
        "orphans: {files: {sightings: '', template: 'f/{f}', database: 'sqlite:a.db', queries: [q]}}",
    ],
)
def test_an_entry_whose_place_is_empty_is_refused_and_does_not_follow_the_objects(text: str) -> None:
    with pytest.raises(ConfigError, match=r"wrasse.yaml line 1: .* is empty"):
        loaded(f"{text}\nbackends: {{objects: '{S3}'}}")


@pytest.mark.parametrize(
    ("addr", "url"),
    [
        ("h:6379", "redis://h"),
        ("h", "redis://h:6379"),
        ("H:6379", "redis://h/0"),
        ("localhost:6379", "redis://127.0.0.1:6379/0"),
        ("127.0.0.1", "redis://localhost"),
        ("[::1]:6379", "redis://localhost"),
        ("h.", "redis://h"),
        ("[0:0::0:1]:6379", "redis://127.0.0.1"),
        ("[::ffff:10.0.0.7]", "redis://10.0.0.7"),
        ("[FE80:0::1]", "redis://[fe80::1]"),
    ],
)
def test_the_same_server_in_two_spellings_is_no_contradiction(addr: str, url: str) -> None:
    config = loaded(f"redis: {{addr: '{addr}', password: secret}}\nbackends: {{jobs: '{url}'}}")
    assert "secret" in config.homes.jobs


@pytest.mark.parametrize(
    ("section", "url"),
    [
        ("{addr: 'h', db: 3}", "redis://h/3"),
        ("{addr: 'h', tls: {enabled: true}}", "rediss://h:6379"),
        ("{addr: 'a:1,b:2', cluster: true}", "redis://b:2"),
        ("{addr: 'a:1,b:2', cluster: true}", "redis://b:2?cluster=true"),
        ("{addr: 'a:1', cluster: true, root: mine}", "redis://a:1?cluster=true&root={mine}"),
        ("{addr: 'a:1', root: mine}", "redis://a:1"),
        ("{addr: 'a:1', root: mine}", "redis://a:1/0?root=mine"),
        ("{addr: 's:26379', sentinel: m}", "redis+sentinel://s/m"),
    ],
)
def test_database_tls_cluster_and_sentinel_are_part_of_the_place(section: str, url: str) -> None:
    assert loaded(f"redis: {section}\nbackends: {{jobs: '{url}'}}").homes.serves("jobs")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("sqlite:a.db", "sqlite:sub/../a.db", True),
        ("sqlite:sub/a.db", "sqlite:link/a.db", True),
        ("sqlite:sub/a.db", "sqlite:a.db", False),
        ("file:sub/x", "file:link/x/", True),
        ("file:sub/x", "file:sub/y", False),
        ("s3://bbb/p?endpoint=HTTP://H:80/", "s3://bbb/p?endpoint=http://h", True),
        ("s3://bbb/p?endpoint=https://localhost", "s3://bbb/p?endpoint=https://127.0.0.1:443", True),
        ("s3://bbb/p?endpoint=http://h:81", "s3://bbb/p?endpoint=http://h", False),
        ("s3://bbb/p?region=eu-west-1", "s3://bbb/p/?endpoint=https://s3.eu-west-1.amazonaws.com", True),
        ("s3://bbb/p", "s3://bbb/p?endpoint=https://s3.amazonaws.com.example.org", False),
        ("nats://LOCALHOST", "nats://127.0.0.1:4222", True),
        ("nats://[0::1]:4222", "tls://localhost", True),
        ("nats://h?domain=hub", "nats://h", False),
        ("nats://h?root=mine", "nats://h", False),
    ],
)
def test_a_place_is_the_same_in_every_spelling(tmp_path: Path, one: str, other: str, same: bool) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("sub")
    assert same_place(one, other) is same_place(other, one) is same


def test_an_endpoint_that_the_environment_names_is_part_of_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not same_place("s3://bbb/p", "s3://bbb/p?endpoint=http://h:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://h:1")
    assert same_place("s3://bbb/p", "s3://bbb/p?endpoint=http://h:1")
    shown = {row.port: row.backend for row in table(loaded("backends: {objects: 's3://bbb/p'}").homes)}
    assert shown["objects"] == "s3://bbb/p at http://h:1"


def test_the_table_tells_domains_and_roots_of_one_nats_apart() -> None:
    config = loaded("nats: {domain: hub}\nbackends: {streams: 'nats://h?root=mine', records: 'nats://h'}")
    shown = {row.port: row.backend for row in table(config.homes)}
    assert (shown["streams"], shown["records"]) == ("nats://h:4222?domain=hub&root=mine", "nats://h:4222?domain=hub")


@pytest.mark.parametrize("name", ["domain", "root"])
def test_a_section_and_a_url_that_name_different_places_on_one_nats_are_refused(name: str) -> None:
    text = f"nats: {{{name}: a}}\nbackends: {{streams: 'nats://h?{name}=b'}}"
    with pytest.raises(ConfigError, match=rf"line 2: backends.streams .* line 1: nats\.{name} is 'a', where .* 'b'"):
        loaded(text)
    assert loaded(text.replace("=b", "=a")).homes.serves("streams")


def test_the_login_of_a_section_stays_with_its_server() -> None:
    homes = loaded("redis: {addr: 'h:1', password: secret}\nbackends: {streams: 'redis://other:2'}").homes
    assert "secret" in homes.jobs
    assert "secret" not in homes.streams


def test_using_a_port_that_no_backend_serves_is_refused_with_the_setting_to_write() -> None:
    homes = connect(NATS).config.homes
    with pytest.raises(ConfigError, match=r"no backend serves jobs: nats://n:4222 \(URL of the App") as refused:
        _ = homes.jobs
    assert "write backends.jobs: redis://" in refused.value.do


@pytest.mark.parametrize(
    ("section", "port"),
    [
        ("retention: {'gbe.events.*': 7d}", "streams"),
        ("archival: [{stream: 'gbe.events.*', destination: s3, bucket: bbb}]", "streams"),
        ("archiver: {streams: [{stream: 'gbe.events.*'}]}", "streams"),
        ("task_types: {compute: {workers: 1}}", "streams"),
        ("sweeper: {interval: 30s}", "streams"),
    ],
)
def test_a_section_that_needs_streams_is_refused_where_none_can_be(section: str, port: str) -> None:
    with pytest.raises(ConfigError, match=f"wrasse.yaml line 2: .* needs {port}") as refused:
        loaded(f"backends: {{jobs: '{S3}'}}\n{section}")
    assert f"backends.{port}" in refused.value.do


@pytest.mark.parametrize(
    "section", ["periodic: {tick: {every: 1h}}", "worker: {exec: 'true'}", "producer: {scan_dir: inbox}"]
)
def test_a_section_that_needs_jobs_is_refused_where_none_can_be(section: str) -> None:
    with pytest.raises(ConfigError, match=r"wrasse.yaml line 2: .* needs jobs") as refused:
        loaded(f"backends: {{streams: '{NATS}'}}\n{section}")
    assert "backends.jobs" in refused.value.do


# Archives


@pytest.mark.parametrize(
    ("objects", "entry", "expected"),
    [
        ("", "", "file:wrasse-data"),
        ("s3://bbb/p?endpoint=http%3A%2F%2Fe", "", "s3://bbb/p?endpoint=http%3A%2F%2Fe"),
        ("s3://bbb/p", ", destination: s3", "s3://bbb/p"),
        (
            "s3://bbb/p?endpoint=http%3A%2F%2Fe",
            ", destination: s3, bucket: other",
            "s3://other?endpoint=http%3A%2F%2Fe",
        ),
        ("", ", destination: s3, bucket: other", "s3://other"),
        ("s3://bbb/p", ", destination: 'file:mine'", "file:mine"),
    ],
)
def test_where_archives_go(objects: str, entry: str, expected: str) -> None:
    named = f"backends: {{objects: '{objects}'}}\n" if objects else ""
    config = loaded(f"{named}archival: [{{stream: 'gbe.events.*'{entry}}}]")
    assert [home.url for _, home in config.homes.archives] == [expected]


@pytest.mark.parametrize(
    ("backends", "entry", "told"),
    [
        ("{}", "destination: s3", "has no bucket, and backends.objects is not on S3"),
        ("{objects: 'file:mine'}", "destination: s3", "has no bucket, and backends.objects is not on S3"),
        (f"{{jobs: '{REDIS}'}}", "destination: s3", "has no bucket, and backends.objects is not on S3"),
        (f"{{jobs: '{REDIS}'}}", "batch_size: 10", "needs a place for its archives, and no backend serves objects"),
        ("{}", "destination: 'file:a', bucket: bbb", "has a bucket and the destination"),
        ("{}", "bucket: bbb", "has a bucket and the destination"),
        (f"{{jobs: '{REDIS}'}}", "destination: 'memory:'", "in memory, where they end with the process"),
    ],
)
def test_a_destination_that_does_not_say_where_is_refused(backends: str, entry: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        loaded(f"backends: {backends}\narchival: [{{stream: 'gbe.events.*', {entry}}}]")
    assert "wrasse.yaml line 2" in refused.value.message


# Orphans and leases


def test_sightings_are_in_the_local_database_or_named() -> None:
    root = "{template: 'a/{id}/{op_id}/{name}', preset: workspaces, database: 'sqlite:app.db', store: 's3://bbb'%s}"
    assert loaded(f"orphans: {{r: {root % ''}}}").homes.sightings["r"].url == "sqlite:wrasse.db"
    own = loaded(f"orphans: {{r: {root % ', sightings: sqlite:mine.db'}}}").homes.sightings["r"]
    assert (own.url, own.by) == ("sqlite:mine.db", "wrasse.yaml line 1: orphans.r.sightings")
    with pytest.raises(ConfigError, match=r"its sightings, and no backend serves .* orphans\.r") as refused:
        loaded(f"orphans: {{r: {root % ''}}}\nbackends: {{jobs: '{REDIS}'}}")
    assert "orphans.r.sightings: sqlite:wrasse.db" in refused.value.do


def test_the_table_names_the_store_and_the_references_of_every_root() -> None:
    root = "{preset: workspaces, database: '%s'%s}"
    text = f"orphans: {{a: {root % ('postgresql://u:hunter2@h/d', '')}, b: {root % ('odd://x', ', store: file:mine')}}}"
    config = loaded(f"{text}\nbackends: {{objects: 's3://bbb/p?endpoint=http://e:1'}}")
    rows = {row.port: row for row in table(config.homes)}
    assert (rows["objects of a"].backend, rows["objects of a"].by) == (
        "s3://bbb/p at http://e:1", "follows objects (wrasse.yaml line 2: backends.objects)",
    )  # fmt: skip
    assert rows["references of a"].backend == "postgresql://***@h/d"
    assert rows["objects of b"].by == "wrasse.yaml line 1: orphans.b.store"
    assert rows["objects of b"].backend.endswith("/mine")
    assert rows["references of b"].backend == "odd://x"


def test_leases_are_at_their_server_or_with_the_records() -> None:
    assert loaded("leases: {server: 'http://l:1'}").homes.ports["leases"].url == "http://l:1"
    assert loaded(f"backends: {{records: '{S3}'}}").homes.ports["leases"].url == S3


def test_the_table_names_every_source_shows_absolute_paths_and_no_secret(tmp_path: Path) -> None:
    config = loaded(
        "redis: {addr: 'h:1', password: hunter2}\nleases: {server: 'http://l:1'}\n"
        "backends: {objects: 'file:mine'}\narchival: [{stream: 'gbe.events.*'}]"
    )
    rows = {row.port: row for row in table(config.homes)}
    assert "hunter2" not in str(rows)
    assert (rows["jobs"].backend, rows["jobs"].by) == ("redis://***@h:1/0", "wrasse.yaml line 1: redis.addr")
    assert (rows["objects"].backend, rows["objects"].by) == (
        f"file://{tmp_path}/mine", "wrasse.yaml line 3: backends.objects",
    )  # fmt: skip
    assert rows["archives of gbe.events.*"].backend == f"file://{tmp_path}/mine"
    assert rows["leases"].backend == "http://l:1"


# One host among several


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"backends: {{jobs: '{REDIS}'}}\nengine: {{backend: 'sqlite:own.db'}}", True),
        (f"backends: {{records: '{S3}'}}\nengine: {{backend: 'memory:'}}", True),
        (f"backends: {{jobs: '{REDIS}'}}\nengine: {{backend: 'redis://other:1'}}", False),
        (f"backends: {{jobs: '{REDIS}'}}", False),
        ("engine: {backend: 'sqlite:own.db'}", False),
    ],
)
def test_an_engine_of_one_host_beside_shared_backends_is_allowed_and_said(text: str, said: bool) -> None:
    assert any("each host has a journal of its own" in each for each in loaded(text).warnings) is said


@pytest.mark.parametrize("url", [REDIS, NATS, S3, FILE, SQLITE, MEMORY])
@pytest.mark.parametrize("port", ["jobs", "streams", "objects"])
def test_settings_refuse_a_port_exactly_where_the_backend_declares_none(port: str, url: str) -> None:
    backends = {"objects": "memory:", "jobs": "memory:", "streams": "memory:"} | {port: url}
    text = f"backends: {{{', '.join(f'{name}: {quoted!r}' for name, quoted in backends.items())}}}"
    if declared(kind_of(parse_store(url)))[port]:
        assert loaded(text).homes.serves(port)
    else:
        with pytest.raises(ConfigError):
            loaded(text)


@pytest.mark.parametrize("url", [REDIS, S3, FILE, SQLITE, MEMORY])
def test_settings_refuse_rates_exactly_where_the_backend_declares_no_extras(url: str) -> None:
    text = f"backends: {{jobs: {url!r}}}\nworker: {{queues: {{high: h, low: l}}, rates: {{l: 1/s}}}}"
    if declared(kind_of(parse_store(url)))["job_extras"]:
        assert loaded(text).homes.serves("jobs")
    else:
        with pytest.raises(ConfigError, match="have no limits"):
            loaded(text)
