"""wrasse bench: runs the benchmarks, which are in the project's checkout, not in the package."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Sequence

import click

from wrasse.errors import UsageError


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: Sequence[str]) -> None:
    """Run the benchmarks, in a checkout of the project.

    \b
    Examples:
      wrasse bench --list
      wrasse bench jobs_sqlite --quick
    """
    sys.path.insert(0, "")
    if importlib.util.find_spec("bench") is None or importlib.util.find_spec("bench.__main__") is None:
        raise UsageError(
            "the benchmarks are part of the project's checkout, which this directory is not",
            do="clone the project and call `python3 dev.py bench` there",
        )
    sys.argv = ["bench", *arguments]
    runpy.run_module("bench", run_name="__main__", alter_sys=True)
