"""`python -m bench [name ...] [--quick] [--json] [--list]`: runs benchmarks; exits with 1 if a target is missed."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from dataclasses import asdict

import bench
from bench.measure import Benchmark, Result, machine


def benchmarks() -> dict[str, Benchmark]:
    """Every file here that has a BENCHMARK, by the benchmark's name."""
    names = (module.name for module in pkgutil.iter_modules(bench.__path__) if module.name != "__main__")
    found = (getattr(importlib.import_module(f"bench.{name}"), "BENCHMARK", None) for name in names)
    return {one.name: one for one in found if isinstance(one, Benchmark)}


def main(arguments: list[str] | None = None) -> int:
    """Runs what was asked for; gives the exit code."""
    known = benchmarks()
    parser = argparse.ArgumentParser(prog="bench", description="Ratios, each taken in one run on this machine.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of: {', '.join(known)}; none means all")
    parser.add_argument("--quick", action="store_true", help="fewer jobs and rounds: a glance, not a verdict")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--list", action="store_true", help="what there is")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.names if name not in known]:
        parser.error(f"there is no benchmark {unknown[0]!r}; use one of: {', '.join(known)}")
    if asked.list:
        for benchmark in known.values():
            print(f"{benchmark.name:16} {benchmark.about}")
        return 0
    facts = machine()
    if not asked.json:
        print("machine: " + ", ".join(f"{name} {fact}" for name, fact in facts.items()))
    results = []
    for name in asked.names or known:
        results.append(known[name].run(asked.quick))
        if not asked.json:
            show(results[-1])
    if asked.json:
        verdicts = [asdict(result) | {"met": all(ratio.met for ratio in result.ratios)} for result in results]
        print(json.dumps({"machine": facts, "quick": asked.quick, "results": verdicts}, indent=2))
    return 0 if all(ratio.met for result in results for ratio in result.ratios) else 1


def show(result: Result) -> None:
    """One benchmark for people."""
    print(f"\n{result.name}: {result.about}")
    for rate in result.rates:
        print(f"  {rate.who:38} {rate.per_second:12,.0f} {rate.unit}")
    for ratio in result.ratios:
        target = f"target {'>=' if ratio.least else '<='} {ratio.target}"
        print(f"  {ratio.what:38} {ratio.value:12.2f}  {target}  {'met' if ratio.met else 'MISSED'}")


if __name__ == "__main__":
    sys.exit(main())
