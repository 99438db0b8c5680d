"""Shapes of keys: what belongs together, whose it is, what is foreign; and which shapes are refused."""

from __future__ import annotations

import pytest

from wrasse.errors import ConfigError
from wrasse.orphans.root import UnitPlace, parse_template

SEED = "archives/{id}/{op_id}/{file}"


@pytest.mark.parametrize(("key", "place"), [
    (b"archives/ws1/op1/home.tar.gz", UnitPlace(b"archives/ws1/op1/", b"archives/ws1/")),
    (b"archives/ws1/op1/a\nb", UnitPlace(b"archives/ws1/op1/", b"archives/ws1/")),
    (b"archives/\xff/op1/x", UnitPlace(b"archives/\xff/op1/", b"archives/\xff/")),
    (b"archives/ws1/op1/", None),
    (b"archives/ws1//x", None),
    (b"archives/ws1/op1", None),
    (b"archives/ws1/op1/deep/x", None),
    (b"xarchives/ws1/op1/x", None),
])  # fmt: skip
def test_a_key_has_its_unit_and_its_group_or_is_foreign(key: bytes, place: UnitPlace | None) -> None:
    assert parse_template(SEED).place(key) == place


def test_units_of_objects_are_the_objects() -> None:
    shape = parse_template("up/{tenant}/{file*}", unit="object")
    assert shape.place(b"up/t/a/b.txt") == UnitPlace(b"up/t/a/b.txt", b"up/t/")
    assert shape.group_of(b"up/t/a/b.txt") == b"up/t/"


def test_a_star_stands_for_any_number_of_parts_and_the_directory_above_is_the_unit() -> None:
    assert parse_template("up/{id}/{op}/{file*}").place(b"up/1/2/3/4/5") == UnitPlace(b"up/1/2/", b"up/1/")


def test_the_owner_may_be_named_or_be_nobody() -> None:
    named = parse_template("up/{day}/{id}/{op}/{file}", owner="id")
    assert named.place(b"up/1/2/3/4") == UnitPlace(b"up/1/2/3/", b"up/1/2/")
    assert parse_template(SEED, owner="none").place(b"archives/w/o/x") == UnitPlace(b"archives/w/o/", b"")
    assert parse_template("up/{file}", unit="object").place(b"up/x") == UnitPlace(b"up/x", b"")


def test_fixed_text_beside_a_name_counts() -> None:
    shape = parse_template("a.b/ws-{id}/{op}/home.tar.{kind}")
    assert shape.place(b"a.b/ws-1/2/home.tar.gz") == UnitPlace(b"a.b/ws-1/2/", b"a.b/ws-1/")
    assert shape.place(b"axb/ws-1/2/home.tar.gz") is None


@pytest.mark.parametrize(("text", "why"), [
    ("{id}/{file}", "first part must be fixed"),
    ("archives", "a directory first"),
    ("/archives/{id}/{file}", "a directory first"),
    ("archives//{file}", "no empty part"),
    ("archives/{id}/{id}/{file}", "twice"),
    ("archives/{id*}/{file}", "only the last part"),
    ("archives/{id/{file}", "not closed"),
    ("archives/{ID}/{file}", "lower-case"),
    ("archives/all/files", "no name in braces"),
])  # fmt: skip
def test_a_shape_that_cannot_be_is_refused_with_why(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_template(text)


def test_an_owner_that_is_no_directory_above_the_unit_is_refused() -> None:
    for owner in ("op_id", "nobody_knows"):
        with pytest.raises(ConfigError, match="owner"):
            parse_template(SEED, owner=owner)
