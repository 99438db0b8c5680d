"""The catalogue: one name in every place."""

from __future__ import annotations

import importlib

import pytest

from wrasse.sweeps import CATALOGUE


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_a_sweep_has_one_name_in_file_class_and_catalogue(name: str) -> None:
    entry = CATALOGUE[name]
    module = importlib.import_module(f"wrasse.sweeps.{name}")
    assert getattr(module, entry.kind.__name__) is entry.kind
    assert (entry.name, entry.kind.name, entry.page) == (name, name, f"docs/sweeps/{name}.md")


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_a_sweep_opens_with_its_evidence_grace_precondition_and_what_if_wrong(name: str) -> None:
    text = importlib.import_module(f"wrasse.sweeps.{name}").__doc__ or ""
    assert all(f"\n{word}" in text for word in ("evidence", "grace", "precondition", "if wrong"))
