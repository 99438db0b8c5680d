"""What a store answers, taken apart: raw keys come back whole, in any order of fields; half an answer is an error."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import quote_from_bytes
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings, strategies as st

from wrasse.backends.s3.object_listing import nameable
from wrasse.backends.s3.objects import from_headers
from wrasse.backends.s3.xml import (
    KEY_BYTES_MAX,
    SIZE_MAX,
    XML_BYTES_MAX,
    ListedPage,
    deletion,
    parse_date,
    parse_listing,
    parse_refusals,
    parse_text,
    parse_uploads,
    parse_versioning,
    parse_versions,
)
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
        listing(usual("")),
        listing(usual("k" * (KEY_BYTES_MAX + 1))),
        listing(usual("a").replace("7", "-7")),
        listing(usual("a").replace("7", str(SIZE_MAX))),
        listing(usual("a").replace("7", "7" * 5_000)),
        listing(usual("a").replace(AT, "0001-01-01T00:00:00+23:00")),
        listing(usual("a").replace(AT, "9999-12-31T23:59:59-23:00")),
        listing(usual("a").replace("&quot;e1&quot;", "e 1")),
        listing(usual("a"), more=True, token="<NextContinuationToken/>"),
        listing(usual("a")).replace(b"<IsTruncated>", b"<Name>other</Name><IsTruncated>"),
        listing(usual("b")),
        listing("").replace(b"<Contents></Contents>", b"<CommonPrefixes><Prefix>a</Prefix></CommonPrefixes>"),
        listing("").replace(b"<Contents></Contents>", b"<CommonPrefixes><Prefix>b/</Prefix></CommonPrefixes>"),
        b'<!DOCTYPE x [<!ENTITY e "a">]>' + listing(usual("&e;")),
        (b'<!DOCTYPE x [<!ENTITY e "a">]>' + listing(usual("&e;"))).decode().encode("utf-16"),
        listing("<Key>a\x01</Key>"),
    ],
)
def test_half_a_listing_is_an_error_and_never_a_shorter_one(body: bytes) -> None:
    with pytest.raises(StoreBroken):
        parse_listing(body, WHERE, bucket="bucket", prefix=b"a")


PARSERS: dict[str, Callable[[bytes], object]] = {
    "ListBucketResult": lambda body: parse_listing(body, WHERE, bucket="bucket", prefix=b""),
    "ListVersionsResult": lambda body: parse_versions(body, WHERE),
    "ListMultipartUploadsResult": lambda body: parse_uploads(body, WHERE),
    "DeleteResult": lambda body: parse_refusals(body, WHERE),
    "VersioningConfiguration": lambda body: parse_versioning(body, WHERE),
    "CopyObjectResult": lambda body: parse_text(body, "CopyObjectResult", "ETag", WHERE),
}
NAMES = (
    "Contents", "Key", "Size", "ETag", "LastModified", "IsTruncated", "NextContinuationToken", "CommonPrefixes",
    "Prefix", "EncodingType", "Version", "DeleteMarker", "VersionId", "IsLatest", "Upload", "UploadId", "Initiated",
    "NextKeyMarker", "NextUploadIdMarker", "Error", "Code", "Name", "Checksum",
)  # fmt: skip
TEXTS = st.sampled_from([AT, "true", "false", "7", "-1", "url", "%ff%zz+", "&#0;", "<![CDATA[x]]>", "9999-12-31", ""])
ELEMENTS = st.recursive(
    TEXTS | st.text(max_size=6),
    lambda inner: st.tuples(st.sampled_from(NAMES), st.lists(inner, max_size=5)).map(
        lambda pair: f"<{pair[0]}>{''.join(pair[1])}</{pair[0]}>"
    ),
    max_leaves=25,
)


@pytest.mark.parametrize("root", PARSERS)
@settings(max_examples=60)
@given(inside=st.lists(ELEMENTS, max_size=8), cut=st.integers(0, 400), noise=st.binary(max_size=8))
def test_any_answer_is_a_value_or_an_error_of_ours(root: str, inside: list[str], cut: int, noise: bytes) -> None:
    body = f"<{root}>{''.join(inside)}</{root}>".encode("utf-8", "surrogatepass")
    for answer in (body, body[:cut] + noise + body[cut:], noise):
        try:
            found = PARSERS[root](answer)
        except StoreBroken:
            found = None
        assert found is None or isinstance(found, tuple | str | ListedPage)


ENTRIES = tuple(f"<Contents>{usual(key)}</Contents>" for key in ("a", "b%20", "-->", "]]>", "&amp;", "\x01", "\r", "é"))
BETWEEN = (
    "<!--", "-->", "<![CDATA[", "]]>", "<Other>", "</Other>", '<Other xmlns="u">', "<?x ", "?>", "text", "\n",
    "<Contents/>", "<CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>", "</ListBucketResult>", '<a b="', '"/>',
    f"<Contents>{other('c')}</Contents>", f"<Contents>{usual('')}</Contents>",
    f"<Contents>{usual('c')}<Size>8</Size></Contents>",
)  # fmt: skip
WRAPPED = st.tuples(*(st.sampled_from(each) for each in (BETWEEN, ENTRIES, BETWEEN))).map("".join)


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(ENTRIES[:2]) | st.sampled_from(ENTRIES + BETWEEN) | WRAPPED, min_size=1, max_size=4),
    st.sampled_from(["", ' xmlns="u"', ' xmlns:s="u"']),
)
@example(["<!--", ENTRIES[0], "-->"], "")
@example(["<Other>", ENTRIES[0], "</Other>"], "")
@example([ENTRIES[0], "<Other>", ENTRIES[0], "</Other>"], "")
@example([ENTRIES[0], BETWEEN[-3]], "")
def test_the_pattern_of_usual_entries_reads_what_the_tree_reads(parts: list[str], space: str) -> None:
    body = listing(token="".join(parts)).replace(b"Result>", b"Result%s>" % space.encode(), 1)
    unusual = body.replace(b"</Contents>", b"</Contents >")  # means the same, and no pattern matches it
    assert page_or_none(body) == page_or_none(unusual)


def page_or_none(body: bytes) -> ListedPage | None:
    try:
        return parse_listing(body, WHERE)
    except StoreBroken:
        return None


END = b"<IsTruncated>false</IsTruncated></ListBucketResult>"


def hostile(unit: bytes, close: bytes = b"") -> bytes:
    size = XML_BYTES_MAX - 200
    head = b"<ListBucketResult><IsTruncated>false</IsTruncated>"
    return head + unit * (size // (len(unit) + len(close))) + close * (size // (len(unit) + len(close)))


@pytest.mark.parametrize(
    "body",
    [
        b"<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a</Key><LastModified>x</LastModified><ETag>e</ETag>"
        + b"<Checksum> </Checksum>\n" * 40
        + b"<x/></Contents></ListBucketResult>",
        hostile(b"<Contents>"),
        hostile(b"<a>", b"</a>"),
        hostile(b"<Contents><Key>a</Key><LastModified>x</LastModified><ETag>e</ETag><Checksum>"),
        hostile(b"<Checksum><"),
        hostile(b"<a b='' c=''/>"),
        hostile(b" "),
        hostile(b"<Contents>", b"</Contents>"),
        b"<" * XML_BYTES_MAX,
        b"<ListBucketResult xmlns='" + b"u" * 300_000 + b"'>" + b"<a/>" * 30_000 + END,
        b'<ListBucketResult xmlns:p="' + b"u>" * 150_000 + b'">' + b"<p:a b='>'/>" * 30_000 + END,
        b"<ListBucketResult xmlns='u" + b"\t" * 300_000 + b"'>" + b"<a/>" * 30_000 + END,
    ],
)
def test_the_time_to_parse_grows_no_faster_than_the_answer(body: bytes) -> None:
    began = time.process_time()
    with pytest.raises(StoreBroken):
        parse_listing(body, WHERE)
    assert time.process_time() - began < 3  # some of these took minutes and more by backtracking


def test_a_namespace_is_not_multiplied_by_the_names_below_it() -> None:
    names = b"".join(b"<a%d/>" % number for number in range(400))
    body = b'<ListBucketResult xmlns="' + b"u" * 50_000 + b'">' + names + END
    tracemalloc.start()
    try:
        with pytest.raises(StoreBroken):
            parse_listing(body, WHERE)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20  # it was 20 MB
    finally:
        tracemalloc.stop()


def test_a_long_text_and_a_comment_are_no_long_tags() -> None:
    text = b"<!-- it's " + b"x" * 2_000 + b" -->" + b"<Name>" + b"a>\"b='" * 400 + b"</Name>"
    assert parse_listing(b'<ListBucketResult xmlns="http://s3/">' + text + END, WHERE) == ListedPage((), (), None)


@pytest.mark.parametrize(
    "text", ["", "x", "Mon, 01 Jan 99999 00:00:00 GMT", "Mon, 01 Jan 1969 00:00:00 GMT", "1 Jan 2026 0:0:0 +9999999999"]
)
def test_a_date_that_is_none_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_date(text)


@pytest.mark.parametrize("rest", ["", "x", "[]", "1", '{"a":1}', "%5B" * 2000, "%7B%22a%22:" * 2000])
def test_metadata_that_wrasse_did_not_write_is_an_error_of_ours(rest: str) -> None:
    with pytest.raises(StoreBroken):
        from_headers({"x-amz-meta-wrasse-nonce": "n", "x-amz-meta-wrasse-rest": rest})


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
