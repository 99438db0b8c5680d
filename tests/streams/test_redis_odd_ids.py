"""An entry on Redis whose id another program chose, beyond every calendar: it is shown and read like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from cli.command_line import wrasse
from processes.daemons import running
from servers.valkey import valkey


@pytest.mark.parametrize("id", ["18446744073709551615-5", "253402300800000-0", "9007199254740993-1"])
def test_an_entry_from_beyond_the_calendar_ends_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with valkey() as server, redis.Redis(port=server.port) as client:
        settings = "archiver: {streams: [{stream: 'orders.>'}]}\nretention: {'orders.>': 7d}\n"
        (tmp_path / "wrasse.yaml").write_text(
            f"redis: {{addr: '127.0.0.1:{server.port}'}}\nbackends: {{objects: 'file:data'}}\n{settings}"
        )
        client.xadd("orders:odd", {"a": "b"}, id=id)
        for command in ("streams info", "streams info --json", "streams read orders.>", "sweep", "doctor"):
            answer = wrasse(*command.split())
            assert answer.code == 0, f"{command}: {answer.err}"
        assert wrasse("streams", "read", "orders.>", "--json").json["entry_id"] == id
        with running(tmp_path, "--role=sweeper") as daemon:
            assert daemon.get("/")[0] == daemon.get("/metrics")[0] == 200


@pytest.mark.parametrize(
    "id", ["18446744073709551615-18446744073709551615", "18446744073709551615-5", "9007199254740993-1"]
)
def test_a_stream_whose_last_id_leaves_no_room_says_so_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with valkey() as server, redis.Redis(port=server.port) as client:
        (tmp_path / "wrasse.yaml").write_text(f"redis: {{addr: '127.0.0.1:{server.port}'}}\n")
        client.xadd("orders:odd", {"a": "b"}, id=id)
        refused = wrasse("streams", "publish", "orders.odd", "x")
        assert refused.code == 1
        assert f"orders:odd in redis at 127.0.0.1:{server.port}" in refused.err
        assert f"the id {id}" in refused.err
        assert "RENAME orders:odd orders:odd.old" in refused.err
        assert wrasse("streams", "publish", "orders.other", "x").code == 0
        client.rename("orders:odd", "orders:odd.old")
        assert wrasse("streams", "publish", "orders.odd", "x").code == 0
