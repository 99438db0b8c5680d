"""Parses the XML of the store's answers into types, and its refusals into our errors. Keys are returned raw.

The store is not trusted: for any bytes a parser returns a value or raises StoreBroken, in time and memory linear in
their size. Document types are refused, so there are no entities to expand; sizes and times are range-checked. An
unexpected answer is an error, never a shorter listing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes
from xml.etree import ElementTree

from wrasse.backends.s3.address import S3Address
from wrasse.errors import (
    ConfigError,
    OnlyReads,
    StoreBroken,
    StoreFull,
    StoreUnavailable,
    TooLarge,
    UsageError,
    WrasseError,
)

XML_BYTES_MAX = 8 << 20
"""Bytes of an XML answer: a page of 1,000 keys of 1,024 bytes, each byte escaped, takes less than 4 MiB."""
XML_MARKUP_MAX = 200_000
"""Tags and quotation marks in an XML answer: limits the elements and attributes that the parser allocates."""
KEY_BYTES_MAX = 4_096
"""Bytes of a key in a listing. S3 allows keys of up to 1,024 bytes, other stores somewhat longer ones."""
SIZE_MAX = 1 << 53
"""Bytes of an object in a listing: far beyond any store's limit, and still exact in JSON."""
TAG_BYTES_MAX = 512
"""Bytes of one tag in an XML answer: the parser puts the URI of a namespace before every name below it."""
_USUAL = re.compile('"[0-9a-f-]{1,256}"')  # the common form of an entity tag
# An entry in the format of AWS, MinIO and SeaweedFS. No text has an XML escape, and no two attempts to match read the
# same text, so that it takes linear time.
_ENTRY = re.compile(
    "<Contents><Key>([ -%'-;=?-~]++)</Key><LastModified>([0-9TZ:.+-]++)</LastModified>"
    '<ETag>(?:"|&quot;|&#34;)([0-9a-f-]{1,256}+)(?:"|&quot;|&#34;)</ETag>'
    "(?:<ChecksumAlgorithm>[0-9A-Z]++</ChecksumAlgorithm>)?+(?:<ChecksumType>[A-Z_]++</ChecksumType>)?+"
    "<Size>([0-9]{1,16}+)</Size>(?:<StorageClass>[A-Z_]++</StorageClass>)?+</Contents>"
)
# A tag that may be longer than TAG_BYTES_MAX; it contains no `<`, so that matching takes linear time.
_LONG_TAG = re.compile(rb"""<(?![!?])(?=[^<]{%d})(?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+""" % TAG_BYTES_MAX)
_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|\r")
_NEEDS_ENTITY = re.compile(r"[\t\n&<>\"]")
_ETAG = re.compile(r"[\x21\x23-\x7e]{1,256}")
# Refusals that are answers to the caller: the condition failed, or the object does not exist.
_ANSWERS = frozenset({"PreconditionFailed", "NoSuchKey", "ConditionalRequestConflict", "NoSuchUpload", "NotModified"})
_THROTTLED = frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"})
_DENIED = frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden"})
_WHO = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "InvalidSecurity"})
_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "TemporaryRedirect", "Redirect"})
_FULL = frozenset({"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull"})
_BY_STATUS = {
    301: "PermanentRedirect", 307: "TemporaryRedirect", 304: "NotModified", 403: "AccessDenied", 404: "NoSuchKey",
    409: "ConditionalRequestConflict", 412: "PreconditionFailed", 507: "InsufficientStorage",
}  # fmt: skip
_CODE = re.compile(rb"<Code>([^<]{1,120}+)</Code>")
_PLAIN = re.compile(r"[\w.-]{1,80}", re.ASCII)  # the part of the store's text that is shown
_Raw = Callable[[str], bytes]  # decodes a key
_Row = tuple[str, str, str, str]  # key, time, tag and size of an entry in the usual format


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One object of a listing, by its whole raw key in the bucket."""

    key: bytes
    size: int
    etag: str
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class ListedPage:
    """One page of a listing: objects, and folders before a delimiter; `token` while there are more."""

    objects: tuple[ListedObject, ...]
    folders: tuple[bytes, ...]
    token: str | None


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that is neither completed nor aborted."""

    key: bytes
    id: str
    begun_at: datetime


@dataclass(frozen=True, slots=True)
class DeleteRefusal:
    """Why one key of a batch was not deleted."""

    key: bytes
    code: str


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """One version of an object, or a delete marker; `latest`: the one that readers get."""

    key: bytes
    id: str
    etag: str
    marker: bool
    latest: bool


