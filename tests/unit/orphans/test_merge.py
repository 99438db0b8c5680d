"""The merge says of every unit what comparing everything with everything says, and needs no more memory for more."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from orphan_field import SEED
from wrasse.errors import StoreBroken
from wrasse.orphans.merge import WAITING_MAX, Before, Merge, Sinks, Window
from wrasse.orphans.root import Root, parse_template
from wrasse.orphans.spool import Referred, SpooledObject
from wrasse.orphans.verdict import KnownSighting, Scene, Suspected, Unit, Units, in_order
from wrasse.ports.sightings import Evidence

OBJECTS = replace(SEED, template=parse_template("archives/{file*}", unit="object"))
GROUPED = replace(SEED, template=parse_template("archives/{id}/{file*}", unit="object"))

# Names that begin like others, that sort between a name and its directory, and that are more than one byte a letter.
WORDS = st.sampled_from(["a", "a-", "a0", "ab", "b", "é", "\U0001f600", "\uffff", "A", "a b", "%"])
KEYS = st.lists(WORDS, min_size=1, max_size=4).map(lambda parts: "archives/" + "/".join(parts)).map(str.encode)
REFERENCES = st.builds(
    Referred,
    st.one_of(KEYS, KEYS.map(lambda key: key + b"/"), st.just(b"archives/"), KEYS.map(lambda key: key[:-1])),
    st.booleans(),
    st.booleans(),
)


@dataclass(slots=True)
class Told:
    """What a merge said."""

    protected: list[bytes]
    evidence: dict[bytes, str]
    suspects: list[Suspected]
    counts: dict[str, int]

    def note(self, known: KnownSighting) -> None:
        self.evidence[known.unit] = known.evidence


def merged(
    root: Root,
    keys: Sequence[bytes],
    references: Sequence[Referred],
    *,
    sightings: Sequence[KnownSighting] = (),
    before: Sequence[bytes] | None = None,
    number: int = 1,
) -> Told:
    scene = Scene(root, number, 1_000, 1_000, 1_000)
    told = Told([], {}, [], {})
    sinks = Sinks(told.note, told.suspects.append, told.protected.append)
    units = Units([[SpooledObject(key, 1, "v", 0) for key in sorted(set(keys))]], root.template)
    window = Window(iter(sorted(references, key=lambda each: each.key)))
    merge = Merge(scene, window, sinks, None if before is None else Before(iter(sorted(before))))
    told.counts = dict(merge.run(units, iter(sorted(sightings, key=lambda each: each.unit))).counts)
    return told


def naive(root: Root, keys: Sequence[bytes], references: Sequence[Referred]) -> tuple[list[bytes], dict[bytes, str]]:
    """Everything compared with everything."""
    places = {place.unit: place for key in keys if (place := root.template.place(key)) is not None}
    protected, evidence = [], {}
    for unit, place in sorted(places.items()):
        mine = [each for each in references if _names(each, unit, root.template.directories)]
        if any(each.live for each in mine):
            protected.append(unit)
            continue
        near = [each for each in references if place.group and _near(each, place.group)]
        if mine:
            found = Evidence.SOFT_DELETED
        elif not place.group or any(each.live for each in near):
            found = Evidence.SUPERSEDED
        else:
            found = Evidence.SOFT_DELETED if near else Evidence.OWNER_UNKNOWN
        evidence[unit] = found.value
    return protected, evidence


def _names(reference: Referred, unit: bytes, directory: bool) -> bool:
    key = reference.key
    return key == unit or (reference.prefix and unit.startswith(key)) or (directory and key.startswith(unit))


def _near(reference: Referred, group: bytes) -> bool:
    return reference.key.startswith(group) or (reference.prefix and group.startswith(reference.key))


@pytest.mark.parametrize("root", [SEED, OBJECTS, GROUPED], ids=["directories", "objects", "grouped"])
@given(st.lists(KEYS, max_size=12), st.lists(REFERENCES, max_size=8))
def test_it_says_what_comparing_everything_with_everything_says(
    root: Root, keys: list[bytes], references: list[Referred]
) -> None:
    told = merged(root, keys, references)
    assert (told.protected, told.evidence) == naive(root, keys, references)


@given(st.lists(KEYS, max_size=8), st.lists(REFERENCES, max_size=8), st.lists(KEYS, max_size=8), st.booleans())
def test_sightings_of_any_shape_change_no_verdict_about_others(
    keys: list[bytes], references: list[Referred], noted: list[bytes], slash: bool
) -> None:
    odd = [KnownSighting(unit + b"/" * slash, Evidence.SUPERSEDED.value, "other", 1, b"\x90", 1) for unit in set(noted)]
    told = merged(SEED, keys, references, sightings=odd)
    protected, evidence = naive(SEED, keys, references)
    assert told.protected == protected
    assert {unit: why for unit, why in told.evidence.items() if why} == evidence


def test_references_in_another_order_are_an_error_and_not_orphans() -> None:
    rows = [Referred(b"archives/b/1/x", False, True), Referred(b"archives/a/1/x", False, True)]
    window = Window(iter(rows))
    with pytest.raises(StoreBroken, match="byte order"):
        window.finish()


@pytest.mark.parametrize("keys", [[b"b", b"a"], [b"a", b"a"]])
def test_a_listing_out_of_order_or_with_a_key_twice_is_an_error(keys: list[bytes]) -> None:
    with pytest.raises(StoreBroken, match="order"):
        list(in_order([[SpooledObject(key, 1, "v", 0) for key in keys]]))


def test_a_reference_is_a_match_once_however_many_it_covers() -> None:
    keys = [f"archives/w/{n}/x".encode() for n in range(5)]
    named = [(b"archives/w/", True), (b"archives/w/1/x", False), (b"archives/v/", True)]
    rows = [Referred(key, prefix, True) for key, prefix in named]
    counts = merged(SEED, keys, rows).counts
    assert (counts["rows"], counts["matched"], counts["protected"]) == (3, 2, 5)


def test_references_of_rows_that_have_ended_are_no_matches() -> None:
    counts = merged(SEED, [b"archives/w/1/x"], [Referred(b"archives/w/1/", True, False)]).counts
    assert (counts["rows_live"], counts["matched"]) == (0, 0)


def test_losing_the_owner_counts_apart_from_being_superseded() -> None:
    keys = [b"archives/a/1/x", b"archives/a/2/x", b"archives/b/1/x"]
    before = [b"archives/a/1/", b"archives/b/1/"]
    counts = merged(SEED, keys, [Referred(b"archives/a/2/", True, True)], before=before).counts
    assert (counts["turned"], counts["turned_oddly"]) == (2, 1)


def test_a_group_beyond_what_waits_is_judged_in_part_and_its_newest_is_kept() -> None:
    root = replace(SEED, keep_newest=1)
    count = 2 * WAITING_MAX + 10
    units = [SpooledObject(f"archives/w/{n:06}/x".encode(), 1, "v", n if n != 7 else count) for n in range(count)]
    told = Told([], {}, [], {})
    sinks = Sinks(told.note, told.suspects.append, told.protected.append)
    window = Window(iter([Referred(b"archives/w/", False, True)]))
    counts = Merge(Scene(root, 1, 1, 1, count), window, sinks).run(Units([units], root.template), iter(())).counts
    assert (counts["found"], counts["newest"]) == (count - 1, 1)
    assert b"archives/w/000007/" not in told.evidence


def test_memory_does_not_follow_the_number_of_objects() -> None:
    def peak(count: int) -> int:
        def units() -> Iterator[Unit]:
            for n in range(count):
                name = f"archives/w{n // 4:08}/{n:010}/".encode()
                yield Unit(name, name[:19], SpooledObject(name + b"x", 1, "v", 0))

        rows = (Referred(f"archives/w{n // 4:08}/{n:010}/x".encode(), False, True) for n in range(count) if n % 50)
        tracemalloc.start()
        sinks = Sinks(lambda _: None, lambda _: None, lambda _: None)
        Merge(Scene(SEED, 1, 1, 1, 1), Window(rows), sinks).run(units(), iter(()))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(20_000) < 1.2 * peak(4_000) + 10_000


def test_a_hundred_thousand_objects_are_judged_in_less_than_two_seconds_of_the_processor() -> None:
    keys = [f"archives/w{n // 10:06}/{n:08}/x".encode() for n in range(100_000)]
    rows = [Referred(f"archives/w{n:06}/{10 * n:08}/".encode(), True, True) for n in range(10_000)]
    files = [SpooledObject(key, 1, "v", 0) for key in keys]
    sinks = Sinks(lambda _: None, lambda _: None, lambda _: None)
    began = time.process_time()
    merge = Merge(Scene(SEED, 1, 1, 1, 1), Window(iter(rows)), sinks)
    counts = merge.run(Units([files], SEED.template), iter(())).counts
    assert time.process_time() - began < 2
    assert (counts["protected"], counts["found"]) == (10_000, 90_000)


def test_a_grace_is_over_at_its_end_and_at_the_second_look() -> None:
    root = replace(SEED, graces=replace(SEED.graces, superseded=timedelta(hours=2)))
    known = KnownSighting(b"archives/a/1/", Evidence.SUPERSEDED.value, "", 1, b"\x90", 1, 0, 0)
    grace = 120 * 60 * 1_000_000
    assert not Scene(root, 2, 0, grace - 1, 0).ripe(known)
    assert Scene(root, 2, 0, grace, 0).ripe(known)
    assert not Scene(root, 1, 0, grace, 0).ripe(known)
