"""One entry, one line: valid JSON, and back byte for byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, strategies as st

from virtual_time import START as BEGAN
from wrasse.archives.codec import entry_of, is_marked, line_of, lines_of
from wrasse.errors import StoreBroken
from wrasse.ports.streams import Entry, EntryId, chunk_of

from .scene import CHANGE, envelope

ID = EntryId(1_771_027_200_000, 7)
ODD = {
    "no JSON": b"\xff\x00",
    "nothing": b"",
    "another object": b'{"a":1}',
    "a raw newline": envelope()[:-1] + b',\n"x":1}',
    "a space at its end": envelope() + b" ",
    "a stream_id of its own": envelope()[:-1] + b',"stream_id":"1-1"}',
    "a stream_id in escapes": envelope()[:-1] + b',"stream\\u005fid":1}',
    "bytes that are no text": envelope()[:-1] + b',"x":"\xff"}',
}
BODY = st.binary(max_size=40) | st.sampled_from([envelope(), *ODD.values()])
FIELDS = st.none() | st.dictionaries(st.text("ab", min_size=1), st.binary(max_size=9), min_size=1, max_size=3)


@given(BODY, FIELDS)
@example(envelope(), None)
def test_a_line_is_json_and_gives_the_entry_back_byte_for_byte(body: bytes, fields: dict[str, bytes] | None) -> None:
    entry = Entry(ID, CHANGE, body, fields)
    line = line_of(entry)
    assert line.count(b"\n") == 1
    assert json.loads(line)["stream_id"] == str(ID)
    assert entry_of(line.rstrip(b"\n"), CHANGE) == entry


@given(st.lists(st.tuples(BODY, FIELDS | st.none()), max_size=4), st.booleans())
@example([(envelope(), None), (envelope()[:-1] + b',"x":"\\u0073tream_id"}', None)], False)
@example([(envelope() + b" ", None)], True)
@example([(ODD["bytes that are no text"], None)], True)
def test_many_lines_at_once_are_the_lines_one_by_one(
    entries: list[tuple[bytes, dict[str, bytes] | None]], plain: bool
) -> None:
    kept = [Entry(EntryId(5, n), CHANGE, body, None if plain else fields) for n, (body, fields) in enumerate(entries)]
    one_by_one = [*map(line_of, kept)]
    lines = lines_of(chunk_of(CHANGE, kept, BEGAN, more=False), len(kept))
    assert lines == (b"".join(one_by_one), sum(map(is_marked, one_by_one)))


def test_an_envelope_is_kept_as_it_was_stored() -> None:
    body = envelope()[:-1] + b', "new": "stream_id"}'
    assert line_of(Entry(ID, CHANGE, body)) == body[:-1] + b',"stream_id":"%s"}\n' % str(ID).encode()


@pytest.mark.parametrize("what", ODD)
def test_whatever_is_no_plain_envelope_is_archived_whole_and_marked(what: str) -> None:
    assert is_marked(line_of(Entry(ID, CHANGE, ODD[what])))


@pytest.mark.parametrize("line", [b"", b"{}", b'{"a":1,"stream_id":"x"}', b'{"stream_id":"1-1"}', b'{"stream_id":"1'])
def test_a_line_of_something_else_is_refused(line: bytes) -> None:
    with pytest.raises(StoreBroken):
        entry_of(line, CHANGE)


def test_an_envelope_of_another_program_has_its_columns_in_the_line() -> None:
    body = b'{"message_id":"1b4e28ba-2fa1-11d2","subject":"s","timestamp":"2026-01-02T03:04:05Z","payload":{"a":1}}'
    line = line_of(Entry(ID, CHANGE, body))
    assert json.loads(line)["message_id"] == "1b4e28ba-2fa1-11d2"
    assert not is_marked(line)


def test_text_fields_of_a_plain_entry_stay_text() -> None:
    entry = Entry(ID, CHANGE, b"", {"user": "é".encode(), "blob": b"\xff"})
    line = line_of(entry)
    assert (json.loads(line)["text"], entry_of(line[:-1], CHANGE)) == ({"user": "é"}, entry)


def test_a_line_from_before_there_were_text_fields_is_read() -> None:
    line = b'{"stream_id":"5-1","subject":"s","raw":"","fields":{"user":"YQ=="}}'
    assert entry_of(line, "s").fields == {"user": b"a"}
