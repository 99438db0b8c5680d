"""What INFO says, as a map of texts."""

from __future__ import annotations

from collections.abc import Mapping


def sections(text: bytes) -> Mapping[str, str]:
    """The lines `name:value` of any number of INFO answers."""
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines() if not line.startswith("#"))
    return {name: value for name, colon, value in lines if colon}
