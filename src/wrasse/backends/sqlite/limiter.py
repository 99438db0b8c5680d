"""The limiter on SQLite: a row per key, read and changed in one write transaction."""

from __future__ import annotations

from wrasse.backends.sqlite.connection import SqliteWriter
from wrasse.backends.sqlite.write_transaction import WriteTransaction
from wrasse.ports.limiter import SECOND, Allowance, Spent

_SPENT = "SELECT spent_to FROM budgets WHERE key = ?"
_WRITE = "INSERT INTO budgets (key, spent_to) VALUES (?, ?) ON CONFLICT DO UPDATE SET spent_to = excluded.spent_to"
_FORGET = "DELETE FROM budgets WHERE spent_to < ?"  # an unused budget needs no row


class SqliteLimiter:
    """Budgets of one database."""

    def __init__(self, writer: SqliteWriter) -> None:
        self._writer = writer

    async def allow(self, key: str, count: int, *, rate: int, burst: int) -> Allowance:
        """Takes up to `count` from the budget of this key."""

        def run(tx: WriteTransaction) -> Allowance:
            now = 1_000 * tx.now()
            spent, allowance = _read(tx, key).allow(now, count, rate=rate, burst=burst)
            if allowance.count:
                _write(tx, key, spent, now)
            return allowance

        return await self._writer.do(run)

    async def give_back(self, key: str, count: int, *, rate: int) -> None:
        """Returns an unused part to the budget."""

        def run(tx: WriteTransaction) -> None:
            now = 1_000 * tx.now()
            _write(tx, key, _read(tx, key).give_back(now, count, rate=rate), now)

        await self._writer.do(run)


def _read(tx: WriteTransaction, key: str) -> Spent:
    found = tx.db.execute(_SPENT, (key,)).get
    return Spent(0 if found is None else int(found))


def _write(tx: WriteTransaction, key: str, spent: Spent, now: int) -> None:
    tx.db.execute(_FORGET, (now - SECOND,))
    tx.db.execute(_WRITE, (key, spent.to))
