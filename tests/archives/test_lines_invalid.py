"""A line of an archive that cannot be read costs that line: reported with its key and number, the others are read."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from cli.command_line import Answer, wrasse
from processes.daemons import running, until
from wrasse.archives.codec import line_of
from wrasse.ports.streams import Entry, EntryId

AUDIT = "gbe.events.audit.change"
AGAIN = "test.again"
OTHER = line_of(Entry(EntryId(1 << 60, 1), "gbe.events.other", b"not an envelope"))[:-1]
BAD = [
    b"", b"hello", b"\xff\xfe\x00", b"{", b"[" * 50_000, b"null", b'{"stream_id":"', OTHER,
    b'{"stream_id":"1-1","subject":"x","raw":"!"}', b'{"a":1,"stream_id":"x-1"}', b'{"a":1,"stream_id":"1--1"}',
    b'{"a":1,"stream_id":"%d-1"}' % (1 << 64), b'{"a":1,"stream_id":"%s-1"}' % (b"9" * 5_000),
    b'{"a":1,"stream_id":"1-1"}', b'hello,"stream_id":"1999999999999999-1"}',
    b'{"a":"\xff","stream_id":"1999999999999999-1"}', b'{"a":%s1,"stream_id":"1999999999999999-1"}' % (b"[" * 50_000),
]  # fmt: skip
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress, "none": bytes,
}  # fmt: skip
UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress, "zstd": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
    "none": bytes,
}  # fmt: skip


def archives(place: Path) -> list[Path]:
    return sorted((place / "wrasse-data" / "archive").rglob("gbe*.jsonl*"))


def archive_six(place: Path, codec: str) -> list[Path]:
    """Six messages in two archives."""
    (place / "wrasse.yaml").write_text(
        "backends: {objects: 'file:wrasse-data'}\n"
        f"archiver: {{streams: [{{stream: gbe.events.audit.*, batch_size: 3, compression: {codec}}}]}}\n"
    )
    for n in range(6):
        assert wrasse("streams", "publish", AUDIT, str(n)).code == 0
    with running(place, "--role=archiver") as daemon:
        until(lambda: len(archives(place)) == 2, "two archives")
        daemon.signal()
        assert daemon.end() == 0
    return archives(place)


def payloads(answer: Answer) -> list[str]:
    return [json.loads(line)["payload"] for line in answer.out.splitlines()]


def check_reported(place: Path, line: int, left: list[str]) -> None:
    """That every command reports this line of the first archive, and has the messages that are left."""
    key = str(archives(place)[0].relative_to(place / "wrasse-data"))
    for since in ([], ["--since=1d"]):
        read = wrasse("archives", "read", AUDIT, "--json", *since)
        assert (read.code, payloads(read)) == (1, left)
        (told,) = [json.loads(each) for each in read.err.splitlines()]
        assert (told["key"], told["line"]) == (key, line)
    said = wrasse("archives", "read", AUDIT)
    assert (said.code, said.err) == (1, f"{key}: line {line}: {told['what']}\n")
    replayed = wrasse("archives", "replay", AUDIT, f"--into={AGAIN}", "--dry-run", "--json")
    assert (replayed.code, replayed.json["messages"], replayed.json["bad_lines"]) == (1, len(left), 1)
    assert replayed.json["problems"] == [told]
    listed = wrasse("archives", "list", "--json")
    assert (listed.code, len(listed.json["archives"])) == (1, 1)
    assert listed.json["problems"] == [{"key": key, "what": f"line {line}: {told['what']}"}]
    verified = wrasse("archives", "verify", "--json")
    (stream,) = verified.json["streams"]
    assert (verified.code, stream["problems"][0]) == (1, {"key": key, "what": f"line {line}: {told['what']}"})
    assert {each["key"] for each in stream["problems"]} <= {key, ""}


@pytest.mark.parametrize("codec", PACK)
def test_a_bad_line_costs_that_line(place: Path, codec: str) -> None:
    first, _ = archive_six(place, codec)
    lines = UNPACK[codec](first.read_bytes()).split(b"\n")
    for bad in BAD if codec == "none" else BAD[:2]:
        first.write_bytes(PACK[codec](b"\n".join([lines[0], bad, *lines[2:]])))
        check_reported(place, 2, ["0", "2", "3", "4", "5"])
    replayed = wrasse("archives", "replay", AUDIT, f"--into={AGAIN}", "--yes")
    assert (replayed.code, "published 5 messages" in replayed.out, "line 2: " in replayed.err) == (1, True, True)
    again = wrasse("streams", "read", AGAIN, "--json")
    assert [json.loads(line)["payload"] for line in again.out.splitlines()] == ["0", "2", "3", "4", "5"]


def test_lines_before_damaged_bytes_are_read(place: Path) -> None:
    first, _ = archive_six(place, "gzip")
    whole = first.read_bytes()
    packed = _flushed_by_line(gzip.decompress(whole))
    for spoilt in (
        b"".join(packed[:2]) + packed[2][:9],  # cut within the third line
        b"".join(packed[:2]) + b"\xff" * 40,  # damaged from the third line on
    ):
        first.write_bytes(spoilt)
        check_reported(place, 3, ["0", "1", "3", "4", "5"])
    everything = [str(n) for n in range(6)]
    for spoilt in (whole[:-3], whole[:-8] + bytes(8), whole + b"more"):  # the end of the frame alone
        first.write_bytes(spoilt)
        check_reported(place, 4, everything)
    first.write_bytes(b"")
    check_reported(place, 1, everything[3:])


def test_blocks_of_zstd_before_damaged_bytes_are_read(place: Path) -> None:
    first, _ = archive_six(place, "zstd")
    lines = UNPACK["zstd"](first.read_bytes()).splitlines(keepends=True)
    press = zstandard.ZstdCompressor().compressobj()
    blocks = [press.compress(line) + press.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for line in lines]
    first.write_bytes(b"".join(blocks[:2]) + blocks[2][:9])
    check_reported(place, 3, ["0", "1", "3", "4", "5"])


def test_a_last_line_that_is_cut_is_reported(place: Path) -> None:
    first, _ = archive_six(place, "none")
    first.write_bytes(first.read_bytes()[:-9])
    check_reported(place, 3, ["0", "1", "3", "4", "5"])


def _flushed_by_line(data: bytes) -> list[bytes]:
    press = zlib.compressobj(wbits=31)
    return [press.compress(line) + press.flush(zlib.Z_SYNC_FLUSH) for line in data.splitlines(keepends=True)]


@pytest.mark.parametrize("found", [b"", b"\xff", b"{}", b"[" * 50_000])
def test_damaged_metadata_costs_one_archive(place: Path, found: bytes) -> None:
    first, second = archive_six(place, "gzip")
    (meta,) = [each for each in first.parent.glob("%m*") if each.name.endswith(f"{first.name}.meta")]
    meta.write_bytes(found)
    listed, verified = wrasse("archives", "list", "--json"), wrasse("archives", "verify", "--json")
    for answer in (listed, verified):
        assert answer.code == 1, answer.err
    key = str(first.relative_to(place / "wrasse-data"))
    assert [each["key"].rpartition("/")[2] for each in listed.json["archives"]] == [second.name]
    (stream,) = verified.json["streams"]
    assert (stream["archives"], {each["key"] for each in stream["problems"]} & {key}) == (2, {key})
    for args in (["archives", "read", AUDIT], ["archives", "replay", AUDIT, f"--into={AGAIN}", "--dry-run"]):
        answer = wrasse(*args, "--json")
        assert "report it" not in answer.err
        assert answer.raw
