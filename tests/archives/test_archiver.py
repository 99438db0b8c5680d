"""The archiver as a user meets it: settings, the daemon's role, and `wrasse archives`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from cli.command_line import wrasse
from processes.daemons import running, until
from wrasse.config.dump import shown, written
from wrasse.config.load import load
from wrasse.errors import ConfigError

AUDIT = "gbe.events.audit.change"
SEED_ARCHIVAL = """\
archival:
  - stream: "gbe.events.audit.*"
    destination: "s3"
    batch_size: 1000            # messages per archive file
    batch_timeout: 60s          # flush partial batch after this
    format: "jsonl"             # one JSON object per line
    partition: "daily"          # one file per day
"""
HERE = SEED_ARCHIVAL.replace('"s3"', '"file:wrasse-data"')
SEED_ARCHIVER = """\
archiver:
  streams:
    - stream: "gbe.events.audit.*"
      destination: "s3"
      bucket: "gbe-archive"
      batch_size: 1000
      batch_timeout: 60s
      format: "jsonl"
      compression: "gzip"
      partition: "daily"
"""


def publish(*payloads: str) -> None:
    for payload in payloads:
        assert wrasse("streams", "publish", AUDIT, payload).code == 0


def archives(place: Path) -> list[Path]:
    return sorted((place / "wrasse-data" / "archive").rglob("gbe*.jsonl.gz"))


def test_a_daemon_that_is_stopped_leaves_what_the_next_goes_on_from(place: Path) -> None:
    (place / "wrasse.yaml").write_text(HERE)
    publish("one", "two")
    with running(place, "--role=archiver") as daemon:
        daemon.said("started")
        until(lambda: wrasse("streams", "info", "--json").json["streams"][0]["groups"], "its group")
        daemon.signal()
        assert daemon.end() == 0
    publish("three")
    with running(place, "--role=archiver", "--set=archival=[{stream: gbe.events.audit.*, batch_size: 1}]") as daemon:
        until(lambda: _messages() == 3, "all three in archives")
        daemon.signal()
        assert daemon.end() == 0
    assert wrasse("archives", "verify").code == 0
    lines = [json.loads(line) for path in archives(place) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert [line["subject"] for line in lines] == [AUDIT] * 3


def _messages() -> int:
    return int(sum(each["messages"] for each in wrasse("archives", "verify", "--json").json["streams"]))


@pytest.fixture
def archived(place: Path) -> Path:
    """Three messages in three archives."""
    (place / "wrasse.yaml").write_text(HERE.replace("batch_size: 1000", "batch_size: 1"))
    publish("one", "two", "three")
    with running(place, "--role=archiver") as daemon:
        until(lambda: len(archives(place)) == 3, "three archives")
        daemon.signal()
        assert daemon.end() == 0
    return place


def test_archives_are_listed_read_and_verified(archived: Path) -> None:
    listed = wrasse("archives", "list", "--json").json["archives"]
    assert [each["count"] for each in listed] == [1, 1, 1]
    assert listed[0]["start"] == "0-0"
    assert [each["start"] for each in listed[1:]] == [each["last"] for each in listed[:-1]]
    read = [json.loads(line) for line in wrasse("archives", "read", "gbe.>", "--json").out.splitlines()]
    assert [each["payload"] for each in read] == ["one", "two", "three"]
    assert len(wrasse("archives", "read", AUDIT, "--limit=2").out.splitlines()) == 2
    assert wrasse("archives", "read", AUDIT, "--until=1d").out == ""
    assert wrasse("archives", "list", "no.such").out == "no archive matches\n"
    verified = wrasse("archives", "verify", "--json")
    assert (verified.code, verified.json["whole"], verified.json["streams"][0]["messages"]) == (0, True, 3)
    archives(archived)[1].unlink()
    broken = wrasse("archives", "verify")
    assert broken.code == 1
    assert "an archive is missing before it" in broken.out
    for each in archives(archived):
        each.unlink()
    emptied = wrasse("archives", "verify")
    assert (emptied.code, "it has no archive, and the group 'archiver' is at" in emptied.out) == (1, True)
    assert wrasse("archives", "read", AUDIT, "--since=tomorrow").code == 2


def test_an_archiver_without_streams_is_refused(place: Path) -> None:
    answer = wrasse("run", "--role=archiver")
    assert answer.code == 2
    assert "needs streams" in answer.err


def test_a_bucket_without_credentials_is_refused_at_the_start(place: Path) -> None:
    (place / "wrasse.yaml").write_text(SEED_ARCHIVER)
    assert wrasse("config", "check").code == 0
    nobody = {"HOME": str(place), "AWS_ACCESS_KEY_ID": "", "AWS_EC2_METADATA_DISABLED": "true"}
    answer = wrasse("run", "--role=archiver", "--listen=", env=nobody)
    assert answer.code == 2
    assert "there are no credentials for s3://gbe-archive" in answer.err


@pytest.mark.parametrize("text", [SEED_ARCHIVAL, SEED_ARCHIVER])
def test_the_files_of_the_design_document_load_unchanged(place: Path, text: str) -> None:
    (place / "wrasse.yaml").write_text(text)
    settings = load(overrides={"backends.objects": "s3://gbe-archive"}).settings
    (each,) = (*settings.archiver.streams, *settings.archival)
    assert (each.stream, each.batch_size, each.batch_timeout.seconds) == ("gbe.events.audit.*", 1000, 60)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[{stream: a.b}, {stream: 'a.*'}]", "archived twice"),
        ("[{stream: 'a..b'}]", "empty token"),
        ("[{}]", "without a stream"),
        ("[{stream: a, batch_size: 0}]", "batch_size of 0"),
        ("[{stream: a, batch_timeout: 60}]", "batch_timeout"),
        ("[{stream: a, prefix: /x}]", "prefix"),
        ("[{stream: a, domain: a/b}]", "domain"),
        ("[{stream: a, batchsize: 3}]", "write 'batch_size'"),
        ("[{stream: a, compression: zip}]", "use one of: gzip"),
        ("[{stream: a, destination: 'sqlite:x.db'}]", "not the URL of a store of objects"),
        ("[{stream: a, bucket: b}]", "bucket"),
        ("{stream: a}", "not a list"),
        ("[a.b]", "not a map"),
    ],
)
def test_a_mistake_in_what_is_archived_is_said_with_a_way_out(place: Path, text: str, said: str) -> None:
    (place / "wrasse.yaml").write_text(f"archiver:\n  streams: {text}\n")
    with pytest.raises(ConfigError) as raised:
        load()
    assert said in f"{raised.value}"
    assert "wrasse.yaml line 2" in raised.value.message


def test_what_is_archived_is_shown_as_it_was_written(place: Path) -> None:
    config = load(overrides={"archiver.streams": "[{stream: a.b, batch_timeout: 5s}]"})
    (found,) = [each for each in shown(config) if each.leaf.path == "archiver.streams"]
    assert written(found.value) == '[{stream: "a.b", batch_timeout: 5s}]'