def parse_versions(body: bytes, where: str) -> tuple[tuple[KeptVersion, ...], tuple[str, str] | None]:
    """A page of ListObjectVersions, and the markers of the next one."""
    root = _tree(body, "ListVersionsResult", where)
    raw = _raw(root)
    with _parsing("a list of versions", where):
        found = tuple(
            KeptVersion(
                raw(_text(each, "Key")),
                _text(each, "VersionId"),
                etag_of(_text(each, "ETag")),
                _name(each) == "DeleteMarker",
                _text(each, "IsLatest") == "true",
            )
            for each in root
            if _name(each) in ("Version", "DeleteMarker")
        )
        return found, _markers(root, raw, "NextVersionIdMarker")


def parse_versioning(body: bytes, where: str) -> str:
    """Whether a bucket keeps versions: `Enabled`, `Suspended`, or nothing if it never did."""
    return _text(_tree(body, "VersioningConfiguration", where), "Status")


def parse_listing(body: bytes, where: str, *, bucket: str = "", prefix: bytes = b"") -> ListedPage:
    """A page of ListObjectsV2 of this bucket and prefix, if they are named."""
    root, usual = _without_usual(body, where)
    raw = _raw(root)
    with _parsing("a listing", where):
        if bucket and (_text(root, "Name") or bucket) != bucket and not bucket.endswith("-s3alias"):
            raise ValueError("another bucket's")
        found = ListedPage(
            tuple(
                _listed(root, raw)
                if usual is None
                else [ListedObject(raw(key), parse_size(size), tag, parse_instant(at)) for key, at, tag, size in usual]
            ),
            tuple([raw(_text(each, "Prefix")) for each in _all(root, "CommonPrefixes")]),
            _text(root, "NextContinuationToken") if _truncated(root) else None,
        )
        if found.token == "":
            raise ValueError("no token for the next page")
        if not all(each.key.startswith(prefix) for each in found.objects):
            raise ValueError("a key outside the prefix")
        if not all(each.startswith(prefix) and each.endswith(b"/") for each in found.folders):
            raise ValueError("a folder outside the prefix")
        return found


def _without_usual(body: bytes, where: str) -> tuple[ElementTree.Element, Iterable[_Row] | None]:
    """A listing, and its entries separately if all of them have the usual form and are adjacent: a pattern takes a
    third of the time of a tree. `<Contents/>` replaces them, to check that they were directly below the root, and in no
    comment."""
    _check_size(body, "ListBucketResult", where)
    head, *rows = _ENTRY.split(body.decode("latin-1"))
    if rows and not any(rows[4:-1:5]):
        root = _tree(f"{head}<Contents/>{rows[-1]}".encode("latin-1"), "ListBucketResult", where)
        if len(_all(root, "Contents")) == 1:
            return root, zip(rows[::5], rows[1::5], rows[2::5], rows[3::5], strict=True)
    return _tree(body, "ListBucketResult", where), None


def _listed(root: ElementTree.Element, raw: _Raw) -> list[ListedObject]:
    """The objects of any other listing."""
    names = [_beside(root, name) for name in ("Key", "Size", "ETag", "LastModified")]
    found = []
    for each in _all(root, "Contents"):
        key, size, tag, at = map(each.findtext, names)
        if not key or size is None or tag is None or at is None:
            raise ValueError("an entry without key, size, tag or time")
        if _USUAL.fullmatch(tag):
            tag = tag[1:-1]
        elif (tag := etag_of(tag)) and not is_etag(tag):  # a folder that is listed like an object has no tag
            raise ValueError("not an entity tag")
        found.append(ListedObject(raw(key), parse_size(size), tag, parse_instant(at)))
    return found


def parse_refusals(body: bytes, where: str) -> tuple[DeleteRefusal, ...]:
    """The keys that DeleteObjects did not delete."""
    root = _tree(body, "DeleteResult", where)
    return tuple(DeleteRefusal(_text(each, "Key").encode(), _text(each, "Code")) for each in _all(root, "Error"))


def parse_uploads(body: bytes, where: str) -> tuple[tuple[Upload, ...], tuple[str, str] | None]:
    """A page of open uploads, and the markers of the next one."""
    root = _tree(body, "ListMultipartUploadsResult", where)
    raw = _raw(root)
    with _parsing("a list of uploads", where):
        found = tuple(
            Upload(raw(_text(each, "Key")), _text(each, "UploadId"), parse_instant(_text(each, "Initiated")))
            for each in _all(root, "Upload")
        )
        return found, _markers(root, raw, "NextUploadIdMarker")


