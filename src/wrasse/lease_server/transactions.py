"""Transactions over HTTP: lockd's txn/{decide,commit,rollback,replay}.

`decide` writes the decision and carries it out; asked for another one later, it answers the first. `commit` and
`rollback` carry out what was decided before, or decide for the keys they name. `replay` carries one transaction to its
end.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from aiohttp import web

from wrasse.lease_server import request_parsing
from wrasse.lease_server.access import allowed_namespace
from wrasse.lease_server.responses import WireError, Wrap, answered
from wrasse.lease_server.wire import ParticipantBody, TransactionAnswer, TransactionBody
from wrasse.leases.leases import Leases
from wrasse.leases.names import checked_key
from wrasse.leases.transactions.states import Decision, Participant

EXPIRES_MAX = 253_402_300_799  # the end of the year 9999


class TransactionApi:
    """The calls."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    def routes(self, call: Wrap) -> list[web.RouteDef]:
        """What to serve."""
        posts = {"decide": self._decide, "commit": self._commit, "rollback": self._rollback, "replay": self._replay}
        return [web.post(f"/v1/txn/{name}", call(handler)) for name, handler in posts.items()]

    async def _decide(self, request: web.Request, name: str) -> web.Response:
        asked = await _asked(request)
        states = [each.value for each in Decision]
        if asked.state not in states:
            raise WireError("invalid_txn_state", f"state is one of {', '.join(states)}")
        return _answer(asked, await self._decided(asked, Decision(asked.state)))

    async def _commit(self, request: web.Request, name: str) -> web.Response:
        return await self._end(await _asked(request), Decision.COMMIT)

    async def _rollback(self, request: web.Request, name: str) -> web.Response:
        return await self._end(await _asked(request), Decision.ROLLBACK)

    async def _replay(self, request: web.Request, name: str) -> web.Response:
        asked = await _asked(request)
        self._leases.note_traffic()
        return _answer(asked, await self._leases.transactions.replay(asked.txn_id))

    async def _end(self, asked: TransactionBody, state: Decision) -> web.Response:
        if not asked.participants:
            self._leases.note_traffic()
            return _answer(asked, await self._leases.transactions.carried_out(asked.txn_id, state))
        found = await self._decided(asked, state)
        if found is not state:
            raise WireError("txn_conflict", f"the transaction was decided for {found.value} before", status=409)
        return _answer(asked, found)

    async def _decided(self, asked: TransactionBody, state: Decision) -> Decision:
        self._leases.note_traffic()
        until = datetime.fromtimestamp(asked.expires_at_unix, UTC) if asked.expires_at_unix else None
        keys = _participants(asked.participants)
        namespace = keys[0].namespace if keys else ""
        return await self._leases.transactions.decide(asked.txn_id, state, keys, until, namespace)


async def _asked(request: web.Request) -> TransactionBody:
    asked = await request_parsing.json_body(request, TransactionBody)
    if not asked.txn_id:
        raise WireError("missing_txn", "txn_id is missing")
    request_parsing.checked_transaction(asked.txn_id, "invalid_txn_id")
    if not 0 <= asked.expires_at_unix <= EXPIRES_MAX:
        raise WireError("invalid_expiry", "expires_at_unix is no time in seconds")
    return asked


def _participants(named: Sequence[ParticipantBody]) -> list[Participant]:
    keys = []
    for each in named:
        if not each.key:
            raise WireError("missing_key", "a participant has no key")
        namespace = allowed_namespace(each.namespace)
        keys.append(Participant(namespace, checked_key(each.key, namespace)))
    return keys


def _answer(asked: TransactionBody, state: Decision) -> web.Response:
    return answered(TransactionAnswer(asked.txn_id, state.value))
