"""Attachments from and to files of this host, one chunk at a time, in threads outside the event loop."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import BinaryIO

from wrasse.errors import UsageError
from wrasse.ports.objects import CHUNK_BYTES


class FilePieces:
    """A file's bytes; iterating again reads from the beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            file = await asyncio.to_thread(self._path.open, "rb")
        except OSError as error:
            raise UsageError(
                f"{self._path.name} cannot be read: {error.strerror}", do="check the name of the file"
            ) from None
        try:
            while piece := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield piece
        finally:
            file.close()


async def write_file(path: Path, chunks: AsyncGenerator[bytes]) -> int:
    """Writes a temporary file and renames it over `path`, so that the file is complete or absent; returns its size."""
    size = 0
    file, name = _temp_file(path)
    try:
        with file:
            async with aclosing(chunks):
                async for chunk in chunks:
                    size += await asyncio.to_thread(file.write, chunk)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    return size


def _temp_file(path: Path) -> tuple[BinaryIO, str]:
    try:
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    except OSError as error:
        raise UsageError(f"{path.name} cannot be written: {error.strerror}", do="check the folder") from None
    return os.fdopen(number, "wb"), name
