"""After kill -9 of a worker in the middle of a job: how long until a fresh worker runs it again, beside the peers.

Every process of the worker is killed at once, as if the machine were lost, and a new worker starts right away. Each
peer is measured with its defaults and with what makes it soonest (bench/peers/roster.py). Who has not run the job again
within WAIT seconds counts as never: some need an hour, some lose it. Nothing else is enqueued meanwhile, so a peer that
looks around only when a new job comes does not find it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.measure import Benchmark, Rate, Ratio, Result
from bench.peers.roster import OURS, PEERS, Peer
from bench.peers.stage import Stage
from bench.redis_server import serving

ABOUT = __doc__.splitlines()[0]
WAIT = 120.0
GATHERED_MAX = 4  # they mostly sleep
_START_MAX = 60.0
_Who = tuple[Peer, str]


def run(quick: bool) -> Result:
    """Ours alone, then the peers; only ours if it is to be quick."""
    asked = [(peer, setting) for peer in PEERS for setting in _settings(peer)]
    ours = [who for who in asked if who[0].name == OURS]
    found = {who[1]: _recovery(who) for who in ours}
    others = [] if quick else [who for who in asked if who[0].name != OURS]
    with ThreadPoolExecutor(GATHERED_MAX) as pool:
        theirs = [*pool.map(_recovery, others)]
    rates = [_rate((peer, setting), found[setting]) for peer, setting in ours]
    rates += [_rate(who, took) for who, took in zip(others, theirs, strict=True)]
    ratios = (
        Ratio("seconds, with the defaults", found["default"] or WAIT, 45, least=False),
        Ratio("seconds, with settings for it", found["tuned"] or WAIT, 6, least=False),
    )
    return Result(BENCHMARK.name, ABOUT, tuple(rates), ratios)


def _settings(peer: Peer) -> tuple[str, ...]:
    if peer.recovery is None:
        return ()
    return ("default", "tuned") if peer.recovery.tuned else ("default",)


def _rate(who: _Who, took: float) -> Rate:
    peer, setting = who
    assert peer.recovery is not None, "only those with one are asked"
    how = peer.recovery.tuned if setting == "tuned" else "defaults"
    return Rate(f"{peer.name}, {how}", took or WAIT, "s" if took else "s, and not yet")


def _recovery(who: _Who) -> float:
    """Seconds from the kill to the second start of the job; 0: not within WAIT."""
    peer, setting = who
    print(f"bench: recovery of {peer.name}, {setting}", file=sys.stderr)
    recovery = peer.recovery
    assert recovery is not None, "only those with one are asked"
    words = recovery.words if setting == "tuned" else ()
    with tempfile.TemporaryDirectory(prefix="wrasse-bench-") as place, serving() as server:
        stage = Stage(peer, recovery.mode, server.port, Path(place), setting)
        with stage.producer() as producer:
            worker = stage.start(words)
            try:
                producer.ask("enqueue_long")
                assert _starts(stage, 1, _START_MAX), f"the job of {peer.name} did not start: {stage.log.read_text()}"
                time.sleep(1)  # it runs, and has been told of
            finally:
                worker.kill()
            killed = time.monotonic()
            worker = stage.start(words)
            try:
                begun = _starts(stage, 2, WAIT)
            finally:
                worker.kill()
    return begun[1] - killed if begun else 0.0


def _starts(stage: Stage, count: int, seconds: float) -> tuple[float, ...]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if len(begun := stage.moments("starts")) >= count:
            return begun
        time.sleep(0.05)
    return ()


BENCHMARK = Benchmark("jobs_recovery", ABOUT, run)
