"""wrasse leases transaction: what became of several keys that change together, and a way to decide it."""

from __future__ import annotations

import click

from wrasse.app.cli_asked import Asked, asks, finish
from wrasse.app.cli_leases import lease_operations, opened_leases
from wrasse.app.cli_table import show_pairs
from wrasse.errors import Refused, UsageError
from wrasse.leases.transaction import Decision, Transaction
from wrasse.leases.xid import checked_transaction


@click.command()
@click.argument("id")
@click.option("--commit", is_flag=True, help="Commit it, on all of its keys.")
@click.option("--rollback", is_flag=True, help="Roll it back, on all of its keys.")
@asks
def transaction(asked: Asked, id: str, commit: bool, rollback: bool) -> None:
    """Show what became of the transaction ID, or decide it. What was decided before stays, and is what is shown; if
    that is not what was asked for, it ends with 3. It is remembered for 24 hours after it was carried out. Fails if
    nobody knows it.

    \b
    Examples:
      wrasse leases transaction d5arif5qkajneqfrmsb0
      wrasse leases transaction d5arif5qkajneqfrmsb0 --rollback --json
    """
    if commit and rollback:
        raise UsageError("--commit and --rollback at once", do="choose one")
    state, open_ = finish(_transaction(asked, checked_transaction(id), commit, rollback))
    if state is None:
        raise UsageError(f"nobody knows a transaction {id}, or no longer", do="check the id")
    keys = [f"{each.namespace}/{each.key}" for each in open_.participants] if open_ is not None else []
    answer = {"transaction": id, "state": state.value, "open": open_ is not None, "keys": keys}
    asked.answer(answer, lambda: _tell(id, state, keys, open_))
    if (commit and state is not Decision.COMMIT) or (rollback and state is not Decision.ROLLBACK):
        raise Refused(f"{id} was decided before: {state.value}", do="nothing: what was decided first counts")


async def _transaction(
    asked: Asked, id: str, commit: bool, rollback: bool
) -> tuple[Decision | None, Transaction | None]:
    if commit or rollback:
        async with lease_operations(asked) as operations:
            return await operations.decide(id, commit=commit), None
    async with opened_leases(asked, "transaction without --commit or --rollback") as leasing:
        leases = leasing.leases
        kept = await leases.transactions.book.look(id)
        if kept is not None:
            return kept.transaction.state, kept.transaction
        return await leases.transactions.book.outcome(id), None


def _tell(id: str, state: Decision, keys: list[str], open_: Transaction | None) -> None:
    pairs: list[tuple[str, object]] = [("transaction", id), ("state", state.value)]
    if open_ is not None:
        done = "not everywhere yet" if open_.decided else "nothing is decided"
        pairs += [("carried out", done), ("keys", ", ".join(keys))]
    show_pairs(pairs)
