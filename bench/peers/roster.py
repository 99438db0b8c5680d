"""Who takes part, in which modes, and how one worker of each is started.

A mode is a way to run a peer that its users may choose; `safe` says whether a job survives its worker (at least once).
Of each peer the defaults and what was found to be its fastest are here, each with as many jobs as it does in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OURS = "wrasse"
_IDLE_POLL = (1.0, 2.0)  # dramatiq's pause grows to about 1 s when it finds nothing


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run a peer. `worker` is its command; {bin} is where the peer's programs are."""

    jobs: int
    safe: bool
    worker: tuple[str, ...]
    about: str
    threads: bool = False  # plain functions in threads
    uvloop: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    latencies: int = 150
    gap: tuple[float, float] = (0.02, 0.08)


@dataclass(frozen=True, slots=True)
class Recovery:
    """How a peer is watched after its worker was killed: in which mode, whether it can be made faster, and how."""

    mode: str
    tuned: str = ""
    words: tuple[str, ...] = ()  # what its worker is told for that, where its file does not say it


@dataclass(frozen=True, slots=True)
class Peer:
    """One library."""

    name: str
    modes: Mapping[str, Mode]
    recovery: Recovery | None = None


def _celery(pool: str, slots: int) -> tuple[str, ...]:
    quiet = ("-l", "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat")
    return ("{bin}/celery", "-A", "bench.peers.celery_peer:app", "worker", "-P", pool, "-c", str(slots), *quiet)


def _dramatiq(threads: int) -> tuple[str, ...]:
    return ("{bin}/dramatiq", "bench.peers.dramatiq_peer", "-p", "1", "-t", str(threads))


def _huey(kind: str, count: int) -> tuple[str, ...]:
    return ("{bin}/huey_consumer", "bench.peers.huey_peer.huey", "-k", kind, "-w", str(count), "-q")


def _wrasse(handler: str) -> tuple[str, ...]:
    return ("{bin}/wrasse", "run", f"--handler=bench.peers.wrasse_peer:{handler}", "--listen=")


_HOME = {"WRASSE_BACKENDS_JOBS": "{url}"}
_SOONER = ("worker.heartbeat_ttl=5s", "sweeps.stuck_jobs.interval=500ms")
_RQ_SOONER = ("--maintenance-interval", "2", "--worker-ttl", "17", "--job-monitoring-interval", "1")
_RQ = ("{bin}/rq", "worker", "-q", "--url", "{url}")
_RQ_SIMPLE = (*_RQ, "-w", "rq.SimpleWorker", "default")
_ARQ = ("{bin}/arq", "bench.peers.arq_peer.WorkerSettings", "--custom-log-dict", "bench.peers.arq_peer.QUIET")
_TASKIQ = ("{bin}/taskiq", "worker", "bench.peers.taskiq_peer:broker", "-w", "1", "--log-level", "WARNING")
_SAQ = ("{bin}/saq", "bench.peers.saq_peer.settings")
_STREAQ = ("{bin}/streaq", "run", "bench.peers.streaq_peer:worker")

PEERS = (
    Peer(
        OURS,
        {
            "async": Mode(100_000, True, _wrasse("noop"), "wrasse run with its defaults, an async handler", env=_HOME),
            "threads": Mode(40_000, True, _wrasse("noop_plain"), "the same, a plain function", True, env=_HOME),
        },
        Recovery("async", ", ".join(_SOONER), tuple(f"--set={setting}" for setting in _SOONER)),
    ),
    Peer(
        "rq",
        {
            "fork": Mode(600, True, (*_RQ, "default"), "defaults: a fork per job, results kept 500 s"),
            "simple": Mode(4_000, True, _RQ_SIMPLE, "SimpleWorker: no fork"),
            "lean": Mode(4_000, True, _RQ_SIMPLE, "SimpleWorker, result_ttl=0"),
        },
        Recovery("fork", " ".join(_RQ_SOONER) + ", Retry(max=3)", _RQ_SOONER),
    ),
    Peer(
        "celery",
        {
            "prefork": Mode(8_000, False, _celery("prefork", 2), "defaults: prefork -c 2, acknowledged early"),
            "prefork-late": Mode(8_000, True, _celery("prefork", 2), "prefork -c 2, acks_late, prefetch x64"),
            "threads-late": Mode(8_000, True, _celery("threads", 8), "8 threads, acks_late, prefetch x64", True),
            "solo-late": Mode(8_000, True, _celery("solo", 1), "solo, acks_late, prefetch x64"),
        },
        Recovery("prefork-late", "visibility_timeout=10, unacked_restore_interval=1, unacked_restore_throttle=1"),
    ),
    Peer(
        "dramatiq",
        {
            "default": Mode(
                10_000, True, _dramatiq(8), "defaults: 8 threads, prefetch 16", True, False, {}, 20, _IDLE_POLL
            ),
            "tuned": Mode(
                20_000, True, _dramatiq(1), "1 thread, prefetch 200, idle poll 50 ms", True,
                env={"dramatiq_queue_prefetch": "200", "dramatiq_worker_timeout": "50"},
            ),
            "prefetch64": Mode(
                20_000, True, _dramatiq(8), "8 threads, prefetch 64", True, False,
                {"dramatiq_queue_prefetch": "64"}, 20, _IDLE_POLL,
            ),
        },
        Recovery("default", "heartbeat_timeout=5000, maintenance_chance=1000000"),
    ),
    Peer(
        "arq",
        {
            "default": Mode(3_000, True, _ARQ, "defaults: 10 jobs at once, poll 0.5 s", latencies=60, gap=(0.05, 0.55)),
            "tuned": Mode(8_000, True, _ARQ, "500 at once, poll 10 ms, keep_result=0, uvloop", uvloop=True),
        },
        Recovery("default", "job_timeout=35 (its lease is that and 10 s)"),
    ),
    Peer(
        "taskiq",
        {
            "list": Mode(20_000, False, _TASKIQ, "ListQueueBroker"),
            "list-uvloop": Mode(20_000, False, _TASKIQ, "ListQueueBroker, uvloop", uvloop=True),
            "stream": Mode(20_000, True, _TASKIQ, "RedisStreamBroker"),
            "stream-uvloop": Mode(20_000, True, _TASKIQ, "RedisStreamBroker, uvloop", uvloop=True),
        },
        Recovery("stream", "idle_timeout=5000, xread_block=500, unacknowledged_lock_timeout=5"),
    ),
    Peer(
        "saq",
        {
            "default": Mode(8_000, True, _SAQ, "defaults: 10 at once, results kept 600 s"),
            "tuned": Mode(8_000, True, _SAQ, "50 at once, ttl=-1, uvloop", uvloop=True),
        },
        Recovery("default", "timers sweep=2, heartbeat=5 kept up by the job itself"),
    ),
    Peer(
        "streaq",
        {
            "default": Mode(6_000, True, _STREAQ, "defaults: 16 at once, results kept 300 s"),
            "tuned": Mode(6_000, True, _STREAQ, "32 at once, ttl=0, uvloop", uvloop=True),
        },
        Recovery("default", "idle_timeout=5"),
    ),
    Peer(
        "huey",
        {
            "thread1": Mode(20_000, False, _huey("thread", 1), "defaults: 1 thread", True),
            "thread8": Mode(20_000, False, _huey("thread", 8), "8 threads", True),
            "process2": Mode(20_000, False, _huey("process", 2), "2 processes"),
        },
        Recovery("thread1"),
    ),
)  # fmt: skip
