"""One peer in one mode, measured: enqueues, the rate of one worker, what it costs, and how soon an idle worker starts.

Throughput: all jobs are enqueued first, then one worker command starts; the rate is that of the marks its jobs leave,
from a tenth of the way to the last, so that neither its start nor its first small steps count. Processor time per job
says more than the rate on a machine that others use.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from bench.peers.quiet import Others, conditions, hurried, hurry
from bench.peers.roster import Peer
from bench.peers.stage import Producer, Stage, Worker

_RUN_MAX = 90.0  # seconds one worker may take for its jobs
_START_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What one round gave. 0 stands for what a peer does not have, or what was not measured."""

    enqueue: float  # jobs/s, each after the answer to the one before
    enqueue_concurrently: float  # jobs/s, a hundred under way
    enqueue_many: float  # jobs/s, by its call for many
    bytes_queued: float  # of the server's memory, per queued job
    rate: float  # no-op jobs/s of one worker command
    worker_us: float  # processor time of the worker per job
    server_us: float  # and of the server
    p50: float  # ms from the enqueue to the job
    p99: float
    others: float  # cores that others used meanwhile, at most
    left: float  # jobs unfinished at the end


@dataclass(frozen=True, slots=True)
class _Server:
    link: Any
    pid: int

    @classmethod
    def at(cls, port: int) -> _Server:
        link = redis.Redis(port=port)
        return cls(link, int(link.info("server")["process_id"]))

    def memory(self) -> int:
        return int(self.link.info("memory")["used_memory"])

    def cpu(self) -> float:
        used = self.link.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])


def contest(peer: Peer, mode: str, port: int, *, share: float = 1.0, latency: bool = True) -> Figures:
    """One round. `share` of the jobs is for a glance."""
    with tempfile.TemporaryDirectory(prefix="wrasse-bench-") as place, conditions() as spinners, hurried():
        server, stage = _Server.at(port), Stage(peer, mode, port, Path(place))
        hurry(server.pid, 2)
        server.link.flushall()
        with stage.producer() as producer:
            own = (server.pid, producer.process.pid, *spinners)
            return _round(stage, producer, server, own, share, latency)


def _round(
    stage: Stage, producer: Producer, server: _Server, own: tuple[int, ...], share: float, latency: bool
) -> Figures:
    jobs, few = max(100, int(stage.mode.jobs * share)), max(100, int(min(stage.mode.jobs, 5_000) * share))
    shares, rates = [], dict[str, float]()
    for do in ("enqueue", "enqueue_concurrently", "enqueue_many"):
        _fresh(stage, producer)
        others, took = Others(own), producer.ask(do, few)
        rates[do] = few / took if took else 0.0
        shares.append(others.share())
    size = _fill(stage, producer, server, jobs)
    rate, worker_us, server_us, left, share_then = _work(stage, producer, server, own, jobs)
    latencies = _latencies(stage, producer, share) if latency else []
    return Figures(
        **rates, bytes_queued=size, rate=rate, worker_us=worker_us, server_us=server_us,
        p50=_percentile(latencies, 0.5), p99=_percentile(latencies, 0.99), others=max(*shares, share_then), left=left,
    )  # fmt: skip


def _fresh(stage: Stage, producer: Producer) -> None:
    producer.ask("enqueue", 20)  # whatever is set up on first use is
    producer.ask("empty")
    stage.clear()


def _fill(stage: Stage, producer: Producer, server: _Server, jobs: int) -> float:
    _fresh(stage, producer)
    before = server.memory()
    if producer.ask("enqueue_many", jobs) is None and producer.ask("enqueue_concurrently", jobs) is None:
        producer.ask("enqueue", jobs)
    return (server.memory() - before) / jobs


def _work(
    stage: Stage, producer: Producer, server: _Server, own: tuple[int, ...], jobs: int
) -> tuple[float, float, float, int, float]:
    worker = stage.start()
    try:
        assert stage.until_ran(jobs // 10, _START_MAX), (
            f"no job of {stage.peer.name} {stage.name} ran: {stage.log.read_text()[-2000:]}"
        )
        others, before = Others(own, worker.process.pid), stage.ran()
        cpu, server_cpu = worker.cpu(), server.cpu()
        begun = (before + stage.ran()) / 2  # looking takes a while, in which some run
        done = stage.until_ran(jobs, _RUN_MAX) - begun
        cpu, server_cpu, share = worker.cpu() - cpu, server.cpu() - server_cpu, others.share()
        left = _unfinished(producer)
    finally:
        worker.stop()
    moments = stage.moments()
    first = len(moments) // 10
    rate = (len(moments) - first - 1) / max(moments[-1] - moments[first], 1e-9)
    return rate, cpu * 1e6 / max(done, 1), server_cpu * 1e6 / max(done, 1), left, share


def _unfinished(producer: Producer) -> int:
    end = time.monotonic() + 10
    while (left := int(producer.ask("pending"))) and time.monotonic() < end:
        time.sleep(0.01)
    return left


def _latencies(stage: Stage, producer: Producer, share: float) -> list[float]:
    _fresh(stage, producer)
    worker: Worker = stage.start()
    try:
        found = producer.ask("latency", max(20, int(stage.mode.latencies * share)) + 5, stage.mode.gap)
    finally:
        worker.stop()
    assert found, f"{stage.peer.name} {stage.name} ran no job"
    assert min(found) >= 0, f"{stage.peer.name} {stage.name} lost a job"
    return [seconds * 1_000 for seconds in found[5:]]


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def median(rounds: Iterable[Figures]) -> Figures:
    """Each figure's median."""
    every = [*rounds]
    names = Figures.__slots__
    return Figures(**{name: statistics.median(getattr(each, name) for each in every) for name in names})
