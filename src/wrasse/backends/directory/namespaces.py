"""Namespaces of a directory: the directories at its root that hold records of keys."""

from __future__ import annotations

from wrasse.backends.directory.files import Files
from wrasse.backends.directory.names import folder_path
from wrasse.backends.directory.threads import Threads
from wrasse.clock import Clock
from wrasse.ports.namespaces import META, namespace_of, page_of
from wrasse.ports.page import Page


class DirectoryNamespaces:
    """The port."""

    def __init__(self, threads: Threads, files: Files, clock: Clock) -> None:
        self._threads, self._files, self._clock = threads, files, clock

    async def page(self, after: str | None, limit: int) -> Page[str]:
        return page_of(await self._threads.run(self._found), after, limit, self._clock.now())

    def _found(self) -> list[str]:
        names = []
        for raw, is_folder in self._files.names(b"."):
            name = raw.decode("utf-8", "surrogateescape")
            if is_folder and namespace_of(name + META) and self._files.state(folder_path(name + META)) is not None:
                names.append(name)
        return names
