"""Whatever a page, or a --help, tells somebody to type is taken by the command line: every option and value of it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from docs.blocks import ROOT
from docs.test_pages import PAGES, name
from wrasse.cli.main import wrasse
from wrasse.errors import WrasseError

BLOCK = re.compile(r"^ *```(?:sh|bash|text|console)\n(.*?)^ *```$", re.M | re.S)
LINE = re.compile(r"(?:^|[|(;&] ?|\bthen |\bdo |\buntil )(?:\$ +)?(?:[A-Z_]+=\S+ +)*wrasse (?=[a-z])([^\n]*)", re.M)
INLINE = re.compile(r"`wrasse ([a-z][^`…\n]*)`")
ENDS = {"|", "||", "&", "&&", ";", ">", ">>", "<", "(", ")", ">(", "<(", ";;"}


def words_of(line: str) -> list[str]:
    """The arguments of one command, up to what the shell does with it; without those that stand for something."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.wordchars += "{}[]$%@:,!^+"
    found: list[str] = []
    for word in lexer:
        if word in ENDS:
            break
        found.append(word)
    # `2>log` leaves the number of a stream behind.
    return found[:-1] if found and found[-1] in ("1", "2") and re.search(rf"\b{found[-1]}>", line) else found


def commands_in(text: str) -> list[str]:
    """Every command of a text: in its blocks, and within a sentence, where [--option] may be left out."""
    blocks = "\n".join(BLOCK.findall(text)).replace("\\\n", " ")
    typed = "\n".join(line.strip() for line in blocks.splitlines())
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    return LINE.findall(typed) + [re.sub(r"\[(--[^\]]*)\]", r"\1", line) for line in INLINE.findall(prose)]


def refused(line: str) -> str:
    """What the command line has against it; empty if nothing."""
    try:
        context, words = click.Context(wrasse, info_name="wrasse"), words_of(line)
        command: click.Command = wrasse
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(context, words[0])
            if found is None:
                return f"{line}: there is no {words[0]!r}"
            command, words = found, words[1:]
        if not isinstance(command, click.Group) and words:
            command.make_context("wrasse", words, parent=context)
    except click.exceptions.MissingParameter:
        return ""  # named in passing
    except (click.ClickException, WrasseError, ValueError) as why:
        return f"{line}: {why}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_on_a_page_is_one_that_can_be_typed(page: Path) -> None:
    found = commands_in(page.read_text("utf-8"))
    assert [said for line in found if (said := refused(line))] == []


def test_what_cannot_be_typed_is_noticed() -> None:
    lines = ("jobs putt", "jobs enqueue --knid", "jobs list --state=purple", "jobs stats")
    assert [bool(refused(line)) for line in lines] == [True, True, True, False]
    assert len(commands_in((ROOT / "docs/start.md").read_text("utf-8"))) > 15
