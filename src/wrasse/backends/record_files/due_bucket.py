"""Due buckets: the bucket of an instant, and the list of existing buckets. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from wrasse.bounded import decoded
from wrasse.clock import EPOCH
from wrasse.errors import UsageError

_FORMS = (
    (timedelta(hours=1), "%Y%m%d%H"),
    (timedelta(minutes=1), "%Y%m%d%H%M"),
    (timedelta(seconds=1), "%Y%m%d%H%M%S"),
)
_SOME_BUCKET = re.compile(r"\d{10}(\d\d){0,2}", re.ASCII).fullmatch  # of any width
_decode = msgspec.json.Decoder(list[str]).decode


class DueBuckets:
    """Maps instants to buckets; pure. A bucket is named for its beginning, as short as the width allows."""

    def __init__(self, width: timedelta) -> None:
        form = next((form for unit, form in _FORMS if width > timedelta(0) and width % unit == timedelta(0)), None)
        if form is None:
            raise UsageError(f"buckets of {width.total_seconds()} s", do="use whole seconds, minutes or hours")
        self._form = form
        self._width = width
        self._last = (-1, "")  # a cache of the last bucket and its name: consecutive calls mostly need the same one

    def due_bucket(self, due_at: datetime) -> str:
        """The bucket of this instant."""
        number = (due_at - EPOCH) // self._width
        last, name = self._last
        if number != last:
            name = (EPOCH + number * self._width).strftime(self._form)
            self._last = (number, name)
        return name

    def is_over(self, due_bucket: str, horizon: datetime) -> bool:
        """Whether everything in the bucket is due at the horizon."""
        return horizon - self.begin(due_bucket) >= self._width

    def is_one(self, due_bucket: str) -> bool:
        """Whether this is a name that `due_bucket` returns."""
        try:
            return self.due_bucket(self.begin(due_bucket)) == due_bucket
        except (ValueError, OverflowError):
            return False

    def begin(self, due_bucket: str) -> datetime:
        """The first instant of a bucket."""
        return datetime.strptime(due_bucket, self._form).replace(tzinfo=EPOCH.tzinfo)

    def parse(self, packed: bytes) -> list[str] | None:
        """The list of buckets in these bytes, in order; None if they are no list, which is then made again from the
        folders of the buckets, and ValueError if it is a list of another width, whose folders would not be found."""
        try:
            listed = decoded(_decode, packed)
        except ValueError:
            return None
        strange = [each for each in listed if not self.is_one(each)]
        if any(_SOME_BUCKET(each) for each in strange):
            raise ValueError("not the buckets of this width")
        return None if strange else sorted(listed)

    def pack(self, listed: Sequence[str]) -> bytes:
        """The bytes of a list of buckets."""
        return msgspec.json.encode(listed)
