"""The envelope, byte for byte."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given, strategies as st

from wrasse.errors import StoreBroken, TooLarge
from wrasse.streams.envelope import PAYLOAD_BYTES_MAX, Envelope, check_payload, decode, encode

# As the origin's Redis transport writes them: serde_json, fields in the order of its struct, no spaces.
FIXTURE = (
    b'{"message_id":"01JMQ7Y8ZK3V5W7X9Y1Z3A5B7C","subject":"gbe.tasks.email-send.queue","timestamp":1739539200123,'
    b'"trace_id":"4bf92f3577b34da6","payload":"eyJ2IjoxLCJ0cyI6MTczOTUzOTIwMDEyMywiaWQiOiJ4IiwiZGF0YSI6e319"}'
)
WITHOUT_TRACE = (
    b'{"message_id":"01JMQ7Y8ZK3V5W7X9Y1Z3A5B7C","subject":"gbe.tasks.email-send.queue","timestamp":1739539200123,'
    b'"payload":""}'
)

envelopes = st.builds(
    Envelope,
    message_id=st.text("0123456789ABCDEFGHJKMNPQRSTVWXYZ", min_size=26, max_size=26),
    subject=st.text(max_size=40),
    timestamp=st.integers(0, 253_402_300_799_999),
    payload=st.binary(max_size=300),
    trace_id=st.none() | st.text(max_size=40),
)


@pytest.mark.parametrize("body", [FIXTURE, WITHOUT_TRACE], ids=["with trace", "without"])
def test_what_the_origin_wrote_is_read_and_written_byte_for_byte(body: bytes) -> None:
    assert encode(decode(body)) == body


def test_the_origin_s_message_has_its_payload_and_trace() -> None:
    envelope = decode(FIXTURE)
    assert json.loads(envelope.payload)["v"] == 1
    assert (envelope.trace_id, envelope.timestamp) == ("4bf92f3577b34da6", 1_739_539_200_123)


@given(envelopes)
def test_an_envelope_comes_back_as_it_was(envelope: Envelope) -> None:
    assert decode(encode(envelope)) == envelope


@given(envelopes)
def test_an_envelope_is_compact_json_with_its_fields_in_order(envelope: Envelope) -> None:
    fields = {
        "message_id": envelope.message_id,
        "subject": envelope.subject,
        "timestamp": envelope.timestamp,
        "trace_id": envelope.trace_id,
        "payload": base64.b64encode(envelope.payload).decode(),
    }
    if envelope.trace_id is None:
        del fields["trace_id"]
    assert list(json.loads(encode(envelope)).items()) == list(fields.items())


def test_fields_that_are_not_known_are_allowed() -> None:
    assert decode(WITHOUT_TRACE[:-1] + b',"added":{"later":[1]}}') == decode(WITHOUT_TRACE)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        FIXTURE[:-1],
        FIXTURE + b"x",
        FIXTURE.replace(b"01JMQ7Y8ZK3V5W7X9Y1Z3A5B7C", b""),
        FIXTURE.replace(b"01JMQ7Y8ZK3V5W7X9Y1Z3A5B7C", b"a" * 256),
        FIXTURE.replace(b"1739539200123,", b'"yesterday",'),
        FIXTURE.replace(b"1739539200123,", b'"9999-12-31T23:59:59-14:00",'),
        FIXTURE.replace(b"1739539200123,", b'"1969-01-01",'),
        FIXTURE.replace(b"1739539200123,", b"true,"),
        FIXTURE.replace(b"1739539200123,", b"-1,"),
        FIXTURE.replace(b"1739539200123,", b"1e400,"),
        FIXTURE.replace(b"1739539200123,", b"253402300800000,"),
        FIXTURE.replace(b"gbe.tasks", b"\xff"),
        FIXTURE.replace(b'"payload"', b'"paylaod"'),
        WITHOUT_TRACE[:-1] + b',"x":' + b"[" * 100_000 + b"}",
    ],
    ids=range(20),
)
def test_what_is_no_envelope_is_said_to_be_none_without_showing_it(body: bytes) -> None:
    with pytest.raises(StoreBroken) as broken:
        decode(body)
    assert str(broken.value).startswith("an entry that is not an envelope")


@given(st.binary(max_size=200))
def test_no_bytes_whatever_break_the_decoder(body: bytes) -> None:
    try:
        envelope = decode(body)
    except StoreBroken:
        return
    assert 1 <= len(envelope.message_id) <= 255


UUID = b"1b4e28ba-2fa1-11d2-883f-0016d3cca427"


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        (b'"message_id":"%b","timestamp":1739539200123,"payload":"aGk="' % UUID, (UUID.decode(), 1739539200123, b"hi")),
        (b'"message_id":7,"timestamp":"1739539200123","payload":""', ("7", 1739539200123, b"")),
        (b'"message_id":"a","timestamp":"2025-02-14T13:20:00Z","payload":{"a":1}', ("a", 1739539200000, b'{"a":1}')),
        (b'"message_id":"a","timestamp":"2025-02-14T14:20:00.123+01:00","payload":[]', ("a", 1739539200123, b"[]")),
        (b'"message_id":"a","timestamp":1739539200.5,"payload":12', ("a", 1739539200500, b"12")),
        (b'"message_id":"a","timestamp":12,"payload":true,"trace_id":null', ("a", 12, b"true")),
        (b'"message_id":"a","timestamp":12,"payload":null,"trace_id":null', ("a", 12, b"null")),
        (b'"message_id":"a","timestamp":12,"payload":"no base64!"', ("a", 12, b"no base64!")),
    ],
)  # fmt: skip
def test_envelopes_of_other_programs_are_read_where_they_have_one_meaning(
    fields: bytes, read: tuple[str, int, bytes]
) -> None:
    envelope = decode(b'{"subject":"s",%b}' % fields)
    assert (envelope.message_id, envelope.timestamp, envelope.payload) == read


def test_what_is_wrong_about_an_envelope_is_named() -> None:
    with pytest.raises(StoreBroken, match="field timestamp: 'x' is neither"):
        decode(b'{"message_id":"a","subject":"s","timestamp":"x","payload":""}')
    with pytest.raises(StoreBroken, match="field payload: it is missing"):
        decode(b'{"message_id":"a","subject":"s","timestamp":1}')


def test_a_payload_beyond_the_limit_is_refused_with_size_and_limit() -> None:
    check_payload(b"x" * PAYLOAD_BYTES_MAX, "a")
    with pytest.raises(TooLarge, match="200 bytes for 'a', and at most 100"):
        check_payload(b"x" * 200, "a", 100)
