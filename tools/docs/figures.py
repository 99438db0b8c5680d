"""`python3 dev.py bench --json | python -m tools.docs.figures` writes the figures of a run into docs/performance.md."""

from __future__ import annotations

import sys

import msgspec

from tools.docs.markdown import between, table
from tools.docs.pages import ROOT

PAGE = ROOT / "docs" / "performance.md"


class Ratio(msgspec.Struct):
    """One comparison and its target."""

    what: str
    value: float
    target: float
    least: bool


class Rate(msgspec.Struct):
    """How fast one contender was."""

    who: str
    per_second: float
    unit: str


class Result(msgspec.Struct):
    """One benchmark."""

    name: str
    about: str
    rates: list[Rate]
    ratios: list[Ratio]


class Run(msgspec.Struct):
    """What `bench --json` prints."""

    machine: dict[str, object]
    quick: bool
    results: list[Result]


def render(run: Run) -> str:
    """The machine, and a table per kind of figure."""
    facts = ", ".join(f"{name} {fact}" for name, fact in run.machine.items())
    ratios = [
        [result.name, ratio.what, f"{ratio.value:.2f}", f"{'at least' if ratio.least else 'at most'} {ratio.target:g}"]
        for result in run.results
        for ratio in result.ratios
    ]
    rates = [
        [result.name, rate.who, f"{rate.per_second:,.0f}", rate.unit] for result in run.results for rate in result.rates
    ]
    return "\n\n".join(
        [
            f"Measured on: {facts}.",
            table(["benchmark", "ratio", "value", "target"], ratios),
            "The rates behind them, which mean little on another machine:",
            table(["benchmark", "who", "rate", "unit"], rates),
        ]
    )


def main() -> int:
    """Reads a run from stdin and writes the page; a quick run is a glance and is refused."""
    run = msgspec.json.decode(sys.stdin.buffer.read(), type=Run)
    if run.quick:
        print("a quick run is no verdict\ndo: run `python3 dev.py bench --json` without --quick", file=sys.stderr)
        return 2
    PAGE.write_text(between(PAGE.read_text("utf-8"), "figures", render(run)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
