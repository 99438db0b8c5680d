"""Requests are signed as AWS says: its published examples, and what differs between paths, queries and sessions."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256

import pytest
from hypothesis import given, strategies as st

from wrasse.backends.s3.transport import EMPTY_HASH, Credentials, Signer, Unsigned, query_of, quoted

WHO = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
AT = datetime(2013, 5, 24, tzinfo=UTC)
HOST = "examplebucket.s3.amazonaws.com"
PUBLISHED = [
    (
        Unsigned("GET", HOST, "/test.txt", headers={"range": "bytes=0-9"}),
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    ),
    (
        Unsigned(
            "PUT",
            HOST,
            "/test%24file.text",
            headers={"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            payload_hash=sha256(b"Welcome to Amazon S3.").hexdigest(),
        ),
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    ),
    (
        Unsigned("GET", HOST, "/", query_of([("lifecycle", "")])),
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
    ),
    (
        Unsigned("GET", HOST, "/", query_of([("prefix", "J"), ("max-keys", "2")])),
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    ),
]


@pytest.mark.parametrize(("asked", "signature"), PUBLISHED)
def test_a_request_is_signed_as_in_the_published_examples(asked: Unsigned, signature: str) -> None:
    headers = Signer("us-east-1").headers(asked, WHO, AT)
    assert headers["authorization"].endswith(f"Signature={signature}")


def test_the_key_of_another_day_secret_or_region_signs_otherwise() -> None:
    asked, signer = PUBLISHED[0][0], Signer("us-east-1")
    days = [signer.headers(asked, WHO, AT.replace(day=day))["authorization"] for day in (24, 25, 24)]
    others = [
        signer.headers(asked, Credentials(WHO.key, "other"), AT)["authorization"],
        Signer("eu-central-1").headers(asked, WHO, AT)["authorization"],
    ]
    assert (days[0] == days[2], len({*days, *others})) == (True, 4)


def test_a_session_token_is_sent_and_signed() -> None:
    headers = Signer("us-east-1").headers(PUBLISHED[0][0], Credentials("k", "s", "the token"), AT)
    assert (headers["x-amz-security-token"], "x-amz-security-token" in headers["authorization"]) == ("the token", True)


def test_no_secret_is_in_the_text_of_credentials() -> None:
    assert "hidden" not in repr(Credentials("key", "hidden", "hidden too"))


@given(st.binary(min_size=1))
def test_every_byte_of_a_key_is_in_its_path(raw: bytes) -> None:
    from urllib.parse import unquote_to_bytes

    assert (unquote_to_bytes(quoted(raw)), quoted(raw).isascii()) == (raw, True)


def test_an_empty_body_has_the_known_hash() -> None:
    assert EMPTY_HASH == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
