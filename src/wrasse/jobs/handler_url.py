"""URLs in the place of a handler: which text is a URL, and which URLs are valid. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

from wrasse.errors import UsageError

_SCHEMES = ("http://", "https://")


def is_url(text: str) -> bool:
    """Whether this is a URL that jobs can be posted to, rather than a `module:name`."""
    return text.lower().startswith(_SCHEMES)


def check_url(text: str) -> None:
    """Refuses URLs that cannot be posted to, and secrets in a URL, which would be displayed."""
    try:
        parts = urlsplit(text)
        usable = is_url(text) and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError("the URL of a handler cannot be read", do="write e.g. https://worker.example/jobs/resize")
    if "@" in parts.netloc:
        raise UsageError(
            f"the URL of a handler on {parts.hostname} has a user or a password",
            do="set worker.http.authorization instead, which is never displayed",
        )
