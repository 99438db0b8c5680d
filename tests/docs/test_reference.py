"""Every command, setting, metric, error, port and sweep has an entry in the reference, and every entry a thing."""

from __future__ import annotations

import re

import pytest
from tools.docs import capabilities, cli, errors, figures, limits, metrics, ports, sweeps
from tools.docs.pages import pages

from docs.blocks import ROOT
from wrasse.cli.doctor import declared
from wrasse.config.schema import leaves
from wrasse.sweeps import CATALOGUE

PAGES = ("capabilities", "cli", "errors", "events", "limits", "metrics", "ports", "settings", "sweeps")


def written(page: str) -> str:
    return (ROOT / "docs" / "reference" / f"{page}.md").read_text("utf-8")


def first_column(page: str) -> list[str]:
    return re.findall(r"^\| \[?`([^`]+)`", written(page), re.M)


def chapters(page: str) -> list[str]:
    return re.findall(r"^## (.+)$", written(page), re.M)


@pytest.mark.parametrize(
    "path",
    ["README.md", "docs/README.md", "docs/design/ARCHITECTURE.md", *(f"docs/reference/{page}.md" for page in PAGES)],
)
def test_a_written_page_says_what_the_code_says(path: str) -> None:
    assert (ROOT / path).read_text("utf-8") == pages()[path], "the page differs from the code; do: python3 dev.py docs"


def test_every_command_is_in_the_reference_and_has_help() -> None:
    commands = dict(cli.commands())
    assert chapters("cli") == list(commands)
    assert [name for name, command in commands.items() if not command.help] == []


def test_every_setting_is_in_the_reference_and_has_a_meaning() -> None:
    assert first_column("settings") == list(leaves())
    assert [path for path, leaf in leaves().items() if not leaf.key.doc] == []


def test_every_capability_is_in_the_reference_and_has_a_meaning() -> None:
    assert list(capabilities.meanings()) == list(declared("memory"))
    assert first_column("capabilities") == 2 * list(declared("memory"))


def test_every_metric_is_in_the_reference_and_has_a_meaning() -> None:
    named = [metric.name for metric in metrics.families()]
    assert first_column("metrics")[: len(named)] == named
    assert [metric.name for metric in metrics.families() if not metric.doc] == []


def test_every_error_is_in_the_reference_and_says_when_it_comes() -> None:
    assert first_column("errors") == [cls.__name__ for cls in errors.classes()]
    assert [cls for cls in errors.classes() if not cls.__doc__] == []


def test_every_port_is_in_the_reference() -> None:
    assert chapters("ports")[1:] == ports.names()
    shown = re.findall(r"^### (\w+)$", written("ports"), re.M)
    assert [cls.__name__ for cls in ports.protocols() if cls.__name__ not in shown] == []


def test_every_port_names_the_backends_that_provide_it() -> None:
    known = {cls.__name__ for cls in ports.protocols()}
    assert {*ports.CAPABILITIES, *ports.BY_URL, *ports.EVERY_BACKEND} == known
    assert set(ports.CAPABILITIES.values()) <= set(declared("memory"))


def test_every_sweep_is_in_the_reference() -> None:
    assert chapters("sweeps") == list(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_page_of_a_sweep_begins_with_its_contract(name: str) -> None:
    page = (ROOT / "docs" / "sweeps" / f"{name}.md").read_text("utf-8")
    assert page.startswith(sweeps.opening(name)), f"docs/sweeps/{name}.md must begin with:\n{sweeps.opening(name)}"


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_contract_of_a_sweep_has_its_four_lines(name: str) -> None:
    heads = re.findall(r"^(\w+(?: wrong)?) {2,}\S", sweeps.contract(name), re.M)
    assert heads == ["evidence", "grace", "precondition", "if wrong"]


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_page_of_a_sweep_names_its_settings_and_says_what_to_do(name: str) -> None:
    page = (ROOT / "docs" / "sweeps" / f"{name}.md").read_text("utf-8")
    own = [path for path in leaves() if path.startswith(f"sweeps.{name}.")]
    assert [path for path in own if f"`{path.rsplit('.', 1)[-1]}`" not in page] == []
    assert "## When it fires" in page


def test_the_figures_of_a_benchmark_become_tables() -> None:
    ratio = figures.Ratio("enqueue to the raw insert", 0.8123, 0.7, True)
    rate = figures.Rate("raw insert", 66_107.2, "jobs/s")
    run = figures.Run({"cores": 2}, False, [figures.Result("enqueue_sqlite", "bulk enqueue", [rate], [ratio])])
    text = figures.render(run)
    assert "| enqueue_sqlite | enqueue to the raw insert | 0.81 | at least 0.7 |" in text
    assert "| enqueue_sqlite | raw insert | 66,107 | jobs/s |" in text


def test_every_limit_on_what_comes_from_outside_has_a_value_and_a_meaning() -> None:
    listed = [each for modules in limits.CHAPTERS.values() for each in limits.limits(modules)]
    assert len(listed) > 40
    assert [each.name for each in listed if not each.meaning] == []
    known = {f"{each.module}:{each.name}" for each in listed}
    assert set(limits.MEANINGS) - known == set()
