"""Logging in to a NATS server: each way works, each mistake is named, and no secret is ever part of an error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from servers.nats import nats
from servers.nats_logins import NKey, nats_of_operator, nats_with_user_key
from wrasse.backends.nats.client.transport import public_key, sign
from wrasse.backends.nats.connect import Nats
from wrasse.backends.nats.options import NatsOptions
from wrasse.errors import ConfigError
from wrasse.ports.records import Collection

THINGS = Collection.named("things")


async def works(options: NatsOptions) -> bool:
    """Whether a record can be written and read."""
    store = await Nats.open(options)
    try:
        await store.records(THINGS).create("a", b"1")
        found = await store.records(THINGS).get("a")
        return found is not None and found.value == b"1"
    finally:
        await store.close()


def at(port: int, **login: str) -> NatsOptions:
    return NatsOptions(nodes=(("127.0.0.1", port),), **login)  # type: ignore[arg-type]  # texts, by name


async def test_a_user_logs_in_with_a_password() -> None:
    with nats("authorization { user: u, password: pw }") as server:
        assert await works(at(server.port, username="u", password="pw"))
        with pytest.raises(ConfigError, match="refuses our login") as caught:
            await works(at(server.port, username="u", password="PLANTED"))
    assert "PLANTED" not in str(caught.value)


async def test_a_token_is_enough_where_the_server_says_so() -> None:
    with nats("authorization { token: s3cret }") as server:
        assert await works(at(server.port, token="s3cret"))
        with pytest.raises(ConfigError, match="refuses our login"):
            await works(at(server.port))


async def test_a_user_is_known_by_a_key_that_never_leaves_us(tmp_path: Path) -> None:
    file = tmp_path / "user.nk"
    with nats_with_user_key(file) as server:
        assert await works(at(server.port, nkey=str(file)))
        file.write_text(NKey.new("user").seed)
        with pytest.raises(ConfigError, match="refuses our login"):
            await works(at(server.port, nkey=str(file)))


async def test_an_operators_user_logs_in_with_credentials(tmp_path: Path) -> None:
    file = tmp_path / "user.creds"
    with nats_of_operator(file) as server:
        assert await works(at(server.port, creds=str(file)))


def test_credentials_are_read_anew_for_every_connection(tmp_path: Path) -> None:
    file = tmp_path / "user.nk"
    keys = NKey.new("user"), NKey.new("user")
    named = []
    for key in keys:
        file.write_text(key.seed)
        named.append(sign(NatsOptions(nkey=str(file)), "nonce").nkey)
    assert named == [key.public for key in keys]


def test_a_public_key_follows_from_its_seed() -> None:
    key = NKey.new("user")
    assert public_key(key.seed) == key.public


def miswritten(seed: str) -> str:
    """With one letter that is another; the last one has bits that mean nothing."""
    return seed[:20] + ("A" if seed[20] != "A" else "B") + seed[21:]


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("nkey", lambda: NKey.new("account").seed),
        ("nkey", lambda: miswritten(NKey.new("user").seed)),
        ("nkey", lambda: "PLANTED nonsense"),
        ("nkey", lambda: ""),
        ("creds", lambda: NKey.new("user").seed),
        ("creds", lambda: "-----BEGIN NATS USER JWT-----\nPLANTED\n------END NATS USER JWT------\n"),
    ],
)
def test_a_file_that_holds_no_login_is_named_by_its_setting(
    tmp_path: Path, setting: str, text: Callable[[], str]
) -> None:
    file = tmp_path / "login"
    file.write_text(text())
    with pytest.raises(ConfigError, match=rf"nats\.{setting}") as caught:
        sign(NatsOptions(**{setting: str(file)}), "nonce")  # type: ignore[arg-type]  # a text, by name
    assert "PLANTED" not in str(caught.value)


def test_a_file_that_is_not_there_is_named_by_its_setting() -> None:
    with pytest.raises(ConfigError, match=r"nats\.creds cannot be read"):
        sign(NatsOptions(creds="/nowhere/user.creds"), "nonce")


def test_what_signs_is_asked_for_by_the_name_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "user.nk"
    file.write_text(NKey.new("user").seed)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(ConfigError) as caught:
        sign(NatsOptions(nkey=str(file)), "nonce")
    assert "wrasse[nats]" in caught.value.do


def test_a_login_shows_nothing_of_itself() -> None:
    login = sign(NatsOptions(username="u", password="PLANTED"), "")
    assert ("PLANTED" in repr(login), login.fields()) == (False, {"user": "u", "pass": "PLANTED"})
