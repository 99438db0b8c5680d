"""Archives as other programs read them: DuckDB finds every message and its day, in both layouts and every form."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path

import duckdb
import pytest

from archives.test_archiver_redis import drained, wrasse_publish
from cli.command_line import wrasse
from wrasse.config.load import load

AUDIT = "gbe.events.audit.change"


@pytest.mark.parametrize(
    ("layout", "compression", "suffix"),
    [("slashes", "gzip", ".jsonl.gz"), ("hive", "zstd", ".jsonl.zst"), ("hive", "none", ".jsonl")],
)
def test_a_query_engine_reads_what_was_archived(place: Path, layout: str, compression: str, suffix: str) -> None:
    (place / "wrasse.yaml").write_text(
        "archiver: {streams: [{stream: gbe.events.audit.*, batch_size: 3,"
        f" layout: {layout}, compression: {compression}}}]}}\n"
    )
    wrasse_publish(range(10))
    assert asyncio.run(drained()) == ""
    days = "dt=*" if layout == "hive" else "*/*/*"
    pattern = f"{place}/wrasse-data/archive/audit/{days}/{AUDIT}-after-*{suffix}"
    dated = "hive_partitioning = true" if layout == "hive" else "hive_partitioning = false"
    read = f"read_json('{pattern}', format = 'newline_delimited', {dated})"
    payload = "CAST(from_base64(payload) AS VARCHAR)"
    found = duckdb.sql(f"SELECT {payload}, stream_id FROM {read} ORDER BY timestamp, message_id").fetchall()
    ours = [json.loads(line) for line in wrasse("archives", "read", AUDIT, "--json").out.splitlines()]
    assert sorted(int(number) for number, _ in found) == list(range(10))
    assert {id for _, id in found} == {each["entry_id"] for each in ours}
    if layout == "hive":
        assert duckdb.sql(f"SELECT count(*) FROM {read} WHERE dt IS NOT NULL").fetchall() == [(10,)]
    assert wrasse("archives", "verify").code == 0


def test_zstd_without_its_package_says_what_to_do(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "wrasse.yaml").write_text("archiver: {streams: [{stream: gbe.>, compression: zstd}]}\n")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    answer = wrasse("run", "--role=archiver", "--listen=")
    assert answer.code == 2
    assert "pip install 'wrasse[zstd]'" in answer.err


def test_archived_messages_are_published_again_once_someone_says_so(place: Path) -> None:
    (place / "wrasse.yaml").write_text("archiver: {streams: [{stream: gbe.events.audit.*, batch_size: 2}]}\n")
    wrasse_publish(range(5))
    assert asyncio.run(drained()) == ""
    asked = ("archives", "replay", AUDIT, "--into=test.again")
    assert "add --yes" in wrasse(*asked).err
    assert wrasse(*asked, "--dry-run", "--json").json["messages"] == 5
    assert wrasse("streams", "read", "test.again").out == ""
    for _ in range(2):
        assert wrasse(*asked, "--yes", "--json").json["messages"] == 5
    again = [json.loads(line) for line in wrasse("streams", "read", "test.again", "--json").out.splitlines()]
    assert [each["payload"] for each in again] == ["0", "1", "2", "3", "4"]


def test_archives_are_listed_by_the_time_of_their_messages(place: Path) -> None:
    (place / "wrasse.yaml").write_text("archiver: {streams: [{stream: gbe.events.audit.*, batch_size: 2}]}\n")
    wrasse_publish(range(5))
    assert asyncio.run(drained()) == ""
    for asked, count in (("--since=1h", 3), ("--until=1h", 0), ("--until=2200-01-01", 3), ("--since=2200-01-01", 0)):
        assert len(wrasse("archives", "list", asked, "--json").json["archives"]) == count


def test_what_lag_is_too_much_can_be_set(place: Path) -> None:
    (place / "wrasse.yaml").write_text("archiver: {lag_threshold: {messages: 5, age: 1m}, lag_repeat: 2h}\n")
    own = load().settings.archiver
    assert (own.lag_threshold.messages, own.lag_threshold.age, own.lag_repeat) == (
        5,
        timedelta(minutes=1),
        timedelta(hours=2),
    )
    assert wrasse("config", "check", "--set=archiver.lag_threshold.messages=0").code != 0
