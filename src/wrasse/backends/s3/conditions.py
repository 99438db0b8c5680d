"""Which conditions a store honours: found out by the probe in `connect.py`."""

from __future__ import annotations

from dataclasses import dataclass

from wrasse.errors import Refused

PROBES = b".wrasse-probe/"  # below the prefix: reserved, hidden from listings; emptied at each probe


@dataclass(frozen=True, slots=True)
class Conditions:
    """Each field is one kind of condition, or another property of the store."""

    create: bool = True  # a second create at a key is refused
    replace: bool = True  # a write that names an old version is refused
    delete: bool = True  # a delete that names an old version is refused
    batch_delete: bool = True  # and so is each key of a batch of deletes
    multipart: bool = True  # a large object is completed under a condition
    ordered: bool = True  # listings are in the byte order of the keys
    raw_keys: bool = True  # keys are stored unchanged, also `a//b`

    def check(self, where: str) -> None:
        """Refuses a store without the necessary conditions."""
        missing = [name for name in ("create", "replace", "delete") if not getattr(self, name)]
        if missing:
            raise Refused(
                f"{where} ignores the condition of a {' and of a '.join(missing)}, so two writers would both win",
                do="use a store that honours If-None-Match and If-Match: AWS S3, SeaweedFS, MinIO, Ceph, R2",
            )

    def check_large(self, where: str) -> None:
        """Refuses a large object that could overwrite another's."""
        if not self.multipart:
            raise Refused(
                f"{where} ignores conditions when a large object is completed", do="write smaller objects to this store"
            )

    def __str__(self) -> str:
        listing = "ordered" if self.ordered else "by folder"
        batches = "in batches" if self.batch_delete else "one by one"
        keys = "raw keys" if self.raw_keys else "plain keys only"
        large = "large objects" if self.multipart else "no large objects"
        return f"conditional create, replace and delete ({batches}), {large}, listing {listing}, {keys}"


ALL = Conditions()
