"""What a lockd server answered, played again: same status, same error codes, same names of fields and headers.

Ids and tokens are ours, so those of the recording are replaced by the ones our server gave for the same step. What the
server answers otherwise on purpose stands in DIFFERENT, with the reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lease_server.scene import Served, served

EXAMPLES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "examples.json").read_text())
DIFFERENT = {
    "acquire dot-dot key": "a key whose segment is `..` would name another key on some stores: refused",
    "healthz": "the probes belong to the process, not to this API",
    "readyz": "the probes belong to the process, not to this API",
}

STATES = ("get leased staged",)  # the body is the user's own


async def play(server: Served, example: dict[str, Any], known: dict[str, str]) -> tuple[int, list[str], dict[str, Any]]:
    """Sends one request of the recording with our own ids in it."""
    headers = {name: known.get(value, value) for name, value in example["headers"].items()}
    if headers.get("X-Fencing-Token") == "1":
        headers["X-Fencing-Token"] = known.get("token", "1")
    sent = server.client.request(example["method"], example["path"], headers=headers, data=example["body"])
    async with sent as answer:
        raw = await answer.read()
        body = json.loads(raw) if answer.content_type == "application/json" and raw else {}
        if answer.status == 200 and "fencing_token" in body and "lease_id" in example:
            known.setdefault("token", str(body["fencing_token"]))
            known[example["lease_id"]], known[example["txn_id"]] = body["lease_id"], body["txn_id"]
        return answer.status, sorted(name.title() for name in answer.headers), body


async def test_every_recorded_example_is_answered_as_it_was() -> None:
    known: dict[str, str] = {}
    wrong = []
    async with served() as server:
        for example in EXAMPLES:
            if example["name"] in DIFFERENT:
                continue
            status, headers, body = await play(server, example, known)
            missing = [name for name in example["answer_headers"] if name.title() not in headers]
            if "fields" in example and example["name"] not in STATES and sorted(body) != example["fields"]:
                missing.append(f"fields {sorted(body)} instead of {example['fields']}")
            if status != example["status"] or missing or body.get("error") != example.get("error"):
                wrong.append((example["name"], status, body, missing))
    assert wrong == []


async def test_a_key_with_a_segment_of_dots_is_refused() -> None:
    async with served() as server:
        sent = server.client.post("/v1/acquire", json={"key": "a/../b", "owner": "o", "block_seconds": -1})
        async with sent as answer:
            assert (answer.status, (await answer.json())["error"]) == (400, "invalid_key")


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_what_is_answered_otherwise_is_part_of_the_recording(name: str) -> None:
    assert any(example["name"] == name for example in EXAMPLES)
