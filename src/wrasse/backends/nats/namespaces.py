"""Namespaces on NATS: a message per namespace, written before its first key, and never taken away."""

from __future__ import annotations

from wrasse.backends.nats.kv_bucket import Bucket
from wrasse.backends.nats.kv_names import namespace_subject, text_of
from wrasse.ports.namespaces import META, in_order, namespace_of
from wrasse.ports.page import Page


class NatsNamespaces:
    """The port."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def page(self, after: str | None, limit: int) -> Page[str]:
        subjects, at = await self._bucket.subjects(namespace_subject(self._bucket.root, "*"))
        texts = [text_of(each.rpartition(".")[2]) for each in subjects]
        names = [name for name in texts if name is not None and namespace_of(name + META)]
        start = "" if after is None else in_order(after)
        left = sorted((name for name in names if in_order(name) > start), key=in_order)
        shown = tuple(left[:limit])
        return Page(shown, shown, at, more=len(left) > limit)
