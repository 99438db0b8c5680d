"""The login at a NATS server: the server sends a nonce, and the private key that signs it never leaves this process.

Files are read again for every connection, so that renewed credentials are used without a restart. No error contains a
seed, a token or a file's contents.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wrasse.backends.nats.options import NatsOptions
from wrasse.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_SEED, _USER = 18 << 3, 20 << 3  # the first five bits of an encoded key: S, U
_SEED_BYTES, _CHECK_BYTES = 32, 2
_BLOCK = r"-{3,}BEGIN %s-{3,}\s*(\S+)\s*-{3,}END %s-{3,}"
_JWT = re.compile(_BLOCK % (("NATS USER JWT",) * 2))
_NKEY = re.compile(_BLOCK % (("USER NKEY SEED",) * 2))
_FILE_BYTES_MAX = 1 << 20
CREDS, NKEY = "the file of nats.creds", "the file of nats.nkey"  # their names in errors: a path may be a secret


@dataclass(frozen=True, slots=True)
class Login:
    """The fields of CONNECT that identify the user; empty ones are left out."""

    user: str = ""
    password: str = field(default="", repr=False)
    auth_token: str = field(default="", repr=False)
    nkey: str = ""
    jwt: str = field(default="", repr=False)
    sig: str = field(default="", repr=False)

    def fields(self) -> dict[str, str]:
        """The fields by their names in CONNECT."""
        named = {
            "user": self.user,
            "pass": self.password,
            "auth_token": self.auth_token,
            "nkey": self.nkey,
            "jwt": self.jwt,
            "sig": self.sig,
        }
        return {name: text for name, text in named.items() if text}


def sign(options: NatsOptions, nonce: str) -> Login:
    """The login for one connection; `nonce` is from the server's INFO, empty if it sent none."""
    if options.creds:
        jwt, seed = _creds(options.creds)
        return Login(jwt=jwt, sig=_signed(seed, nonce, CREDS))
    if options.nkey:
        seed = _seed_in(_read(options.nkey, NKEY), NKEY)
        return Login(nkey=public_key(seed, NKEY), sig=_signed(seed, nonce, NKEY))
    return Login(user=options.username, password=options.password, auth_token=options.token)


def public_key(seed: str, where: str = "the seed") -> str:
    """The public key of a user's seed, as servers name users: `U…`."""
    key = _private(seed, where).public_key().public_bytes_raw()
    return encoded(bytes([_USER]) + key)


def encoded(key: bytes) -> str:
    """A key with its prefix and checksum, in the base32 text of NATS."""
    check = binascii.crc_hqx(key, 0).to_bytes(_CHECK_BYTES, "little")
    return base64.b32encode(key + check).decode().rstrip("=")


def _signed(seed: str, nonce: str, where: str) -> str:
    if not nonce:
        return ""  # a server without a nonce accepts any user, or refuses the login itself
    return base64.urlsafe_b64encode(_private(seed, where).sign(nonce.encode())).decode().rstrip("=")


def _private(seed: str, where: str) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"signing in to NATS with a key needs the package {missing.name}", do="pip install 'wrasse[nats]'"
        ) from missing
    return Ed25519PrivateKey.from_private_bytes(_raw(seed, where))


def _raw(seed: str, where: str) -> bytes:
    """The 32 bytes of a user's seed."""
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except ValueError:
        raw = b""
    whole = len(raw) == 2 + _SEED_BYTES + _CHECK_BYTES
    if not whole or binascii.crc_hqx(raw[:-_CHECK_BYTES], 0).to_bytes(_CHECK_BYTES, "little") != raw[-_CHECK_BYTES:]:
        raise ConfigError(f"{where} has no seed of a NATS key", do="use the file that nsc or nk made for this user")
    if raw[0] & 0xF8 != _SEED or ((raw[0] & 7) << 5 | raw[1] >> 3) != _USER:
        raise ConfigError(f"{where} has the seed of a key that is not a user's", do="use a user's: it begins with SU")
    return raw[2 : 2 + _SEED_BYTES]


def _creds(path: str) -> tuple[str, str]:
    text = _read(path, CREDS)
    jwt = _JWT.search(text)
    if jwt is None:
        raise ConfigError(f"{CREDS} has no JWT of a NATS user", do="use the .creds file that nsc made for this user")
    return jwt[1], _seed_in(text, CREDS)


def _seed_in(text: str, where: str) -> str:
    block = _NKEY.search(text)
    if block is not None:
        return block[1]
    bare = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if len(bare) == 1 and bare[0].startswith("S"):
        return bare[0]
    raise ConfigError(f"{where} has no seed of a NATS key", do="use the file that nsc or nk made for this user")


def _read(path: str, where: str) -> str:
    try:
        with Path(path).expanduser().open("rb") as file:
            return file.read(_FILE_BYTES_MAX).decode("ascii", "replace")
    except OSError as error:
        what = f"{where} cannot be read: {error.strerror}"
        raise ConfigError(what, do="check its path and its permissions") from error
