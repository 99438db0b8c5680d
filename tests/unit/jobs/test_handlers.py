"""Which handler does which kind of job, and where it runs."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

from wrasse.errors import UnknownName, UsageError
from wrasse.jobs.handlers import Handlers, InLoop, InThread, as_handler, load
from wrasse.jobs.worker.running_job import RunningJob


async def waits(job: RunningJob) -> None: ...


def works(job: RunningJob) -> None: ...


class Callable:
    async def __call__(self, job: RunningJob) -> None: ...


@pytest.mark.parametrize("function", [waits, functools.partial(waits), Callable(), Callable().__call__])
def test_async_functions_run_in_the_loop(function: object) -> None:
    assert isinstance(as_handler(function), InLoop)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [works, functools.partial(works), lambda job: None])
def test_plain_functions_run_in_a_thread(function: object) -> None:
    assert isinstance(as_handler(function), InThread)  # type: ignore[arg-type]


def test_a_kind_has_only_one_handler() -> None:
    handlers = Handlers()
    handlers.add("resize", works)
    with pytest.raises(UsageError, match="two handlers"):
        handlers.add("resize", works)


def test_a_handler_for_any_kind_takes_only_what_no_other_does() -> None:
    handlers = Handlers()
    handlers.add("*", waits)
    handlers.add("resize", works)
    assert isinstance(handlers.find("resize"), InThread)
    assert isinstance(handlers.find("other"), InLoop)
    assert isinstance(handlers.find(""), InLoop)


def test_the_handler_of_jobs_without_a_kind_does_not_take_those_with_one() -> None:
    handlers = Handlers()
    handlers.add("", works)
    assert handlers.find("resize") is None


def test_a_generator_is_refused_as_a_handler() -> None:
    def yields(job: RunningJob) -> object:
        yield 1

    with pytest.raises(UsageError, match="generator"):
        as_handler(yields)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_a_handler_is_loaded_from_the_working_directory(here: Path) -> None:
    (here / "shop_loaded.py").write_text("class Work:\n    def resize(job): return 7\n")
    assert load("shop_loaded:Work.resize")(None) == 7  # type: ignore[arg-type]


MISTAKES = {
    "shop_wrong": "module:name",
    "shop_wrong:": "module:name",
    "shop_wrnog:resize": "write 'shop_wrong'",
    "shop_wrong:reszie": "write 'resize'",
    "shop_wrong:number": "of type int",
    "shop_needs:resize": "not_installed_anywhere",
    "shop_broken:resize": "ZeroDivisionError",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_handler_that_cannot_be_loaded_says_what_to_do(text: str, here: Path) -> None:
    (here / "shop_wrong.py").write_text("number = 1\ndef resize(job): ...\n")
    (here / "shop_needs.py").write_text("import not_installed_anywhere\n")
    (here / "shop_broken.py").write_text("1 / 0\n")
    with pytest.raises(UsageError) as raised:
        load(text)
    assert MISTAKES[text] in str(raised.value)
    assert raised.value.do


def test_a_misspelt_module_is_a_name_that_does_not_exist(here: Path) -> None:
    with pytest.raises(UnknownName, match="no module 'shop_absent'"):
        load("shop_absent:resize")
