"""Leases on the command line: what one command stages the next one commits, and fsck finds inconsistencies."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.command_line import Answer, wrasse
from wrasse.backends.directory.connect import Directory
from wrasse.clock import SystemClock
from wrasse.leases.core import leases_in
from wrasse.leases.lease import decode
from wrasse.leases.leases import Leases
from wrasse.runtime.backends import open_store

pytestmark = pytest.mark.usefixtures("place")


@pytest.fixture(params=["", "file:data"])
def home(request: pytest.FixtureRequest, place: Path) -> str:
    """The embedded default, and a directory for everything."""
    if request.param == "file:data":
        (place / "wrasse.yaml").write_text("backends: {records: 'file:data'}")
    return str(request.param)


@pytest.fixture
def directory(place: Path) -> Path:
    (place / "wrasse.yaml").write_text("backends: {records: 'file:data'}")
    return place / "data"


def lease_of(answer: Answer) -> str:
    assert answer.code == 0, answer.err
    return f"--lease={answer.json['lease']}"


def committed(key: str, state: str, *more: str) -> None:
    lease = lease_of(wrasse("leases", "acquire", key, "--json", *more))
    assert wrasse("leases", "update", key, lease, state, *more).code == 0
    assert wrasse("leases", "release", key, lease, *more).code == 0


def test_a_key_is_acquired_changed_and_released_command_by_command(home: str) -> None:
    lease = lease_of(wrasse("leases", "acquire", "orders/42", "--owner=ann", "--ttl=5m", "--json"))
    assert wrasse("leases", "keep", "orders/42", lease, "--ttl=10m").code == 0
    assert wrasse("leases", "update", "orders/42", lease, '{"paid": true}').out == "orders/42 will have version 1\n"
    assert wrasse("leases", "get", "orders/42").code == 2  # nothing is committed yet
    assert wrasse("leases", "get", "orders/42", lease).out == '{"paid":true}\n'
    assert wrasse("leases", "release", "orders/42", lease).out == "orders/42 is free; it has version 1\n"
    assert wrasse("leases", "get", "orders/42").out == '{"paid":true}\n'


def test_a_leased_key_is_refused_and_its_owner_shown() -> None:
    wrasse("leases", "acquire", "a", "--owner=ann", "--ttl=5m")
    refused = wrasse("leases", "acquire", "a", "--owner=bob")
    assert (refused.code, "held by somebody else" in refused.err) == (1, True)
    assert wrasse("leases", "show", "a", "--json").json["lease"]["owner"] == "ann"
    assert "ann" in wrasse("leases", "list").out


def test_a_wrong_token_is_refused() -> None:
    lease = lease_of(wrasse("leases", "acquire", "a", "--ttl=5m", "--json"))
    refused = wrasse("leases", "update", "a", lease, "1", "--token=7")
    assert "the token 7 is not that of the lease" in refused.err


def test_what_is_rolled_back_or_removed_is_gone() -> None:
    committed("a", "[1]")
    lease = lease_of(wrasse("leases", "acquire", "a", "--json"))
    wrasse("leases", "update", "a", lease, "[2]")
    wrasse("leases", "release", "a", lease, "--rollback")
    assert wrasse("leases", "get", "a").out == "[1]\n"
    lease = lease_of(wrasse("leases", "acquire", "a", "--json"))
    assert wrasse("leases", "remove", "a", lease, "--json").json["staged"] is True
    wrasse("leases", "release", "a", lease)
    assert wrasse("leases", "get", "a").code == 2


def test_keys_and_namespaces_are_listed_page_by_page() -> None:
    for key in ("x/1", "x/2", "y"):
        committed(key, "1", "--namespace=shop")
    first = wrasse("leases", "list", "x", "--namespace=shop", "--limit=1", "--json").json
    second = wrasse("leases", "list", "x", "--namespace=shop", f"--after={first['cursor']}", "--json").json
    assert [each["key"] for page in (first, second) for each in page["keys"]] == ["x/1", "x/2"]
    assert wrasse("leases", "list", "--namespaces").out == "shop\n"


def test_a_state_that_is_no_json_and_a_key_that_is_none_are_clear_errors() -> None:
    lease = lease_of(wrasse("leases", "acquire", "a", "--json"))
    assert "the state is not JSON" in wrasse("leases", "update", "a", lease, "{nope").err
    assert "begins with a dot" in wrasse("leases", "acquire", "a/../b").err
    assert "there is no key 'other'" in wrasse("leases", "show", "other").err


def kept_in(directory: Path, key: str, namespace: str = "default") -> None:
    """A key that one process took, changed and gave back, and is done with."""

    async def work() -> None:
        store = await Directory.open(directory)
        leases = Leases(store.records, store.objects, SystemClock())
        lease = await leases.acquire(key, "ann", namespace=namespace)
        await leases.update(lease.granted, b"1")
        await leases.release(lease.granted)
        await leases.close()
        await store.close()

    asyncio.run(work())


def troubles(answer: Answer) -> Iterator[tuple[str, bool]]:
    return ((each["trouble"], each["repaired"]) for each in answer.json["inconsistencies"])


def test_a_sound_store_has_nothing_wrong(directory: Path) -> None:
    kept_in(directory, "a")
    kept_in(directory, "b/c", "shop")
    wrasse("leases", "acquire", "held", "--ttl=10m")
    answer = wrasse("leases", "fsck")
    assert (answer.code, answer.out) == (0, "3 keys and 2 objects in 2 namespaces: nothing is wrong\n")


def test_a_loose_object_is_found_and_repaired(directory: Path) -> None:
    kept_in(directory, "a")
    (held,) = (directory / "default/state/a/.v").iterdir()
    loose = held.with_name(held.name.rpartition("-")[0] + "-0123456789abcdef")
    loose.write_bytes(held.read_bytes())
    assert list(troubles(wrasse("leases", "fsck", "--json"))) == [("loose object", False)]
    assert loose.exists()
    assert list(troubles(wrasse("leases", "fsck", "--repair", "--json"))) == [("loose object", True)]
    assert (loose.exists(), wrasse("leases", "get", "a").out, wrasse("leases", "fsck").code) == (False, "1\n", 0)


def test_a_missing_object_is_found_and_cannot_be_repaired(directory: Path) -> None:
    kept_in(directory, "a")
    (held,) = (directory / "default/state/a/.v").iterdir()
    held.unlink()
    answer = wrasse("leases", "fsck", "--repair", "--json")
    assert (answer.code, list(troubles(answer))) == (1, [("missing object", False)])


def test_a_missing_index_entry_is_found_and_written_again(directory: Path) -> None:
    wrasse("leases", "acquire", "a", "--ttl=10m")
    (entry,) = (directory / "default/.lease-index").glob("*/a*")
    entry.unlink()
    assert list(troubles(wrasse("leases", "fsck", "--json"))) == [("missing index entry", False)]
    assert list(troubles(wrasse("leases", "fsck", "--repair", "--json"))) == [("missing index entry", True)]
    assert (entry.exists(), wrasse("leases", "fsck").code) == (True, 0)


def test_a_stale_index_entry_is_found_and_deleted(directory: Path) -> None:
    kept_in(directory, "a")
    old = directory / "default/.lease-index/2020010100"
    old.mkdir()
    (old / "a").write_bytes(b"{}")
    (directory / "default/.lease-index/buckets.json").write_text('["2020010100"]')
    assert list(troubles(wrasse("leases", "fsck", "--json"))) == [("stale index entry", False)]
    assert list(troubles(wrasse("leases", "fsck", "--repair", "--json"))) == [("stale index entry", True)]
    assert not (old / "a").exists()


def test_what_is_being_written_now_is_not_taken_for_loose(directory: Path) -> None:
    lease = lease_of(wrasse("leases", "acquire", "a", "--ttl=10m", "--json"))
    wrasse("leases", "update", "a", lease, "1")
    (staged,) = (directory / "default/state/a/.v").iterdir()
    late = staged.with_name(staged.name.rpartition("-")[0] + "-0123456789abcdef")
    late.write_bytes(staged.read_bytes())  # the next update, whose record is still to come
    assert wrasse("leases", "fsck", "--repair").code == 0
    assert late.exists()


def test_state_needs_a_home_that_every_host_reaches(place: Path) -> None:
    (place / "wrasse.yaml").write_text("backends: {records: 'redis://127.0.0.1:1/0'}")
    refused = wrasse("run", "--role=leases")
    assert (refused.code, "a directory of this host alone" in refused.err) == (2, True)


def test_a_retention_in_a_bucket_is_refused(place: Path) -> None:
    (place / "wrasse.yaml").write_text("backends: {records: 's3://b/p'}\nleases: {disk_retention: 30d}")
    assert "would list all keys" in wrasse("config", "check").err


def test_a_retention_sets_how_often_aged_keys_are_searched_for(place: Path) -> None:
    def interval(retention: str) -> str:
        (place / "wrasse.yaml").write_text(f"leases: {{disk_retention: {retention}}}")
        listed = wrasse("sweep", "--list", "--json").json["sweeps"]
        (mine,) = [each for each in listed if each["name"] == "aged_records"]
        return f"{mine['enabled']} {mine['interval_seconds']}"

    assert [interval(each) for each in ("30s", "1h", "30d")] == ["True 60.0", "True 1800.0", "True 3600.0"]


def test_a_key_of_another_process_is_shown_by_explain() -> None:
    wrasse("leases", "acquire", "orders/42", "--owner=ann", "--ttl=5m")
    assert wrasse("explain", "orders/42", "--json").json["lease"]["owner"] == "ann"


def test_of_a_free_key_explain_says_so() -> None:
    taken = wrasse("leases", "acquire", "orders/42", "--json").json
    wrasse("leases", "update", "orders/42", f"--lease={taken['lease']}", "1")
    wrasse("leases", "release", "orders/42", f"--lease={taken['lease']}")
    assert wrasse("explain", "orders/42", "--json").json["lease"]["owner"] is None
    assert "none: the key is free" in wrasse("explain", "orders/42").out


def test_a_lease_that_ended_is_cleared_by_the_sweep_on_the_command_line() -> None:
    wrasse("leases", "acquire", "a", "--ttl=1ms")
    answer = wrasse("sweep", "expired-leases", "--json").json["reports"][0]
    assert (answer["done"], asyncio.run(_grants())) == (1, [None])


async def _grants() -> list[object]:
    store = await open_store("sqlite:wrasse.db")
    try:
        return [decode(each).lease for each in await store.records(leases_in("default")).page("", None, 10)]
    finally:
        await store.close()


@pytest.mark.parametrize("spoilt", [b"\xff\xfe", b"", b"[" * 50_000, b'{"token": 1e300}'])
@pytest.mark.parametrize("inside", [False, True], ids=["the file", "the value in it"])
def test_a_record_that_cannot_be_read_costs_only_its_key(directory: Path, spoilt: bytes, inside: bool) -> None:
    for key in ("a", "b", "c"):
        committed(key, "{}")
    (file,) = [each for each in directory.rglob("*.json") if each.stem == "b" and "meta" in each.parts]
    whole = json.loads(file.read_bytes())
    held = {name: each for name, each in whole.items() if name != "value"}
    file.write_bytes(json.dumps(held | {"base64": b64encode(spoilt).decode()}).encode() if inside else spoilt)
    answer = wrasse("leases", "list", "--json")
    found = {each["key"]: each.get("invalid") for each in answer.json["keys"]}
    assert (found["a"], found["c"], bool(found["b"])) == (None, None, True)
    shown = wrasse("leases", "list")
    assert (shown.code, "invalid" in shown.out) == (0, True)
    checked = wrasse("leases", "fsck", "--repair")
    assert "invalid record" in checked.out
    assert wrasse("sweep", "aged-records").code == wrasse("sweep", "expired-leases").code == 0
    assert wrasse("leases", "get", "c").code == 0
