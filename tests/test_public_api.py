"""The public names are these and no others: a change here is a change for every user."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import wrasse

NAMES = [
    "App",
    "BadPayload",
    "GiveUp",
    "Job",
    "JobFailed",
    "JobRecord",
    "JobState",
    "LeaseLost",
    "NewJob",
    "Reason",
    "Refused",
    "Retry",
    "RetryLater",
    "RunningJob",
    "StoreUnavailable",
    "UsageError",
    "WrasseError",
    "__version__",
    "connect",
    "lease",
    "sync",
]


def test_the_public_names_are_those_that_were_agreed_on() -> None:
    assert sorted(wrasse.__all__) == NAMES
    assert len(NAMES) <= 21
    assert dir(wrasse) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(wrasse, name)
    assert value is getattr(wrasse, name)
    assert name == "__version__" or value.__doc__


def test_a_name_that_is_not_public_is_missing() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = wrasse.Nothing  # type: ignore[attr-defined]


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert wrasse.__version__ == project["project"]["version"]
