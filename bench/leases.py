"""Leases and state: a lock cycle is acquire, update, release; each figure against what it cannot be better than.

In this process on memory; over HTTP against an empty handler of the same server; in a directory against a raw loop of
the same durable changes; on a bucket 20 ms away against five requests; and with a million keys against a thousand.
What one process does alone is measured in processor time, so that a busy machine does not decide. The bucket is a
SeaweedFS behind a proxy that delays; without its binary that part is left out and says so.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

from aiohttp import web

from bench.leases_clients import CLIENTS, STATE
from bench.measure import Benchmark, Rate, Ratio, Result, each_round, take_turns
from conformance.object_stores import make_bucket
from servers.proxy import proxy
from servers.seaweed import seaweed
from wrasse.backends.directory.connect import Directory
from wrasse.backends.memory.connect import Memory
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.connect import S3
from wrasse.clock import ManualClock, SystemClock
from wrasse.engine.sweep import Action
from wrasse.lease_server.leases import LeaseApi
from wrasse.leases.cleanup import TOGETHER
from wrasse.leases.core import leases_in
from wrasse.leases.lease import KEYS, KeyRecord
from wrasse.leases.leases import Leases
from wrasse.sweeps.expired_leases import ExpiredLeases

CLOCK = SystemClock()
NS = "default"
KEYS_IN_TURN = 64
AWAY = 0.020  # seconds that a request takes to the bucket and back
WEED = Path(sys.executable).parent / "weed"


def run(quick: bool) -> Result:
    """All of it."""
    rates, ratios = [], []
    for part in (_in_process, _over_http, _in_a_directory, _far_away, _with_many_keys):
        more_rates, more_ratios = part(quick)
        rates += more_rates
        ratios += more_ratios
    return Result(BENCHMARK.name, BENCHMARK.about, tuple(rates), tuple(ratios))


BENCHMARK = Benchmark("leases", "lock cycles (acquire, update, release) and what they cannot do without", run)

Part = tuple[list[Rate], list[Ratio]]


async def _cycle(leases: Leases, key: str) -> None:
    leased = await leases.acquire(key, "bench")
    await leases.update(leased.granted, STATE)
    await leases.release(leased.granted)


async def _timed(act: Callable[[], Awaitable[object]], clock: Callable[[], float] = CLOCK.monotonic) -> float:
    began = clock()
    await act()
    return clock() - began


def _in_process(quick: bool) -> Part:
    count = 2_000 if quick else 10_000

    async def cycles() -> float:
        memory = Memory(CLOCK)
        leases = Leases(memory.records, memory.objects, CLOCK)
        await _cycle(leases, "k")

        async def go() -> None:
            for _ in range(count):
                await _cycle(leases, "k")
            await leases.close()

        return await _timed(go, time.process_time)

    took = take_turns({"cycles": lambda _: asyncio.run(cycles())}, rounds=3 if quick else 7)["cycles"]
    rate = Rate("in this process, memory", count / took, "cycles/s of CPU")
    return [rate], [Ratio("in this process: thousand cycles/s", rate.per_second / 1_000, 8.0)]


# HTTP


def _over_http(quick: bool) -> Part:
    rounds, turns = (3, 5) if quick else (5, 20)
    rates = asyncio.run(_http_rates(rounds, turns))
    empty = rates["empty handler"]
    shown = [Rate(f"HTTP, {CLIENTS} clients, {who}", rate, "requests/s") for who, rate in rates.items()]
    ratios = [
        Ratio(f"HTTP: {who} to an empty handler", rate / empty, 0.5)
        for who, rate in rates.items()
        if who != "empty handler"
    ]
    return shown, ratios


async def _http_rates(rounds: int, turns: int) -> dict[str, float]:
    """The clients are a process of their own. Kinds of requests take turns in small portions, so that whatever else
    the machine does hits all of them."""
    memory = Memory(CLOCK)
    api = LeaseApi(Leases(memory.records, memory.objects, CLOCK), CLOCK)
    app = web.Application()
    app.add_routes([*api.routes(), web.post("/empty", _empty)])
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    taken: dict[str, list[float]] = {}
    for _ in range(rounds):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.leases_clients", server, str(turns), stdout=asyncio.subprocess.PIPE
        )
        told, _ = await child.communicate()
        assert child.returncode == 0, "the clients failed"
        for line in told.decode().splitlines():
            who, _, rate = line.rpartition(" ")
            taken.setdefault(who, []).append(float(rate))
    await runner.cleanup()
    return {who: statistics.median(each) for who, each in taken.items()}


async def _empty(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=b"{}", content_type="application/json")


# A directory


def _in_a_directory(quick: bool) -> Part:
    """Keys that come to rest after each lease, and one that is taken again at once, which leaves less to do."""
    count = 64
    rates: list[Rate] = []
    ratios: list[Ratio] = []
    for what, keys in (("keys in turn", KEYS_IN_TURN), ("one key", 1)):
        took = each_round(
            {
                "wrasse": lambda place, keys=keys: asyncio.run(_directory_cycles(place, count, keys)),  # type: ignore[misc]
                "raw": lambda place, keys=keys: _raw_cycles(place, count, keys),  # type: ignore[misc]
            },
            rounds=5 if quick else 25,
        )
        rates += [
            Rate(f"directory, {what}, durable, {who}", count / statistics.median(times), "cycles/s")
            for who, times in took.items()
        ]
        ratio = statistics.median(raw / ours for ours, raw in zip(took["wrasse"], took["raw"], strict=True))
        ratios.append(Ratio(f"directory, {what}: rate of wrasse to raw", ratio, 0.6))
    return rates, ratios


async def _directory_cycles(place: Path, count: int, keys: int) -> float:
    directory = await Directory.open(place, CLOCK)
    leases = Leases(directory.records, directory.objects, CLOCK)
    for number in range(keys):
        await _cycle(leases, f"k{number}")

    async def go() -> None:
        for number in range(count):
            await _cycle(leases, f"k{number % keys}")
        await leases.close()

    took = await _timed(go)
    await directory.close()
    return took


def _raw_cycles(place: Path, count: int, keys: int) -> float:
    """The same changes, each as durable: entry, record, state, record, record; then the old state and the entry go. The
    entry of a key that is taken again at once stays, and its old states go together."""
    for folder in ("temp", "meta", "index", "state"):
        (place / folder).mkdir()
    for number in range(keys):
        _raw_put(place, "meta", f"k{number}")
        _raw_put(place, "state", f"s{number - keys}")
    old: list[str] = []
    began = CLOCK.monotonic()
    for number in range(count):
        key, rests = f"k{number % keys}", keys > 1
        if rests or number == 0:
            entry = os.open(f"{place}/index/{key}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            os.write(entry, b"{}")
            os.close(entry)
            _raw_sync(f"{place}/index")
        _raw_put(place, "meta", key)
        _raw_put(place, "state", f"s{number}")
        _raw_put(place, "meta", key)
        _raw_put(place, "meta", key)
        old.append(f"s{number - keys}")
        if rests or len(old) == TOGETHER:
            for name in old:
                os.unlink(f"{place}/state/{name}")
            _raw_sync(f"{place}/state")
            old.clear()
        if rests:
            os.unlink(f"{place}/index/{key}")
    return CLOCK.monotonic() - began


def _raw_put(place: Path, folder: str, name: str) -> None:
    temp = f"{place}/temp/t"
    file = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    os.write(file, STATE * 10)
    os.fsync(file)
    os.close(file)
    os.rename(temp, f"{place}/{folder}/{name}")
    _raw_sync(f"{place}/{folder}")


def _raw_sync(folder: str) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(opened)
    os.close(opened)


# A bucket that is far away


def _far_away(quick: bool) -> Part:
    if not WEED.exists():
        return [Rate("bucket 20 ms away: left out, no weed here", 0.0, "cycles/s")], []
    cycle, write = asyncio.run(_far_cycle(8 if quick else 25))
    shown = [Rate("bucket 20 ms away, cycle", 1 / cycle, "cycles/s")]
    shown += [Rate("bucket 20 ms away, one small object", 1 / write, "writes/s")]
    # A request takes what the store needs on top of the way there and back, so one of the same run is the measure.
    return shown, [Ratio("bucket: a cycle in single writes", cycle / write, 5 * 1.2, least=False)]


async def _far_cycle(count: int) -> tuple[float, float]:
    with seaweed() as server:
        async with proxy(int(server.endpoint.rpartition(":")[2])) as between:
            near = S3Address("bench", "", server.endpoint, access_key=server.key, secret_key=server.secret)
            await make_bucket(server, "bench")
            far = S3Address(
                near.bucket, "", f"http://127.0.0.1:{between.port}", access_key=server.key, secret_key=server.secret
            )
            backend = await S3.open(far, CLOCK)
            leases = Leases(backend.records, backend.objects, CLOCK)
            await _cycle(leases, "k")
            await leases.close()
            between.delay = AWAY / 2  # each way
            cycles, writes = [], []
            for number in range(count):
                cycles.append(await _timed(lambda: _cycle(leases, "k")))
                await leases.close()
                writes.append(await _timed(lambda name=f"one/{number}": backend.objects.create(name, STATE)))  # type: ignore[misc]
            between.delay = 0.0
            await backend.close()
    return statistics.median(cycles), statistics.median(writes)


# Many keys


def _with_many_keys(quick: bool) -> Part:
    few, many = 1_000, 100_000 if quick else 1_000_000
    costs = {keys: asyncio.run(_among(keys, 5 if quick else 9)) for keys in (few, many)}
    rates = [Rate(f"cycle among {keys:,} keys", 1 / cost[0], "cycles/s") for keys, cost in costs.items()]
    rates += [Rate(f"sweep of 100 among {keys:,} keys", 100 / cost[1], "entries/s") for keys, cost in costs.items()]
    return rates, [
        Ratio(f"{what}: time among {many:,} keys to {few:,}", costs[many][at] / costs[few][at], 1.2, least=False)
        for at, what in enumerate(("cycle", "idle sweep"))
    ]


async def _among(keys: int, rounds: int) -> tuple[float, float]:
    """Median processor time of a cycle, and of a sweep of a hundred ended leases, with so many keys beside them."""
    clock = ManualClock()
    memory = Memory(clock)
    leases = Leases(memory.records, memory.objects, clock)
    records = memory.records(leases_in(NS))
    for number in range(keys):
        await records.create(f"k/{number:07}", KEYS.encode(KeyRecord(1, updated_at=clock.now())), nonce="n")
    gc.collect()
    gc.freeze()  # what Python's collector makes of a large heap is not what is asked here
    cycles, sweeps = [], []
    for turn in range(rounds):

        async def go() -> None:
            for number in range(500):
                await _cycle(leases, f"k/{number * (keys // 500):07}")
            await leases.close()

        cycles.append(await _timed(go, time.process_time) / 500)
        for number in range(100):
            await leases.acquire(f"ended/{turn}/{number}", "bench")
        clock.advance(timedelta(hours=2))
        sweeps.append(await _timed(lambda: _sweep(leases, memory), time.process_time))
    gc.unfreeze()
    return statistics.median(cycles), statistics.median(sweeps)


async def _sweep(leases: Leases, memory: Memory) -> None:
    sweep, after = ExpiredLeases(leases, memory.namespaces), None
    while True:
        page = await sweep.find(after, 100)
        for suspect in page:
            verdict = sweep.decide(suspect, page.at)
            if isinstance(verdict, Action):
                await sweep.apply([verdict])
        after = page.cursor
        if after is None:
            return
