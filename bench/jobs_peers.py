"""One worker process and no-op jobs on Redis: wrasse beside rq, celery, dramatiq, arq, taskiq, saq, streaq and huey.

Every peer runs in the modes of bench/peers/roster.py, in an environment of its own, on the same server, in turns. The
verdict is about peers that give what wrasse gives: a job outlives its worker (at least once).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from bench.measure import Benchmark, Rate, Ratio, Result
from bench.peers.contest import Figures, contest, median
from bench.peers.roster import OURS, PEERS, Mode
from bench.redis_server import serving

ABOUT = __doc__.splitlines()[0]
Every = dict[tuple[str, str], Figures]


def run(quick: bool) -> Result:
    """All modes of all peers."""
    rounds, share = (1, 0.2) if quick else (2, 1.0)
    found: dict[tuple[str, str], list[Figures]] = {}
    with serving() as server:
        for number in range(rounds):
            for peer in PEERS:
                for mode in peer.modes:
                    print(f"bench: {peer.name} {mode}, round {number + 1} of {rounds}", file=sys.stderr)
                    figures = contest(peer, mode, server.port, share=share, latency=number == 0)
                    found.setdefault((peer.name, mode), []).append(figures)
    every = {who: _together(figures) for who, figures in found.items()}
    return Result(BENCHMARK.name, ABOUT, _rates(every), _ratios(every))


def _together(rounds: list[Figures]) -> Figures:
    """The medians; latencies were taken in the first round only."""
    first, middle = rounds[0], median(rounds)
    names = {name: getattr(middle, name) for name in Figures.__slots__}
    return Figures(**{**names, "p50": first.p50, "p99": first.p99})


def _rates(every: Every) -> tuple[Rate, ...]:
    """The rate of every mode, the fastest first; of each peer's fastest one also what it costs."""
    rates, seen = [], set()
    for (peer, mode), figures in sorted(every.items(), key=lambda each: -each[1].rate):
        who = f"{peer} {mode}"
        rates.append(Rate(f"{who}: worker", figures.rate))
        if peer in seen:
            continue
        seen.add(peer)
        rates += [
            Rate(f"{who}: worker's CPU", figures.worker_us, "us/job"),
            Rate(f"{who}: server's CPU", figures.server_us, "us/job"),
            Rate(f"{who}: enqueue", figures.enqueue),
            Rate(f"{who}: enqueue_many", figures.enqueue_many),
            Rate(f"{who}: queued", figures.bytes_queued, "bytes/job"),
            Rate(f"{who}: latency p50", figures.p50 * 1_000, "us"),
            Rate(f"{who}: latency p99", figures.p99 * 1_000, "us"),
        ]
    return tuple(rate for rate in rates if rate.per_second)


def _ratios(every: Every) -> tuple[Ratio, ...]:
    modes = {(peer.name, name): mode for peer in PEERS for name, mode in peer.modes.items()}

    def others(wanted: str) -> list[Figures]:
        return [every[who] for who in every if who[0] != OURS and _is(modes[who], wanted)]

    ours, plain = every[OURS, "async"], every[OURS, "threads"]
    safe, threads = others("safe"), others("threads")
    server, worker = _least(each.server_us for each in safe), _least(each.worker_us for each in safe)
    return (
        Ratio("worker to the fastest safe peer", ours.rate / max(each.rate for each in safe), 5),
        Ratio("threads to the fastest threaded peer", plain.rate / max(each.rate for each in threads), 2),
        Ratio("server's CPU to the leanest safe peer", ours.server_us / server, 1, least=False),
        Ratio("worker's CPU to the leanest safe peer", ours.worker_us / worker, 1, least=False),
        Ratio("latency p50 to the soonest safe peer", ours.p50 / _least(each.p50 for each in safe), 1.5, least=False),
    )


def _least(values: Iterable[float]) -> float:
    """Of those that were measured: a glance may be too short for a processor's clock."""
    return min(value for value in values if value)


def _is(mode: Mode, wanted: str) -> bool:
    return mode.safe if wanted == "safe" else mode.threads


BENCHMARK = Benchmark("jobs_peers", ABOUT, run)
