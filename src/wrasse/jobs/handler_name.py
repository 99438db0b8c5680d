"""What a handler is named by: a `module:name`, imported with the working directory importable, or a URL that jobs are
posted to. Every mistake has an error text.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from urllib.parse import urlsplit

from wrasse.errors import UnknownName, UsageError

_SCHEMES = ("http://", "https://")


def load_named(text: str, what: str, *, example: str) -> object:
    """The object that `text` names; `what` describes it in messages."""
    module_name, colon, path = text.partition(":")
    if not (module_name and colon and path):
        raise UsageError(f"the {what} {text!r} is not of the form module:name", do=f"write e.g. {example}")
    found: object = _module(module_name, f"{what} {text!r}")
    where = module_name
    for name in path.split("."):
        if not hasattr(found, name):
            known = [known for known in dir(found) if not known.startswith("_")]
            raise UnknownName(name, known, what=what, where=where)
        found, where = getattr(found, name), f"{where}.{name}"
    return found


def _module(name: str, named: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            known = (file.stem for file in Path.cwd().glob("*.py"))
            do = "write the name of a file of this directory without .py, or of a package that is installed"
            raise UnknownName(missing, known, what="module", where=named, do=do) from None
        raise UsageError(
            f"the module of {named} imports {missing!r}, which is not installed", do="install it here"
        ) from error
    except Exception as error:
        raise UsageError(
            f"the module of {named} cannot be imported: {type(error).__name__}: {error}",
            do=f"make `python -c 'import {name}'` work",
        ) from error


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
