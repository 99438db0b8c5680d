"""Which file system a directory is on, and whether other hosts may have it too.

Other hosts have clocks of their own, see our locks only where the mount sends them on, and see what we changed only
where it does not remember what was there before.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

MARGIN = timedelta(seconds=1)  # by how much clocks of hosts that keep them set may differ
_SERVED = ("nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gfs2", "ocfs2")
_REMOTE = frozenset((*_SERVED, "fuse.sshfs", "fuse.glusterfs", "fuse.ceph"))
_OWN_LOCKS = frozenset(("nolock", "local_lock=all", "local_lock=flock", "nobrl"))  # known to this host alone
_FORGETFUL = frozenset(("noac", "acdirmax=0"))


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system as it is mounted. Nothing is known of one that the system does not tell about."""

    kind: str = ""
    options: frozenset[str] = frozenset()

    @property
    def remote(self) -> bool:
        """Whether other hosts may have it too."""
        return self.kind in _REMOTE

    @property
    def margin(self) -> timedelta:
        """How far the clocks of those who share it may be apart."""
        return MARGIN if self.remote else timedelta(0)

    @property
    def locks_apart(self) -> bool:
        """Whether other hosts do not see the locks of this one."""
        return self.remote and not self.options.isdisjoint(_OWN_LOCKS)

    @property
    def remembers(self) -> bool:
        """Whether this host may for a while see what another one has changed since."""
        return self.kind.startswith("nfs") and self.options.isdisjoint(_FORGETFUL)


def mount_of(device: tuple[int, int], table: str) -> Mount:
    """The last mount of this device in a table of the form of /proc/self/mountinfo."""
    number = f"{device[0]}:{device[1]}"
    for line in reversed(table.splitlines()):
        here, _, system = line.partition(" - ")
        fields, named = here.split(), system.split()
        if len(fields) > 5 and named and fields[2] == number:
            return Mount(named[0], frozenset(",".join((fields[5], *named[2:])).split(",")))
    return Mount()
