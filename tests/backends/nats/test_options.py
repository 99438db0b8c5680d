"""The address of a NATS as users write it: every URL is parsed and written unchanged, and shows no secrets."""

from __future__ import annotations

import dataclasses
import os
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from wrasse.backends.nats.options import NatsOptions
from wrasse.backends.tcp import Tls
from wrasse.config.backend_urls import nats_options
from wrasse.config.load import load
from wrasse.config.settings import NatsSettings, NatsTls
from wrasse.config.urls import parse_jobs, parse_objects, parse_store
from wrasse.errors import ConfigError

texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=12)
hosts = st.from_regex(r"[a-z][a-z0-9.-]{0,12}[a-z0-9]|[0-9a-f]{1,4}::[0-9a-f]{1,4}", fullmatch=True)
nodes = st.lists(st.tuples(hosts, st.integers(1, 65_535)), min_size=1, max_size=3).map(tuple)
logins = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"username": texts, "password": texts}),
    st.fixed_dictionaries({"token": texts}),
    st.fixed_dictionaries({"creds": texts}),
    st.fixed_dictionaries({"nkey": texts}),
)
certain = st.booleans()
tls = st.none() | st.builds(Tls, ca=texts | st.just(""), cert=texts, key=texts, verify=certain, first=certain)
times = st.integers(1, 10_000).map(lambda millis: timedelta(milliseconds=millis))


@given(nodes, logins, tls, times, st.integers(1, 5), st.sampled_from(["file", "memory"]), texts)
def test_options_travel_as_a_url(
    nodes: tuple[tuple[str, int], ...], login: dict[str, str], tls: Tls | None, time: timedelta, copies: int,
    storage: str, name: str,
) -> None:  # fmt: skip
    options = NatsOptions(
        nodes=nodes,
        tls=tls,
        read_timeout=time,
        replicas=copies,
        storage=storage,
        name=name,
        domain="hub",
        patterns=("a.*", "b.>"),
        **login,
    )  # type: ignore[arg-type]  # a login, by name
    assert NatsOptions.of(options.url()) == options


@given(texts)
def test_no_secret_is_shown(secret: str) -> None:
    planted = f"PLANTED{secret}"
    for options in (NatsOptions(username="u", password=planted), NatsOptions(token=planted)):
        shown = f"{options} {options!r} {options.where} {parse_store(options.url())}"
        assert "PLANTED" not in shown


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("nats://localhost", (("localhost", 4222),)),
        ("nats://a:1,b", (("a", 1), ("b", 4222))),
        ("nats://[::1]:7", (("::1", 7),)),
        ("tls://token@h", (("h", 4222),)),
    ],
)
def test_a_url_names_one_server_or_several(text: str, nodes: tuple[tuple[str, int], ...]) -> None:
    assert NatsOptions.of(text).nodes == nodes


def test_a_name_alone_before_the_host_is_a_token() -> None:
    options = NatsOptions.of("nats://s3cret@h")
    assert (options.token, options.username) == ("s3cret", "")


@pytest.mark.parametrize(
    "text",
    ["http://h", "nats:h", "nats://h:0", "nats://h:x", "nats://h/path", "nats://h?passwort=1", "nats://h?replicas=9",
     "nats://h?storage=tape", "nats://h?root=a.b", "nats://h?domain=a.b", "nats://h?read_timeout=0s",
     "nats://u:p@h?creds=x", "nats://t@h?nkey=x"],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NatsOptions.of(text)
    assert caught.value.do


def test_the_section_says_what_the_url_leaves_open() -> None:
    section = NatsSettings(creds="user.creds", replicas=3, read_timeout=timedelta(seconds=9), tls=NatsTls(ca="ca.pem"))
    named = {"nats.replicas", "nats.tls"}
    options = nats_options(section, named.__contains__, "nats://a,b?domain=hub")
    wanted = NatsOptions.of("nats://a,b?domain=hub")
    assert options == dataclasses.replace(wanted, creds="user.creds", replicas=3, tls=Tls(ca="ca.pem"))


def test_what_the_url_says_goes_before_the_section() -> None:
    section = NatsSettings(username="them", password="theirs", replicas=3)
    options = nats_options(section, lambda _: True, "nats://us:ours@a?replicas=5")
    assert (options.username, options.password, options.replicas) == ("us", "ours", 5)


@pytest.mark.parametrize("parse", [parse_jobs, parse_objects])
def test_what_nats_does_not_keep_is_refused_by_name(parse: object) -> None:
    with pytest.raises(ConfigError, match="nats"):
        parse("nats://h")  # type: ignore[operator]  # one of two functions


def test_settings_of_nats_that_nothing_uses_are_told() -> None:
    config = load(os.devnull, environ={}, overrides={"nats.root": "ours"})
    assert any("nats.root" in warning for warning in config.warnings)


def test_a_home_on_nats_is_reached_as_the_section_says_and_keeps_the_journal() -> None:
    objects = {"backends.objects": "file:wrasse-data"}
    told = objects | {"backends.streams": "nats://a,b", "nats.creds": "user.creds", "archival": "[{stream: orders.*}]"}
    where = load(os.devnull, environ={}, overrides=told).homes
    options = NatsOptions.of(where.streams)
    assert (options.creds, options.patterns, where.engine) == ("user.creds", ("orders.*",), where.streams)
    assert (where.records, where.journal, where.serves("jobs")) == (where.streams, where.streams, False)
