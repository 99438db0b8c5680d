"""Verifying archives: the chain of a stream is complete, from the objects alone, and matches its stream.

Each archive must start where the previous one ended and contain what its metadata says, in order, once; and `passed`
must grow by exactly its count: a larger step means that entries were trimmed before they were archived. The first
archive starts where the stream did, and a stream whose group has advanced must have archives.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime

from wrasse.archives.batch import ArchiveFacts, from_metadata
from wrasse.archives.naming import ArchiveName
from wrasse.archives.reader import ListedArchive, error_text, list_archives, newest, scan
from wrasse.archives.rule import Rule
from wrasse.errors import StoreBroken
from wrasse.ports.objects import Objects
from wrasse.ports.page import pages
from wrasse.ports.rules.subjects import matches
from wrasse.ports.streams import START, EntryId, Streams

SUBJECTS = 1_000
PROBLEMS_MAX = 100  # of one stream; bounds memory


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `key` is empty if it concerns no single archive."""

    key: str
    what: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The archives of one stream."""

    subject: str
    domain: str
    archives: int = 0
    messages: int = 0
    marked: int = 0
    bytes: int = 0
    start: EntryId | None = None
    last: EntryId | None = None
    passed: int | None = None
    waiting: int | None = None  # in the stream, not archived yet; None if unknown
    epoch: int = 1
    incomplete: bool = False  # of a work queue: missing entries cannot be detected
    problems: tuple[Problem, ...] = field(default=())

    @property
    def whole(self) -> bool:
        """Whether nothing is missing, duplicate or damaged."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class _ArchiveStore:
    objects: Objects
    prefix: str


async def verify(
    objects: Objects,
    prefix: str,
    pattern: str,
    *,
    group: str,
    domain: str | None = None,
    streams: Streams | None = None,
    since: datetime | None = None,
    looked: Callable[[int], None] = lambda count: None,
) -> AsyncIterator[Verified]:
    """Every matching stream with archives, in the order of their names, each epoch separately. With `since`, only
    archives of that day and later: older ones may be deleted. `looked` is called after every archive."""
    chains: dict[tuple[str, int], Verified] = {}
    async for each in list_archives(objects, prefix, pattern, domain):
        if since is not None and each.name.day < since.date():
            continue
        place = each.name.subject, each.name.epoch
        so_far = chains.get(place, Verified(each.name.subject, each.name.domain, epoch=each.name.epoch))
        if so_far.archives == 0 and since is None and each.name.epoch == 1 and each.name.after > START:
            so_far = _with_problem(so_far, str(each.name), f"what came up to {each.name.after} is in no archive")
        chains[place] = await _link(objects, so_far, each)
        looked(1)
    for subject, epoch in sorted(chains):
        chain, ended = chains[subject, epoch], (subject, epoch + 1) in chains
        # The stream of an epoch that ended is no more.
        yield (
            chain
            if streams is None or ended
            else await _compare_with_stream(streams, chain, group, _ArchiveStore(objects, prefix))
        )


async def without(
    streams: Streams, rule: Rule, pattern: str, *, group: str, known: Collection[str], since: datetime | None = None
) -> AsyncIterator[Verified]:
    """The streams of a rule that were archived according to their group, but have no archive. Those in `known` have
    archives."""
    async for page in pages(lambda after: streams.subjects(rule.pattern, after, SUBJECTS)):
        for subject in page:
            state = await streams.info(subject) if matches(pattern, subject) and subject not in known else None
            floor = next((each.floor for each in state.groups if each.name == group), START) if state else START
            if floor == START or (since is not None and floor.at < since):
                continue
            # The group advances after the archive exists, so one written during this check is found now.
            if await newest(rule.objects, rule.prefix, rule.domain_of(subject), subject) is None:
                gone = Verified(subject, rule.domain_of(subject))
                yield _with_problem(gone, "", f"it has no archive, and the group {group!r} is at {floor}")


