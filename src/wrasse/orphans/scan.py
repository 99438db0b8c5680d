"""One scan: list completely, then read all references in one snapshot, then merge, judge, and commit all notes at once.

    listing to a spool -> snapshot of references to a spool -> sightings to a spool -> merge -> plausible? -> commit

The snapshot is opened after the listing has ended, so that it includes every reference committed before its object was
listed; in the other order, objects uploaded in between would be judged by an older snapshot. Without the commit there
is no verdict. A dry scan is the same without the commit.

Plausibility: a database that returns too little makes a store appear full of orphans. So the counts are compared with
those of the last accepted scan: before any verdict, rows, matches and vanished references; before any removal, how much
is due. An operator can approve each once by naming the scan. The operator also arms a root, for one configuration:
after a change it only plans until it is armed again.

Spools: a directory per root, and in it one per running scan, locked by its process; an unlocked one was left by a
process that died, and is removed. One file of the last complete scan is kept: its protected units, for the next scan.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from wrasse.bounded import decoded
from wrasse.clock import Clock, to_micros
from wrasse.errors import Refused, StoreBroken, StoreUnavailable, UsageError
from wrasse.ids import Ids
from wrasse.orphans.merge import (
    Before,
    Merge,
    ScanTally,
    Sinks,
    Window,
    change_of,
    known_of,
    referred_of,
    suspected_of,
    text,
)
from wrasse.orphans.root import Caps, Root
from wrasse.orphans.spool import R, Referred, Spool, SpooledObject, SpoolWriter
from wrasse.orphans.verdict import KnownSighting, Scene, Suspected, Units, in_order
from wrasse.ports.catalog import Catalog
from wrasse.ports.objects import Objects, raw_key
from wrasse.ports.page import Page, T, pages
from wrasse.ports.sightings import Change, CompleteScan, Sightings, Standing
from wrasse.private_files import make_private_folders

AS_MUCH = 0.95
Counts = Mapping[str, int]
FEW = 3  # absolute tolerance, since shares mean nothing in a small root
_SCAN_ID = re.compile(r"[0-9A-Z]{26}")
_PROTECTED = ".protected"
_PROTECTED_KEPT = 2  # that of the last scan, and one more for a conflict with another process's commit
LIST_PAGE = 1_000
ROW_PAGE = 1_000
UPLOADS_MAX = 10_000  # unfinished uploads that one scan reads
NOTES_MAX = 250_000  # new sightings of one scan; the rest are noted by the next
_MICROSECOND = timedelta(microseconds=1)


class Approval(msgspec.Struct, frozen=True, omit_defaults=True):
    """`armed` is the digest of the configuration that may act. `refused` names the last scan that was implausible, or
    (`plan`) whose plan was too large, with the reason and its counts; `allowed` is the same name once an operator has
    approved it."""

    armed: str = ""
    refused: str = ""
    why: str = ""
    due: int = 0
    allowed: str = ""
    plan: bool = False
    rows: int = 0
    protected: int = 0

    @property
    def overruled(self) -> bool:
        """Whether the last refusal was overruled."""
        return bool(self.refused) and self.allowed == self.refused

    def believes(self, made: CompleteScan) -> bool:
        """Whether an operator approved an implausible scan, and this one has no fewer references than that."""
        then, now = (self.rows, self.protected), (made.counts.get("rows", 0), made.counts.get("protected", 0))
        return self.overruled and not self.plan and all(b >= AS_MUCH * a for a, b in zip(then, now, strict=True))

    def covers(self, made: CompleteScan, more: int) -> bool:
        """Whether a plan of about this size was approved."""
        return self.overruled and self.plan and made.counts.get("due_objects", 0) <= self.due + more


def refusal(approval: Approval, made: CompleteScan, why: str, *, plan: bool) -> Approval:
    """The approval after a scan that was implausible, or whose plan is too large."""
    counts = made.counts
    return Approval(
        approval.armed,
        made.id,
        why,
        counts.get("due_objects", 0),
        plan=plan,
        rows=counts.get("rows", 0),
        protected=counts.get("protected", 0),
    )


def after(approval: Approval, made: CompleteScan, large: str, *, lifted: bool) -> Approval:
    """The approval after a scan. `large` says why its plan is too large; `lifted`: that was approved. The permission
    lasts until that plan is carried out, which may take several runs; it never grows."""
    if lifted:
        return msgspec.structs.replace(approval, due=min(approval.due, made.counts.get("due_objects", 0)))
    if large:
        return refusal(approval, made, large, plan=True)
    return Approval(approval.armed)


_decode = msgspec.json.Decoder(Approval).decode


def read_approval(value: bytes) -> Approval:
    """The approval stored for a root."""
    if not value:
        return Approval()
    try:
        return decoded(_decode, value)
    except ValueError:
        raise StoreBroken("the stored approval of a root cannot be read", do="arm the root again") from None


def write_approval(approval: Approval) -> bytes:
    """The stored form of an approval."""
    return msgspec.json.encode(approval)


def implausible(now: Counts, last: Counts | None, caps: Caps) -> str:
    """Why a scan is implausible; empty if it is plausible."""
    units = now.get("units", 0)
    if units and not now.get("rows"):
        return f"there are {units} units and no reference at all"
    if units and not now.get("protected"):
        return f"none of {now['rows']} references names any of {units} units"
    if last is None:
        return ""
    if not now.get("listed") and last.get("listed"):
        return f"the listing is empty, and had {last['listed']} objects"
    rows, before = now.get("rows", 0), last.get("rows", 0)
    if rows < caps.rows_share_min * before and before - rows > FEW:
        return f"there are {rows} references, and there were {before}"
    if _share(now) < caps.match_share_min * _share(last) and _unmatched(now) - _unmatched(last) > FEW:
        return f"{_share(now):.1%} of the references name something that is there, and it was {_share(last):.1%}"
    turned = now.get("turned_oddly", 0)
    if turned > max(caps.vanished_max, caps.vanished_share_max * last.get("protected", 0)):
        return f"{turned} of {last.get('protected', 0)} protected units have lost their owner or their only reference"
    return ""


def beyond(now: Counts, group_most: int, caps: Caps) -> str:
    """Why a plan is too large to be carried out without approval; empty if it is not."""
    due, size = now.get("due_objects", 0), now.get("due_bytes", 0)
    if due > max(caps.objects_max, caps.share_max * now.get("listed", 0)):
        return f"{due} of {now.get('listed', 0)} objects are due"
    if size > max(caps.bytes_max, caps.share_max * now.get("bytes", 0)):
        return f"{size} of {now.get('bytes', 0)} bytes are due"
    if group_most > caps.group_max:
        return f"{group_most} units of one group are due"
    return ""


def _share(counts: Counts) -> float:
    return counts.get("matched", 0) / counts["rows_live"] if counts.get("rows_live") else 0.0


def _unmatched(counts: Counts) -> int:
    return counts.get("rows_live", 0) - counts.get("matched", 0)


class Workplace:
    """The spool directory of one root."""

    def __init__(self, spool: Path, root: str) -> None:
        self._place = spool / root

    @contextmanager
    def opened(self, scan: str) -> Iterator[Path]:
        """A directory for one scan, removed at its end."""
        try:
            make_private_folders(self._place)
        except (FileExistsError, NotADirectoryError, PermissionError) as why:
            raise UsageError(
                f"{self._place} cannot be a spool directory: {why.strerror}", do="set orphans.<root>.spool to one"
            ) from None
        self._clear()
        place = self._place / scan
        make_private_folders(place)
        lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
            os.close(lock)

    def keep_protected(self, path: Path, scan: str) -> None:
        """Keeps the list of protected units of a scan that is about to be committed."""
        os.rename(path, self._place / f"{scan}{_PROTECTED}")

    def protected(self, scan: str) -> Path | None:
        """The list of protected units of that scan, if it was made on this machine and still exists."""
        path = self._place / f"{scan}{_PROTECTED}"
        return path if path.exists() else None

    def _clear(self) -> None:
        kept = sorted(self._place.glob(f"*{_PROTECTED}"), reverse=True)[_PROTECTED_KEPT:]
        for path in kept:
            path.unlink(missing_ok=True)
        for place in self._place.iterdir():
            if _SCAN_ID.fullmatch(place.name) and place.is_dir() and not _locked(place):
                shutil.rmtree(place, ignore_errors=True)


def _locked(place: Path) -> bool:
    """Whether another process uses the directory, or has just created it."""
    with suppress(OSError):
        lock = os.open(place / "lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
    return True


class ScanProgress:
    """The progress of a scan, for display."""

    __slots__ = ("done", "stage", "total")

    def __init__(self) -> None:
        self.stage = ""
        self.done = 0
        self.total: int | None = None

    def at(self, stage: str, total: int | None = None) -> None:
        """A new stage begins."""
        self.stage, self.done, self.total = stage, 0, total


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a scan."""

    objects: Objects
    catalog: Catalog
    sightings: Sightings
    spool: Path
    clock: Clock


