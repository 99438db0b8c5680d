"""Archives as other programs read them: DuckDB finds every message and its day, in both layouts and every form."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import duckdb
import pytest

from app.test_archiver_redis import drained, wrasse_publish
from app.typed import wrasse

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
