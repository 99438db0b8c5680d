"""Which files become jobs, with which priority and under which id. Pure.

The id of a file's job is made of its path, size and time of change. So the same file gives the same job in every
process, and a changed file gives another one.

Path patterns follow shells and the origin's `doublestar`. `*` and `?` stay within one name, `**` as a whole name stands
for any number of directories, including none, `[a-z]` and `[!a-z]` are classes, `{png,jpg}` are alternatives, and a
backslash escapes the next character. Names that begin with a dot are not special. A pattern matches the whole path,
written with `/`, relative to the walked directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from itertools import pairwise
from os.path import splitext

import msgspec

from wrasse.errors import ConfigError

ALTERNATIVES_MAX = 256
_ANY_DIRECTORIES = "(?:[^/]+/)*"


@dataclass(frozen=True, slots=True)
class Globs:
    """Patterns of which any may match."""

    paths: re.Pattern[str]
    trees: re.Pattern[str]  # directories below which everything matches

    def match(self, path: str) -> bool:
        """Whether any of them matches this path."""
        return self.paths.fullmatch(path) is not None

    def covers(self, directory: str) -> bool:
        """Whether one of them matches everything below this directory."""
        return self.trees.fullmatch(directory) is not None


def parse_globs(patterns: Sequence[str]) -> Globs:
    """The compiled patterns; an error names the invalid one."""
    plain = [alternative for pattern in patterns for alternative in _alternatives(pattern)]
    trees = [each.removesuffix("/**") for each in plain if each.endswith("/**")]
    everything = [".*"] if "**" in plain else []
    return Globs(_any(_regex(each) for each in plain), _any([*everything, *map(_regex, trees)]))


def _any(regexes: Iterator[str] | Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{each})" for each in regexes) or r"(?!)", re.DOTALL)


def _bad(pattern: str, why: str) -> ConfigError:
    return ConfigError(f"{pattern!r} is no pattern of paths: {why}", do="write e.g. **/*.png, or {a,b}/**/*.[ch]")


def _alternatives(pattern: str) -> Sequence[str]:
    """The patterns without braces that a pattern expands to."""
    found, todo = [], [pattern]
    while todo:
        text = todo.pop()
        brace = _find(text, "{", 0)
        if brace < 0:
            if _find(text, "}", 0) >= 0:
                raise _bad(pattern, "a } without its {")
            found.append(text)
        else:
            cuts = _cuts(pattern, text, brace)
            parts = [text[a + 1 : b] for a, b in pairwise(cuts)]
            todo += [text[:brace] + part + text[cuts[-1] + 1 :] for part in reversed(parts)]
        if len(found) + len(todo) > ALTERNATIVES_MAX:
            raise _bad(pattern, f"it has more than {ALTERNATIVES_MAX} alternatives")
    return found


def _find(text: str, wanted: str, start: int) -> int:
    """The next index of one of these characters, outside of classes and not after a backslash; -1 if none."""
    at, inside = start, False
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif inside:
            inside = text[at] != "]"
        elif text[at] == "[":
            inside = True
        elif text[at] in wanted:
            return at
        at += 1
    return -1


def _cuts(pattern: str, text: str, brace: int) -> list[int]:
    """The indexes at which the alternatives of the brace at `brace` begin and end."""
    cuts, depth, at = [brace], 0, brace + 1
    while (at := _find(text, "{},", at)) >= 0:
        if text[at] == "{":
            depth += 1
        elif depth == 0:
            cuts.append(at)
            if text[at] == "}":
                return cuts
        elif text[at] == "}":
            depth -= 1
        at += 1
    raise _bad(pattern, "a { without its }")


def _regex(pattern: str) -> str:
    if not pattern:
        raise _bad(pattern, "it is empty")
    names = pattern.split("/")
    regex = ""
    for number, name in enumerate(names):
        last = number == len(names) - 1
        if name == "**":
            # Several in a row mean the same as one, and cost far more.
            if last:
                regex = regex.removesuffix("/") + ("(?:/.*)?" if regex.endswith("/") else ".*")
            elif not regex.endswith(_ANY_DIRECTORIES):
                regex += _ANY_DIRECTORIES
        else:
            regex += _name(pattern, name) + ("" if last else "/")
    return regex


def _name(pattern: str, name: str) -> str:
    """The regular expression of one name of a pattern."""
    regex, at = "", 0
    while at < len(name):
        letter = name[at]
        if letter == "*":
            regex += "" if regex.endswith("[^/]*") else "[^/]*"
        elif letter == "?":
            regex += "[^/]"
        elif letter == "[":
            length, text = _class(pattern, name[at:])
            regex += text
            at += length - 1
        elif letter == "\\":
            at += 1
            if at == len(name):
                raise _bad(pattern, "it ends with a backslash")
            regex += re.escape(name[at])
        else:
            regex += re.escape(letter)
        at += 1
    return regex


def _class(pattern: str, text: str) -> tuple[int, str]:
    """A class such as [a-z]: its length, and its regular expression."""
    at = 1
    negated = text[at : at + 1] in ("!", "^")
    at += negated
    letters: list[str] = []
    while at < len(text) and text[at] != "]":
        if text[at] == "\\":
            at += 1
        if at < len(text):
            letters.append("-" if text[at] == "-" and text[at - 1] != "\\" else re.escape(text[at]))
        at += 1
    if at >= len(text):
        raise _bad(pattern, "a [ without its ]")
    if not letters:
        raise _bad(pattern, "an empty [ ]")
    regex = f"(?!/)[{'^' if negated else ''}{''.join(letters)}]"
    try:
        re.compile(regex)
    except re.error as why:
        raise _bad(pattern, f"{text[: at + 1]}: {why.msg}") from None
    return at + 1, regex


HIGH = "high"


class Skipped(StrEnum):
    """Why a path is not enqueued: a closed set, usable as a metric label."""

    EXCLUDED = "excluded"  # no include pattern matches, or an exclude pattern does
    OUTSIDE = "outside"  # a link that leads out of the directory, or nowhere
    LINKED = "linked"  # a link to a directory: links are not followed
    SPECIAL = "special"  # no file: a socket, a pipe, a device
    VANISHED = "vanished"  # gone before it could be read
    UNREADABLE = "unreadable"  # no permission to read it
    UNNAMEABLE = "unnameable"  # its name is not UTF-8
    TOO_DEEP = "too_deep"  # a directory below too many others


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as it was when it was found. `path` is absolute."""

    path: str
    size: int
    changed: int  # nanoseconds since 1970: the time its content changed

    @property
    def job_id(self) -> str:
        """The id of its job: the same for the same path, size and time of change."""
        facts = f"{self.path}\0{self.size}\0{self.changed}"
        return f"file-{blake2b(facts.encode(), digest_size=16).hexdigest()}"

    @property
    def payload(self) -> bytes:
        """The payload of its job. Redis stores exactly this form as the design document's two fields, so that the job
        of a file is the same whichever program enqueued it."""
        return msgspec.json.encode({"filepath": self.path, "filesize": self.size})


@dataclass(frozen=True, slots=True)
class FileRules:
    """Which files are enqueued, and with which priority."""

    include: Globs
    exclude: Globs
    urgent: frozenset[str]  # extensions in small letters, with their dot

    @classmethod
    def of(cls, include: Sequence[str], exclude: Sequence[str], urgent: Sequence[str]) -> FileRules:
        """The rules that these patterns and extensions make; without an include pattern every file is included."""
        dotted = (each.lower() if each.startswith(".") else f".{each.lower()}" for each in urgent if each)
        return cls(parse_globs(include or ("**",)), parse_globs(exclude), frozenset(dotted))

    def includes(self, relative: str) -> bool:
        """Whether the file at this path, relative to the directory, is to be enqueued."""
        return self.include.match(relative) and not self.exclude.match(relative)

    def excludes_directory(self, directory: str) -> bool:
        """Whether everything below this directory is excluded."""
        return self.exclude.covers(directory)

    def priority(self, path: str, default: str, known: Mapping[str, str]) -> str:
        """`high` for urgent extensions if there is such a priority, else the default."""
        urgent = splitext(path)[1].lower() in self.urgent
        return HIGH if urgent and HIGH in known else default