def parse_text(body: bytes, root: str, name: str, where: str) -> str:
    """The text of one required element below the root."""
    found = _text(_tree(body, root, where), name)
    if not found:
        raise _invalid(f"a {root} without {name}", where)
    return found


def deletion(keys: Sequence[tuple[bytes, str]]) -> bytes:
    """The body of DeleteObjects; ValueError for a key that XML cannot contain."""
    parts = []
    for key, etag in keys:
        text = key.decode("utf-8")
        if not is_xml_text(text):
            raise ValueError("a key that XML cannot contain")
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


def copy_source(bucket: str, key: bytes, version: str = "") -> str:
    """The header that names the source of a copy."""
    return f"/{bucket}/{quote_from_bytes(key, safe='-_.~/')}" + f"?versionId={quote(version)}" * bool(version)


def is_xml_text(text: str) -> bool:
    """Whether XML 1.0 preserves this text."""
    return _NOT_XML.search(text) is None


def parse_instant(text: str) -> datetime:
    """An instant in the format of listings, in UTC; ValueError if invalid, or outside the years 1970 to 8999."""
    return _in_utc(datetime.fromisoformat(text))


def parse_date(text: str) -> datetime:
    """An instant in the format of headers, in UTC; ValueError if invalid, or outside the years 1970 to 8999."""
    try:
        return _in_utc(parsedate_to_datetime(text))
    except (TypeError, IndexError, OverflowError) as why:
        raise ValueError("not a date") from why


def _in_utc(at: datetime) -> datetime:
    if not 1970 <= at.year < 9000:  # far enough from the ends of the calendar that sums with durations stay inside
        raise ValueError("a year out of range")
    if at.tzinfo is UTC:
        return at
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def parse_size(text: str) -> int:
    """A number of bytes; ValueError if it is not a possible size."""
    size = int(text)
    if not 0 <= size < SIZE_MAX:
        raise ValueError("a size out of range")
    return size


def etag_of(text: str) -> str:
    """An entity tag without its quotes."""
    return text.strip().removeprefix("W/").strip('"')


def is_etag(version: str) -> bool:
    """Whether this can be a store's tag; other texts are never sent."""
    return _ETAG.fullmatch(version) is not None


def _escape(text: str) -> str:
    return _NEEDS_ENTITY.sub(lambda found: f"&#{ord(found[0])};", text)


def _raw(root: ElementTree.Element) -> _Raw:
    """The decoder of the keys of an answer."""
    return _unquoted if _text(root, "EncodingType") == "url" else _encoded


def _unquoted(text: str) -> bytes:
    if "%" not in text and "+" not in text:
        return _encoded(text)
    if len(text) > 3 * KEY_BYTES_MAX:
        raise ValueError("a key that is too long")
    return unquote_to_bytes(text.replace("+", " "))


def _encoded(text: str) -> bytes:
    if len(text) > KEY_BYTES_MAX:
        raise ValueError("a key that is too long")
    return text.encode()


class _parsing:
    """Turns errors in an answer into StoreBroken."""

    def __init__(self, what: str, where: str) -> None:
        self._what, self._where = what, where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, ValueError | OverflowError):
            raise _invalid(f"{self._what} that is invalid ({str(error)[:80]!r})", self._where) from None


def _check_size(body: bytes, root: str, where: str) -> None:
    markup = body.count(b"<") + body.count(b'"') + body.count(b"'")
    # Without null bytes it is not UTF-16, in which the parser would accept a document type that this check misses.
    if len(body) > XML_BYTES_MAX or markup > XML_MARKUP_MAX or b"<!DOCTYPE" in body or b"\0" in body:
        raise _invalid(f"a {root} that is too large, has a document type, or is not in UTF-8", where)
    if any(len(tag[0]) > TAG_BYTES_MAX for tag in _LONG_TAG.finditer(body)):
        raise _invalid(f"a {root} with a tag of more than {TAG_BYTES_MAX} bytes", where)


