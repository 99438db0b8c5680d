"""Settings from the environment: WRASSE_ and the path in upper case, or the bare name a design document gave.

A variable that looks like a setting of ours and is none is never dropped in silence: a near miss is a mistake, the rest
is a warning. What Kubernetes injects for a service of that name is neither.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wrasse.app.schema import Leaf

PREFIX = "WRASSE_"
# Set by us for commands and tests, or read elsewhere than in the settings.
OTHERS = (
    "WRASSE_CONFIG",
    "WRASSE_JOB_",
    "WRASSE_ATTEMPT",
    "WRASSE_QUEUE",
    "WRASSE_KIND",
    "WRASSE_PRIORITY",
    "WRASSE_TOKEN",
    "WRASSE_TEST_",
    "WRASSE_BENCH_",
)
_INJECTED = re.compile(r"_SERVICE_(HOST|PORT.*)$|_PORT(_\d+_(TCP|UDP).*)?$")


@dataclass(frozen=True, slots=True)
class Found:
    """One setting in the environment and the variable it came from."""

    leaf: Leaf
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Stray:
    """A variable that names no setting; `near` is the one that was probably meant."""

    name: str
    near: str | None


def from_environment(leaves: Mapping[str, Leaf], environ: Mapping[str, str]) -> Iterator[Found]:
    """Every setting the environment holds; our own name wins over the bare one."""
    for leaf in leaves.values():
        for name in (leaf.env, leaf.seed_env):
            if name is not None and name in environ:
                yield Found(leaf, name, environ[name])
                break


def strays(leaves: Mapping[str, Leaf], environ: Mapping[str, str]) -> Iterator[Stray]:
    """Variables with our prefix that are no setting."""
    known = {leaf.env for leaf in leaves.values()}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in known or name.startswith(OTHERS) or _INJECTED.search(name):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
        yield Stray(name, near[0] if near else None)
