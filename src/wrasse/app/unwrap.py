"""The error a person should see, out of the groups that tasks raise."""

from __future__ import annotations

from wrasse.errors import WrasseError


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """An error of ours if there is one, since it says what to do; else the first."""
    flat = [first_error(each) if isinstance(each, BaseExceptionGroup) else each for each in errors.exceptions]
    return next((each for each in flat if isinstance(each, WrasseError)), flat[0])
