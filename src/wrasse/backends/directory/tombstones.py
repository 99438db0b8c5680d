"""The last writes to keys whose record was deleted, so that a retry after a lost reply stays safe.

One small file for each of 256 groups of keys, the same groups as the locks: it is read and replaced under the key's
lock. Each keeps the newest GONE_MAX deleted keys, and whether older ones were dropped. A file that cannot be read
counts as if all were dropped: then the answer is `unknown`, which is true.
"""

from __future__ import annotations

import hashlib

import msgspec

from wrasse.backends.directory.files import Files
from wrasse.backends.directory.names import WORKPLACE
from wrasse.backends.directory.temp_files import TempFiles
from wrasse.backends.record_files.envelope import LastWrites, Write

FOLDER = WORKPLACE + b"/gone"
GONE_MAX = 40


class _Key(msgspec.Struct):
    hash: str
    writes: list[Write]
    whole: bool


class _KeyGroup(msgspec.Struct):
    forgot: bool = False
    keys: list[_Key] = []  # oldest first


_decode = msgspec.json.Decoder(_KeyGroup).decode


class Tombstones:
    """The last writes to keys without a record. The caller holds the key's lock."""

    def __init__(self, files: Files, temp_files: TempFiles) -> None:
        self._files = files
        self._temp_files = temp_files

    def writes(self, path: bytes) -> LastWrites:
        """The last writes to the record that had this path."""
        hash, group = _hash(path), self._load(_file(path))
        for key in group.keys:
            if key.hash == hash:
                return LastWrites(tuple(key.writes), key.whole)
        return LastWrites(whole=not group.forgot)

    def keep(self, path: bytes, writes: LastWrites) -> None:
        """Stores them on disk."""
        hash, file = _hash(path), _file(path)
        group = self._load(file)
        keys = [*(key for key in group.keys if key.hash != hash), _Key(hash, list(writes.kept), writes.whole)]
        kept = _KeyGroup(group.forgot or len(keys) > GONE_MAX, keys[-GONE_MAX:])
        with self._temp_files.small_file(msgspec.json.encode(kept), renamed=True) as temp_file:
            self._files.rename(temp_file.path, file)
            self._files.sync_folder(FOLDER)

    def _load(self, file: bytes) -> _KeyGroup:
        packed = self._files.load(file)
        if packed is None:
            return _KeyGroup()
        try:
            return _decode(packed)
        except ValueError:
            return _KeyGroup(forgot=True)


def _hash(path: bytes) -> str:
    return hashlib.sha256(path).hexdigest()


def _file(path: bytes) -> bytes:
    return FOLDER + b"/" + _hash(path)[:2].encode() + b".json"
