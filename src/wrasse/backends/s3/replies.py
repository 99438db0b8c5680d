"""The XML that the store answers with, parsed once into types. Keys come escaped and are given back raw.

A listing of a thousand keys is the largest of them and the one that is read most, so it is taken apart by one pattern
per entry instead of a tree. What does not look as expected is an error, never a shorter listing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import unescape
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes
from xml.etree import ElementTree

from wrasse.errors import StoreBroken

_ENTRY = re.compile(rb"<Contents>(.*?)</Contents>", re.S)
# An entry as AWS and most others order it; what comes in another order is taken apart name by name.
_USUAL = re.compile(
    rb"<Contents>\s*<Key>([^<]*)</Key>\s*<LastModified>([^<]*)</LastModified>\s*<ETag>([^<]*)</ETag>"
    rb"(?:\s*<Checksum[^<]*<[^<]*)*\s*<Size>([0-9]*)</Size>"
)
_PREFIX = re.compile(rb"<CommonPrefixes>\s*<Prefix>([^<]*)</Prefix>\s*</CommonPrefixes>")
_PARTS = re.compile(rb"<(Key|ETag|Size|LastModified)>([^<]*)</")
_TRUNCATED = re.compile(rb"<IsTruncated>\s*(true|false)\s*</IsTruncated>")
_TOKEN = re.compile(rb"<NextContinuationToken>([^<]*)</NextContinuationToken>")
_URL_ENCODED = b"<EncodingType>url</EncodingType>"


@dataclass(frozen=True, slots=True)
class Listed:
    """One object of a listing, by its whole raw key in the bucket."""

    key: bytes
    size: int
    etag: str
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class ListedPage:
    """One page of a listing: objects, and what lies below a delimiter; `token` while there is more."""

    objects: tuple[Listed, ...]
    folders: tuple[bytes, ...]
    token: str | None


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that is neither complete nor aborted."""

    key: bytes
    id: str
    begun_at: datetime


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one key of a batch was not deleted."""

    key: bytes
    code: str


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """One version of an object, or a marker that says it was deleted; `latest` is what a reader meets."""

    key: bytes
    id: str
    etag: str
    marker: bool
    latest: bool


def parse_versions(body: bytes, where: str) -> tuple[tuple[KeptVersion, ...], tuple[str, str] | None]:
    """A page of ListObjectVersions, and the markers to go on at."""
    root = _tree(body, "ListVersionsResult", where)
    raw = unquote_plus if _text(root, "EncodingType") == "url" else str.encode
    found = tuple(
        KeptVersion(
            raw(_text(each, "Key")),
            _text(each, "VersionId"),
            etag_of(_text(each, "ETag")),
            each.tag.rpartition("}")[2] == "DeleteMarker",
            _text(each, "IsLatest") == "true",
        )
        for each in root
        if each.tag.rpartition("}")[2] in ("Version", "DeleteMarker")
    )
    if _text(root, "IsTruncated") != "true":
        return found, None
    marker = raw(_text(root, "NextKeyMarker")).decode("utf-8", "surrogateescape")
    return found, (marker, _text(root, "NextVersionIdMarker"))


def parse_versioning(body: bytes, where: str) -> str:
    """Whether a bucket keeps versions: `Enabled`, `Suspended`, or nothing if it never did."""
    return _text(_tree(body, "VersioningConfiguration", where), "Status")


def parse_listing(body: bytes, where: str) -> ListedPage:
    """A page of ListObjectsV2."""
    truncated = _TRUNCATED.search(body)
    if truncated is None or b"</ListBucketResult>" not in body[-64:]:
        raise _strange("a listing", where)
    raw = _unquoted if _URL_ENCODED in body else _unescaped
    count = body.count(b"<Contents>")
    usual = _USUAL.findall(body)
    if len(usual) != count:
        usual = [_in_order(entry, where) for entry in _ENTRY.findall(body)]
    if len(usual) != count:
        raise _strange("a listing", where)
    try:
        objects = tuple(
            [Listed(raw(key), int(size), _tag(tag), parse_instant(at.decode())) for key, at, tag, size in usual]
        )
    except ValueError:
        raise _strange("an entry of a listing", where) from None
    folders = tuple(raw(found) for found in _PREFIX.findall(body))
    token = _TOKEN.search(body)
    if truncated[1] == b"true" and token is None:
        raise _strange("a listing without a way on", where)
    return ListedPage(objects, folders, unescape(token[1].decode()) if token and truncated[1] == b"true" else None)


def parse_refusals(body: bytes, where: str) -> tuple[Refusal, ...]:
    """The keys that DeleteObjects did not delete."""
    root = _tree(body, "DeleteResult", where)
    return tuple(Refusal(_text(each, "Key").encode(), _text(each, "Code")) for each in _all(root, "Error"))


def parse_uploads(body: bytes, where: str) -> tuple[tuple[Upload, ...], tuple[str, str] | None]:
    """A page of open uploads, and the markers to go on at."""
    root = _tree(body, "ListMultipartUploadsResult", where)
    raw = unquote_plus if _text(root, "EncodingType") == "url" else str.encode
    found = tuple(
        Upload(raw(_text(each, "Key")), _text(each, "UploadId"), parse_instant(_text(each, "Initiated")))
        for each in _all(root, "Upload")
    )
    if _text(root, "IsTruncated") != "true":
        return found, None
    # With url encoding this marker comes escaped as well.
    marker = raw(_text(root, "NextKeyMarker")).decode("utf-8", "surrogateescape")
    return found, (marker, _text(root, "NextUploadIdMarker"))


def parse_text(body: bytes, root: str, name: str, where: str) -> str:
    """One value of a small answer."""
    found = _text(_tree(body, root, where), name)
    if not found:
        raise _strange(f"an answer without {name}", where)
    return found


def deletion(keys: Sequence[tuple[bytes, str]]) -> bytes:
    """The body of DeleteObjects; ValueError for a key that XML cannot say."""
    parts = []
    for key, etag in keys:
        text = key.decode("utf-8")
        if not sayable(text):
            raise ValueError("a key that XML cannot say")
        parts.append(f"<Object><Key>{_escape(text)}</Key><ETag>&quot;{_escape(etag)}&quot;</ETag></Object>")
    whole = f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Quiet>true</Quiet>{"".join(parts)}</Delete>'
    return whole.encode()


def completion(etags: Sequence[str]) -> bytes:
    """The body of CompleteMultipartUpload."""
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{_escape(etag)}&quot;</ETag></Part>"
        for number, etag in enumerate(etags, 1)
    )
    return (
        f'<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{parts}</CompleteMultipartUpload>'
    ).encode()


def sayable(text: str) -> bool:
    """Whether XML 1.0 gives this text back as it was."""
    return _UNSAYABLE.search(text) is None


def unquote_plus(text: str) -> bytes:
    """The bytes of a url-encoded key; a plus is a space."""
    return unquote_to_bytes(text.replace("+", " "))


def parse_instant(text: str) -> datetime:
    """An instant as listings write it."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is UTC else found.astimezone(UTC)


