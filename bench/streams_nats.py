"""Streams on NATS: publishing against the bare protocol with the same envelopes, groups against nats-py.

The raw loop has one socket, sends a batch of PUBs with a reply subject and counts the confirmations; its envelopes are
ready before its clock starts. It checks nothing and its entries have no ids. We have published for two seconds when the
clock starts: from then on a stream that nobody else writes to takes long batches faster. Two tasks publish at a time,
as in a program, and making the envelope is part of publishing.

A group is read by 1, 4 and 8 processes (`group_reader.py`), in pages of 1, 10 and 100, from a durable pull consumer
with acks that the server confirms: ours, and nats-py with `fetch` and all `ack_sync` of a page at once. Besides rates
it tells the processor time of a message, of all readers together and of the server, and the server's messages in and
out: on a machine that is busy otherwise the rates say little. Last, one message for forty waiting consumers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bench.group_reader import GROUP, STREAM, SUBJECT
from bench.measure import Benchmark, Rate, Ratio, Result, seconds, take_turns
from servers.nats import Nats as NatsServer, nats as nats_server
from servers.process import free_ports
from wrasse.backends.nats.client.connection import NatsConnection
from wrasse.backends.nats.client.jetstream import JetStream, JsError
from wrasse.backends.nats.connect import Nats
from wrasse.backends.nats.options import NatsOptions
from wrasse.clock import SystemClock
from wrasse.ids import Ids
from wrasse.ports.groups import Ack
from wrasse.ports.streams import Draft
from wrasse.streams.envelope import Envelope, encode
from wrasse.streams.publisher import Publication, Publisher

WHO, PROCESSES, PAGES = ("wrasse", "nats-py"), (1, 4, 8), (1, 10, 100)
BATCH = 1_000
TASKS = 2
PAYLOAD = b"x" * 192
TIMEOUT = timedelta(seconds=30)
SETTLED = 2.0  # seconds until a process knows that it alone writes to a stream


@dataclass(frozen=True, slots=True)
class Cell:
    """What one group cost, by message: readers of one kind, so many processes, pages of one size."""

    rate: float
    client: float  # microseconds of processor time
    server: float
    messages: float  # in and out of the server


def run(quick: bool) -> Result:
    """Publishes all in batches; reads and acks all as a group."""
    count = 20_000 if quick else 100_000
    (monitor,) = free_ports(1)
    with nats_server(f"http: 127.0.0.1:{monitor}\n") as server:
        url = server.url
        took = take_turns(
            {
                "publish, wrasse": lambda place: asyncio.run(_publish(url, count)),
                "publish, raw": lambda place: _raw_publish(url, server.port, count),
            },
            rounds=3 if quick else 5,
        )
        asyncio.run(_filled(url, count // 5))
        cells = {
            (who, processes, page): _cell(server, monitor, who, processes, page, count // (20 if page == 1 else 5))
            for page in PAGES
            for processes in PROCESSES
            for who in WHO
        }
        woken = asyncio.run(_woken(url, monitor))
    rates = [Rate(who, count / time, "messages/s") for who, time in took.items()]
    for (who, processes, page), cell in cells.items():
        name = f"{who}, {processes} x pages of {page}"
        rates += [
            Rate(name, cell.rate, "messages/s"),
            Rate(name, cell.client, "us of the readers"),
            Rate(name, cell.server, "us of the server"),
            Rate(name, cell.messages, "server messages"),
        ]
    ratios = [Ratio("publish: wrasse to raw", took["publish, raw"] / took["publish, wrasse"], 0.7)]
    for page in PAGES:
        for processes in PROCESSES:
            ours, theirs = (cells[who, processes, page] for who in WHO)
            where = f"{processes} x pages of {page}"
            ratios += [
                Ratio(f"group, {where}: wrasse to nats-py", ours.rate / theirs.rate, 1.0),
                Ratio(f"group, {where}: processor time to its", _cpu(ours) / _cpu(theirs), 1.0, least=False),
                Ratio(f"group, {where}: server messages to its", ours.messages / theirs.messages, 1.5, least=False),
            ]
        most, one = cells["wrasse", PROCESSES[-1], page], cells["wrasse", 1, page]
        ratios.append(Ratio(f"group, pages of {page}: 8 processes to 1", most.rate / one.rate, 0.9))
    ratios.append(Ratio("messages out of the server for one message and 40 waiting consumers", woken, 10, least=False))
    return Result(BENCHMARK.name, BENCHMARK.about, tuple(rates), tuple(ratios))


def _cpu(cell: Cell) -> float:
    return cell.client + cell.server


BENCHMARK = Benchmark("streams_nats", f"streams on NATS, {len(PAYLOAD)} bytes a payload", run)


def _envelopes(count: int) -> list[bytes]:
    ids = Ids(SystemClock())
    return [encode(Envelope(ids.new(), SUBJECT, 1_700_000_000_000, PAYLOAD)) for _ in range(count)]


async def emptied(url: str) -> None:
    """A server with no streams but those of records."""
    link = await NatsConnection.open(NatsOptions.of(url))
    js = JetStream(link)
    names = (await js.call("STREAM.NAMES")).get("streams") or []
    await asyncio.gather(*(js.call(f"STREAM.DELETE.{name}") for name in names))
    await link.close()


def _raw_publish(url: str, port: int, count: int) -> float:
    asyncio.run(emptied(url))
    asyncio.run(_made(url))
    with _socket(port) as sock:
        batches = [
            b"".join([b"PUB %b _IN.1 %d\r\n%b\r\n" % (SUBJECT.encode(), len(each), each) for each in _envelopes(BATCH)])
            for _ in range(count // BATCH)
        ]
        return seconds(lambda: _confirm_all(sock, batches))


async def _made(url: str) -> None:
    link = await NatsConnection.open(NatsOptions.of(url))
    await JetStream(link).call(f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": [SUBJECT], "storage": "file"})
    await link.close()


@contextlib.contextmanager
def _socket(port: int) -> Iterator[socket.socket]:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.recv(1 << 16)
    sock.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nSUB _IN.* 1\r\n')
    yield sock
    sock.close()


def _confirm_all(sock: socket.socket, batches: Sequence[bytes]) -> None:
    for batch in batches:
        sock.sendall(batch)
        left, tail = BATCH, b""
        while left:
            data = tail + sock.recv(1 << 20)
            left -= data.count(b'"seq":') - tail.count(b'"seq":')
            tail = data[-5:]


async def _publish(url: str, count: int) -> float:
    await emptied(url)
    store = await Nats.open(url)
    publisher = Publisher(store.streams, SystemClock())
    batch = [Publication(SUBJECT, PAYLOAD)] * BATCH
    await publisher.publish_many(batch)
    await asyncio.sleep(SETTLED)
    await publisher.publish_many(batch)

    async def publish(batches: int) -> None:
        for _ in range(batches):
            await publisher.publish_many(batch)

    return await _timed(store, [publish(count // BATCH // TASKS) for _ in range(TASKS)])


async def _filled(url: str, count: int) -> Nats:
    await emptied(url)
    store = await Nats.open(url)
    envelopes = _envelopes(count)
    for start in range(0, count, BATCH):
        await store.streams.append([Draft(SUBJECT, body) for body in envelopes[start : start + BATCH]])
    return store


def _cell(server: NatsServer, monitor: int, who: str, processes: int, page: int, count: int) -> Cell:
    """Has a group of `count` messages read to its end."""
    asyncio.run(_group(server.url, count))
    command = [sys.executable, "-m", "bench.group_reader", who, server.url, str(page)]
    pipe = subprocess.PIPE
    started = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(processes)]
    for each in started:
        assert each.stdout is not None, "it was opened"
        assert each.stdout.readline() == "ready\n", "a reader did not start"
    before = _messages(monitor), _server_seconds(server)
    for each in started:
        assert each.stdin is not None, "it was opened"
        each.stdin.write("go\n")
        each.stdin.flush()
    told = [each.communicate(timeout=300)[0].split() for each in started]
    after = _messages(monitor), _server_seconds(server)
    assert sum(int(each[0]) for each in told) >= count, "a message was not read"
    took = max(float(each[3]) for each in told) - min(float(each[2]) for each in told)
    spent = sum(float(each[1]) for each in told)
    return Cell(count / took, spent / count * 1e6, (after[1] - before[1]) / count * 1e6, (after[0] - before[0]) / count)


async def _group(url: str, count: int) -> None:
    """The durable that both read, at the last `count` messages of the stream."""
    link = await NatsConnection.open(NatsOptions.of(url))
    js = JetStream(link)
    with contextlib.suppress(JsError):
        await js.call(f"CONSUMER.DELETE.{STREAM}.{GROUP}")
    last = (await js.call(f"STREAM.INFO.{STREAM}"))["state"]["last_seq"]
    config = {
        "durable_name": GROUP, "name": GROUP, "ack_policy": "explicit", "ack_wait": 30_000_000_000, "max_deliver": -1,
        "max_ack_pending": -1, "filter_subject": SUBJECT, "deliver_policy": "by_start_sequence",
        "opt_start_seq": last - count + 1,
    }  # fmt: skip
    asked = {"stream_name": STREAM, "config": config, "action": "create"}
    await js.call(f"CONSUMER.CREATE.{STREAM}.{GROUP}.{SUBJECT}", asked)
    await link.close()


async def _woken(url: str, monitor: int) -> float:
    """How many messages leave the server for one message, while forty wait for it at ten connections."""
    await _group(url, 0)
    stores = [await Nats.open(url) for _ in range(10)]
    wait = timedelta(seconds=60)
    asking = [
        asyncio.ensure_future(store.groups.deliver([SUBJECT], GROUP, "c", 1, ack_timeout=TIMEOUT, wait=wait))
        for store in stores
        for _ in range(4)
    ]
    js = JetStream(stores[0].connection)
    while (await js.call(f"CONSUMER.INFO.{STREAM}.{GROUP}"))["num_waiting"] < len(asking):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    before = _monitored(monitor)["out_msgs"]
    await stores[0].streams.append([Draft(SUBJECT, PAYLOAD)])
    (done,), _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    await stores[0].groups.answer([Ack(SUBJECT, GROUP, each.entry.id) for each in done.result()])
    await asyncio.sleep(0.5)
    out = _monitored(monitor)["out_msgs"] - before
    for each in asking:
        each.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    for store in stores:
        await store.close()
    return float(out)


def _monitored(monitor: int) -> dict[str, int]:
    with urllib.request.urlopen(f"http://127.0.0.1:{monitor}/varz", timeout=10) as answer:
        told: dict[str, int] = json.load(answer)
        return told


def _messages(monitor: int) -> int:
    told = _monitored(monitor)
    return told["in_msgs"] + told["out_msgs"]


def _server_seconds(server: NatsServer) -> float:
    """Processor seconds of the server so far."""
    words = Path(f"/proc/{server.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def _timed(store: Nats, tasks: list[Coroutine[None, None, None]]) -> float:
    clock = SystemClock()
    began = clock.monotonic()
    await asyncio.gather(*tasks)
    took = clock.monotonic() - began
    await store.close()
    return took
