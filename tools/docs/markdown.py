"""Markdown from Python values: tables, code, and the first lines that every written page carries."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from wrasse.duration import format_duration

WRITTEN = "<!-- Written by `python3 dev.py docs` from the code; changes made here are lost. -->"


def page(title: str, intro: str, parts: Iterable[str]) -> str:
    """A whole page: title, note that it is written, what it is for, and its parts."""
    return "\n\n".join([f"# {title}", WRITTEN, intro, *(part.strip("\n") for part in parts)]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; bars and line breaks inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text).replace("|", "\\|")


def code(text: str) -> str:
    """Inline code."""
    return f"`{text}`" if text else ""


def block(text: str, language: str = "text") -> str:
    """A code block."""
    return f"```{language}\n{text.rstrip()}\n```"


def sentence(thing: object) -> str:
    """The docstring of a thing, unwrapped to one paragraph."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def value(default: object) -> str:
    """A default as one would write it in the configuration."""
    match default:
        case timedelta():
            return format_duration(default)
        case bool():
            return "true" if default else "false"
        case str():
            return default or "(empty)"
        case Mapping():
            return "{" + ", ".join(f"{k}: {v}" for k, v in default.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(str(item) for item in default) + "]"
        case _:
            return str(default)


def between(text: str, mark: str, inner: str) -> str:
    """The text with what stands between `<!-- mark -->` and `<!-- /mark -->` replaced."""
    start, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    assert (text.count(start), text.count(end)) == (1, 1), f"the page needs {start} and {end}, once each"
    before, rest = text.split(start)
    return f"{before}{start}\n{inner}\n{end}{rest.split(end)[1]}"
