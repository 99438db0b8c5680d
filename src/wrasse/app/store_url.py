"""A store is a URL; this is what the URL means, and how it is shown without its secrets.

`sqlite:wrasse.db` is relative to the working directory, three slashes are absolute, `memory:` lives and dies with the
process. Schemes that wrasse knows of but this version does not have are refused by name, not as a typing error.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from wrasse.errors import ConfigError

HERE = ("sqlite", "memory")
OBJECTS_HERE = ("file", "memory")
ELSEWHERE = ("redis", "rediss", "redis+streams", "nats", "postgresql", "s3", "file", "az", "gs")
_USERINFO = re.compile(r"(?<=//)[^/\s]*@|(?<![^\s'\"(])[^\s/:@'\"]+:[^\s/]*@")
_QUERY_SECRET = re.compile(r"(?i)([?&](?:password|secret|token|key|access_key|secret_key)=)[^&\s]*")


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """One store. `path` is the file of an sqlite store, or the directory of a file store."""

    scheme: str
    path: str = ""

    def __str__(self) -> str:
        slashes = "//" if self.path.startswith("/") else ""
        return f"{self.scheme}:{slashes}{self.path}"

    def resolved(self) -> StoreUrl:
        """The same store, whatever the working directory becomes."""
        return self if self.scheme == "memory" else StoreUrl(self.scheme, str(Path(self.path).absolute()))


def parse_store(text: str) -> StoreUrl:
    """Turns a URL into a StoreUrl; says what is wrong with it without showing its secrets."""
    scheme, colon, rest = text.partition(":")
    if not colon or not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        raise ConfigError(
            f"{hide(text)!r} is not the URL of a store", do="write sqlite:wrasse.db, sqlite:///absolute/path or memory:"
        )
    if scheme in ELSEWHERE:
        raise ConfigError(f"this version has no {scheme} backend", do="use sqlite:wrasse.db")
    if scheme not in HERE:
        near = difflib.get_close_matches(scheme, HERE, n=1)
        raise ConfigError(
            f"there is no backend {scheme!r}",
            do=f"write {near[0]}:{rest}" if near else "write sqlite:wrasse.db or memory:",
        )
    return StoreUrl("sqlite", _path(scheme, rest)) if scheme == "sqlite" else StoreUrl("memory", rest)


def parse_objects(text: str) -> StoreUrl:
    """The same for a store of objects, such as archives."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "memory":
        return StoreUrl(scheme, rest)
    if colon and scheme == "file":
        return StoreUrl(scheme, _path(scheme, rest.rstrip("/") or rest))
    if colon and scheme in ELSEWHERE:
        raise ConfigError(f"this version keeps no objects in {scheme}", do="use file:wrasse-data")
    raise ConfigError(
        f"{hide(text)!r} is not the URL of a store of objects", do="write file:wrasse-data or file:///absolute/path"
    )


def _path(scheme: str, rest: str) -> str:
    example = {"sqlite": "wrasse.db", "file": "wrasse-data"}[scheme]
    if rest.startswith("//"):
        rest = rest[2:]
        if not rest.startswith("/"):
            raise ConfigError(
                f"{scheme}://{rest} has two slashes",
                do=f"write {scheme}:{rest} (relative) or {scheme}:///{rest} (absolute)",
            )
    if not rest or rest.endswith("/") or "\0" in rest:
        raise ConfigError(f"the {scheme} URL names no file", do=f"write {scheme}:{example}")
    return rest


def hide(text: str) -> str:
    """The text without the user and password of any URL in it."""
    return _QUERY_SECRET.sub(r"\1***", _USERINFO.sub("***@", text))
