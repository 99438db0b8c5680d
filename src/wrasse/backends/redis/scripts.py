"""Lua scripts as files: one per change, each with a header of its keys, arguments and results.

Every script begins with the same prelude, so that all of them use the same `now`: the server's own clock in
milliseconds (`us`: in microseconds). ARGV[1] is 0, or in tests the time to use. A line `-- include name` is replaced by
the file lua/name.lua: functions that several scripts share.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from pathlib import Path

_FOLDER = Path(__file__).parent / "lua"
_INCLUDE = re.compile(r"^-- include (\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One script. The server knows it by its hash once it is loaded."""

    name: str
    text: str
    sha: str

    @classmethod
    def of(cls, name: str, text: str) -> Script:
        """A script of this text, after the prelude."""
        # One line, so that the line numbers of the server's errors are those of the file plus one.
        whole = _prelude() + "\n" + text
        return cls(name, whole, sha1(whole.encode(), usedforsecurity=False).hexdigest())


@cache
def load(name: str) -> Script:
    """The script lua/<name>.lua."""
    return Script.of(name, _read(name))


@cache
def _read(name: str) -> str:
    text = (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda line: _read(line[1]), text)


@cache
def _prelude() -> str:
    lines = _read("prelude").splitlines()
    return " ".join(line.strip() for line in lines if not line.lstrip().startswith("--"))
