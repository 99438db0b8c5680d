"""A key that the store holds back, by a lock or a policy, keeps no other from going."""

from __future__ import annotations

from backends.s3.scene import once, scene
from servers.strict_s3 import DENIED
from wrasse.ports.objects import ObjectDelete
from wrasse.ports.outcome import Outcome

HELD, OTHER = "held\x01", "other\x01"  # no batch can name them


async def test_one_delete_that_is_denied_does_not_stop_the_others() -> None:
    async with scene() as now:
        objects = now.backend.objects
        made = [await objects.create(key, b"x") for key in (HELD, OTHER)]
        now.server.plan = once(DENIED, "DELETE", part=HELD.encode())
        asked = [ObjectDelete(key, each.version or "") for key, each in zip((HELD, OTHER), made, strict=True)]
        assert await objects.delete(asked) == [Outcome.FAILED, Outcome.DONE]
        assert await objects.head(HELD) is not None
