"""docs/reference/sweeps.md and the table of sweeps in the README, from the catalogue.

It also gives what a sweep's own page must begin with: the contract in the docstring of its file.
"""

from __future__ import annotations

import importlib
import inspect

from tools.docs.markdown import block, code, page, table
from wrasse.duration import format_duration
from wrasse.sweeps import CATALOGUE

INTRO = """\
A sweep takes away what nobody holds. Each has a contract: the evidence that nobody does, how long that has to last
(grace), what must still be so at the very write (precondition), and what happens if it was wrong after all. On the
command line a sweep's name is written with dashes: `wrasse sweep stuck-jobs`."""
HEAD = ("sweep", "takes away", "unless", "every")


def contract(name: str) -> str:
    """The contract of a sweep, as the docstring of its file states it."""
    module = importlib.import_module(f"wrasse.sweeps.{name}")
    return inspect.cleandoc(module.__doc__ or "")


def opening(name: str) -> str:
    """What the page of a sweep begins with: the title, and the contract word for word."""
    title, _, rest = contract(name).partition("\n\n")
    return f"# {name}\n\n{title}\n\n{block(rest)}\n"


def summary(link: str) -> str:
    """The catalogue as a table; `link` is where the pages are, seen from the page that shows it."""
    rows = [
        [f"[{code(name)}]({link}/{name}.md)", entry.takes_away, entry.unless, format_duration(entry.interval)]
        for name, entry in CATALOGUE.items()
    ]
    return table(HEAD, rows)


def render() -> str:
    """The page."""
    parts = [summary("../sweeps")]
    for name in CATALOGUE:
        parts += [f"## {name}", block(contract(name)), f"[What to do when it fires](../sweeps/{name}.md)"]
    return page("Sweeps", INTRO, parts)