def etag_of(text: str) -> str:
    """An entity tag without its quotes."""
    return text.strip().removeprefix("W/").strip('"')


_UNSAYABLE = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|\r")
_NEEDS_ENTITY = re.compile(r"[\t\n&<>\"]")


def _escape(text: str) -> str:
    return _NEEDS_ENTITY.sub(lambda found: f"&#{ord(found[0])};", text)


def _in_order(entry: bytes, where: str) -> tuple[bytes, bytes, bytes, bytes]:
    parts = dict(_PARTS.findall(entry))
    try:
        return parts[b"Key"], parts[b"LastModified"], parts[b"ETag"], parts[b"Size"]
    except KeyError:
        raise _strange("an entry of a listing", where) from None


def _tag(text: bytes) -> str:
    if text[:6] == b"&quot;" and text[-6:] == b"&quot;":
        return text[6:-6].decode()
    return etag_of(unescape(text.decode()))


class _Raw:
    """How a key comes out of a listing."""

    def __init__(self, url: bool) -> None:
        self._url = url

    def __call__(self, text: bytes) -> bytes:
        if self._url:
            return unquote_to_bytes(text.replace(b"+", b" ")) if b"%" in text or b"+" in text else text
        return unescape(text.decode()).encode()


_unquoted, _unescaped = _Raw(url=True), _Raw(url=False)


def _tree(body: bytes, root: str, where: str) -> ElementTree.Element:
    try:
        found = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        raise _strange(f"what should be {root}", where) from None
    if found.tag.rpartition("}")[2] != root:
        raise _strange(f"what should be {root}", where)
    return found


def _all(element: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [each for each in element if each.tag.rpartition("}")[2] == name]


def _text(element: ElementTree.Element, name: str) -> str:
    found = _all(element, name)
    return (found[0].text or "") if found else ""


def _strange(what: str, where: str) -> StoreBroken:
    return StoreBroken(f"{where} answered with {what} that is none", do="check that the endpoint is an S3")


def copy_source(bucket: str, key: bytes, version: str = "") -> str:
    """The header that names what to copy."""
    return f"/{bucket}/{quote_from_bytes(key, safe='-_.~/')}" + f"?versionId={quote(version)}" * bool(version)
