"""Bytes that another program wrote over a record cost that record, not the listing of the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from cli.command_line import wrasse
from servers.valkey import Valkey, valkey

META = "jobqueue:records:default/meta"


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as own:
        yield own


@pytest.mark.parametrize("stored", [b"\xff\xfe", b"\xff" * 200, b"", b"2-ab 1\n\xff", None])
def test_a_lease_record_of_any_bytes_does_not_end_the_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Valkey, stored: bytes | None
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = f"redis: {{addr: '127.0.0.1:{server.port}'}}\nbackends: {{objects: 'file:data'}}\n"
    (tmp_path / "wrasse.yaml").write_text(settings)
    with redis.Redis(port=server.port) as client:
        client.flushall()
        for key in ("bad", "good"):
            assert wrasse("leases", "acquire", key).code == 0
        if stored is None:
            client.hdel(META, "bad")
        else:
            client.hset(META, "bad", stored)
        answer, due = wrasse("leases", "list", "--json"), wrasse("leases", "fsck", "--json")
    assert answer.code == 0, answer.err
    assert {each["key"]: "invalid" in each for each in answer.json["keys"]} == {"bad": True, "good": False}
    assert due.code in (0, 1), due.err


def test_what_is_no_namespace_in_the_set_of_them_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Valkey
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = f"redis: {{addr: '127.0.0.1:{server.port}'}}\nbackends: {{objects: 'file:data'}}\n"
    (tmp_path / "wrasse.yaml").write_text(settings)
    strange = (b"", b"\xff", b"/meta", b"a/b/meta", b".wrasse/meta", b"zz", *(b"%d-" % n for n in range(300)))
    with redis.Redis(port=server.port) as client:
        client.flushall()
        for namespace in ("a", "default", "z"):
            assert wrasse("leases", "acquire", "k", f"--namespace={namespace}").code == 0
        client.zadd("jobqueue:namespaces", dict.fromkeys(strange, 0))
        client.zadd("jobqueue:namespaces", {b"in no order": 7, b"\xfe": -7})
        checked, swept = wrasse("leases", "fsck", "--json"), wrasse("sweep", "expired-leases", "--json")
    assert (checked.code, checked.json["namespaces"], checked.json["keys"]) == (0, 3, 3), checked.err
    assert (swept.code, swept.json["reports"][0]["stopped_by"]) == (0, None), swept.out
