"""What a benchmark is and what it gives: rates, and ratios of rates from the same run, each with its target.

An absolute rate says more about the machine than about us, so a verdict is always a ratio: to a raw limit that does
the same work without us, or to a peer. Contestants take turns, and the median of their rounds counts, so that a noise
of the machine hits all of them.
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import apsw

Contestant = Callable[[Path], float]  # works in an empty directory, gives seconds


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast one contestant was: the median of its rounds."""

    who: str
    per_second: float
    unit: str = "jobs/s"


@dataclass(frozen=True, slots=True)
class Ratio:
    """A verdict. `least` says whether the target is the least it may be, or the most."""

    what: str
    value: float
    target: float
    least: bool = True

    @property
    def met(self) -> bool:
        """Whether the target holds."""
        return self.value >= self.target if self.least else self.value <= self.target


@dataclass(frozen=True, slots=True)
class Result:
    """What one benchmark gave."""

    name: str
    about: str
    rates: tuple[Rate, ...]
    ratios: tuple[Ratio, ...]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark. `run` gets whether to be quick."""

    name: str
    about: str
    run: Callable[[bool], Result]


def seconds(work: Callable[[], object]) -> float:
    """How long this took."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def take_turns(contestants: Mapping[str, Contestant], rounds: int) -> dict[str, float]:
    """The median seconds of each; every round runs all of them, each in a directory of its own."""
    return {name: statistics.median(times) for name, times in each_round(contestants, rounds).items()}


def each_round(contestants: Mapping[str, Contestant], rounds: int) -> dict[str, list[float]]:
    """The seconds of each in every round: a disk that changes its pace within a run does so for all of a round."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            with tempfile.TemporaryDirectory(prefix="wrasse-bench-") as place:
                taken[name].append(contestant(Path(place)))
    return taken


def machine() -> dict[str, str]:
    """The facts a reader needs to place the rates."""
    return {
        "cores": str(os.cpu_count()),
        "cpu": _cpu(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "commit": f"{_commit_microseconds():.0f} us for one durable commit",
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit_microseconds() -> float:
    """How long the disk takes to make one small transaction durable."""
    with tempfile.TemporaryDirectory(prefix="wrasse-bench-") as place:
        db = apsw.Connection(str(Path(place) / "commit.db"))
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        db.execute("CREATE TABLE t (n INTEGER)")
        times = [seconds(lambda: db.execute("INSERT INTO t VALUES (1)")) for _ in range(200)]
        db.close()
    return statistics.median(times) * 1e6
