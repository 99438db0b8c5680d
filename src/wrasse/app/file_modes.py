"""Doctor's look at modes: which files that hold payloads or secrets may be read by other users of this machine.

wrasse makes files with mode 0600 and directories with 0700. Those that are there already keep the mode they have, since
somebody may rely on it; here is said which are open to everybody, and the chmod that closes them.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from wrasse.app.config import Config
from wrasse.app.shown import has_secrets
from wrasse.app.store_url import StoreUrl
from wrasse.ports.finding import OK, WARN, Finding

_DATABASE = ("", "-wal", "-shm")


def mode_findings(config: Config, stores: Iterable[StoreUrl]) -> Iterator[Finding]:
    """Every path of this configuration that is open to all users; one line if none is."""
    files, folders = set[str](), {each.spool for each in config.settings.orphans.values()}
    for store in stores:
        if store.scheme == "sqlite":
            files |= {store.path + ending for ending in _DATABASE}
        elif store.scheme == "file":
            folders.add(store.path)
    wide = [path for path in sorted(files) if _mode(path) & stat.S_IRWXO]
    entered = [path for path in sorted(folders) if _mode(path) & stat.S_IRWXO]
    told = config.file is not None and has_secrets(config) and _mode(config.file) & stat.S_IRWXO
    if wide:
        names = shlex.join(wide)
        yield Finding(
            "modes", WARN, f"every user of this machine may read {names}: payloads are in it", f"chmod 600 {names}"
        )
    for path in entered:
        name = shlex.quote(path)
        do = f"chmod 700 {name}; for a group of readers: chgrp GROUP {name} && chmod 2750 {name}"
        yield Finding("modes", WARN, f"every user of this machine may look into {name} (mode {_mode(path):04o})", do)
    if told and config.file is not None:
        name = shlex.quote(str(config.file))
        yield Finding(
            "modes", WARN, f"every user of this machine may read {name}, and it holds secrets", f"chmod 600 {name}"
        )
    if (files or folders) and not (wide or entered or told):
        yield Finding("modes", OK, "files and directories are closed to other users of this machine")


def _mode(path: str | Path) -> int:
    """The permissions; 0 for what is not there."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return 0
