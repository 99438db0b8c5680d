"""URLs of stores and addresses of ports, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from wrasse.config.redaction import hide
from wrasse.config.urls import Address, StoreUrl, parse_address, parse_store
from wrasse.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "path"),
    [("sqlite:wrasse.db", "wrasse.db"), ("sqlite:a/b.db", "a/b.db"), ("sqlite:///var/x.db", "/var/x.db"),
     ("sqlite:/var/x.db", "/var/x.db"), ("sqlite:odd name?#.db", "odd name?#.db")],
)  # fmt: skip
def test_a_path_is_relative_unless_it_has_three_slashes(text: str, path: str) -> None:
    assert parse_store(text) == StoreUrl("sqlite", path)


@given(st.from_regex(r"/?[a-z0-9 ]+(/[a-z0-9 ]+)*\.db", fullmatch=True))
def test_a_url_reads_back_as_it_is_written(path: str) -> None:
    url = StoreUrl("sqlite", path)
    assert parse_store(str(url)) == url
    assert parse_store(str(url.resolved())).path.endswith(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "wrasse.db",
        "sqlite:",
        "sqlite:dir/",
        "sqlite:.",
        "sqlite:a/..",
        "sqlite://x.db",
        "SQLITE:x",
        "gs://x",
        "x:y",
    ],
)
def test_what_names_no_store_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_store(text)
    assert "sqlite:" in caught.value.do


def test_the_home_directory_is_meant_by_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert parse_store("sqlite:~/a.db") == StoreUrl("sqlite", "/home/ann/a.db")
    assert parse_store("file:~/data/") == StoreUrl("file", "/home/ann/data")
    assert parse_store("sqlite:./~a.db") == StoreUrl("sqlite", "./~a.db")
    with pytest.raises(ConfigError, match="no home directory"):
        parse_store("sqlite:~nobody-of-this-name/a.db")


@pytest.mark.parametrize(
    "text",
    ["redis://h:6379/1/2", "redis://user:12/34@h/0", "redis+sentinel://user:12/34@h/0", "redis://h?ca=ca.pem",
     "redis://h?verify=true", "rediss://h?verify=ture", "rediss://h?verify=", "redis://h?cluster=ja", "redis://h?root",
     "redis://h?root=a&root=b", "nats://h?verify=off", "tls://h?tls_first=2", "s3://bucket?region=a&region=b",
     "memory:x", "memory://x"],
)  # fmt: skip
def test_a_url_whose_parts_would_be_ignored_or_guessed_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_store(text)


@pytest.mark.parametrize(
    "text",
    ["redis://me:pa?seven-up@h/0", "rediss://me:pa?root=1&seven-up@h/0", "nats://me:pa?seven-up@h",
     "redis://me:pa/seven-up@h/0", "s3://bucket?access_key=a&secret_key=ab&seven-up", "redis://me:pa?seven-up=2@h/0"],
)  # fmt: skip
def test_a_password_that_is_not_encoded_is_not_quoted_in_the_error(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_store(text)
    assert "seven" not in f"{caught.value} {caught.value.do}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://user:secret@h:1/0", "redis://***@h:1/0"),
        ("redis://:secret@h", "redis://***@h"),
        ("nats://token@h", "nats://***@h"),
        ("s3://bucket?secret_key=abc&endpoint=x", "s3://bucket?secret_key=***&endpoint=x"),
        ("sqlite:wrasse.db", "sqlite:wrasse.db"),
        ("mail to somebody at 10:30", "mail to somebody at 10:30"),
    ],
)
def test_users_and_passwords_are_not_shown(text: str, shown: str) -> None:
    assert hide(text) == shown


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("127.0.0.1:9341", Address("127.0.0.1", 9341), True),
        ("localhost:1", Address("localhost", 1), True),
        ("[::1]:80", Address("::1", 80), True),
        (":9090", Address("0.0.0.0", 9090), False),
        ("10.0.0.5:9341", Address("10.0.0.5", 9341), False),
        ("example.com:1", Address("example.com", 1), False),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: Address, loopback: bool) -> None:
    assert parse_address(text) == address
    assert address.loopback is loopback
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["", "9341", "host", "host:", "host:x", "::1:80", "h:70000", "h:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text)
