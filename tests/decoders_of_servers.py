"""Rows of tests/decoders.py: what servers answer, what callers send over HTTP, and what people write."""

from __future__ import annotations

import asyncio
import atexit
import gzip
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import cast

from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from wrasse.archives.naming import parse_name
from wrasse.backends.memory import status_index as memory_shelves
from wrasse.backends.nats import message_codec
from wrasse.backends.nats.client import connection as client_connection, jetstream, transport, transport as nats_wire
from wrasse.backends.record_files import DueCursor
from wrasse.backends.redis import records
from wrasse.backends.redis.client import transport as redis_wire
from wrasse.backends.s3 import xml
from wrasse.backends.sql import catalog as sql_catalog
from wrasse.backends.sql.address import SqlAddress
from wrasse.backends.sqlite import catalog
from wrasse.backends.sqlite.jobs.job_listing import parse_cursor
from wrasse.cli.archives import moment_of
from wrasse.cli.streams import start_at
from wrasse.clock import EPOCH, ManualClock, to_micros
from wrasse.config.load import load
from wrasse.config.redaction import hide
from wrasse.config.urls import parse_address, parse_objects, parse_store
from wrasse.duration import format_duration, parse_duration
from wrasse.errors import WrasseError
from wrasse.jobs.file_producer.files import parse_globs
from wrasse.jobs.periodic import parse_cron
from wrasse.jobs.stream_tasks import fields as task_fields
from wrasse.jobs.worker.queue_selector import parse_rate, parse_weight
from wrasse.lease_server import request_parsing, wire
from wrasse.lease_server.wire import WireError
from wrasse.orphans.root import parse_template
from wrasse.ports.records import read_cursor


