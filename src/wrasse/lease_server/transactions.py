"""Transactions over HTTP: lockd's txn/{decide,commit,rollback,replay}.

`decide` writes the decision and carries it out; a different decision later gets the first one as its answer. `commit`
and `rollback` carry out an earlier decision, or decide for the keys they name. `replay` finishes one transaction.
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
        body = await _transaction_body(request)
        states = [each.value for each in Decision]
        if body.state not in states:
            raise WireError("invalid_txn_state", f"state is one of {', '.join(states)}")
        return _answer(body, await self._decide_keys(body, Decision(body.state)))

    async def _commit(self, request: web.Request, name: str) -> web.Response:
        return await self._end(await _transaction_body(request), Decision.COMMIT)

    async def _rollback(self, request: web.Request, name: str) -> web.Response:
        return await self._end(await _transaction_body(request), Decision.ROLLBACK)

    async def _replay(self, request: web.Request, name: str) -> web.Response:
        body = await _transaction_body(request)
        self._leases.note_traffic()
        return _answer(body, await self._leases.transactions.replay(body.txn_id))

    async def _end(self, body: TransactionBody, state: Decision) -> web.Response:
        if not body.participants:
            self._leases.note_traffic()
            return _answer(body, await self._leases.transactions.carried_out(body.txn_id, state))
        found = await self._decide_keys(body, state)
        if found is not state:
            raise WireError("txn_conflict", f"the transaction was decided for {found.value} before", status=409)
        return _answer(body, found)

    async def _decide_keys(self, body: TransactionBody, state: Decision) -> Decision:
        self._leases.note_traffic()
        until = datetime.fromtimestamp(body.expires_at_unix, UTC) if body.expires_at_unix else None
        keys = _participants(body.participants)
        namespace = keys[0].namespace if keys else ""
        return await self._leases.transactions.decide(body.txn_id, state, keys, until, namespace)


async def _transaction_body(request: web.Request) -> TransactionBody:
    body = await request_parsing.json_body(request, TransactionBody)
    if not body.txn_id:
        raise WireError("missing_txn", "txn_id is missing")
    request_parsing.checked_transaction(body.txn_id, "invalid_txn_id")
    if not 0 <= body.expires_at_unix <= EXPIRES_MAX:
        raise WireError("invalid_expiry", "expires_at_unix is no time in seconds")
    return body


def _participants(named: Sequence[ParticipantBody]) -> list[Participant]:
    keys = []
    for each in named:
        if not each.key:
            raise WireError("missing_key", "a participant has no key")
        namespace = allowed_namespace(each.namespace)
        keys.append(Participant(namespace, checked_key(each.key, namespace)))
    return keys


def _answer(body: TransactionBody, state: Decision) -> web.Response:
    return answered(TransactionAnswer(body.txn_id, state.value))
