"""The seed of a run: every random choice of a test is drawn from it.

The default run has a fixed seed, so that it makes the same choices every time. `--full` draws a new one, prints it and
the command that repeats it; `--seed=N` sets it. It is kept in the environment: worker processes of pytest and the
actors that tests start have it, or one drawn from it, from there.
"""

from __future__ import annotations

import os
import random

FIXED = 0
MAX = 1 << 32
VARIABLE = "PYTEST_SEED_OF_WRASSE"
_STORIES = 1_000_000  # of a simulation, for each seed


def settle(seed: int) -> None:
    """The seed of this process and of those it starts. Sets and dicts of strings get a fixed order in the latter."""
    os.environ[VARIABLE] = os.environ["PYTHONHASHSEED"] = str(seed)


def text() -> str:
    """The seed of this process."""
    return os.environ.get(VARIABLE, str(FIXED))


def draw(*names: object) -> random.Random:
    """The choices of one test or one actor: the same for the same seed and names."""
    return random.Random(" ".join([text(), *map(str, names)]))


def environment(**more: str) -> dict[str, str]:
    """The environment of the next actor of this test, which begins with `random.seed(os.environ.get(VARIABLE))`."""
    return {**os.environ, VARIABLE: str(random.getrandbits(32)), **more}


def stories(first: int, beyond: int, step: int = 1) -> range:
    """Seeds of simulations: the numbers themselves in the default run, others under every other seed."""
    base = int(text()) * _STORIES
    return range(base + first, base + beyond, step)
