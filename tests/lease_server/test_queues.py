"""Queues over HTTP: lockd's messages, from enqueue to ack, and what its consumers were seen to suffer from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import ClientResponse, MultipartReader, MultipartWriter

from lease_server.scene import Served, served
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.leases.leases import Leases
from wrasse.ports.jobs import JobState

QUEUE = "orders"
Told = tuple[int, dict[str, Any]]


class Scene:
    """A server whose time is ours, and short ways to call it."""

    def __init__(self, server: Served, memory: Memory, clock: ManualClock) -> None:
        self.server, self.memory, self.clock = server, memory, clock

    async def enqueue(self, payload: bytes = b"hello", **meta: object) -> Told:
        with MultipartWriter("form-data") as body:
            part = body.append_json({"queue": QUEUE, **meta})
            part.set_content_disposition("form-data", name="meta")
            part = body.append(payload, {"Content-Type": "text/plain"})  # type: ignore[arg-type]
            part.set_content_disposition("form-data", name="payload")
        async with self.server.client.post("/v1/queue/enqueue", data=body) as answer:
            return answer.status, await answer.json()

    async def dequeue(self, path: str = "dequeue", **more: object) -> list[tuple[dict[str, Any], bytes]]:
        asked = {"queue": QUEUE, "owner": "me", "wait_seconds": -1, **more}
        async with self.server.client.post(f"/v1/queue/{path}", json=asked) as answer:
            return await messages(answer) if answer.status == 200 else []

    async def one(self, path: str = "dequeue", **more: object) -> dict[str, Any]:
        ((message, _),) = await self.dequeue(path, **more)
        return message

    async def call(self, path: str, message: dict[str, Any], **more: object) -> Told:
        shown = {name: message[name] for name in ("queue", "message_id", "lease_id", "fencing_token", "meta_etag")}
        for name in ("state_lease_id", "state_fencing_token", "state_txn_id"):
            shown |= {name: message[name]} if name in message else {}
        async with self.server.client.post(f"/v1/queue/{path}", json={**shown, **more}) as answer:
            return answer.status, await answer.json()

    async def state(self, message: dict[str, Any], data: dict[str, int] | None = None) -> Any:
        """Updates the state of a message under its lease, or reads it."""
        key = f"q/{QUEUE}/state/{message['message_id']}"
        headers = {
            "X-Lease-ID": message["state_lease_id"], "X-Txn-ID": message["state_txn_id"],
            "X-Fencing-Token": str(message["state_fencing_token"]),
        }  # fmt: skip
        path, body = ("/v1/get", None) if data is None else ("/v1/update", json.dumps(data))
        async with self.server.client.post(path, params={"key": key}, headers=headers, data=body) as answer:
            return json.loads(await answer.read() or b"null")

    async def left(self) -> list[str]:
        """Everything that is stored."""
        await self.server.api.finished()
        await self.server.leases.close()
        found = [key for records in self.memory._records.values() for key in [r.key async for r in _all(records)]]
        return found + [info.key for info in await self.memory.objects.page("", None, 100)]


async def _all(records: Any) -> AsyncIterator[Any]:
    for record in await records.page("", None, 100):
        yield record


async def messages(answer: ClientResponse) -> list[tuple[dict[str, Any], bytes]]:
    found, reader = [], MultipartReader.from_response(answer)
    while (meta := await reader.next()) is not None:
        message = (await meta.json())["message"]  # type: ignore[union-attr]
        payload = await reader.next()
        found.append((message, await payload.read()))  # type: ignore[union-attr]
    return found


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    clock = ManualClock()
    memory = Memory(clock)
    async with served(Leases(memory.records, memory.objects, clock), clock) as server:
        yield Scene(server, memory, clock)


async def test_a_message_comes_as_it_was_sent_and_is_gone_with_its_ack(scene: Scene) -> None:
    status, sent = await scene.enqueue(b"\x00payload", attributes={"n": 1})
    ((message, payload),) = await scene.dequeue()
    acked = await scene.call("ack", message)
    assert (status, sent["attempts"], sent["max_attempts"], sent["visibility_timeout_seconds"]) == (200, 0, 5, 30)
    assert (payload, message["message_id"], message["attributes"], message["payload_content_type"]) == (
        b"\x00payload", sent["message_id"], {"n": 1}, "text/plain",
    )  # fmt: skip
    assert (acked[0], acked[1]["acked"], await scene.left()) == (200, True, [])


async def test_messages_come_in_the_order_they_were_sent_and_several_at_once(scene: Scene) -> None:
    for n in range(3):
        await scene.enqueue(b"%d" % n)
    assert [payload for _, payload in await scene.dequeue(page_size=2)] == [b"0", b"1"]


async def test_a_consumer_may_wait_for_a_message(scene: Scene) -> None:
    waiting = asyncio.create_task(scene.dequeue(wait_seconds=20))
    await scene.enqueue(b"late")
    assert [payload for _, payload in await asyncio.wait_for(waiting, 10)] == [b"late"]


async def test_nothing_to_take_is_told_as_waiting(scene: Scene) -> None:
    async with scene.server.client.post(
        "/v1/queue/dequeue", json={"queue": QUEUE, "owner": "me", "wait_seconds": -1}
    ) as answer:
        told = await answer.json()
        assert (answer.status, told["error"], answer.headers["Retry-After"]) == (409, "waiting", "1")


async def test_a_failed_message_comes_again_until_its_attempts_are_spent(scene: Scene) -> None:
    await scene.enqueue(max_attempts=2)
    requeued = []
    for n in range(2):
        message = await scene.one()
        status, told = await scene.call("nack", message, last_error=f"try {n}")
        requeued.append((status, told["requeued"], message.get("failure_attempts", 0)))
    record = await scene.server.api._queues.service.jobs("default").get(message["message_id"])
    assert record is not None
    assert (requeued, await scene.dequeue()) == ([(200, True, 0), (200, False, 1)], [])
    assert (record.info.state.value, record.info.error, record.job.payload) == ("dead", "try 1", b"hello")


async def test_a_message_put_off_spends_no_attempt_and_waits_out_its_delay(scene: Scene) -> None:
    await scene.enqueue(max_attempts=1)
    await scene.call("nack", await scene.one(), intent="defer", delay_seconds=60)
    early = await scene.dequeue()
    scene.clock.advance(timedelta(seconds=61))
    again = await scene.one()
    assert (early, again["attempts"], "failure_attempts" in again) == ([], 2, False)


async def test_a_delayed_message_is_not_visible_before_its_time(scene: Scene) -> None:
    await scene.enqueue(delay_seconds=60)
    early = await scene.dequeue()
    scene.clock.advance(timedelta(seconds=61))
    assert (early, len(await scene.dequeue())) == ([], 1)


async def test_a_message_whose_time_to_live_is_over_is_not_handed_out(scene: Scene) -> None:
    await scene.enqueue(ttl_seconds=60)
    scene.clock.advance(timedelta(seconds=61))
    assert await scene.dequeue() == []


# D13: a consumer that died never spent an attempt


async def test_a_consumer_that_dies_spends_an_attempt(scene: Scene) -> None:
    await scene.enqueue(max_attempts=2)
    delivered = []
    for _ in range(5):
        delivered += [message.get("failure_attempts", 0) for message, _ in await scene.dequeue()]
        scene.clock.advance(timedelta(seconds=31))
    assert delivered == [0, 1]


# Past its time the lease of a message is over, and whoever shows it clears it


@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
async def test_who_shows_a_lease_that_has_ended_is_refused_and_the_message_is_free(scene: Scene, call: str) -> None:
    await scene.enqueue()
    message = await scene.one()
    scene.clock.advance(timedelta(seconds=31))
    status, told = await scene.call(call, message)
    record = await scene.server.api._queues.service.jobs("default").get(message["message_id"])
    assert record is not None
    assert record.info.state is JobState.READY  # cleared by who showed it; no dequeue and no sweep was needed
    again = await scene.one()
    late = await scene.call(call, message)
    assert (status, told["error"], again["failure_attempts"]) == (403, "lease_expired", 1)
    assert (late[0], late[1]["error"]) == (409, "queue_message_lease_mismatch")


async def test_an_extended_message_stays_with_its_consumer(scene: Scene) -> None:
    await scene.enqueue()
    message = await scene.one()
    scene.clock.advance(timedelta(seconds=20))
    status, told = await scene.call("extend", message, extend_by_seconds=30)
    scene.clock.advance(timedelta(seconds=20))
    assert (status, told["visibility_timeout_seconds"], await scene.dequeue()) == (200, 30, [])
    assert (await scene.call("ack", message))[0] == 200


# D14: an extend without seconds ended the lease


async def test_an_extend_without_seconds_extends(scene: Scene) -> None:
    await scene.enqueue()
    message = await scene.one()
    await scene.call("extend", message)
    scene.clock.advance(timedelta(seconds=29))
    assert (await scene.call("ack", message))[0] == 200


async def test_the_producer_may_set_the_visibility_timeout_of_a_message(scene: Scene) -> None:
    await scene.enqueue(visibility_timeout_seconds=90)
    message = await scene.one()
    scene.clock.advance(timedelta(seconds=60))
    assert (message["visibility_timeout_seconds"], (await scene.call("ack", message))[0]) == (90, 200)


# D12: every message left its lease and its state behind for ever


async def test_what_a_nack_keeps_of_the_state_the_next_consumer_reads_and_an_ack_leaves_none(scene: Scene) -> None:
    await scene.enqueue()
    first = await scene.one("dequeueWithState")
    await scene.state(first, {"step": 1})
    await scene.call("nack", first)
    second = await scene.one("dequeueWithState")
    seen = await scene.state(second)
    await scene.state(second, {"step": 2})
    acked = await scene.call("ack", second)
    assert (seen, acked[0], await scene.left()) == ({"step": 1}, 200, [])


async def test_a_message_acked_without_its_state_leaves_none_either(scene: Scene) -> None:
    await scene.enqueue()
    first = await scene.one("dequeueWithState")
    await scene.state(first, {"step": 1})
    await scene.call("nack", first)
    await scene.call("ack", await scene.one())
    assert await scene.left() == []


async def test_a_message_handed_out_with_its_state_leaves_none_if_its_ack_does_not_show_it(scene: Scene) -> None:
    await scene.enqueue()
    message = await scene.one("dequeueWithState")
    await scene.state(message, {"step": 1})
    shown = {name: value for name, value in message.items() if not name.startswith("state_")}
    acked = await scene.call("ack", shown)
    assert (acked[0], await scene.left()) == (200, [])


@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
async def test_lockds_clients_name_the_message_s_transaction_and_not_that_of_its_state(scene: Scene, call: str) -> None:
    await scene.enqueue()
    message = await scene.one("dequeueWithState")
    await scene.state(message, {"step": 1})
    shown = {name: value for name, value in message.items() if name != "state_txn_id"}
    answers = [await scene.call(call, shown, txn_id=message["txn_id"])]
    if call == "extend":
        answers += [await scene.call("nack", shown, txn_id=message["txn_id"])]
    left = await scene.left()
    kept = await scene.state(await scene.one("dequeueWithState")) if call != "ack" else left
    assert ({status for status, _ in answers}, kept) == ({200}, {"step": 1} if call != "ack" else [])


async def test_the_state_of_a_consumer_that_died_goes_to_the_next(scene: Scene) -> None:
    await scene.enqueue()
    dead = await scene.one("dequeueWithState")
    await scene.state(dead, {"step": 1})
    scene.clock.advance(timedelta(seconds=31))
    following = await scene.one("dequeueWithState")
    assert (await scene.state(following), following["state_fencing_token"] > dead["state_fencing_token"]) == (
        None, True,
    )  # fmt: skip
    await scene.call("ack", following)
    assert await scene.left() == []


async def test_a_message_whose_consumer_died_with_its_state_leaves_none_either(scene: Scene) -> None:
    await scene.enqueue()
    await scene.state(await scene.one("dequeueWithState"), {"step": 1})
    scene.clock.advance(timedelta(seconds=31))
    await scene.call("ack", await scene.one())
    assert await scene.left() == []


async def test_an_extend_extends_the_state_as_well(scene: Scene) -> None:
    await scene.enqueue()
    message = await scene.one("dequeueWithState")
    scene.clock.advance(timedelta(seconds=20))
    _, told = await scene.call("extend", message, extend_by_seconds=30)
    scene.clock.advance(timedelta(seconds=20))
    await scene.state(message, {"step": 1})
    assert (told["state_lease_expires_at_unix"], (await scene.call("nack", message))[0]) == (
        told["lease_expires_at_unix"], 200,
    )  # fmt: skip


# Numbers and errors


async def test_stats_tell_what_waits_and_what_is_first(scene: Scene) -> None:
    _, first = await scene.enqueue()
    await scene.enqueue(delay_seconds=60)
    async with scene.server.client.post("/v1/queue/stats", json={"queue": QUEUE}) as answer:
        told = await answer.json()
    assert (told["available"], told["pending_candidates"], told["head_message_id"]) == (True, 2, first["message_id"])


WRONG = {
    "missing_queue": ("dequeue", {"owner": "me"}, 400),
    "missing_owner": ("dequeue", {"queue": QUEUE}, 400),
    "invalid_txn": ("dequeue", {"queue": QUEUE, "owner": "me", "txn_id": "nope"}, 400),
    "invalid_page_size": ("dequeue", {"queue": QUEUE, "owner": "me", "page_size": 65}, 400),
    "missing_fields": ("nack", {"queue": QUEUE, "message_id": "m", "lease_id": "l"}, 400),
    "invalid_nack_intent": ("nack", {"queue": QUEUE, "message_id": "m", "lease_id": "l", "intent": "no"}, 400),
    "invalid_nack_last_error": ("nack", {"queue": QUEUE, "intent": "defer", "last_error": "x"}, 400),
    "not_found": ("ack", {"queue": QUEUE, "message_id": "m", "lease_id": "l"}, 404),
    "cas_mismatch": ("ack", {"queue": QUEUE, "message_id": "m", "lease_id": "l", "meta_etag": "x"}, 409),
    "invalid_body": ("ack", {"queue": QUEUE, "nonsense": 1}, 400),
    "invalid_content_type": ("enqueue", {"queue": QUEUE}, 400),
}


@pytest.mark.parametrize("code", WRONG)
async def test_errors_have_the_codes_that_clients_know(scene: Scene, code: str) -> None:
    path, body, status = WRONG[code]
    async with scene.server.client.post(f"/v1/queue/{path}", json=body) as answer:
        assert (answer.status, (await answer.json())["error"]) == (status, code)
