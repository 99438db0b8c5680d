"""Transactions as lockd's clients ask for them: acquire with a txn_id, decide, commit, rollback, replay."""

from __future__ import annotations

from typing import Any

import pytest

from lease_server.scene import Served, served
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.leases.leases import TTL_MAX, Leases

ID, OTHER = "d5arif5qkajneqfrmsb0", "d5arif5qkajneqfrmsbg"


async def post(server: Served, path: str, body: object, **headers: str) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with server.client.post(f"/v1/{path}", json=body, headers=named) as answer:
        return answer.status, await answer.json() if answer.content_type == "application/json" else None


async def staged(server: Served, key: str, id: str = "") -> Any:
    """A key with something staged under a lease."""
    asked = {"key": key, "owner": "me", "block_seconds": -1, "ttl_seconds": 30} | ({"txn_id": id} if id else {})
    status, lease = await post(server, "acquire", asked)
    assert status == 200
    token = str(lease["fencing_token"])
    shown = {"X_Lease_ID": lease["lease_id"], "X_Txn_ID": lease["txn_id"], "X_Fencing_Token": token}
    status, _ = await post(server, f"update?key={key}", {"new": True}, **shown)
    assert status == 200
    return lease


async def release(server: Served, lease: Any, *, rollback: bool = False) -> tuple[int, Any]:
    body = {"key": lease["key"], "lease_id": lease["lease_id"], "txn_id": lease["txn_id"], "rollback": rollback}
    return await post(server, "release", body, X_Fencing_Token=str(lease["fencing_token"]))


async def there(server: Served, *keys: str) -> list[bool]:
    found = []
    for key in keys:
        async with server.client.post(f"/v1/get?key={key}&public=1") as answer:
            found.append(answer.status == 200)
    return found


async def test_a_release_commits_every_key_of_a_transaction() -> None:
    async with served() as server:
        a, b = await staged(server, "a", ID), await staged(server, "b", ID)
        first, second = await release(server, a), await release(server, b)
        assert (first, second) == ((200, {"released": True}), (200, {"released": True}))
        assert (a["txn_id"], await there(server, "a", "b")) == (ID, [True, True])


async def test_a_release_with_rollback_undoes_every_key_and_a_commit_of_another_is_told() -> None:
    async with served() as server:
        a, b = await staged(server, "a", ID), await staged(server, "b", ID)
        undone = await release(server, a, rollback=True)
        status, refused = await release(server, b)
        assert (undone[0], status, refused["error"]) == (200, 409, "txn_rolled_back")
        assert await there(server, "a", "b") == [False, False]


async def test_the_transaction_that_an_acquire_gave_can_be_joined() -> None:
    async with served() as server:
        a = await staged(server, "a")
        await staged(server, "b", a["txn_id"])
        await release(server, a)
        assert await there(server, "a", "b") == [True, True]


@pytest.mark.parametrize(("state", "changed"), [("commit", True), ("rollback", False)])
async def test_decide_decides_for_every_key_and_answers_the_first_decision_later(state: str, changed: bool) -> None:
    async with served() as server:
        await staged(server, "a", ID)
        await staged(server, "b", ID)
        first = await post(server, "txn/decide", {"txn_id": ID, "state": state, "tc_term": 3, "unknown": 1})
        other = await post(server, "txn/decide", {"txn_id": ID, "state": "rollback" if changed else "commit"})
        assert (first, other) == ((200, {"txn_id": ID, "state": state}),) * 2
        assert await there(server, "a", "b") == [changed, changed]


async def test_commit_and_rollback_carry_out_what_was_decided_and_nothing_else() -> None:
    async with served() as server:
        unknown = await post(server, "txn/commit", {"txn_id": ID})
        await staged(server, "a", ID)
        pending = await post(server, "txn/commit", {"txn_id": ID})
        await post(server, "txn/decide", {"txn_id": ID, "state": "commit"})
        done = await post(server, "txn/commit", {"txn_id": ID})
        otherwise = await post(server, "txn/rollback", {"txn_id": ID})
        told = (unknown, pending, done, otherwise)
        answers = [(status, body.get("error", body.get("state"))) for status, body in told]
        assert answers == [(404, "txn_not_found"), (409, "txn_pending"), (200, "commit"), (409, "txn_conflict")]


async def test_commit_with_participants_decides_for_them() -> None:
    async with served() as server:
        a = await staged(server, "a")  # a transaction that nobody but this key has
        named = {"txn_id": a["txn_id"], "participants": [{"key": "a", "namespace": "default", "backend_hash": "x"}]}
        assert (await post(server, "txn/commit", named))[0] == 200
        again = await post(server, "txn/rollback", named)
        assert (await there(server, "a"), again[0], again[1]["error"]) == ([True], 409, "txn_conflict")


async def test_prepare_writes_down_who_takes_part_and_replay_leaves_it_pending_until_it_is_overdue() -> None:
    clock = ManualClock()
    memory = Memory(clock)
    async with served(Leases(memory.records, memory.objects, clock), clock) as server:
        await staged(server, "a", ID)
        asked = {"txn_id": ID, "state": "pending", "participants": [{"key": "b"}]}
        prepared = await post(server, "txn/decide", asked)
        early = await post(server, "txn/replay", {"txn_id": ID})
        clock.advance(TTL_MAX)
        late = await post(server, "txn/replay", {"txn_id": ID})
        unknown = await post(server, "txn/replay", {"txn_id": OTHER})
        states = [body.get("state", body.get("error")) for _, body in (prepared, early, late, unknown)]
        assert states == ["pending", "pending", "rollback", "txn_not_found"]
        assert (unknown[0], await there(server, "a")) == (404, [False])


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("decide", {"state": "commit"}, "missing_txn"),
        ("decide", {"txn_id": "nope", "state": "commit"}, "invalid_txn_id"),
        ("decide", {"txn_id": ID, "state": "maybe"}, "invalid_txn_state"),
        ("decide", {"txn_id": ID, "state": "commit", "expires_at_unix": -1}, "invalid_expiry"),
        ("commit", {"txn_id": ID, "participants": [{"namespace": "default"}]}, "missing_key"),
        ("commit", {"txn_id": ID, "participants": [{"key": "a//b"}]}, "invalid_key"),
        ("rollback", {"txn_id": "NOPE"}, "invalid_txn_id"),
        ("replay", {}, "missing_txn"),
    ],
)
async def test_what_is_wrong_with_a_call_has_a_code(path: str, body: object, error: str) -> None:
    async with served() as server:
        status, refused = await post(server, f"txn/{path}", body)
        assert (status, refused["error"]) == (400, error)
