"""The lease API on the wire, every recorded example of lockd among it, and what keys leave in each backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from lease_server.scene import served
from lease_server.test_examples import DIFFERENT, EXAMPLES
from wire import lease_calls
from wire.conftest import Difference, OpenPlace
from wire.dumps import as_text, directory_items
from wire.lease_calls import Caller
from wire.placeholders import Placeholders
from wire.places import START, Place, dumped
from wrasse.backends.directory.connect import Directory
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.leases.leases import Leases

SCENES = ("keys_and_state", "transactions", "messages")


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("where", ["redis", "nats", "directory", "strict s3"])
async def test_keys_are_stored_as_recorded(
    open_place: OpenPlace, difference: Difference, tmp_path: Path, where: str, scene: str
) -> None:
    beside = ""

    async def play(place: Place) -> None:
        nonlocal beside
        objects = getattr(place.backend, "objects", None)
        directory = await Directory.open(tmp_path / "objects", place.clock)
        leases = Leases(
            place.backend.records, objects or directory.objects, place.clock, namespaces=place.backend.namespaces
        )
        async with served(leases, place.clock) as server:
            await getattr(lease_calls, scene)(Caller(server))
            await server.api.finished()
            await leases.close()
        await directory.close()
        if objects is None:
            beside = "\n" + as_text(directory_items(tmp_path / "objects"), place.names)

    text = await dumped(open_place, where, play)
    assert not difference(f"leases_{scene}_{where}", text + beside)


async def _exchanges(play: Callable[[Caller], Awaitable[Any]]) -> str:
    clock = ManualClock(START)
    memory = Memory(clock)
    async with served(Leases(memory.records, memory.objects, clock), clock) as server:
        caller = Caller(server)
        await play(caller)
        await server.api.finished()
    names = Placeholders()
    return "\n".join(map(names, caller.lines)) + "\n"


@pytest.mark.parametrize("scene", SCENES)
async def test_the_lease_api_answers_as_recorded(difference: Difference, scene: str) -> None:
    assert not difference(f"http_{scene}", await _exchanges(getattr(lease_calls, scene)))


async def test_the_lease_api_answers_lockds_examples_as_recorded(difference: Difference) -> None:
    async def play(caller: Caller) -> None:
        known: dict[str, str] = {}
        for each in EXAMPLES:
            if each["name"] in DIFFERENT or "block" in each["name"]:  # those wait for a second each
                continue
            headers = {name: known.get(value, value) for name, value in each["headers"].items()}
            if headers.get("X-Fencing-Token") == "1":
                headers["X-Fencing-Token"] = known.get("token", "1")
            body = await caller.call(each["method"], each["path"], each["body"], headers=headers, name=each["name"])
            if "fencing_token" in body and "lease_id" in each:
                known.setdefault("token", str(body["fencing_token"]))
                known[each["lease_id"]], known[each["txn_id"]] = body["lease_id"], body["txn_id"]

    assert not difference("http_examples_of_lockd", await _exchanges(play))
