"""Groups of jobs: how many members have finished, and what becomes ready when all have.

A member may finish before its group is opened, so counting starts with whichever comes first. A group that has fired
is remembered, so that it cannot fire again, and forgotten after GROUPS_KEPT.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from wrasse.ports.jobs import (
    GROUP_DEAD_HEADER,
    GROUP_DONE_HEADER,
    GROUP_HEADER,
    GROUPS_KEPT,
    Job,
    JobGroup,
)


@dataclass(slots=True)
class _Team:
    seen_at: datetime
    group: JobGroup | None = None
    done: int = 0
    dead: int = 0
    fired: bool = False


class Teams:
    """All groups of one queue."""

    __slots__ = ("_teams",)

    def __init__(self) -> None:
        self._teams: dict[str, _Team] = {}

    def open(self, group: JobGroup, now: datetime) -> Job | None:
        """Opens a group unless it is known; gives its callback if all members have finished already."""
        self._forget(now)
        team = self._teams.setdefault(group.id, _Team(now))
        if team.group is None:
            team.group = group
        return self._fire(team)

    def count(self, id: str, now: datetime, *, done: bool) -> Job | None:
        """Counts a member that finished; gives the callback if it was the last."""
        team = self._teams.setdefault(id, _Team(now))
        team.done += done
        team.dead += not done
        return self._fire(team)

    def _fire(self, team: _Team) -> Job | None:
        if team.group is None or team.fired or team.done + team.dead < team.group.size:
            return None
        team.fired = True
        return called(team.group, team.done, team.dead)

    def _forget(self, now: datetime) -> None:
        for id, team in [*self._teams.items()][:2]:
            if now - team.seen_at > GROUPS_KEPT and (team.fired or team.group is None):
                del self._teams[id]


def called(group: JobGroup, done: int, dead: int) -> Job:
    """The callback as it becomes ready: it knows what it was called for."""
    told = {GROUP_HEADER: group.id, GROUP_DONE_HEADER: str(done), GROUP_DEAD_HEADER: str(dead)}
    return replace(group.callback, headers={**group.callback.headers, **told})