@dataclass(frozen=True, slots=True)
class ScanResult:
    """A plausible scan. `armed` is whether its root may act by itself; `needs_approval` says why its plan may not be
    carried out yet."""

    scan: CompleteScan
    suspects: Iterable[Suspected]  # in order; may be iterated again
    armed: bool
    needs_approval: str = ""
    foreign: tuple[str, ...] = ()


class OrphanScan:
    """Scans one root. The last result stays readable until the next scan, or until `close`."""

    def __init__(self, root: Root, ports: Ports) -> None:
        self.root = root
        self.progress = ScanProgress()
        self._ports = ports
        self._ids = Ids(ports.clock)
        self._workplace = Workplace(ports.spool, root.name)
        self._open = ExitStack()
        self._witness: tuple[str, float] | None = None  # the last scan of this process, with its monotonic time
        self._scanned_at = 0.0

    async def scan(self, *, note: bool) -> ScanResult:
        """A complete scan. With `note` it is committed; else it leaves no trace."""
        try:
            return await self._scan(note=note)
        except OSError as why:
            raise StoreUnavailable(
                f"the spool in {self._ports.spool} cannot be written: {why.strerror}",
                do="free disk space: about 150 bytes per object, or set orphans.<root>.spool",
            ) from why

    async def _scan(self, *, note: bool) -> ScanResult:
        self.close()
        id = self._ids.new()
        place = self._open.enter_context(self._workplace.opened(id))
        expected = (await self._ports.sightings.standing(self.root.name)).last  # for the progress display
        listed_at = await self._list(place, expected)
        await self._list_uploads(place, listed_at)
        snapshot_at = await self._read_references(place, expected)
        standing = await self._ports.sightings.standing(self.root.name)
        await self._read_sightings(place)
        scene = self._scene(standing, snapshot_at, listed_at)
        stop = threading.Event()
        try:
            self.progress.at("judging", standing.last.counts.get("units") if standing.last else None)
            merged = await asyncio.to_thread(self._merge, place, scene, standing.last, stop)
        finally:
            stop.set()
        made = CompleteScan(self.root.name, id, scene.number, standing.at, snapshot_at, scene.tick, merged.counts)
        return await self._check_and_commit(made, merged, standing, place, note=note)

    def close(self) -> None:
        """Removes the last scan's spools."""
        self._open.close()

    async def _list(self, place: Path, expected: CompleteScan | None) -> datetime:
        """Lists every object below the prefix; returns the store's clock at the start."""
        self.progress.at("listing", None if expected is None else expected.counts.get("listed"))
        return await self._write_spool(
            SpoolWriter(place / "listing"),
            lambda after: self._ports.objects.page(self.root.prefix, after, LIST_PAGE),
            lambda page: [SpooledObject(raw_key(e.key), e.size, e.version, to_micros(e.modified_at)) for e in page],
        )

    async def _list_uploads(self, place: Path, at: datetime) -> None:
        """Lists old unfinished multipart uploads, if the store has them."""
        writer: SpoolWriter[Suspected] = SpoolWriter(place / "uploads")
        multipart, old = self._ports.objects.multipart, self.root.uploads_after
        try:
            if old and multipart is not None:
                async for page in pages(lambda after: multipart.uploads(self.root.prefix, after, LIST_PAGE)):
                    writer.write([suspected_of(each) for each in page if at - each.begun_at >= old])
                    if writer.rows >= UPLOADS_MAX:
                        break
            await asyncio.to_thread(writer.close)
        finally:
            writer.drop()

    async def _read_references(self, place: Path, expected: CompleteScan | None) -> datetime:
        """Reads every reference in one snapshot; returns the catalog's clock when it was opened."""
        self.progress.at("reading references", None if expected is None else expected.counts.get("rows"))
        async with self._ports.catalog.snapshot() as snapshot:
            return await self._write_spool(
                SpoolWriter(place / "references"),
                lambda after: snapshot.page(after, ROW_PAGE),
                lambda page: [referred_of(each, self.root, snapshot.at) for each in page],
            )

    async def _read_sightings(self, place: Path) -> None:
        """Reads every sighting of earlier scans."""
        self.progress.at("reading sightings")
        await self._write_spool(
            SpoolWriter(place / "sightings"),
            lambda after: self._ports.sightings.page(self.root.name, after, ROW_PAGE),
            lambda page: [known_of(each) for each in page],
        )

    async def _write_spool(
        self,
        writer: SpoolWriter[R],
        read: Callable[[str | None], Awaitable[Page[T]]],
        rows: Callable[[Page[T]], list[R]],
    ) -> datetime:
        """Writes a complete listing into a spool; returns the source's clock at the start."""
        first: datetime | None = None
        try:
            async for page in pages(read):
                first = first or page.at
                writer.write(rows(page))
                self.progress.done = writer.rows
            await asyncio.to_thread(writer.close)
        finally:
            writer.drop()
        assert first is not None, "a listing has at least one page"
        return first

    def _scene(self, standing: Standing, snapshot_at: datetime, listed_at: datetime) -> Scene:
        last, self._scanned_at = standing.last, self._ports.clock.monotonic()
        if last is None:
            return Scene(self.root, 1, to_micros(standing.at), 0, to_micros(listed_at))
        passed = min(standing.at - last.at, snapshot_at - last.snapshot_at)
        if self._witness is not None and self._witness[0] == last.id:
            passed = min(passed, timedelta(seconds=self._scanned_at - self._witness[1]))
        tick = last.tick + max(0, passed // _MICROSECOND)
        return Scene(self.root, last.number + 1, to_micros(standing.at), tick, to_micros(listed_at))

    def _merge(self, place: Path, scene: Scene, last: CompleteScan | None, stop: threading.Event) -> _Merged:
        """The merge, in a thread: it only reads and writes files."""
        units = Units(in_order(self._frames(Spool(place / "listing", SpooledObject), stop)), self.root.template)
        notes: SpoolWriter[KnownSighting] = SpoolWriter(place / "notes")
        suspects: SpoolWriter[Suspected] = SpoolWriter(place / "suspects")
        protected: SpoolWriter[bytes] = SpoolWriter(place / "protected")
        try:
            kept = self._workplace.protected(last.id) if last is not None else None
            before = None if kept is None else Before(iter(Spool(kept, bytes)))
            sinks = Sinks(_Sink(notes), suspects.add, protected.add)
            window = Window(iter(Spool(place / "references", Referred)))
            merge = Merge(scene, window, sinks, before, to_micros(last.at) if last is not None else 0)
            tally = merge.run(units, iter(Spool(place / "sightings", KnownSighting)))
            for writer in (notes, suspects, protected):
                writer.close()
        finally:
            for writer in (notes, suspects, protected):
                writer.drop()
        tally.counts.update(listed=units.listed, bytes=units.size, foreign=units.foreign, units=units.count)
        examples = tuple(text(key) for key in units.examples)
        return _Merged(dict(tally.counts), tally, examples)

    def _frames(self, listing: Spool[SpooledObject], stop: threading.Event) -> Iterator[list[SpooledObject]]:
        for frame in listing.frames():
            if stop.is_set():
                raise StoreBroken("the scan was cancelled", do="nothing: it was asked to stop")
            yield frame
            self.progress.done += len(frame)

    async def _check_and_commit(
        self, made: CompleteScan, merged: _Merged, standing: Standing, place: Path, *, note: bool
    ) -> ScanResult:
        caps, approval = self.root.caps, read_approval(standing.value)
        wrong = implausible(made.counts, None if standing.last is None else standing.last.counts, caps)
        if wrong and not approval.believes(made):
            if note:
                await self._write(refusal(approval, made, wrong, plan=False), standing)
            raise Refused(
                f"{self.root.name}: {wrong}; nothing was judged",
                do=f"find out why; if it is correct: wrasse orphans arm {self.root.name} --allow {made.id}",
            )
        large = beyond(made.counts, merged.tally.group_most, caps)
        lifted = bool(large) and approval.covers(made, caps.objects_max)
        if note:
            await self._commit(made, place)
            await self._write(after(approval, made, large, lifted=lifted), standing)
        suspects = _Chained(Spool(place / "suspects", Suspected), Spool(place / "uploads", Suspected))
        armed = approval.armed == self.root.digest
        return ScanResult(made, suspects, armed, "" if lifted else large, merged.foreign)

    async def _commit(self, made: CompleteScan, place: Path) -> None:
        self.progress.at("noting")
        self._workplace.keep_protected(place / "protected", made.id)
        if not await self._ports.sightings.commit(made, _NoteChanges(Spool(place / "notes", KnownSighting))):
            raise Refused(
                f"{self.root.name}: another process committed a scan meanwhile, which this one does not include",
                do="nothing: the next run scans again",
            )
        self._witness = (made.id, self._scanned_at)

    async def _write(self, approval: Approval, standing: Standing) -> None:
        """Stores the approval. After a conflict the other value stays: an operator wrote it."""
        value = write_approval(approval)
        if value != standing.value and (standing.value or approval != Approval()):
            await self._ports.sightings.write(self.root.name, value, at=standing.version)


@dataclass(frozen=True, slots=True)
class _Merged:
    counts: dict[str, int]
    tally: ScanTally
    foreign: tuple[str, ...] = field(default=())


class _Chained:
    """Due units in the order of keys, then unfinished uploads."""

    def __init__(self, *spools: Spool[Suspected]) -> None:
        self._spools = spools

    def __iter__(self) -> Iterator[Suspected]:
        for spool in self._spools:
            yield from spool


class _NoteChanges:
    """The notes of a scan as changes; may be iterated again."""

    def __init__(self, notes: Spool[KnownSighting]) -> None:
        self._notes = notes

    def __iter__(self) -> Iterator[Sequence[Change]]:
        for frame in self._notes.frames():
            yield [change_of(each) for each in frame]


class _Sink:
    """Writes notes, with at most as many new ones as fit into one transaction."""

    def __init__(self, notes: SpoolWriter[KnownSighting]) -> None:
        self._notes = notes
        self._new = 0

    def __call__(self, known: KnownSighting) -> None:
        """Notes one."""
        if known.evidence:
            self._new += 1
            if self._new > NOTES_MAX:
                return
        self._notes.add(known)
