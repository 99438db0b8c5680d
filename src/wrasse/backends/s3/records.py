"""Records as objects in a bucket: `<data>/<stored name>`, found when due through `<index>/<bucket>/<stored name>`.

The port's promises hold between processes on any hosts and through lost replies; `record_objects.py` says how. A write
asked again is answered as before for as long as the record is there, and for an hour after it was deleted.
"""

from __future__ import annotations

from wrasse.backends.bucket.envelope import Kept
from wrasse.backends.bucket.named_records import BucketRecords
from wrasse.backends.s3.client import Client
from wrasse.backends.s3.conditions import Conditions
from wrasse.backends.s3.listing import Lister, nameable
from wrasse.backends.s3.record_objects import RecordObjects, stored_of
from wrasse.errors import UsageError
from wrasse.ports.records import Collection, Record


class S3Records(BucketRecords):
    """The port, for one collection."""

    def __init__(self, client: Client, conditions: Conditions, prefix: bytes, collection: Collection) -> None:
        records = RecordObjects(client, Lister(client, ordered=conditions.ordered), prefix, collection)
        super().__init__(records, collection.width, lambda: client.wire.time.now())
        self._where, self._raw_keys = client.where, conditions.raw_keys

    def _check_name(self, name: bytes) -> None:
        if not self._raw_keys and not nameable(name) and name not in (b".", b".."):
            raise UsageError(
                f"{self._where} does not keep keys like this one as they are",
                do="use no backslash, and at most 255 bytes, counting % and / three times",
            )

    def _record(self, name: bytes, kept: Kept) -> Record:
        return super()._record(stored_of(name), kept)
