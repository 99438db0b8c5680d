"""Messages within transactions over HTTP: a commit acks them, a rollback hands them out again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from lease_server.scene import served
from lease_server.test_queues import QUEUE, Scene
from leases.transaction_scene import name_of
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.leases.leases import Leases

MARK = name_of(3)


class Together(Scene):
    """A consumer that changes a key with each message."""

    async def post(self, path: str, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, Any]]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.server.client.post(path, json=body, headers=named) as answer:
            return answer.status, await answer.json()

    async def staged(self, transaction: str = MARK) -> dict[str, Any]:
        """The key `account`, under the transaction, with a change."""
        asked = {"key": "account", "owner": "me", "block_seconds": -1, "txn_id": transaction}
        _, lease = await self.post("/v1/acquire", asked)
        await self.post(
            "/v1/update?key=account", {"paid": 1}, X_Lease_ID=lease["lease_id"], X_Txn_ID=lease["txn_id"],
            X_Fencing_Token=str(lease["fencing_token"]),
        )  # fmt: skip
        return lease

    async def paid(self) -> bool:
        async with self.server.client.post("/v1/get?key=account&public=1") as answer:
            return answer.status == 200

    async def decide(self, state: str) -> str:
        _, told = await self.post("/v1/txn/decide", {"txn_id": MARK, "state": state})
        await self.server.api.finished()
        return str(told["state"])


@pytest.fixture
async def scene() -> AsyncIterator[Together]:
    clock = ManualClock()
    memory = Memory(clock)
    async with served(Leases(memory.records, memory.objects, clock), clock) as server:
        yield Together(server, memory, clock)


async def test_an_ack_commits_the_transaction_of_its_message_and_may_be_asked_again(scene: Together) -> None:
    await scene.enqueue()
    message = await scene.one(txn_id=MARK)
    await scene.staged()
    first = await scene.call("ack", message, txn_id=MARK)
    again = await scene.call("ack", message, txn_id=MARK)
    assert (message["txn_id"], first[0], again[0], await scene.paid(), await scene.dequeue()) == (
        MARK, 200, 200, True, [],
    )  # fmt: skip


@pytest.mark.parametrize("path", ["dequeue", "dequeueWithState"])
async def test_a_decision_acks_a_message_or_hands_it_out_again(scene: Together, path: str) -> None:
    await scene.enqueue()
    await scene.one(path, txn_id=MARK)
    await scene.staged()
    assert (await scene.decide("commit"), await scene.paid(), await scene.dequeue()) == ("commit", True, [])
    left = [key for key in await scene.left() if "orders" in key]
    assert left == []


async def test_a_rollback_hands_a_message_out_again_and_spends_an_attempt(scene: Together) -> None:
    await scene.enqueue()
    message = await scene.one("dequeueWithState", txn_id=MARK)
    await scene.staged()
    await scene.state(message, {"step": 1})
    undone = await scene.decide("rollback")
    late = await scene.call("ack", message, txn_id=MARK)
    again = await scene.one("dequeueWithState")
    assert (undone, late[0], late[1]["error"]) == ("rollback", 409, "queue_message_lease_mismatch")
    assert (again["failure_attempts"], await scene.paid(), await scene.state(again)) == (1, False, None)


async def test_a_nack_undoes_the_transaction_of_its_message(scene: Together) -> None:
    await scene.enqueue()
    message = await scene.one(txn_id=MARK)
    await scene.staged()
    status, told = await scene.call("nack", message, delay_seconds=60)
    assert (status, told["requeued"], await scene.dequeue(), await scene.decide("commit")) == (
        200, True, [], "rollback",
    )  # fmt: skip
    assert not await scene.paid()


async def test_an_extend_keeps_a_message_in_its_transaction(scene: Together) -> None:
    await scene.enqueue()
    message = await scene.one(txn_id=MARK)
    for _ in range(3):
        scene.clock.advance(timedelta(seconds=20))
        await scene.call("extend", message, extend_by_seconds=30)
    await scene.staged()
    assert ((await scene.call("ack", message))[0], await scene.paid()) == (200, True)


async def test_the_transaction_that_an_acquire_gave_may_have_messages(scene: Together) -> None:
    await scene.enqueue()
    asked = {"key": "account", "owner": "me", "block_seconds": -1}
    _, lease = await scene.post("/v1/acquire", asked)
    message = await scene.one(txn_id=lease["txn_id"])
    released = await scene.post(
        "/v1/release", {"key": "account", "lease_id": lease["lease_id"], "txn_id": lease["txn_id"], "rollback": True},
        X_Fencing_Token=str(lease["fencing_token"]),
    )  # fmt: skip
    await scene.server.api.finished()
    again = await scene.one()
    assert (released[0], again["message_id"], again["failure_attempts"]) == (200, message["message_id"], 1)


async def test_a_transaction_that_is_over_takes_no_message(scene: Together) -> None:
    await scene.enqueue()
    await scene.enqueue()
    await scene.decide("commit")
    asked = {"queue": QUEUE, "owner": "me", "wait_seconds": -1, "txn_id": MARK, "page_size": 2}
    status, told = await scene.post("/v1/queue/dequeue", asked)
    again = await scene.dequeue(page_size=2)
    for message, _ in again:
        await scene.call("ack", message)
    assert (status, told["error"]) == (409, "txn_conflict")
    assert [message.get("failure_attempts", 0) for message, _ in again] == [0, 0]
    assert [key for key in await scene.left() if key != MARK] == []


async def test_a_message_is_in_one_transaction_only(scene: Together) -> None:
    await scene.enqueue()
    message = await scene.one(txn_id=MARK)
    other = await scene.call("ack", message, txn_id=name_of(4))
    assert (other[0], other[1]["error"], (await scene.call("ack", message, txn_id=MARK))[0]) == (
        409, "txn_mismatch", 200,
    )  # fmt: skip