def _tree(body: bytes, root: str, where: str) -> ElementTree.Element:
    _check_size(body, root, where)
    parser = ElementTree.XMLParser(encoding="utf-8")
    try:
        parser.feed(body)
        found = parser.close()
    except ElementTree.ParseError:
        raise _invalid(f"something else than {root}", where) from None
    if not isinstance(found, ElementTree.Element) or _name(found) != root:
        raise _invalid(f"something else than {root}", where)
    return found


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _all(element: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return element.findall(_beside(element, name))


def _text(element: ElementTree.Element, name: str) -> str:
    return element.findtext(_beside(element, name)) or ""


def _beside(element: ElementTree.Element, name: str) -> str:
    space, brace, _ = element.tag.rpartition("}")
    return space + brace + name


def _truncated(root: ElementTree.Element) -> bool:
    said = _text(root, "IsTruncated").strip()
    if said not in ("true", "false"):
        raise ValueError("IsTruncated is missing")
    return said == "true"


def _markers(root: ElementTree.Element, raw: _Raw, name: str) -> tuple[str, str] | None:
    """Where the next page starts: a key, which is escaped like the others, and an id."""
    if not _truncated(root):
        return None
    return raw(_text(root, "NextKeyMarker")).decode("utf-8", "surrogateescape"), _text(root, name)


def _invalid(what: str, where: str) -> StoreBroken:
    return StoreBroken(f"{where} answered with {what}", do="check that the endpoint is an S3")


class S3Denied(StoreUnavailable):
    """The store refuses this request. A retry changes nothing, and nothing was changed."""


class Forbidden(S3Denied, OnlyReads):
    """The store does not allow this user the request."""


@dataclass(frozen=True, slots=True)
class S3Failure:
    """A reply that is not a success."""

    status: int
    code: str
    region: str = ""

    def error(self, address: S3Address, of_object: bool) -> WrasseError | None:
        """Our error for it; None if it is an answer to the caller."""
        where = str(address)
        if self.code == "NoSuchBucket" or (self.code == "NoSuchKey" and not of_object):
            return ConfigError(f"there is no bucket {address.bucket!r} at {where}", do="create it, or correct its name")
        if self.code in _ANSWERS:
            return None
        if self.code == "RequestTimeTooSkewed":
            return S3Denied(
                f"{where} refuses requests: this machine's clock is too far from the store's",
                do="set the clock, for example by NTP",
            )
        if self.code in _WHO:
            return ConfigError(
                f"{where} does not accept the credentials ({self.code})",
                do="check the access key, its secret and token",
            )
        if self.code in _REGION:
            hint = f"write region={self.region}" if self.region else "write its region= and endpoint= in the URL"
            return ConfigError(f"{where} is in another region or endpoint ({self.code})", do=hint)
        if self.code in _DENIED:
            return Forbidden(
                f"{where} denies access",
                do="check the credentials; allow s3:GetObject, PutObject, DeleteObject and ListBucket for these keys",
            )
        if self.code in _FULL:
            return StoreFull(f"{where} has no room left", do="free some space or raise the quota; nothing was changed")
        return self._usage(where)

    def _usage(self, where: str) -> WrasseError:
        if self.code in ("KeyTooLongError", "InvalidObjectName", "InvalidURI"):
            return UsageError(f"{where} cannot keep an object under this key", do="use a shorter or plainer key")
        if self.code in ("EntityTooLarge", "MetadataTooLarge", "RequestHeaderSectionTooLarge"):
            return TooLarge(f"{where} refuses the object or its metadata as too large", do="store less")
        return S3Denied(
            f"{where} refused a request with {self.status} {self.code}", do="see the store's documentation of this code"
        )


def failure_of(status: int, headers: Mapping[str, str], body: bytes) -> S3Failure | None:
    """The failure in a reply, if it is one."""
    if status < 300:
        return None
    region = headers.get("x-amz-bucket-region", "")
    return S3Failure(
        status, _code(body) or _BY_STATUS.get(status, "Unknown"), region if _PLAIN.fullmatch(region) else ""
    )


def _code(body: bytes) -> str:
    found = _CODE.search(body[:4096])
    code = found[1].decode("ascii", "replace").strip() if found else ""
    return code if _PLAIN.fullmatch(code) else ""


def unavailable(where: str, status: int, failure: S3Failure | None) -> StoreUnavailable:
    """The error of a store that is temporarily unavailable."""
    code = failure.code if failure is not None else "Unknown"
    if code in _THROTTLED or status == 429:
        return StoreUnavailable(f"{where} throttles us ({code})", do="send fewer requests, or raise its limits")
    return StoreUnavailable(f"{where} is temporarily unavailable ({status} {code})", do="nothing: it is tried again")


def failure_in(body: bytes) -> S3Failure | None:
    """The failure in the body of a success, which some calls send before they are done."""
    if b"<Error>" not in body[:512]:
        return None
    return S3Failure(200, _code(body) or "Unknown")
