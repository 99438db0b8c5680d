"""Lua scripts as files: one per change, each with a header of its keys, arguments and results.

Every script begins with the same prelude, so that all of them use the same `now`: the server's own clock in
milliseconds (`us`: in microseconds). ARGV[1] is 0, or in tests the time to use. A line `-- include name` is replaced by
the file lua/name.lua: functions that several scripts share. A file may hold several scripts: each begins with a line
`-- script name`, and what stands before the first of them belongs to all, and to whoever includes the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from pathlib import Path

_FOLDER = Path(__file__).parent / "lua"
_INCLUDE = re.compile(r"^-- include (\w+)$", re.MULTILINE)
_SCRIPT = re.compile(r"^-- script (\w+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One script. The server knows it by its hash once it is loaded."""

    name: str
    text: str
    sha: str

    @classmethod
    def of(cls, name: str, text: str) -> Script:
        """A script of this text, after the prelude, which is one line."""
        whole = _prelude() + "\n" + text
        return cls(name, whole, sha1(whole.encode(), usedforsecurity=False).hexdigest())


@cache
def load(name: str) -> Script:
    """The script of lua/<name>.lua, or for `<file>.<script>` that one of the file."""
    file, _, script = name.partition(".")
    shared, *rest = _parts(file)
    own = dict(zip(rest[::2], rest[1::2], strict=True))
    return Script.of(name, shared + own[script] if script else shared)


@cache
def _parts(file: str) -> list[str]:
    """What all scripts of this file share, then the name and the text of each."""
    text = (_FOLDER / f"{file}.lua").read_text(encoding="utf-8")
    return _SCRIPT.split(_INCLUDE.sub(lambda line: _parts(line[1])[0], text))


@cache
def _prelude() -> str:
    lines = _parts("prelude")[0].splitlines()
    return " ".join(line.strip() for line in lines if not line.lstrip().startswith("--"))
