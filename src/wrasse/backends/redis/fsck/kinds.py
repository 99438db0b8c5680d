"""Every kind of damage, in the order it is repaired: what later ones are judged by comes first."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class About:
    """What stands in the report; `letter` is what lua/mend.lua calls it."""

    letter: str
    about: str
    repair: str


class Kind(Enum):
    """Its name in lower case is what users see."""

    WRONG_TYPE = About(
        "", "a key of ours with a value of another type; what depends on it is left unjudged",
        "not repaired: move it away with RENAME, or DEL it, and check again",
    )  # fmt: skip
    TOKEN_BEHIND = About("K", "the counter of tokens is behind a token that was given", "it goes on behind that token")
    REQUESTS_WITHOUT_END = About("Y", "remembered answers that would stay for ever", "they end in ten minutes")
    WORKER_LEFT_OVER = About("L", "a worker's description without its row among the workers", "it is forgotten")
    HEARTBEAT_WITHOUT_END = About(
        "B",
        "a heartbeat that never expires: what its worker holds looks safe for ever",
        "it expires in one heartbeat timeout",
    )
    UNREADABLE = About(
        "S", "what is stored of a claim, a unique name or a group's numbers cannot be read: another program wrote it",
        "it is dropped; a running job's entry gets a new claim",
    )  # fmt: skip
    QUEUE_NOT_LISTED = About("Q", "a queue with jobs that is not among the known ones", "it is known again")
    SCHEDULED_WITHOUT_NUMBER = About(
        "Z", "a scheduled entry without its number, which would be cut", "it gets a number"
    )
    INVALID_ENTRY = About("X", "a waiting entry that cannot be decoded as a job", "it goes to the dead letters")
    INDEX_WITHOUT_CLAIM = About(
        "I",
        "the index of running jobs names a claim of which nothing is known",
        "it is dropped; the entry is found again",
    )
    CLAIM_WITHOUT_INDEX = About(
        "T", "a claim that the index does not name: nobody would rescue it", "it is overdue one heartbeat timeout later"
    )
    ENTRY_LOST = About(
        "P", "a claim whose entry is gone, and its job is nowhere else", "the entry is put back from the claim"
    )
    CLAIM_LEFT_OVER = About("H", "a claim whose entry is gone; the job is elsewhere", "the claim is dropped")
    ENTRY_WITHOUT_CLAIM = About(
        "E",
        "an entry of a worker without a heartbeat, or of one of ours, that no claim names",
        "it gets a claim, and is rescued",
    )
    FINISHED_WITHOUT_INDEX = About("F", "a finished job that no index names: it would stay for ever", "it is indexed")
    INDEX_WITHOUT_FINISHED = About("N", "the index of finished jobs names one that is not known", "it is dropped")
    DEAD_WITHOUT_ENTRY = About("D", "a dead job that is not in the list of dead letters any more", "it is forgotten")
    DEAD_ENTRY_WITHOUT_INDEX = About("A", "a dead letter that the index does not name", "it is indexed")
    WHERE_LEFT_OVER = About("W", "an id that leads to a claim of which nothing is known", "the way is forgotten")
    WHERE_MISSING = About("M", "a running or finished job that cannot be found by its id", "it is found again")
    ID_LEFT_OVER = About(
        "J", "the id of a job that is nowhere: it could not be enqueued again", "it is forgotten, or lasts for its time"
    )
    PROGRESS_LEFT_OVER = About("O", "the progress of a job that is nowhere", "it is forgotten")
    UNIQUE_LEFT_OVER = About("U", "a unique name of a job that neither waits nor runs", "the name is free again")
    REMEMBERED_FOR_EVER = About("R", "what is remembered for a time, without the end of it", "it gets its end")
    GROUP_WITHOUT_CALLBACK = About("C", "a group without callback or size: nothing can follow it", "it is closed")
    GROUP_CANNOT_FIRE = About(
        "G", "a group some of whose members are gone: it would wait for ever", "those count as dead, and it goes on"
    )
    WRONG_COUNT = About("", "a number of jobs that is not the number there are", "it is counted again")

    @property
    def shown(self) -> str:
        """What users call it."""
        return self.name.lower()
