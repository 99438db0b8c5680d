"""Commands are typed in a directory of their own."""

from __future__ import annotations

from app.conftest import place

__all__ = ["place"]
