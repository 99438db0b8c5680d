"""The names that the design documents fix: metrics, log keys, YAML keys, variables of the environment, flags."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cli.command_line import wrasse
from unit.observability.test_metrics import facts
from wire.conftest import FIXTURES
from wrasse.clock import ManualClock
from wrasse.config.load import load
from wrasse.observability.logs import start_logging
from wrasse.observability.metrics import exposition

NAMES = json.loads((FIXTURES / "names.json").read_text())
SEEDS = yaml.safe_load((FIXTURES / "seeds.yaml").read_text())


def test_metrics_have_the_names_and_labels_of_the_document() -> None:
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition(facts()).decode()):
        for sample in family.samples:
            if not sample.name.endswith(("_bucket", "_created")):
                found[sample.name.removesuffix("_count").removesuffix("_sum")] = set(sample.labels)
    assert {name: sorted(found.get(name, ["missing"])) for name in NAMES["metrics"]} == NAMES["metrics"]


def test_log_lines_have_the_keys_of_the_document() -> None:
    own = logging.getLogger("wrasse")
    before = (own.handlers, own.propagate, own.level)
    try:
        out = io.StringIO()
        start_logging("debug", stream=out, clock=ManualClock())
        extra = {key: "x" for key in NAMES["log_keys"] if key not in ("level", "ts", "msg")}
        logging.getLogger("wrasse.test").info("said", extra=extra)
        assert sorted(json.loads(out.getvalue())) == sorted(NAMES["log_keys"])
    finally:
        own.handlers, own.propagate, own.level = before


def _paths(tree: dict[str, Any], before: str = "") -> Iterator[str]:
    """Every path of the file that holds a value; what stands in a list or in a map of the user's own is one value."""
    for name, value in tree.items():
        path = f"{before}{name}"
        if isinstance(value, dict) and path not in ("retention", "worker.queues"):
            yield from _paths(value, f"{path}.")
        else:
            yield path


def test_a_file_with_every_key_of_the_documents_is_understood() -> None:
    config = load(FIXTURES / "seeds.yaml", environ={})
    understood = {path for path in _paths(SEEDS) if config.named(path)}
    assert understood == set(_paths(SEEDS))
    assert not [warning for warning in config.warnings if "no setting" in warning]


def test_every_value_of_such_a_file_is_shown_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = yaml.safe_load(wrasse("config", "show", f"--config={FIXTURES / 'seeds.yaml'}").out)
    hidden = {"redis.password"}
    # What is a list of entries is shown with every field of each.
    whole = {path for path in _paths(SEEDS) if path not in ("archiver.streams", "archival", "retention")} - hidden
    assert {path: _at(shown, path) for path in whole} == {path: _at(SEEDS, path) for path in whole}
    for path in ("archiver.streams", "archival"):
        ((ours,), (theirs,)) = _at(shown, path), _at(SEEDS, path)
        assert {**theirs, **ours}.items() == {**ours, **theirs}.items()  # what is the default is left out


def _at(tree: Any, path: str) -> Any:
    for name in path.split("."):
        tree = tree[name]
    return tree


@pytest.mark.parametrize("name", NAMES["environment"])
def test_variables_of_the_documents_are_understood(name: str) -> None:
    # A login in `redis:` needs to know whose it is.
    beside = {"REDIS_ADDR": "localhost:6390"} if name.startswith("REDIS_") else {}
    config = load("/dev/null", environ={**beside, name: NAMES["environment"][name]})
    assert [source for source in config.sources.values() if name in source.split()], config.sources


def test_run_has_the_flags_of_the_documents() -> None:
    options = re.findall(r"^ +(--[a-z-]+)", wrasse("run", "--help").out, re.MULTILINE)
    assert [flag for flag in NAMES["flags_of_run"] if flag not in options] == []
