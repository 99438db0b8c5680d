"""The settings of the archiver: what is archived where and how, and when its lag is worth an alert."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated

from wrasse.app.setting_key import Key

CODECS = ("gzip", "zstd", "none")
LAYOUTS = ("slashes", "hive")


@dataclass(frozen=True, slots=True)
class ArchiveStream:
    """One pattern of streams to archive, as the archiver's design document writes it."""

    stream: Annotated[str, Key("subject or pattern of the streams", seed=True)] = ""
    destination: Annotated[str, Key("s3 with a bucket, or the URL of a store; empty: backends.objects", seed=True)] = ""
    bucket: Annotated[str, Key("bucket of the destination s3", seed=True)] = ""
    batch_size: Annotated[int, Key("messages in one archive at most", seed=True)] = 1_000
    batch_timeout: Annotated[timedelta, Key("how old a message may get before it is archived", seed=True)] = timedelta(
        seconds=60
    )
    batch_bytes: Annotated[int, Key("bytes of lines in one archive at most")] = 16 << 20
    format: Annotated[str, Key("what an archive holds", seed=True, choices=("jsonl",))] = "jsonl"
    compression: Annotated[str, Key("how it is compressed", seed=True, choices=CODECS)] = "gzip"
    partition: Annotated[str, Key("which archives share a directory", seed=True, choices=("daily",))] = "daily"
    layout: Annotated[str, Key("the day in a key: slashes is 2026/02/14, hive is dt=2026-02-14", choices=LAYOUTS)] = (
        "slashes"
    )
    prefix: Annotated[str, Key("what every key begins with")] = "archive"
    domain: Annotated[str, Key("the part after the prefix; empty: from the subject")] = ""
    archive_best_effort: Annotated[
        bool, Key("archive work queues of NATS, too: incomplete, and labelled so, outside guarantee G6")
    ] = False


ARCHIVE_KEYS = (
    "stream, destination, bucket, batch_size, batch_timeout, batch_bytes, compression, layout, prefix, domain, "
    "archive_best_effort"
)


@dataclass(frozen=True, slots=True)
class LagThreshold:
    """Beyond which lag of one stream an alert goes out."""

    messages: Annotated[int, Key("messages of one stream that wait to be archived")] = 10_000
    age: Annotated[timedelta, Key("how old the oldest of them is")] = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class ArchiverSettings:
    """What copies streams into archives."""

    streams: Annotated[
        tuple[ArchiveStream, ...], Key(f"what is archived where, a list of maps with {ARCHIVE_KEYS}")
    ] = ()
    lag_threshold: LagThreshold = field(default_factory=LagThreshold)
    lag_repeat: Annotated[timedelta, Key("how often an alert about the same lag goes out again")] = timedelta(hours=1)
