"""What differs from run to run, replaced by names in the order of appearance; everything else stays byte for byte.

Random values are not guessed from their looks: `Issued` hands them out in a form that nothing else has, and so they are
known again. ULIDs, UUIDs and lockd's ids are known by their form. Instants of a server's own clock are told by how far
they are from the beginning of the scenario, to ten minutes: scenarios use lengths of time that are multiples of it.
"""

from __future__ import annotations

import itertools
import random
import re
import secrets
import threading
from datetime import UTC, datetime

import pytest

STEP_S = 600
NEAR_S = 40 * 86_400  # instants further away than this are no instants of a scenario
_ULID = r"(?P<ulid>(?<![0-9A-Z])01[0-9A-HJKMNP-TV-Z]{24}(?![0-9A-Za-z]))"
_UUID = r"(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![0-9a-f]))"
_XID = r"(?P<xid>(?<![0-9A-Za-z])[c-f][0-9a-v]{18}[0g](?![0-9A-Za-z]))"
_HEX = r"(?P<random>(?:(?<![0-9A-Za-z])|(?<=%3A))(?=[0-9a-f]{8})f0{3,}[0-9a-f]{1,4}(?![0-9A-Za-z]))"
# A file's time and inode are its version; times count on within a process, so that none is there twice.
_FILE = (
    r"(?P<file>(?<![0-9A-Za-z])[0-9a-f]{16}\.[0-9a-f]{1,12}(?![0-9A-Za-z])"
    r"|(?<=%m)[0-9a-f]{16}(?=\.)|(?<=\"stamp\": )\d{19})"
)
_SERVER = r"(?P<server>(?<=\"history\":\")[0-9a-f]{40} [0-9a-f]{40}(?=\"))"  # a Redis by its run and its replication
_RANDOM = re.compile("|".join((_FILE, _SERVER, _ULID, _UUID, _XID, _HEX)))
_ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)?"
_TIMES = re.compile(
    rf"(?P<iso>{_ISO})|(?<![0-9A-Za-z])(?P<turn>\d{{20}})(?![0-9A-Za-z])|"
    rf"(?<![0-9A-Za-z.])0{{0,5}}(?P<number>[12]\d{{9}}(?:\d{{3}}|\d{{6}}|\d{{9}})?)(?![0-9A-Za-z])"
)
_TURN_ZERO = 1 << 63  # turns are signed nanoseconds, written without a sign
_UNITS = {10: ("s", 1), 13: ("ms", 1_000), 16: ("us", 1_000_000), 19: ("ns", 1_000_000_000)}
_BUCKETS = re.compile(r"(?<![0-9A-Za-z])20\d{8}(?:\d\d)?(?![0-9A-Za-z])")


class Issued:
    """Stands in for the functions that wrasse draws random names from: `f0000001`, `f0000002`, ... of the right length,
    so that what is random is known again and sorts as it was drawn."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._lock, self._numbers = threading.Lock(), itertools.count(1)
        patch.setattr(secrets, "token_hex", lambda size: "f" + format(self._next(), f"0{2 * size - 1}x"))
        patch.setattr(secrets, "randbits", lambda bits: (1 << bits - 1) + (self._next() << max(0, bits // 2 - 8)))
        patch.setattr(random, "getrandbits", lambda bits: (0xF << bits - 4) + self._next())
        patch.setattr(secrets, "randbelow", lambda below: self._next() % below)

    def _next(self) -> int:
        with self._lock:
            return next(self._numbers)


class Placeholders:
    """One dump's names for what is random. `since` is when the scenario began, where its clock is a server's."""

    def __init__(self, since: datetime | None = None) -> None:
        self.named: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._since = since

    def __call__(self, text: str) -> str:
        text = _RANDOM.sub(self._name, text)
        if self._since is None:
            return text
        return _BUCKETS.sub(self._bucket, _TIMES.sub(self._time, text))

    def skeleton(self, text: str) -> str:
        """The text without what is random, to sort by."""
        text = _RANDOM.sub("*", text)
        return text if self._since is None else _BUCKETS.sub(self._bucket, _TIMES.sub(self._time, text))

    def _name(self, found: re.Match[str]) -> str:
        kind, value = found.lastgroup or "", found[0]
        if value not in self.named:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            length = f"{len(value)}-" if kind == "random" else ""
            self.named[value] = f"‹{kind}-{length}{self._counts[kind]}›"
        return self.named[value]

    def _time(self, found: re.Match[str]) -> str:
        if found["iso"]:
            at = datetime.fromisoformat(found["iso"])
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
            return self._ago(at.timestamp(), "time") or found[0]
        if found["turn"] and not found["turn"].startswith("0000"):
            return self._ago(abs(int(found["turn"]) - _TURN_ZERO) / 1_000_000_000, "turn") or found[0]
        if found["turn"]:
            return self._ago(int(found["turn"]) / 1_000_000, "us") or found[0]
        unit, parts = _UNITS[len(found["number"])]
        return self._ago(int(found["number"]) / parts, unit) or found[0]

    def _bucket(self, found: re.Match[str]) -> str:
        form = "%Y%m%d%H" if len(found[0]) == 10 else "%Y%m%d%H%M"
        try:
            at = datetime.strptime(found[0], form).replace(tzinfo=UTC)
        except ValueError:
            return found[0]
        return f"‹{'hour' if len(found[0]) == 10 else 'minute'}›" if self._is_near(at.timestamp()) else found[0]

    def _ago(self, seconds: float, unit: str) -> str | None:
        if not self._is_near(seconds):
            return None
        assert self._since is not None
        steps = round((seconds - self._since.timestamp()) / STEP_S)
        return f"‹{unit} now›" if steps == 0 else f"‹{unit} {steps * STEP_S // 60:+d}m›"

    def _is_near(self, seconds: float) -> bool:
        return self._since is not None and abs(seconds - self._since.timestamp()) < NEAR_S
