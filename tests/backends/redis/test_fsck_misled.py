"""Another program's bytes in the index that leads from an id to its job: the job is found, and fsck repairs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from cli.command_line import wrasse
from servers.valkey import Valkey, valkey


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as own:
        yield own


@pytest.mark.parametrize("found", [b"\xff\xfe", b"", b"999", b"7-no-take"])
def test_a_job_is_found_past_garbage_in_its_index_and_keeps_its_id_when_that_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Valkey, found: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrasse.yaml").write_text(f"redis: {{addr: '127.0.0.1:{server.port}'}}\n")
    with redis.Redis(port=server.port) as client:
        client.flushall()
        for id in ("dead", "waits", "done"):
            assert wrasse("jobs", "enqueue", "x", f"--id={id}").code == 0
        assert wrasse("jobs", "cancel", "dead").code == 0
        for id in ("dead", "waits", "nobody"):
            client.hset("jobqueue:where", id, found)
        ids = client.hgetall("jobqueue:ids")
        for id, place in (("dead", "dead"), ("waits", "ready")):
            shown, explained = wrasse("jobs", "show", id, "--json"), wrasse("explain", id, "--json")
            assert (shown.code, explained.code) == (0, 0), shown.err + explained.err
            assert shown.json["state"] == explained.json["job"]["state"] == place
        assert wrasse("jobs", "show", "nobody").code == 2

        told = wrasse("jobs", "fsck", "--json").json["inconsistencies"]
        assert [(each["kind"], sorted(each["names"])) for each in told] == [
            ("where_left_over", ["dead", "nobody", "waits"])
        ]
        mended = wrasse("jobs", "fsck", "--repair", "--json").json["inconsistencies"]
        assert [(each["kind"], each["repaired"]) for each in mended] == [("where_left_over", 3), ("where_missing", 1)]
        assert wrasse("jobs", "fsck").code == 0
        assert client.hgetall("jobqueue:ids") == ids
        assert wrasse("jobs", "show", "dead", "--json").json["state"] == "dead"
