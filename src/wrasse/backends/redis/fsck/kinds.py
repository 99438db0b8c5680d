"""Every kind of inconsistency, in the order of repair: later kinds are judged by earlier ones."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class About:
    """The texts of the report; `letter` is the kind's name in lua/mend.lua."""

    letter: str
    about: str
    repair: str


class Kind(Enum):
    """The name in lower case is shown to users."""

    WRONG_TYPE = About(
        "", "a key of ours with a value of another type; what depends on it is not checked",
        "not repaired: move it away with RENAME, or DEL it, and check again",
    )  # fmt: skip
    TOKEN_BEHIND = About("K", "the counter of tokens is behind an issued token", "it continues after that token")
    REQUESTS_WITHOUT_END = About("Y", "remembered answers without an expiry", "they expire in ten minutes")
    WORKER_LEFT_OVER = About("L", "a worker's description without its row among the workers", "it is deleted")
    HEARTBEAT_WITHOUT_END = About(
        "B",
        "a heartbeat that never expires: its worker's jobs would never be rescued",
        "it expires in one heartbeat timeout",
    )
    UNREADABLE = About(
        "S", "a stored claim, unique name or group's count cannot be read: another program wrote it",
        "it is dropped; a running job's entry gets a new claim",
    )  # fmt: skip
    QUEUE_NOT_LISTED = About("Q", "a queue with jobs that is not among the known ones", "it is listed again")
    SCHEDULED_WITHOUT_NUMBER = About(
        "Z", "a scheduled entry without its number, which would be cut", "it gets a number"
    )
    INVALID_ENTRY = About("X", "a waiting entry that cannot be decoded as a job", "it is dead-lettered")
    INDEX_WITHOUT_CLAIM = About(
        "I",
        "the index of running jobs names a claim that does not exist",
        "it is dropped; the entry is found again",
    )
    CLAIM_WITHOUT_INDEX = About(
        "T", "a claim without an index entry: it would never be rescued", "it is overdue one heartbeat timeout later"
    )
    ENTRY_LOST = About(
        "P", "a claim whose entry is missing, and its job is nowhere else", "the entry is put back from the claim"
    )
    CLAIM_LEFT_OVER = About("H", "a claim whose entry is missing; the job is elsewhere", "the claim is dropped")
    ENTRY_WITHOUT_CLAIM = About(
        "E",
        "an entry of a worker without a heartbeat, or of one of ours, that no claim names",
        "it gets a claim, and is rescued",
    )
    FINISHED_WITHOUT_INDEX = About("F", "a finished job that no index names: it would stay for ever", "it is indexed")
    INDEX_WITHOUT_FINISHED = About("N", "the index of finished jobs names one that does not exist", "it is dropped")
    DEAD_WITHOUT_ENTRY = About("D", "a dead job that is not in the dead letter list any more", "it is deleted")
    DEAD_ENTRY_WITHOUT_INDEX = About("A", "a dead letter that the index does not name", "it is indexed")
    WHERE_LEFT_OVER = About("W", "an id that leads to a claim that does not exist", "the entry is dropped")
    WHERE_MISSING = About("M", "a running or finished job that cannot be found by its id", "it is indexed again")
    ID_LEFT_OVER = About(
        "J", "the id of a job that does not exist: it could not be enqueued again", "it is dropped, or expires in time"
    )
    PROGRESS_LEFT_OVER = About("O", "the progress of a job that does not exist", "it is dropped")
    UNIQUE_LEFT_OVER = About("U", "a unique name of a job that neither waits nor runs", "the name is free again")
    REMEMBERED_FOR_EVER = About("R", "an id, a unique name or a group without its expiry", "it gets its expiry")
    GROUP_WITHOUT_CALLBACK = About("C", "a group without callback or size: it cannot fire", "it is closed")
    GROUP_CANNOT_FIRE = About(
        "G", "a group some of whose members do not exist: it would wait for ever", "those count as dead"
    )
    WRONG_COUNT = About("", "a count of jobs that differs from their number", "it is counted again")

    @property
    def shown(self) -> str:
        """The name that users see."""
        return self.name.lower()