class _Transport(asyncio.Transport):
    """Keeps nothing of what is written, until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self._closing = False

    def write(self, data: object) -> None:
        assert not self._closing, "nothing is written to a connection that has ended"

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return None

    def is_closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        self._closing = True

    close = abort


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def _in_loop(read: Callable[[bytes], Awaitable[object]]) -> Callable[[bytes], object]:
    async def reading(data: bytes) -> object:
        return await read(data)

    return lambda data: _loop().run_until_complete(reading(data))


async def _nats(data: bytes) -> object:
    """All at once, and in two parts: the same messages are heard."""
    whole, parts = _nats_heard(data), _nats_heard(data[: len(data) // 2], data[len(data) // 2 :])
    assert whole == parts, "what is heard depends on how the bytes come"
    return whole


def _nats_heard(*parts: bytes) -> list[object]:
    heard: list[object] = []
    connection = nats_wire.NatsTransport(lambda words: None)
    connection.handlers[b"1"] = lambda *message: heard.append((client_connection.status_of(message[2]), *message))
    connection.handlers[b"2"] = lambda _, *message: heard.append(message_codec.stored_of(transport.frame_of(*message)))
    connection.frame_handlers[b"2"] = lambda frames: heard.extend(map(message_codec.stored_of, frames))
    connection.connection_made(_Transport())
    for part in parts:
        if part and connection.open:
            connection.data_received(part)
    connection.end("over")
    if connection.greeted.done() and not connection.greeted.cancelled():
        connection.greeted.exception()
    return heard


async def _redis(data: bytes) -> object:
    connection = redis_wire.RedisTransport(60)
    connection.connection_made(_Transport())
    asked = [connection.ask(b"PING"), connection.ask_many(b"PING", 2)]
    for part in (data[: len(data) // 2], data[len(data) // 2 :]):
        if part and connection.open:
            connection.data_received(part)
    connection.end("over")
    return [each.exception() or each.result() for each in asked]


def _js_answer(data: bytes) -> object:
    refused = jetstream.refusal(data, "nats")
    answer = jetstream.parsed(data, "nats")
    return (
        refused,
        jetstream.number(answer["seq"]),
        message_codec.millis(str(answer.get("time")).encode(errors="replace")),
    )


def _lease_body(data: bytes) -> object:
    kinds = (
        wire.AcquireBody, wire.KeepaliveBody, wire.ReleaseBody, wire.MetadataBody, wire.NamespaceBody,
        wire.EnqueueMeta, wire.DequeueBody, wire.MessageBody, wire.StatsBody,
        wire.TransactionBody,
    )  # fmt: skip
    return [_answered(lambda kind=kind: request_parsing.decoded(data, kind, "the body")) for kind in kinds]


def _unless(error: type[Exception], read: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """For a decoder whose documented answer is this error."""

    def reading(data: bytes) -> object:
        try:
            return read(data)
        except error:
            return None

    return reading


def _answered(call: Callable[[], object]) -> object:
    """A value, or that it was refused: for several readers of the same bytes."""
    try:
        return call()
    except (WrasseError, WireError):
        return None


@dataclass(frozen=True, slots=True)
class _Request:
    """What the functions below read of a request."""

    query: Mapping[str, str]
    headers: Mapping[str, str]


def _lease_head(data: bytes) -> object:
    """Parameters, and below them headers, decoded as aiohttp does."""
    path, *lines = data.decode("utf-8", "surrogateescape").split("\n")
    fields = (line.partition(":") for line in lines)
    headers = CIMultiDict((name, value.strip()) for name, _, value in fields)
    query = URL.build(path="/", query_string=path.encode(errors="replace").decode(), encoded=True).query
    request = cast(web.Request, _Request(query, headers))
    reads: tuple[Callable[[web.Request], object], ...] = (
        request_parsing.named, request_parsing.token, request_parsing.lease_of,
        request_parsing.if_version, request_parsing.if_etag, request_parsing.expected,
        request_parsing.plain, lambda it: request_parsing.correlation(it, ManualClock()),
        lambda it: request_parsing.checked_transaction(it.headers.get("X-Txn-ID", ""), "invalid_txn"),
    )  # fmt: skip
    return [_answered(lambda read=read: read(request)) for read in reads]


@cache
def _file() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="wrasse-decoders-")
    atexit.register(folder.cleanup)
    return Path(folder.name) / "wrasse.yaml"


def _config(data: bytes) -> object:
    _file().write_bytes(data)
    return load(_file(), environ={})


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """Text as an argument of a command comes."""
    return lambda data: read(data.decode("utf-8", "surrogateescape"))


def _url(text: str) -> object:
    hide(text)
    found = _answered(lambda: parse_store(text)), _answered(lambda: parse_objects(text))
    return [(str(each), each.place if each.is_bucket else "", each.resolved().url) for each in found if each]


def _duration(text: str) -> object:
    found = parse_duration(text)
    assert timedelta(0) <= found == parse_duration(format_duration(found)), "it is written as it is read"
    return found


def _cron(text: str) -> object:
    cron = parse_cron(text)
    slots = [EPOCH]
    for _ in range(3):
        slots.append(cron.next_after(slots[-1]))
    assert all(before < after for before, after in pairwise(slots)), "slots come one after the other"
    return slots


def _cursor(text: str) -> object:
    reads: tuple[Callable[[str], object], ...] = (
        read_cursor, parse_cursor, records._moment,
        catalog._place, sql_catalog._place, memory_shelves._position,
        task_fields.read_position, DueCursor.parse,
    )  # fmt: skip
    found = [_answered(lambda read=read: read(text)) for read in reads]
    start = found[1]
    assert start is None or abs(start.order) | abs(start.seq) < 1 << 63, "numbers that SQLite can compare with"
    return found


def _words(text: str) -> object:
    reads: tuple[Callable[[], object], ...] = (
        lambda: parse_rate("q", text), lambda: parse_weight(text), lambda: parse_globs([text]),
        lambda: parse_address(text), lambda: parse_template(text), lambda: parse_name(text),
        lambda: SqlAddress.parse(text), lambda: start_at(text, ManualClock().now()),
        lambda: to_micros(moment_of(text, ManualClock().now()) or EPOCH),
    )  # fmt: skip
    return [_answered(read) for read in reads]


def rows() -> Iterator[tuple[str, Callable[[bytes], object], tuple[bytes, ...], int]]:
    """Name, decoder, seeds, and how many times as long as others it takes."""
    listed = (
        b"<ListBucketResult><Name>b</Name><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
        b"<NextContinuationToken>t</NextContinuationToken><Contents><Key>a%2Fb</Key><Size>5</Size><ETag>&quot;0a&quot;</ETag>"
        b"<LastModified>2026-01-02T03:04:05.000Z</LastModified></Contents>"
        b"<CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes></ListBucketResult>"
    )
    yield "S3 listing", lambda body: xml.parse_listing(body, "s3", prefix=b"a"), (listed,), 1
    yield "S3 versions", lambda body: xml.parse_versions(body, "s3"), (
        b"<ListVersionsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker><NextVersionIdMarker>v"
        b"</NextVersionIdMarker><Version><Key>k</Key><VersionId>v</VersionId><ETag>e</ETag><IsLatest>true</IsLatest></Version>"
        b"<DeleteMarker><Key>k</Key></DeleteMarker></ListVersionsResult>",
    ), 1  # fmt: skip
    yield "S3 uploads", lambda body: xml.parse_uploads(body, "s3"), (
        b"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated><Upload><Key>k</Key><UploadId>u</UploadId>"
        b"<Initiated>2026-01-02T03:04:05Z</Initiated></Upload></ListMultipartUploadsResult>",
    ), 1  # fmt: skip
    yield "S3 deletes", lambda body: xml.parse_refusals(body, "s3"), (
        b"<DeleteResult><Error><Key>k</Key><Code>AccessDenied</Code></Error></DeleteResult>",
    ), 1  # fmt: skip
    yield "S3 error", lambda body: (xml.failure_of(500, {}, body), xml.failure_in(body)), (
        b"<Error><Code>SlowDown</Code></Error>",
    ), 1  # fmt: skip
    yield "S3 date", _unless(ValueError, _text(xml.parse_date)), (b"Fri, 02 Jan 2026 03:04:05 GMT",), 1
    info = b'INFO {"server_name":"n","version":"2.11.0","max_payload":1048576,"connect_urls":["a:1"]}\r\n'
    header = b"NATS/1.0\r\nWrasse:1739539200123 1 1 name\r\nWrasse-Field:a=%20b\r\n\r\n"
    ours = b"%d %d\r\n%b" % (len(header), len(header) + 2, header)
    yield "NATS connection", _in_loop(_nats), (
        info + b"MSG s 1 r 2\r\nhi\r\nPING\r\n-ERR 'Stale Connection'\r\nPONG\r\n+OK\r\n",
        info + b"HMSG s 1 " + ours + b"hi\r\nHMSG s 1 12 12\r\nNATS/1.0 503\r\n\r\n",
        info + b"HMSG s 2 $JS.ACK.st.co.1.5.6.1739539200123000000.0 " + ours + b"hi\r\n"
        b"MSG s 2 $JS.ACK.st.co.1.6.7.8.0 2\r\nhi\r\n",
    ), 3  # fmt: skip
    yield "JetStream answer", _js_answer, (
        b'{"stream":"s","seq":7,"time":"2026-01-02T03:04:05.123456789Z"}',
        b'{"error":{"code":503,"err_code":10008,"description":"no"}}',
    ), 1  # fmt: skip
    yield "Redis connection", _in_loop(_redis), (
        b"+OK\r\n*2\r\n$2\r\nhi\r\n:7\r\n-ERR no\r\n", b"%1\r\n+a\r\n,1.5\r\n~1\r\n#t\r\n>1\r\n_\r\n",
        b"*1000000\r\n", b"(123\r\n=7\r\ntxt:abc\r\n|1\r\n+a\r\n:1\r\n$-1\r\n",
    ), 2  # fmt: skip
    yield "lease request body", _lease_body, (
        b'{"namespace":"n","key":"k","owner":"o","ttl_seconds":30,"block_seconds":-1,"if_not_exists":true,"txn_id":""}',
        b'{"queue":"q","lease_id":"l","visibility_timeout_seconds":5,"meta_etag":"e"}',
        b'{"txn_id":"t","participants":[{"key":"k"}]}',
    ), 3  # fmt: skip
    yield "lease request head", _lease_head, (
        b"namespace=n&key=a%2Fb\nX-Fencing-Token: 7\nX-Lease-ID: l\nX-Txn-ID: cv37rrt1i6l7h4bq2b5g\nX-If-Version: 1\n"
        b"X-Expected-Bytes: 3\nX-Expected-SHA256: " + b"0a" * 32 + b"\nContent-Encoding: gzip",
    ), 5  # fmt: skip
    yield "lease state", _unless(WireError, lambda data: request_parsing._state(data, "", "", None)), (
        b'{"a": [1, 1e400, "\xc3\xa9"]}',
    ), 1  # fmt: skip
    yield "compressed body", _unless(WireError, lambda data: request_parsing._unpacked(data, 10_000)), (
        zlib.compress(b'{"a":1}'), gzip.compress(b'{"a":1}', mtime=0), zlib.compress(b"x" * 20_000),
    ), 1  # fmt: skip
    yield "configuration", _config, (
        b"backends:\n  jobs: sqlite:wrasse.db\nworker:\n  concurrency: 4\nsweeps:\n  stuck_jobs:\n    every: 30s\n",
        b"redis: {addr: 'localhost:6379', db: 1}\n", b"a: &a [1, 2]\nb: {<<: {c: *a}, d: !!int '7', e: 2026-01-02}\n",
        b"worker:\n  queues:\n    mail: {rate: 5/s, weight: 2}\n",
        b"archives:\n  rules:\n    - {subject: a.>, to: 'file:x'}\n",
    ), 100  # fmt: skip
    yield "store URL", _text(_url), (
        b"redis://u:p@[::1]:6379/0", b"nats://t@h:4222,h2", b"s3://bucket/prefix?endpoint=http://h:1&region=r",
        b"sqlite:///a/b.db", b"file:x", b"memory:", b"rediss://a:1/2",
    ), 3  # fmt: skip
    yield "duration", _text(_duration), (b"1h30m", b"250ms", b"7d", b"0", b"1.5s"), 1
    yield "cron", _text(_cron), (b"*/5 0-6,22 1 jan-mar mon", b"@daily", b"0 3 29 feb *"), 20
    yield "cursor", _text(_cursor), (b"dead:1739539200123000:7", b"5:name", b"ready:-1:0", b"1:2:id"), 2
    yield "words of a command", _text(_words), (
        b"10/s", b"a/**/{b,c}*.[ch]", b"5-1", b"5m", b"2026-01-02", b"localhost:80", b"localhost:" + b"9" * 5_000,
        b"{tenant}/{id}.bin", b"postgresql://u:p@h/db",        b"a/2026/01/02/5-1.jsonl.gz",
    ), 60  # fmt: skip
