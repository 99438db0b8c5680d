"""The code blocks of a page as things that can be run, one after the other, in one directory.

    sh        a script; every line must succeed
    console   lines with `$ ` are commands; what follows each must appear in its output, in order
    python    a program; if its first line is `# name.py`, it is saved under that name instead, for later blocks
    yaml      if its first line is `# name.yaml`, it is saved under that name; it must be valid YAML in any case
    text      a picture; never run

`<!-- not run: reason -->` on the line before a block exempts it, and the reason must be there.

Output is compared loosely: ids, times and numbers may differ, and so may the width of columns. A line `...` stands
for any number of lines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:^<!-- not run: (?P<why>[^\n]*?) *-->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
NAMED = re.compile(r"# (?P<name>[\w.-]+\.(?:py|yaml))$", re.M)
LIMIT = 90
# What one block exports the next one sees, as in the reader's own shell.
BEFORE, AFTER = "set -eu\n[ ! -f ~/.exports ] || . ~/.exports\n", "\nexport -p >~/.exports\n"


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `why` is the reason not to run it, if there is one."""

    line: int
    kind: str
    text: str
    why: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(text[: found.start("text")].count("\n"), found["kind"], found["text"], found["why"])
        for found in BLOCK.finditer(text)
    ]


class Stage:
    """A directory of its own, with the checkout's `wrasse` and `python` first on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder, home = folder / "here", folder / "home"
        for each in (self.folder, home):
            each.mkdir()
        kept = {name: os.environ[name] for name in ("LANG", "TZ") if name in os.environ}
        bin_folder = str(Path(sys.executable).parent)
        self.environment = kept | {
            "PATH": f"{bin_folder}:/usr/bin:/bin",
            "HOME": str(home),
            "PYTHONPATH": str(self.folder),
            "COLUMNS": "120",
            "WRASSE_HTTP_LISTEN": "",  # a page may start a daemon, and several tests run at once
        }

    def run(self, block: Block) -> None:
        named = NAMED.match(block.text)
        match block.kind:
            case "python" | "yaml" if named:
                (self.folder / named["name"]).write_text(block.text, "utf-8")
                compile(block.text, named["name"], "exec") if block.kind == "python" else yaml.safe_load(block.text)
            case "python":
                self._shell(f'{sys.executable} - <<"END-OF-BLOCK"\n{block.text}\nEND-OF-BLOCK\n')
            case "yaml":
                yaml.safe_load(block.text)
            case "sh":
                self._shell(block.text)
            case "console":
                self._console(block)
            case "text":
                pass
            case other:
                raise AssertionError(f"line {block.line}: a block of kind {other!r} cannot be run")

    def _console(self, block: Block) -> None:
        before, *parts = re.split(r"^\$ ", block.text, flags=re.M)
        assert not before.strip(), f"line {block.line}: a console block begins with a command"
        for part in parts:
            command, _, expected = part.partition("\n")
            while command.endswith("\\"):
                more, _, expected = expected.partition("\n")
                command = f"{command[:-1]} {more.removeprefix('> ').strip()}"
            self._compare(command, expected, self._shell(command))

    def _shell(self, script: str) -> str:
        # A file and not a pipe: what a block leaves running in the background would keep a pipe open.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                ["bash", "-c", f"{BEFORE}{script}{AFTER}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=LIMIT,
                check=False,
            )
            output.seek(0)
            said = output.read()
        assert done.returncode == 0, f"{script}\nended with {done.returncode}:\n{said}"
        return said

    @staticmethod
    def _compare(command: str, expected: str, actual: str) -> None:
        rest = iter([loose(line) for line in actual.splitlines()])
        for line in expected.splitlines():
            if line.strip() in ("", "..."):
                continue
            wanted = loose(line)
            assert any(wanted == found for found in rest), f"$ {command}\nlacks, in this order: {line}\nsaid:\n{actual}"


def loose(line: str) -> str:
    """The line without what differs from run to run."""
    line = re.sub(r"\b[0-9A-HJKMNP-TV-Z]{26}\b", "<id>", line)
    line = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?", "<time>", line)
    line = re.sub(r"\b[\w.-]+-\d+-[0-9a-f]{12}\b", "<worker>", line)
    line = re.sub(r"\bnow\b|\b\d+(ms|s|m|h)+ ago\b", "<ago>", line)
    line = re.sub(r"\d+(\.\d+)?", "0", line)
    return re.sub(r"[\s─━│┃┏┓┗┛┡┩├┤┬┴┼╇╈╭╮╰╯]+", " ", line).strip()
