"""What a store answers, taken apart: raw keys come back whole, in any order of fields; half an answer is an error."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote_from_bytes
from xml.etree import ElementTree

import pytest
from hypothesis import given, strategies as st

from wrasse.backends.s3.listing import nameable
from wrasse.backends.s3.replies import deletion, parse_listing, parse_refusals, parse_uploads
from wrasse.errors import StoreBroken

AT = "2026-01-02T03:04:05.678Z"
WHERE = "s3://bucket"


def listing(*entries: str, more: bool = False, token: str = "", url: bool = True) -> bytes:
    encoding = "<EncodingType>url</EncodingType>" if url else ""
    return (
        f"<ListBucketResult>{encoding}<IsTruncated>{str(more).lower()}</IsTruncated>{token}"
        f"{''.join(f'<Contents>{entry}</Contents>' for entry in entries)}</ListBucketResult>"
    ).encode()


def usual(key: str) -> str:
    return f"<Key>{key}</Key><LastModified>{AT}</LastModified><ETag>&quot;e1&quot;</ETag><Size>7</Size>"


def other(key: str) -> str:
    return f"<ETag>&#34;e1&#34;</ETag><Size>7</Size><Key>{key}</Key><LastModified>{AT}</LastModified>"


@given(st.lists(st.binary(min_size=1)), st.sampled_from([usual, other]))
def test_every_raw_key_comes_back(keys: list[bytes], form: object) -> None:
    quoted = [quote_from_bytes(key, safe="/").replace("%20", "+") for key in keys]
    page = parse_listing(listing(*(form(key) for key in quoted)), WHERE)  # type: ignore[operator]
    assert [each.key for each in page.objects] == keys
    assert {(each.etag, each.size) for each in page.objects} <= {("e1", 7)}
    assert {each.modified_at for each in page.objects} <= {datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)}


def test_a_store_that_does_not_encode_keys_is_understood() -> None:
    page = parse_listing(listing(usual("a+b%20&amp;c"), url=False), WHERE)
    assert [each.key for each in page.objects] == [b"a+b%20&c"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>not found</html>",
        listing(usual("a"))[:-30],
        listing(usual("a").replace("<Size>7</Size>", "")),
        listing(usual("a").replace("7", "many")),
        listing(usual("a").replace(AT, "today")),
        listing(usual("a"), more=True),
        listing(usual("a")).replace(b"IsTruncated", b"Truncated"),
    ],
)
def test_half_a_listing_is_an_error_and_never_a_shorter_one(body: bytes) -> None:
    with pytest.raises(StoreBroken):
        parse_listing(body, WHERE)


def test_the_way_on_is_given_only_while_there_is_more() -> None:
    token = "<NextContinuationToken>a&amp;b</NextContinuationToken>"
    assert [parse_listing(listing(usual("a"), more=more, token=token), WHERE).token for more in (True, False)] == [
        "a&b",
        None,
    ]


@given(st.text(min_size=1))
def test_what_a_batch_of_deletes_says_is_the_key_itself_or_it_is_not_said(key: str) -> None:
    try:
        body = deletion([(key.encode("utf-8", "surrogatepass"), 'e"<')])
    except ValueError:
        return
    root = ElementTree.fromstring(body)
    (named,) = [each for each in root.iter() if each.tag.endswith("}Key")]
    (tag,) = [each for each in root.iter() if each.tag.endswith("}ETag")]
    assert (named.text, tag.text) == (key, '"e"<"')


def test_refusals_and_uploads_that_are_none_are_errors() -> None:
    for parse in (parse_refusals, parse_uploads):
        with pytest.raises(StoreBroken):
            parse(b"<Other/>", WHERE)  # type: ignore[operator]


@pytest.mark.parametrize("key", [b"a//b", b"/a", b"a/", b".", b"a/../b", b"\xff", b"a\\b", b"x" * 256])
def test_what_a_tree_of_folders_cannot_name_is_known(key: bytes) -> None:
    assert not nameable(key)


@pytest.mark.parametrize("key", [b"a", b"a/b", "é/ß".encode(), b"..a", b"x" * 255, b"a\x01"])
def test_what_a_tree_of_folders_can_name_is_known(key: bytes) -> None:
    assert nameable(key)
