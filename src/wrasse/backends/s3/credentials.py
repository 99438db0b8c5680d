"""Credentials and signatures: from the URL, the environment, the profile file, and botocore's chain if it is installed.

The first source that has any is used. Temporary credentials are fetched again a few minutes before they expire.

AWS Signature Version 4, for the headers of one request, is computed here. Pure: time and credentials are arguments.

The signed path and query are sent byte for byte: no later code may quote them again.
"""

from __future__ import annotations

import asyncio
import configparser
import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from wrasse.backends.s3.address import S3Address
from wrasse.clock import Clock
from wrasse.errors import ConfigError

EMPTY_HASH = hashlib.sha256(b"").hexdigest()
_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key. Its text form has no secrets."""

    key: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)
    until: datetime | None = None  # when they must be fetched again


@dataclass(frozen=True, slots=True)
class Unsigned:
    """A request without the headers that the signature adds."""

    method: str
    host: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    payload_hash: str = EMPTY_HASH


class Signer:
    """Signs for one region and service; caches the day's key, since deriving it costs more than using it."""

    def __init__(self, region: str, service: str = "s3") -> None:
        self._region = region
        self._service = service
        self._kept: tuple[tuple[str, str], bytes] = (("", ""), b"")

    def headers(self, request: Unsigned, who: Credentials, at: datetime) -> dict[str, str]:
        """All headers to send with the request."""
        moment = at.strftime("%Y%m%dT%H%M%SZ")
        headers = {**request.headers, "host": request.host, "x-amz-date": moment}
        if self._service == "s3":
            headers["x-amz-content-sha256"] = request.payload_hash
        if who.token:
            headers["x-amz-security-token"] = who.token
        names = sorted(headers)
        signed = ";".join(names)
        lines = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in names)
        canonical = f"{request.method}\n{request.path}\n{request.query}\n{lines}\n{signed}\n{request.payload_hash}"
        scope = f"{moment[:8]}/{self._region}/{self._service}/aws4_request"
        text = f"{_ALGORITHM}\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.new(self._key(who.secret, moment[:8]), text.encode(), hashlib.sha256).hexdigest()
        headers["authorization"] = (
            f"{_ALGORITHM} Credential={who.key}/{scope}, SignedHeaders={signed}, Signature={signature}"
        )
        return headers

    def _key(self, secret: str, day: str) -> bytes:
        if self._kept[0] != (secret, day):
            key = b"AWS4" + secret.encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.new(key, part.encode(), hashlib.sha256).digest()
            self._kept = ((secret, day), key)
        return self._kept[1]


def quoted(raw: bytes) -> str:
    """A key in a path: slashes stay, every other byte that is not plain is escaped."""
    return quote(raw, safe="-_.~/")


def query_of(pairs: Iterable[tuple[str, str | bytes]]) -> str:
    """A query string in the order of the signature."""
    return "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted(pairs))


DEFAULT_REGION = "us-east-1"
_AHEAD = timedelta(minutes=5)
_CHAIN_LASTS = timedelta(minutes=10)


class CredentialSource:
    """The credentials of one bucket, cached until they expire."""

    def __init__(self, address: S3Address, clock: Clock, environ: Mapping[str, str] | None = None) -> None:
        self._address = address
        self._clock = clock
        self._environ = os.environ if environ is None else environ
        self._kept: Credentials | None = None

    def region(self) -> str:
        """The region: of the URL, the environment, the profile, or AWS's first."""
        named = self._address.region or self._environ.get("AWS_REGION") or self._environ.get("AWS_DEFAULT_REGION")
        return named or self._profile_value("region") or DEFAULT_REGION

    async def credentials(self) -> Credentials:
        """Who asks, now."""
        kept = self._kept
        if kept is not None and (kept.until is None or self._clock.now() < kept.until - _AHEAD):
            return kept
        fresh = self._static()
        if fresh is None:
            fresh = await asyncio.to_thread(self._chain)
        self._kept = fresh
        return fresh

    def _static(self) -> Credentials | None:
        address, environ = self._address, self._environ
        if address.access_key:
            return Credentials(address.access_key, address.secret_key, address.session_token)
        if not address.profile and environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
            token = environ.get("AWS_SESSION_TOKEN", "")
            return Credentials(environ["AWS_ACCESS_KEY_ID"], environ["AWS_SECRET_ACCESS_KEY"], token)
        key, secret = self._profile_value("aws_access_key_id"), self._profile_value("aws_secret_access_key")
        return Credentials(key, secret, self._profile_value("aws_session_token")) if key and secret else None

    def _profile_value(self, name: str) -> str:
        profile = self._address.profile or self._environ.get("AWS_PROFILE") or "default"
        home = Path(self._environ.get("HOME", "~")).expanduser()
        places = (
            (self._environ.get("AWS_SHARED_CREDENTIALS_FILE") or str(home / ".aws" / "credentials"), profile),
            (
                self._environ.get("AWS_CONFIG_FILE") or str(home / ".aws" / "config"),
                profile if profile == "default" else f"profile {profile}",
            ),
        )
        for file, section in places:
            read = configparser.RawConfigParser()
            try:
                read.read(file)
            except (configparser.Error, OSError, UnicodeDecodeError):
                raise ConfigError(
                    "the file of AWS profiles cannot be read", do="correct it, or set AWS_ACCESS_KEY_ID and its secret"
                ) from None
            if read.has_option(section, name):
                return read.get(section, name).strip()
        return ""

    def _chain(self) -> Credentials:
        """The credentials that botocore finds: single sign-on, roles, the machine's own. It blocks, so it runs in a
        thread."""
        try:
            import botocore.exceptions  # type: ignore[import-untyped]
            import botocore.session  # type: ignore[import-untyped]
        except ImportError:
            raise self._nobody() from None
        try:
            found = botocore.session.Session(profile=self._address.profile or None).get_credentials()
            frozen = None if found is None else found.get_frozen_credentials()
        except botocore.exceptions.BotoCoreError as why:
            raise ConfigError(
                f"the credentials for {self._address} cannot be fetched ({type(why).__name__})",
                do="check the profile, or log in again",
            ) from why
        if frozen is None:
            raise self._nobody()
        # botocore renews expiring credentials itself when it is called again.
        until = self._clock.now() + _CHAIN_LASTS
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token or "", until)

    def _nobody(self) -> ConfigError:
        return ConfigError(
            f"there are no credentials for {self._address}",
            do="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for single sign-on and roles install "
            "wrasse[aws]",
        )
