"""Where keys live: every key has a path, no two have the same, and a path gives its key back."""

from __future__ import annotations

from hypothesis import example, given, strategies as st

from wrasse.backends.directory.names import (
    NAME_MAX,
    RECORD_SUFFIX,
    WORKPLACE,
    path_of,
    record_path,
    segment_of,
    stored_part,
)
from wrasse.ports.records import KEY_BYTES_MAX, key_of, stored_name

# Bytes that mean something, and runs that come near the place where a name is cut.
awkward = st.sampled_from([b"/", b".", b"..", b"%", b"%o", b"%z", b"%2F", b"\1", b"\x7f", "é".encode(), b"\x80", b"a"])
lengths = st.sampled_from([1, 1, 1, 49, 66, 97, 98, 193, 195, 198, 200])
runs = st.builds(lambda byte, count: byte * count, awkward, lengths)
keys = st.lists(st.one_of(runs, st.binary(max_size=3)), min_size=1, max_size=6).map(b"".join)
object_keys = keys.map(lambda key: key.replace(b"\0", b"")[:1024]).filter(bool)
record_keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300) | keys.map(
    lambda key: key.decode("utf-8", "replace")
)


def key_from(path: bytes) -> bytes:
    """What a listing makes of a path."""
    key, joint = b"", b""
    for name in path.split(b"/"):
        part = segment_of(name)
        assert part is not None, name
        raw, cut = part
        key, joint = key + joint + raw, b"" if cut else b"/"
    return key


@given(object_keys)
@example(b"/" * 1024)
@example(b"\x80" * 1024)
@example(b"%" * 1024)
def test_a_path_gives_its_key_back(key: bytes) -> None:
    assert key_from(path_of(key)) == key


@given(object_keys)
@example(b"..")
@example(b"../../etc/passwd")
def test_a_path_has_only_names_that_a_file_system_keeps(key: bytes) -> None:
    names = path_of(key).split(b"/")
    assert all(1 <= len(name) <= NAME_MAX and name not in (b".", b"..") for name in names)
    assert all(min(name) >= 0x20 and 0x7F not in name for name in names)
    assert len(path_of(key)) < 4096 - 300


@given(object_keys)
@example(b"%w/temp/x")
@example(b"%o")
def test_no_key_reaches_into_the_workplace(key: bytes) -> None:
    names = path_of(key).split(b"/")
    assert names[0] != WORKPLACE
    assert not any(name.startswith((b"%o", b"%m", b"%w")) for name in names)


@given(st.from_regex(r"[a-zA-Z0-9_=+@ .-]{1,40}(/[a-zA-Z0-9_=+@ -][a-zA-Z0-9_=+@ .-]{0,40}){0,5}", fullmatch=True))
@example("archive/audit/2026/02/14/gbe.events.audit.change-after-000001770000000-0.jsonl.gz")
def test_an_ordinary_key_is_its_own_path(key: str) -> None:
    if key.split("/")[0] not in (".", ".."):
        assert path_of(key.encode()) == key.encode()


@given(record_keys)
@example(".")
@example("..")
@example("/" * KEY_BYTES_MAX)
@example("a\0b")
def test_a_record_is_found_under_a_name_that_gives_its_key_back(key: str) -> None:
    key = key.encode()[:KEY_BYTES_MAX].decode("utf-8", "ignore") or "a"
    names = record_path(stored_name(key).encode()).split(b"/")
    parts = [stored_part(name) for name in names]
    assert key_of(b"".join(part[0] for part in parts if part).decode()) == key
    assert [part and part[1] for part in parts] == [True] * (len(parts) - 1) + [False]
    assert all(1 <= len(name) <= NAME_MAX - len(RECORD_SUFFIX) and name not in (b".", b"..") for name in names)
