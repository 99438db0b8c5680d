"""The query of a store's URL: options by name, each once.

A password that is not percent-encoded may end up here (`redis://me:pa?ss@host`), so an error shows only what has the
form of an option.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl

from wrasse.errors import ConfigError

_OPTION = re.compile(r"[a-z_]{1,40}=.*", re.DOTALL)
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parse_query(query: str, known: Collection[str], what: str) -> dict[str, str]:
    """The options in the query of the URL of `what`."""
    given: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name = part.partition("=")[0]
        if not _OPTION.fullmatch(part):
            raise ConfigError(
                f"the URL of {what} has a part behind its ? that is not an option",
                do="write name=value; in a password write %3F for ?, %26 for & and %40 for @",
            )
        if name not in known:
            raise ConfigError(
                f"the URL of {what} has no {name!r}", do=f"use one of: {', '.join(sorted(known))}; or remove it"
            )
        if name in given:
            raise ConfigError(f"the URL of {what} has {name!r} twice", do="keep one of them")
        given |= parse_qsl(part, keep_blank_values=True)
    return given


def flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """An option that is true or false. Anything else is refused: a typing error must not switch TLS checks off."""
    text = given.get(name)
    if text is None:
        return default
    if text.lower() not in _FLAGS:
        raise ConfigError(f"{name} in the URL is neither true nor false", do=f"write {name}=true or {name}=false")
    return _FLAGS[text.lower()]
