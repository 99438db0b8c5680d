"""Ways to log in to a NATS server, made for one test: certificates, a key of its own, an operator's JWTs."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from servers.nats import Nats, nats
from servers.tls import CERTIFICATE, CLIENT_CERTIFICATE, KEY

_SEED, _KINDS = 18 << 3, {"operator": 14 << 3, "account": 0, "user": 20 << 3}


@dataclass(frozen=True)
class NKey:
    """A key as NATS writes it, for an operator, an account or a user."""

    kind: int
    private: Ed25519PrivateKey

    @classmethod
    def new(cls, kind: str) -> NKey:
        return cls(_KINDS[kind], Ed25519PrivateKey.generate())

    @property
    def seed(self) -> str:
        return _letters(bytes([_SEED | self.kind >> 5, (self.kind & 31) << 3]) + self.private.private_bytes_raw())

    @property
    def public(self) -> str:
        return _letters(bytes([self.kind]) + self.private.public_key().public_bytes_raw())

    def jwt(self, subject: str, name: str, about: dict[str, object]) -> str:
        """What this key says of another one."""
        claims = {"jti": secrets.token_hex(16), "iat": 1_700_000_000, "iss": self.public, "name": name, "sub": subject}
        said = b".".join(_encoded(part) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims | {"nats": about}))
        return (said + b"." + _url64(self.private.sign(said))).decode()


@contextlib.contextmanager
def nats_with_user_key(file: Path) -> Iterator[Nats]:
    """A server that knows one user by its public key; the seed is in the file."""
    user = NKey.new("user")
    file.write_text(user.seed + "\n")
    with nats(f"authorization {{ users: [ {{ nkey: {user.public} }} ] }}") as server:
        yield server


@contextlib.contextmanager
def nats_of_operator(file: Path) -> Iterator[Nats]:
    """A server of an operator, with an account that may use JetStream; a user's credentials are in the file."""
    operator, system, account, user = (NKey.new(kind) for kind in ("operator", "account", "account", "user"))
    endless = {"subs": -1, "data": -1, "payload": -1}
    room = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    limits = endless | room | {"imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    told = operator.jwt(operator.public, "tests", {"type": "operator", "version": 2, "system_account": system.public})
    ours = operator.jwt(account.public, "wrasse", {"type": "account", "version": 2, "limits": limits})
    theirs = operator.jwt(system.public, "SYS", {"type": "account", "version": 2, "limits": endless | {"conn": -1}})
    jwt = account.jwt(user.public, "wrasse", {"type": "user", "version": 2, "pub": {}, "sub": {}, **endless})
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    preload = f"resolver_preload: {{ {account.public}: {ours}, {system.public}: {theirs} }}"
    with nats(f"operator: {told}\nsystem_account: {system.public}\nresolver: MEMORY\n{preload}") as server:
        yield server


@contextlib.contextmanager
def nats_with_tls(*, asks_client: bool = False, first: bool = False) -> Iterator[Nats]:
    """A server that speaks TLS only; with `asks_client` only to our client certificate, with `first` from the first
    byte on."""
    asked = f"ca_file: '{CLIENT_CERTIFICATE}', verify: true," if asks_client else ""
    early = "handshake_first: true," if first else ""
    with nats(f"tls {{ cert_file: '{CERTIFICATE}', key_file: '{KEY}', {asked} {early} timeout: 10 }}") as server:
        yield server


def _letters(key: bytes) -> str:
    check = binascii.crc_hqx(key, 0).to_bytes(2, "little")
    return base64.b32encode(key + check).decode().rstrip("=")


def _url64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _encoded(part: dict[str, object]) -> bytes:
    return _url64(json.dumps(part, separators=(",", ":")).encode())