async def _link(objects: Objects, chain: Verified, each: ListedArchive) -> Verified:
    key = str(each.name)
    try:
        stated = await _stated_facts(objects, each.name)
    except StoreBroken as why:
        chain, stated = _with_problem(chain, key, error_text(why, key)), None
    try:
        seen = await scan(objects, each.name)
    except StoreBroken as why:
        chain = replace(_with_problem(chain, key, error_text(why, key)), archives=chain.archives + 1)
        # Its metadata gives its range, so that the next archive is not reported for it.
        return chain if stated is None else replace(chain, last=stated.last, passed=stated.passed)
    if seen is None:
        return _with_problem(chain, key, "it was deleted while it was verified")
    for what in _differences(chain, each.name, seen, stated):
        chain = _with_problem(chain, key, what)
    return replace(
        chain,
        archives=chain.archives + 1,
        messages=chain.messages + seen.count,
        marked=chain.marked + seen.marked,
        bytes=chain.bytes + each.info.size,
        start=chain.start or each.name.after,
        last=max(seen.last, chain.last or seen.last),
        passed=None if stated is None else stated.passed,
        incomplete=chain.incomplete or (stated is not None and stated.incomplete),
    )


async def _stated_facts(objects: Objects, name: ArchiveName) -> ArchiveFacts | None:
    head = await objects.head(str(name))
    return None if head is None else from_metadata(head.metadata)


def _differences(chain: Verified, name: ArchiveName, seen: ArchiveFacts, stated: ArchiveFacts | None) -> list[str]:
    found = []
    if chain.last is not None and name.after > chain.last:
        found.append(f"an archive is missing before it: the one before ends at {chain.last}, it starts at {name.after}")
    if chain.last is not None and name.after < chain.last:
        found.append(f"it overlaps the one before, which ends at {chain.last}")
    if stated is None:
        return found  # a copy of the store lost its metadata; its bytes were checked
    if replace(stated, passed=None, writer="", incomplete=False) != replace(seen, passed=None, writer=""):
        found.append("its metadata does not match its bytes")
    if stated.passed is not None and chain.passed is not None and stated.passed > chain.passed + seen.count:
        gone = stated.passed - chain.passed - seen.count
        found.append(f"{gone} entries before it were trimmed from the stream before they could be archived")
    return found


async def _compare_with_stream(streams: Streams, chain: Verified, group: str, store: _ArchiveStore) -> Verified:
    """Compares with all entries that the stream ever had."""
    state = await streams.info(chain.subject)
    if state is None or chain.last is None or chain.incomplete:
        return chain
    mine = next((each for each in state.groups if each.name == group), None)
    floor = None if mine is None else mine.floor
    ends = chain.last
    if mine is not None and mine.invalid:
        chain = _with_problem(chain, "", mine.invalid)
    if floor is not None and floor > ends:
        last = await newest(store.objects, store.prefix, chain.domain, chain.subject)
        if last is not None and last.name.place >= (chain.epoch, ends):
            return chain  # an archiver went on meanwhile: newer archives are verified next time
        chain = _with_problem(chain, "", f"an archive is missing at the end: the group {group!r} is at {floor}")
    if state.last is not None and state.last < ends:
        chain = _with_problem(chain, "", f"the stream ends at {state.last}, before its archives: it was set back")
    if chain.passed is None:
        return chain
    waiting = state.appended - chain.passed
    if waiting < 0:
        chain = _with_problem(
            chain, "", f"the stream ever held {state.appended} entries, and its archives {chain.passed}"
        )
    elif waiting > state.length:
        chain = _with_problem(chain, "", f"{waiting - state.length} entries were trimmed before they could be archived")
    return replace(chain, waiting=max(waiting, 0))


def _with_problem(chain: Verified, key: str, what: str) -> Verified:
    if len(chain.problems) >= PROBLEMS_MAX:
        return chain
    return replace(chain, problems=(*chain.problems, Problem(key, what)))
