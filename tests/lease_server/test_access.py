"""Tokens with names, roles and namespaces; and where they may travel."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from lease_server.test_server import running
from wrasse.config.dump import shown
from wrasse.config.lease_settings import LeaseSettings, Role
from wrasse.config.load import load
from wrasse.config.urls import Address
from wrasse.errors import ConfigError
from wrasse.lease_server.access import Access, TokenOwner, access_of, check_access
from wrasse.lease_server.openapi import CALLS
from wrasse.runtime.leases import client_tls

ACCESS = Access(
    (
        TokenOwner("boss", b"b0ss", Role.ADMIN),
        TokenOwner("shop", b"sh0p", Role.WRITER, frozenset({"shop"})),
        TokenOwner("eye", b"3ye", Role.READER),
    )
)
XID = "c" * 19 + "0"
BEYOND = Address("192.0.2.1", 9342)


async def asked(client: ClientSession, token: str, method: str, path: str, body: object = None) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    async with client.request(method, path, headers=headers, json=body) as answer:
        assert answer.status == 204 or answer.content_type == "application/json"
        return answer.status


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.method} {call.path}")
async def test_each_call_wants_the_role_that_the_document_names(call: Any) -> None:
    roles = list(Role)
    async with running(ACCESS) as (_, client):
        for token, role in (("b0ss", Role.ADMIN), ("sh0p", Role.WRITER), ("3ye", Role.READER)):
            body = {"wait_seconds": -1} if call.method == "post" else None
            status = await asked(client, token, call.method, f"{call.path}?key=k&namespace=shop&public=1", body)
            refused = roles.index(role) < roles.index(call.role)
            assert (status == 403) is refused, (role, status)
        assert await asked(client, "wrong", call.method, call.path) == 401


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("acquire", {"key": "k", "owner": "me", "block_seconds": -1}),
        ("keepalive", {"key": "k", "lease_id": "x", "txn_id": "x"}),
        ("release", {"key": "k", "lease_id": "x", "txn_id": "x"}),
        ("get?key=k&public=1&namespace={0}", None),
        ("update?key=k&namespace={0}", {}),
        ("queue/stats", {"queue": "q"}),
        ("queue/dequeue", {"queue": "q", "owner": "me", "wait_seconds": -1}),
        ("txn/decide", {"txn_id": XID, "state": "commit", "participants": [{"key": "k"}]}),
    ],
)
async def test_a_token_stays_in_its_namespaces(path: str, body: dict[str, Any] | None) -> None:
    async with running(ACCESS) as (_, client):
        for namespace, allowed in (("shop", True), ("SHOP", True), ("bank", False), ("", False)):
            sent = None if body is None else {**body, "namespace": namespace}
            if sent is not None and "participants" in sent:
                sent["participants"] = [{"key": "k", "namespace": namespace}]
            headers = {"Authorization": "Bearer sh0p", "X-Fencing-Token": "1", "X-Lease-ID": "x", "X-Txn-ID": XID}
            async with client.post(f"/v1/{path.format(namespace)}", json=sent, headers=headers) as answer:
                refused = answer.status == 403 and (await answer.json())["error"] == "forbidden"
            assert refused is not allowed, (namespace, answer.status)


async def test_a_refused_caller_is_logged_by_name_and_never_by_token(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with running(ACCESS) as (_, client):
            await asked(client, "3ye", "POST", "/v1/acquire", {})
            await asked(client, "sh0p", "POST", "/v1/queue/stats", {"queue": "q", "namespace": "bank"})
            await asked(client, "wr0ng", "POST", "/v1/acquire", {})
    told = [record.__dict__ for record in caplog.records if "refused" in record.msg]
    assert [each.get("owner") for each in told] == ["eye", "shop", None]
    assert [each.get("namespace") for each in told] == [None, "bank", None]
    assert [each.get("address") for each in told] == ["127.0.0.1", None, "127.0.0.1"]
    assert not any(token in caplog.text + repr(told) + repr(ACCESS) for token in ("3ye", "sh0p", "wr0ng"))


async def test_calls_are_counted_by_the_name_of_the_token_and_the_status() -> None:
    async with running(ACCESS) as (server, client):
        for token in ("3ye", "sh0p", "wr0ng"):
            await asked(client, token, "GET", "/v1/keys?namespace=shop")
        await asked(client, "3ye", "POST", "/v1/acquire", {})
        await asked(client, "3ye", "GET", "/v1/nothing-here")
        assert server.calls == {
            ("eye", 200): 1, ("shop", 200): 1, ("", 401): 1, ("eye", 403): 1, ("eye", 404): 1
        }  # fmt: skip


def test_tokens_do_not_leave_the_machine_without_tls() -> None:
    with pytest.raises(ConfigError, match="without TLS"):
        check_access(BEYOND, ACCESS)
    check_access(BEYOND, Access(ACCESS.callers, insecure=True))
    check_access(BEYOND, Access(ACCESS.callers, "cert", "key"))
    check_access(Address("127.0.0.1", 1), ACCESS)


@pytest.mark.parametrize("server", ["http://locks:9342", "http://192.0.2.1:1", "HTTP://locks", "http://127.0.0.1.evil"])
def test_a_client_does_not_send_its_token_without_tls(server: str) -> None:
    with pytest.raises(ConfigError, match="without TLS"):
        client_tls(LeaseSettings(server=server, token="secret"))
    assert client_tls(LeaseSettings(server=server, token="secret", insecure=True)) is None
    assert client_tls(LeaseSettings(server=server)) is None
    for safe in ("https://locks:9342", "http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"):
        assert client_tls(LeaseSettings(server=safe, token="secret")) is None


def test_the_secret_of_handlers_behind_a_url_does_not_travel_without_tls_either() -> None:
    there = {"worker.handlers": "{resize: 'http://pictures/resize'}", "worker.http.authorization": "Bearer x"}
    with pytest.raises(ConfigError, match="without TLS"):
        load(environ={}, overrides=there)
    load(environ={}, overrides={**there, "worker.http.insecure": "true"})
    load(environ={}, overrides={**there, "worker.handlers": "{resize: 'https://pictures/resize'}"})


def test_tokens_come_from_the_file_the_environment_and_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("fr0m-file\n")
    file = tmp_path / "token"
    text = f"{{a: {{token: plain-one, role: reader}}, b: {{token_file: {file}, namespaces: [x]}}}}"
    config = load(environ={"WRASSE_LEASES_TOKENS": text, "WRASSE_LEASES_TOKEN": "all"})
    callers = access_of(config.settings.leases).callers
    assert [(each.name, each.token, each.role, set(each.namespaces)) for each in callers] == [
        ("token", b"all", Role.ADMIN, set()),
        ("a", b"plain-one", Role.READER, set()),
        ("b", b"fr0m-file", Role.WRITER, {"x"}),
    ]
    told = repr([each.value for each in shown(config) if each.leaf.path.startswith("leases.")])
    assert "plain-one" not in told
    assert "reader" in told


@pytest.mark.parametrize(
    "tokens",
    ["{a: {}}", "{a: {token: x, token_file: y}}", "{a: {token: x}, b: {token: x}}", "{a: {token: 'x y'}}",
     "{'': {token: x}}", "{a: {token: x, role: king}}",
     "{a: {token: x, namespaces: [A/b]}}", "{a: {token: ü}}", "{a: x}"],
)  # fmt: skip
def test_tokens_that_make_no_sense_are_refused(tokens: str) -> None:
    with pytest.raises(ConfigError):
        load(environ={"WRASSE_LEASES_TOKENS": tokens})


def test_a_token_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    config = load(environ={"WRASSE_LEASES_TOKENS": f"{{a: {{token_file: {tmp_path / 'none'}}}}}"})
    with pytest.raises(ConfigError, match=r"leases\.tokens\.a"):
        access_of(config.settings.leases)
