"""Bodies and answers of the calls about transactions. Unknown fields are let pass, as in lockd."""

from __future__ import annotations

import msgspec


class ParticipantBody(msgspec.Struct):
    """One key that takes part. `backend_hash` tells lockd's islands apart; here is one store."""

    key: str = ""
    namespace: str = ""
    backend_hash: str = ""


class TransactionBody(msgspec.Struct):
    """POST /v1/txn/… There is no cluster of coordinators: a term is taken, and means nothing."""

    txn_id: str = ""
    state: str = ""
    participants: list[ParticipantBody] = []
    expires_at_unix: int = 0
    tc_term: int = 0


class TransactionAnswer(msgspec.Struct):
    """What counts."""

    txn_id: str
    state: str
