"""What the settings say about Redis: who selects it, what its keys are called, and that no secret is told."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from wrasse.backends.redis.options import RedisOptions, parse_addresses
from wrasse.backends.tcp import Tls
from wrasse.config.backend_urls import BackendUrls
from wrasse.config.dump import shown
from wrasse.config.load import Config, load
from wrasse.config.urls import parse_store
from wrasse.errors import ConfigError
from wrasse.runtime.backends import open_store


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(place: Path, text: str, environ: Mapping[str, str] | None = None) -> Config:
    (place / "wrasse.yaml").write_text(text)
    return load(environ=environ or {})


def jobs(config: Config) -> RedisOptions:
    return RedisOptions.of(config.homes.jobs)


def where(config: Config) -> BackendUrls:
    return config.homes


# Who selects Redis


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ("redis: {addr: 'h:1'}", {}),
        ("", {"REDIS_ADDR": "h:1"}),
        ("", {"WRASSE_REDIS_ADDR": "h:1"}),
        ("backends: {jobs: 'redis://h:1/0'}", {}),
        ("", {"WRASSE_BACKENDS_JOBS": "redis://h:1"}),
    ],
)
def test_redis_is_the_home_of_jobs_and_of_the_engine_when_it_is_named(
    place: Path, text: str, environ: Mapping[str, str]
) -> None:
    config = loaded(place, text, environ)
    assert jobs(config).nodes == (("h", 1),)
    home = where(config)
    assert home.engine == home.journal == home.jobs == home.records == home.streams


def test_what_is_shown_names_the_backend_that_a_section_selects(place: Path) -> None:
    (own,) = [each for each in shown(loaded(place, "redis: {addr: 'h:1'}")) if each.leaf.path == "backends.jobs"]
    assert (own.value, own.source) == ("redis://h:1/0", "wrasse.yaml line 1: redis.addr")


def test_an_empty_section_is_a_redis_on_this_machine(place: Path) -> None:
    assert jobs(loaded(place, "redis:\n")).nodes == (("localhost", 6379),)


def test_one_secret_of_another_program_does_not_move_the_jobs(place: Path) -> None:
    config = loaded(place, "", {"REDIS_PASSWORD": "theirs"})
    assert where(config).jobs == "sqlite:wrasse.db"
    assert config.warnings == ("only Redis uses redis.password, and nothing is stored there",)


@pytest.mark.parametrize(
    "text",
    [
        "redis: {addr: 'h:1'}\nbackends: {jobs: 'sqlite:a.db'}",
        "redis: {addr: 'h:1'}\nbackends: {jobs: 'redis://other:1/0'}",
    ],
)
def test_two_homes_for_jobs_are_a_conflict(place: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"backends\.jobs") as told:
        loaded(place, text)
    assert "keep one" in str(told.value)


def test_records_on_the_same_redis_share_its_connection(place: Path) -> None:
    config = loaded(place, "redis: {addr: 'h:1'}\nbackends: {records: 'redis://h:1/0'}")
    assert parse_store(where(config).records).resolved() == parse_store(where(config).jobs).resolved()


def test_the_journal_goes_where_the_engine_keeps_the_rest(place: Path) -> None:
    config = loaded(place, "redis: {addr: 'h:1'}\nbackends: {streams: 'sqlite:s.db'}\nengine: {backend: 'file:here'}")
    assert where(config).journal == "file:here"


def test_streams_on_the_same_redis_share_its_connection(place: Path) -> None:
    config = loaded(place, "redis: {addr: 'h:1'}\nbackends: {streams: 'redis://h:1/0'}")
    assert parse_store(where(config).streams).resolved() == parse_store(where(config).jobs).resolved()


def test_streams_in_a_bucket_are_refused_at_the_start(place: Path) -> None:
    with pytest.raises(ConfigError, match="does not support streams in s3"):
        loaded(place, "backends: {streams: 's3://bucket'}")


# What its keys are called


def test_the_queues_are_the_design_documents_unless_they_are_named(place: Path) -> None:
    config = loaded(place, "redis: {addr: 'h:1'}")
    assert config.settings.worker.queues == {"high": "jobqueue:high_priority", "low": "jobqueue:low_priority"}
    named = loaded(place, "redis: {addr: 'h:1'}\nworker: {queues: {high: a, low: b}}")
    assert jobs(named).queues == {"high": "a", "low": "b"}


def test_names_follow_from_the_root_unless_they_are_named(place: Path) -> None:
    options = jobs(loaded(place, "redis: {root: mine}\nworker: {completed_list: done}"))
    assert (options.completed_list, options.dead_letter_list) == ("done", "mine:dead_letter")
    assert options.queues["high"] == "mine:high_priority"


def test_a_cluster_tags_every_name(place: Path) -> None:
    options = jobs(loaded(place, "redis: {addr: 'a:1,b:2', cluster: true}"))
    assert (options.nodes, options.root) == ((("a", 1), ("b", 2)), "{jobqueue}")
    assert (options.queues["low"], options.heartbeat_key_pattern) == (
        "{jobqueue}:low_priority",
        "{jobqueue}:processing:worker:%s",
    )


@pytest.mark.parametrize(
    "worker", ["{completed_list: 'jobqueue:completed'}", "{queues: {high: 'jobqueue:high_priority', low: x}}"]
)
def test_a_name_outside_the_tag_is_a_mistake(place: Path, worker: str) -> None:
    with pytest.raises(ConfigError, match="outside the hash tag"):
        loaded(place, f"redis: {{cluster: true}}\nworker: {worker}")


@pytest.mark.parametrize(
    ("section", "word"),
    [
        ("{addr: 'h:99999'}", "not a port"),
        ("{db: -1}", "redis.db"),
        ("{db: 3, cluster: true}", "no databases but 0"),
        ("{read_timeout: 0s}", "redis.read_timeout"),
        ("{pool_size_multiplier: 0}", "redis.pool_size_multiplier"),
        ("{cluster: true, sentinel: m}", "redis.sentinel"),
        ("{root: ''}", "redis.root"),
        ("{addr: 'a:1,b:1'}", "several addresses"),
    ],
)
def test_each_wrong_setting_has_its_own_message(place: Path, section: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        loaded(place, f"redis: {section}")


def test_a_pattern_needs_one_place_for_the_worker(place: Path) -> None:
    with pytest.raises(ConfigError, match="processing_list_pattern has no place for the worker"):
        loaded(place, "redis: {addr: 'h:1'}\nworker: {processing_list_pattern: 'jobqueue:processing'}")


def test_the_section_fills_what_a_url_leaves_open(place: Path) -> None:
    text = "backends: {jobs: 'rediss://h:1/2'}\nredis: {password: p, read_timeout: 9s, tls: {ca: /ca.pem}}"
    options = jobs(loaded(place, text))
    assert (options.password, options.read_timeout, options.db) == ("p", timedelta(seconds=9), 2)
    assert options.tls == Tls(ca="/ca.pem")


def test_sentinels_are_named_by_the_section_or_by_a_url(place: Path) -> None:
    section = jobs(loaded(place, "redis: {addr: 'a,b:2', sentinel: mymaster, sentinel_password: s}"))
    assert (section.nodes, section.sentinel) == ((("a", 26379), ("b", 2)), "mymaster")
    by_url = RedisOptions.of("redis+sentinel://a,b:2/mymaster/3")
    assert (by_url.nodes, by_url.sentinel, by_url.db) == (section.nodes, "mymaster", 3)


# Secrets


def test_no_secret_of_a_redis_is_in_what_is_shown(place: Path) -> None:
    secret = "PLANTED"
    text = f"redis: {{addr: 'h:1', password: {secret}, sentinel: m, sentinel_password: {secret}}}"
    config = loaded(place, text)
    url = parse_store(where(config).jobs)
    assert secret in url.url
    assert secret not in f"{url} {RedisOptions.of(url.url)} {RedisOptions.of(url.url)!r}"


names = st.text("ab:/@?%#& é", max_size=6)


@given(
    user=names,
    password=names,
    root=st.sampled_from(["jobqueue", "r", "é x"]),
    tls=st.none() | st.builds(Tls, names, names, names, st.booleans()),
    cluster=st.booleans(),
    queues=st.dictionaries(st.sampled_from(["high", "low"]), st.text("ab{}", min_size=1, max_size=5)),
    sentinel=st.sampled_from(["", "mymaster"]),
    wait=st.integers(1, 10**6),
    nodes=st.sampled_from([(("h", 1),), (("::1", 2),)]),
)
def test_a_url_of_a_redis_says_all_of_its_options(
    user: str,
    password: str,
    root: str,
    tls: Tls | None,
    cluster: bool,
    queues: dict[str, str],
    sentinel: str,
    wait: int,
    nodes: tuple[tuple[str, int], ...],
) -> None:
    options = RedisOptions(
        nodes=nodes,
        username=user,
        password=password,
        tls=tls,
        cluster=cluster,
        sentinel=sentinel,
        root=root,
        queues=queues,
        read_timeout=timedelta(milliseconds=wait),
        completed_list="{" + root + "}:x" if cluster else "x",
    )
    assert RedisOptions.of(options.url()) == options


@pytest.mark.parametrize("text", ["h:0", "h:x", ":1", "h:1,:2", "h:1234567890123"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_addresses(text)


async def test_a_package_that_is_not_installed_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("wrasse.backends.redis.") and "options" not in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hiredis", None)
    with pytest.raises(ConfigError, match="hiredis") as told:
        await open_store("redis://127.0.0.1:1/0")
    assert "wrasse[redis]" in told.value.do


def test_a_blank_address_is_refused_and_not_taken_for_this_machine() -> None:
    with pytest.raises(ConfigError, match="blank"):
        parse_addresses("  ")
