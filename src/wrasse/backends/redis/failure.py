"""Maps errors of Redis and of sockets to ours. The only place that knows the server's error texts.

There are two kinds. `StoreUnavailable` may pass, and callers that wait try again. Everything else needs a person.
Messages name the address and the server's code, never a payload or a password; a key only if its value is corrupt.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Sequence

from wrasse.backends.redis.client.transport import Oversized, RedisRefusal, Word
from wrasse.backends.tcp import ConnectionLost, Silent, printable
from wrasse.errors import ConfigError, Refused, StoreBroken, StoreFull, StoreUnavailable, WrasseError, reason_of

_UP = "check that the server is up and that redis.addr is its address"
_TLS = "use rediss:// (redis.tls.enabled) if and only if the server's port speaks TLS; see redis.tls"
_SOON = "nothing, if it passes: it is tried again"
# The code of a reply, its meaning, what to do. A refused command was not executed.
_PASSING = {
    "LOADING": ("is loading its data", _SOON),
    "READONLY": ("is a replica and accepts no writes", "nothing during a failover; else set redis.addr to the master"),
    "CLUSTERDOWN": ("is a node of a cluster that is down", "see CLUSTER INFO: every slot needs a master that answers"),
    "MASTERDOWN": ("has lost its master", _SOON),
    "TRYAGAIN": ("is moving the slot to another node", _SOON),
    "ASK": ("is moving the slot to another node", _SOON),
    "MOVED": ("redirected us from node to node", "see CLUSTER NODES: they disagree about who serves the slot"),
    "BUSY": ("is busy with a script that does not end", "see SLOWLOG; SCRIPT KILL ends one that wrote nothing"),
    "MISCONF": ("cannot save to disk and therefore accepts no writes", "free disk space, and see its log"),
    "NOREPLICAS": ("has fewer replicas than min-replicas-to-write", "bring the replicas back"),
}
_LOGIN = {
    "NOAUTH": ("requires a login", "set redis.password, and redis.username for an ACL user"),
    "WRONGPASS": ("does not accept this user and password", "correct redis.username and redis.password"),
    "NOPERM": ("does not allow this user what wrasse needs", "grant the user the keys of the root and the commands of "
               "docs/how-to/run-on-redis.md"),
}  # fmt: skip


class NotInTime(StoreUnavailable):
    """A server did not answer within the whole timeout. Another try at once would end the same."""


class ReplyTooLarge(StoreUnavailable):
    """A reply beyond `redis.reply_bytes_max`. The same request would fail again; one for less may not."""


class WrongType(StoreBroken):
    """A key of ours has a value of another type. `keys`: those of the command; `KeyTypes` finds out which it is."""

    keys: Sequence[str | bytes] = ()


def ours(error: Exception, where: str, keys: Sequence[str | bytes] = ()) -> Exception:
    """Our error for one of a socket, TLS or the server. `where` names the server, `keys` are the command's."""
    match error:
        case WrasseError():
            return error
        case RedisRefusal():
            failure = _refused(error, where)
            if isinstance(failure, WrongType):
                failure.keys = keys
            return failure
        case Oversized():
            return ReplyTooLarge(
                f"{where} sends a reply that is longer than allowed: {error}",
                do="raise redis.reply_bytes_max, or remove the large entry",
            )
        case Silent() if "TLS" in str(error):
            return NotInTime(f"{where} does not speak TLS with us: {error}", do=_TLS)
        case Silent():
            return NotInTime(f"{where} did not answer: {error}", do=_UP)
        case ConnectionLost():
            return StoreUnavailable(f"{where} did not answer: {error}", do=_TLS if "TLS" in str(error) else _UP)
        case TimeoutError():
            return NotInTime(f"{where} could not be reached in time", do=_UP)
        case ssl.SSLCertVerificationError():
            return Refused(
                f"the certificate of {where} is not trusted: {error.verify_message}",
                do="name the authority that signed it: redis.tls.ca",
            )
        case ssl.SSLError():
            return StoreUnavailable(
                f"{where} does not speak TLS with us: {error.reason or 'no common ground'}", do=_TLS
            )
        case socket.gaierror():
            return StoreUnavailable(f"the host of {where} has no address: {error.strerror}", do="check redis.addr")
        case OSError():
            return StoreUnavailable(f"{where} cannot be reached: {reason_of(error)}", do=_UP)
    return error


def keys_of(commands: Sequence[Sequence[Word]]) -> list[str | bytes]:
    """The first key of each of these commands."""
    return [each[1] for each in commands if len(each) > 1 and isinstance(each[1], str | bytes)]


_BEYOND = re.compile(r"no ids after (\d+-\d+) of (.+) which end here")  # the text is in lua/stream_log.lua


def _refused(error: RedisRefusal, where: str) -> Exception:
    code = error.code
    if code in _PASSING:
        what, do = _PASSING[code]
        return StoreUnavailable(f"{where} {what} ({code})", do=do)
    if code in _LOGIN:
        what, do = _LOGIN[code]
        return Refused(f"{where} {what} ({code})", do=do)
    text = str(error)
    if code == "OOM":
        return StoreFull(f"{where} has no memory left; nothing was changed", do="raise its maxmemory, or remove data")
    if "WRONGTYPE" in text:  # older servers put ERR and the name of the script before it
        return WrongType(
            f"{where} has a key of ours that another program uses for something else (WRONGTYPE)",
            do="use another database (redis.db) or another root for one of them",
        )
    if "not an integer" in text:
        return StoreBroken(
            f"{where} has a counter of ours that is not a number: another program overwrote it",
            do="see which with GET <root>:token; delete it, then run `wrasse jobs fsck --repair`, which sets it again",
        )
    if beyond := _BEYOND.search(text):
        id, key = beyond[1], printable(beyond[2], 200)
        return StoreBroken(
            f"nothing can follow the last entry of {key} in {where}: another program gave it the id {id}, which is"
            " beyond any clock",
            do=f"move the stream away: RENAME {key} {key}.old; the next message begins it anew, and its groups join it"
            " again; if it is archived, see `wrasse archives restart`",
        )
    if code == "CROSSSLOT" or "cluster support disabled" in text:
        is_one = code == "CROSSSLOT"
        what = "is a node of a cluster" if is_one else "is no cluster"
        return ConfigError(f"{where} {what}", do=f"set redis.cluster: {'true' if is_one else 'false'}")
    if "invalid password" in text or "without any password configured" in text:
        return Refused(f"{where} does not accept this password", do="correct redis.username and redis.password")
    if "max number of clients" in text:
        return StoreUnavailable(f"{where} has too many clients", do="raise its maxclients, or run fewer processes")
    if "DB index is out of range" in text:
        return ConfigError(f"{where} has no such database", do="correct redis.db")
    if "unknown command" in text.lower():
        return Refused(f"{where} is too old, or a command was renamed: {text}", do="use Redis 6.2 or newer, or Valkey")
    return StoreBroken(f"{where} refused a command: {printable(text, 200)}", do="look at the server's log")
