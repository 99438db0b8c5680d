"""docs/reference/errors.md: every error a user can meet."""

from __future__ import annotations

import inspect

import wrasse.errors
from tools.docs.markdown import code, page, sentence, table
from wrasse.errors import UsageError, WrasseError

INTRO = """\
Every error says what happened, where, and what to do (`do: …`). On the command line it ends the command with the exit
code below; in Python it is raised under this name, and `except wrasse.errors.WrasseError` catches them all.

What is not in this table is a mistake of ours: an `AssertionError` stops the process, and a restart is safe."""


def classes() -> list[type[WrasseError]]:
    """The errors, in the order of the file."""
    found = vars(wrasse.errors).values()
    return [c for c in found if inspect.isclass(c) and issubclass(c, WrasseError)]


def render() -> str:
    """The page."""
    rows = [
        [code(c.__name__), code(c.__mro__[1].__name__), _whose(c), str(c.exit_code), sentence(c)] for c in classes()
    ]
    codes = table(
        ["code", "meaning"],
        [["0", "done"], ["1", "failed"], ["2", "the command line, a call or the configuration is wrong"],
         ["3", "refused, because it would not be safe"]],
    )  # fmt: skip
    listed = table(["error", "is a", "whose", "exit code", "when"], rows)
    return page("Errors and exit codes", INTRO, ["## Exit codes", codes, "## Errors", listed])


def _whose(cls: type[WrasseError]) -> str:
    return "yours" if issubclass(cls, UsageError) else "the world's"
