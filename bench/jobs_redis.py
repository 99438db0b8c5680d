"""Jobs on Redis: enqueues beside raw round trips, and one worker process with its costs.

Enqueues take turns in small slices, so that whatever else the machine does hits all of them. Raw is redis-py, in an
event loop as ours is, and blocking. The worker is the command `wrasse run` with its defaults, measured as the peers are
(bench/peers/contest.py).
"""

from __future__ import annotations

import asyncio
import statistics

import wrasse
from bench.measure import Benchmark, Rate, Ratio, Result
from bench.peers.contest import Figures, contest, median
from bench.peers.quiet import conditions, hurried, hurry
from bench.peers.roster import PEERS
from bench.raw_redis import RawRedis
from bench.redis_server import serving
from wrasse import NewJob

ABOUT = __doc__.splitlines()[0]
SLICE = 200  # enqueues in a row
MANY = 20_000


def run(quick: bool) -> Result:
    """Enqueues first, then workers."""
    (ours,) = (peer for peer in PEERS if peer.name == "wrasse")
    with serving() as server:
        hurry(server.pid, 2)
        with conditions(), hurried():
            enqueues = asyncio.run(_enqueues(server.url, 5 if quick else 30))
            raw = RawRedis(server.url)
            raw.empty()
            loop = MANY / raw.work(MANY, lambda: None)
            raw.empty()
        rounds, share = (1, 0.2) if quick else (3, 1.0)
        every = [contest(ours, "async", server.port, share=share) for _ in range(rounds)]
        plain = [contest(ours, "threads", server.port, share=share) for _ in range(rounds)]
    return _result(enqueues, loop, raw.size(), median(every), median(plain))


def _result(enqueues: dict[str, float], loop: float, size: int, worker: Figures, plain: Figures) -> Result:
    rates = [Rate(who, 1 / took) for who, took in enqueues.items()]
    rates += [
        Rate("raw loop, 100 jobs a script", loop),
        Rate("worker, async handler", worker.rate),
        Rate("worker, plain function", plain.rate),
        Rate("worker, its CPU", worker.worker_us, "us/job"),
        Rate("worker, the server's CPU", worker.server_us, "us/job"),
        Rate("others meanwhile", worker.others * 100, "% of a core"),
    ]
    ratios = (
        Ratio("enqueue to a raw LPUSH", enqueues["raw LPUSH"] / enqueues["enqueue"], 0.65),
        Ratio("enqueue to the same script, raw", enqueues["the same script, raw"] / enqueues["enqueue"], 0.9),
        Ratio("enqueue to a raw LPUSH, blocking", enqueues["raw LPUSH, blocking"] / enqueues["enqueue"], 0.65),
        Ratio("enqueue_many, thousands/s", 1 / enqueues["enqueue_many"] / 1_000, 150),
        Ratio("worker, thousands/s", worker.rate / 1_000, 25),
        Ratio("worker to the raw loop", worker.rate / loop, 0.25),
        Ratio("the server's CPU, us/job", worker.server_us, 33, least=False),
        Ratio("bytes per queued job beyond its JSON", worker.bytes_queued - size, 64, least=False),
        Ratio("idle latency p50, ms", worker.p50, 2, least=False),
        Ratio("idle latency p99, ms", worker.p99, 10, least=False),
    )
    return Result(BENCHMARK.name, ABOUT, tuple(rates), ratios)


async def _enqueues(url: str, rounds: int) -> dict[str, float]:
    """Seconds per job, the median of all slices."""
    raw = RawRedis(url)
    async with wrasse.connect(url) as app:

        async def enqueue() -> float:
            begun = asyncio.get_running_loop().time()
            for _ in range(SLICE):
                await app.jobs.enqueue()
            return asyncio.get_running_loop().time() - begun

        async def enqueue_many() -> float:
            jobs = [NewJob()] * MANY
            begun = asyncio.get_running_loop().time()
            await app.jobs.enqueue_many(jobs)
            return asyncio.get_running_loop().time() - begun

        taken: dict[str, list[float]] = {}
        for _ in range(rounds):
            taken.setdefault("raw LPUSH", []).append(await raw.lpush_async(SLICE) / SLICE)
            taken.setdefault("the same script, raw", []).append(await raw.script_async(SLICE) / SLICE)
            taken.setdefault("raw LPUSH, blocking", []).append(raw.lpush(SLICE) / SLICE)
            taken.setdefault("the same script, raw, blocking", []).append(raw.script(SLICE) / SLICE)
            taken.setdefault("enqueue", []).append(await enqueue() / SLICE)
            taken.setdefault("enqueue_many", []).append(await enqueue_many() / MANY)
            taken.setdefault("raw LPUSH of 100", []).append(raw.lpush_many(MANY) / MANY)
            raw.empty()
    return {who: statistics.median(times) for who, times in taken.items()}


BENCHMARK = Benchmark("jobs_redis", ABOUT, run)
