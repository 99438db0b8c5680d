"""Redaction: removes passwords, tokens and keys from any text for people or logs.

Two methods are combined. Secrets in the settings are stored when they are read, and removed from every text, including
errors of drivers. Other secrets are found by their form: the login of a URL, `password=…`, bearer tokens, seeds of
nkeys, JWTs, keys of AWS. The end of a login in a text is not certain, since a password may contain spaces, slashes and
`@`: everything up to the last `@` is removed. Rather too much is hidden than too little.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from urllib.parse import quote, quote_plus, unquote, unquote_plus

MASK = "***"
KNOWN_MAX = 1_000  # secrets that one process stores
LENGTH_MIN = 8  # a shorter one may be an ordinary word; it is found by its form only
_NAMES = (
    r"(?:\w*(?:password|passwd|passphrase|secret)\w*|pwd|pass|(?:\w*[_-])?(?:token|auth|signature|key_id)"
    r"|\w*(?:access|secret|api|account|private)[_-]?key(?:_id)?|authorization|(?:set-)?cookie|sig)"
)
_QUOTED = r"""[bru]{0,2}(?:"(?:[^"\\]|\\.|"")*+"|'(?:[^'\\]|\\.|'')*+')"""  # as Python, JSON, YAML and SQL write a text
_FIELD = re.compile(
    rf"(?is)\b({_NAMES}[\"']?\s*[=:]\s*)({_QUOTED}|(?:bearer|basic|digest)\s+[^\s,;]+|[^\s&;,)\"'}}\]]+)"
)
_FLAG = re.compile(rf"(?i)((?<!\S)--(?:[a-z]+-)*(?:password|secret|(?:api|access)-key)[\s=]+)({_QUOTED}|\S+)")
_QUERY = re.compile(rf"(?i)([?&](?:{_NAMES}|key)=)[^&\s]*")
_FORMS = re.compile(
    r"(?i:\bbearer(?:\s|%20)+)[^\s,;'\"]{6,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----END)[\s\S])*+"
    r"|\bS[UAONCXP][A-Z2-7]{40,}"  # the seed of an nkey
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"  # a JWT
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
)
_TOKENS = ("nats", "tls")  # URLs in which a login without a colon is a token, not a user
_NO_LOGIN = ("s3:", "file:", "sqlite:")  # URLs whose path may contain an @
_BUCKET_LOGIN = re.compile(r"(?<=s3://)[^/\s?]*@")
_BARE_LOGIN = re.compile(r"(?<![^\s'\"(])[^\s/:@'\"]+:(?!/)\S*@")
_SECRET_NAME = re.compile(rf"(?i){_NAMES}")
_known: set[str] = set()


def remember(value: object, *, secret: bool = False) -> None:
    """Stores the secrets of a setting's value: all of it if it is `secret`, else the logins of URLs in it."""
    if isinstance(value, str):
        found = [value, value.rpartition(" ")[2]] if secret else _in_url(value)
        for each in found:
            for form in (each, unquote(each), unquote_plus(each), quote(each, safe=""), quote_plus(each)):
                if len(form) >= LENGTH_MIN and len(_known) < KNOWN_MAX:
                    _known.add(form)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            remember(each, secret=secret or bool(_SECRET_NAME.fullmatch(str(name))))
    elif isinstance(value, tuple | list):
        for each in value:
            remember(each, secret=secret)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            remember(getattr(value, field.name), secret=secret or bool(_SECRET_NAME.fullmatch(field.name)))


def hide(text: str) -> str:
    """The text without secrets."""
    for each in sorted((known for known in _known if known in text), key=len, reverse=True):
        text = text.replace(each, MASK)
    text = _BUCKET_LOGIN.sub(f"{MASK}@", text)
    if (start := _login(text)) >= 0:
        text = f"{text[:start]}{MASK}{text[text.rindex('@') :]}"
    text = _BARE_LOGIN.sub(f"{MASK}@", text)
    return _FORMS.sub(MASK, _QUERY.sub(rf"\1{MASK}", _FLAG.sub(rf"\1{MASK}", _FIELD.sub(rf"\1{MASK}", text))))


def _login(text: str) -> int:
    """The start of the login of the first URL that may have one; -1 if there is none."""
    start, end = text.find("//"), text.rfind("@")
    while 0 <= start < end:
        if not text[:start].endswith(_NO_LOGIN):
            return start + 2
        start = text.find("//", start + 2)
    return -1


def _in_url(text: str) -> list[str]:
    """Password or token, and secret parameters, of a URL."""
    scheme, colon, rest = text.partition("://")
    found = [each[1] for each in re.finditer(rf"(?i)[?&]{_NAMES}=([^&]*)", text)]
    login, at, _ = rest.rpartition("@")
    if colon and at and scheme + ":" not in _NO_LOGIN:
        user, _, password = login.partition(":")
        found.append(password or (user if scheme in _TOKENS else ""))
    return found
