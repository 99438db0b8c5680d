"""Leadership by a session's advisory lock on PostgreSQL, on the connection that also answers the last look.

The lock lives and dies with the connection, so that whoever has lost it can also not ask any more: a lock on a
connection of its own would outlive the other, or die before it. Lost in the middle of a run, it is not taken again
before the next. A pooler that gives each transaction another session would make the lock mean nothing: it is refused.
"""

from __future__ import annotations

import hashlib

from wrasse.backends.sql.dialect import Params
from wrasse.backends.sql.link import Link, SqlThread
from wrasse.errors import Refused, WrasseError
from wrasse.ports.guard import Guard

ASK_MAX = 10.0  # seconds
_HELD = """SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()
    AND classid = %(high)s AND objid = %(low)s AND objsubid = 1"""


def lock_id(name: str) -> int:
    """The number of a lock by its name: the first eight bytes of its SHA-256, without the sign."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) & 0x7FFF_FFFF_FFFF_FFFF


class SqlLeader(Guard):
    """A guard that lets only the leader run. Leadership is taken when it is first asked for, and kept until `release`
    or the end of the connection."""

    name = "leader"

    def __init__(self, lock: str, link: Link, thread: SqlThread) -> None:
        self._lock = lock
        self._id = lock_id(lock)
        self._link = link
        self._thread = thread
        self._session = 0  # the connection it was taken on; 0: not taken
        self._lost = False

    async def acquire(self) -> bool:
        """Takes leadership, or keeps it; False while another session has it."""
        self._lost = False
        return await self._thread.run(lambda: self._link.guarded(self._acquire), self._link, ASK_MAX)

    async def held(self) -> str | None:
        """Why this process must not go on: it does not lead, or cannot tell."""
        if self._lost:
            return f"the lock {self._lock!r} was lost in this run"
        led = self._session != 0
        try:
            if led and await self._thread.run(lambda: self._link.guarded(self._verify), self._link, ASK_MAX):
                return None
        except Refused:
            raise
        except WrasseError:
            pass  # whoever cannot ask does not lead
        if led:
            self._session, self._lost = 0, True
            return f"the lock {self._lock!r} was lost in this run"
        return None if await self.acquire() else f"another process has the lock {self._lock!r}"

    def recall(self, memory: str | None) -> None:
        """A new run begins: what was lost may be taken again."""
        self._lost = False

    async def release(self) -> None:
        """Gives leadership up."""
        await self._thread.run(lambda: self._link.guarded(self._release), self._link, ASK_MAX)

    def _acquire(self) -> bool:
        if self._session and self._verify():
            return True
        self._link.dialect.begin(self._link, ASK_MAX)
        refuse_pooler(self._link)
        # Asked for once only: a session that takes a lock twice must give it back twice.
        taken = bool(self._link.rows("SELECT pg_try_advisory_lock(%(id)s)", {"id": self._id})[0][0])
        self._link.end()
        self._session = self._link.opened if taken else 0
        return taken

    def _verify(self) -> bool:
        if self._session != self._link.opened:
            return False
        self._link.dialect.begin(self._link, ASK_MAX)
        parts: Params = {"high": self._id >> 32, "low": self._id & 0xFFFF_FFFF}
        held = self._link.rows(_HELD, parts)[0][0] == 1
        self._link.end()
        return held and self._session == self._link.opened

    def _release(self) -> None:
        if self._session == self._link.opened:
            self._link.rows("SELECT pg_advisory_unlock(%(id)s)", {"id": self._id})
            self._link.end()
        self._session = 0


def refuse_pooler(link: Link) -> None:
    """Raises if a session does not belong to us alone. Two connections of ours, each in a transaction and each again
    after it, are served by two sessions, always the same, unless somebody between us and the server hands them out
    by the transaction."""
    other = Link(link.address)
    pid = "SELECT pg_backend_pid()"
    try:
        mine = link.rows(pid)
        link.end()
        theirs = other.rows(pid)  # its transaction stays open, so its session is taken
        if mine == theirs or link.rows(pid) != mine:
            raise Refused(
                f"{link.address.shown} is behind a pooler that gives every transaction another session, "
                "where a lock means nothing",
                do="name the server itself, or a pool in session mode; or leave out `lock`: wrasse has its own lease",
            )
        link.end()
    finally:
        other.close()
