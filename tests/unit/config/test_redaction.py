"""No secret reaches an eye: not by a URL, an error, the settings, doctor or a log, whatever characters it has."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, strategies as st

from cli.command_line import wrasse
from wrasse.backends.s3.address import S3Address
from wrasse.clock import ManualClock
from wrasse.config import redaction
from wrasse.config.load import load
from wrasse.config.redaction import hide, remember
from wrasse.config.urls import StoreUrl, parse_objects, parse_store
from wrasse.errors import WrasseError
from wrasse.observability.logs import start_logging


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    before = set(redaction._known)
    redaction._known.clear()
    yield
    redaction._known.clear()
    redaction._known.update(before)


ANY = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
SCHEMES = st.sampled_from(
    ["redis", "rediss", "nats", "tls", "postgresql", "mysql+aiomysql", "https", "rdis", "redis+sentinel"]
)


@given(
    SCHEMES, ANY, ANY, ANY, st.sampled_from(["h", "h:1/0", "a:1,b:2/0?root=x", "[::1]:6379", "h/db?sslmode=require"])
)
def test_no_password_of_a_url_survives(scheme: str, user: str, before: str, after: str, host: str) -> None:
    url = f"{scheme}://{user}:{before}PLANTED{after}@{host}"
    for text in (url, f"cannot reach {url} now", f"ValueError({url!r})", f"one.example, then {url}\nand more"):
        assert "PLANTED" not in hide(text)
    quoted = f"{scheme}://{quote(user, safe='')}:{quote(before, safe='')}PLANTED{quote(after, safe='')}@{host}"
    assert "PLANTED" not in hide(f"cannot reach {quoted} now")


@given(SCHEMES, ANY, ANY, ANY)
def test_no_error_about_a_url_shows_its_password(scheme: str, user: str, before: str, after: str) -> None:
    login = user.replace("/", "")  # before a slash is a bucket, after it a path, which is no secret
    for url in (f"{scheme}://{user}:{before}PLANTED{after}@h:x/0", f"s3://{login}:{before}PLANTED{after}@bucket/p"):
        for parse in (parse_store, parse_objects):
            assert "PLANTED" not in shown(parse, url)


def shown(parse: Callable[[str], StoreUrl], url: str) -> str:
    try:
        parsed = parse(url)
    except WrasseError as why:
        return hide(str(why))
    return f"{parsed} {parsed!r}"


def test_a_login_in_the_place_of_a_bucket_is_not_in_the_error_itself() -> None:
    with pytest.raises(WrasseError) as caught:
        S3Address.parse("key:PLANTED@bucket/x")
    assert "PLANTED" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "nats://PLANTED@h",
        "nats://PLAN/PLANTED x@h",
        "user:a/PLANTED@host",
        "connection to host=h user=u password=PLANTED failed",
        "connection to host=h password='x PLANTED' dbname=d",
        'connection to {"password": "x PLANTED", "user": "u"}',
        "s3://b?secret_key=PLANTED&region=x",
        "s3://b?access_key=PLANTED",
        "redis://h?sentinel_password=PLANTED",
        "Authorization: Bearer PLANTED",
        "Authorization: Basic PLANTED",
        "refused: bearer PLANTED123",
        "AWS_SECRET_ACCESS_KEY=PLANTED",
        "api_key: PLANTED",
        "SUAPLANTED" + "A" * 49,
        "eyJhbGciOiJ.PLANTED.x",
        "AKIA" + "PLANTED000000000",
        "{'password': b'x PLANTED'}",
        "password = r'PLANTED'",
        'password="x\\"y PLANTED"',
        "password='it''s PLANTED'",
        "connection to host=h pass=PLANTED failed",
        "passphrase: PLANTED",
        "X-Api-Key: PLANTED",
        "Cookie: session=PLANTED",
        "REDISCLI_AUTH=PLANTED",
        "SharedAccessKey=PLANTED",
        "GET /b?X-Amz-Signature=PLANTED&x=1",
        "AWS4-HMAC-SHA256 Credential=x, Signature=PLANTED",
        "AccountKey=PLANTED",
        "https://store/b?sig=PLANTED",
        "Bearer  PLANTED123",
        "redis-cli --password PLANTED",
        "program --api-key='x PLANTED'",
        "-----BEGIN RSA PRIVATE KEY-----\nx\nPLANTED\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_no_form_of_a_secret_survives(text: str) -> None:
    assert "PLANTED" not in hide(text)


@pytest.mark.parametrize(
    "text",
    [
        "mail to somebody at 10:30",
        "s3://bucket/a@b/c",
        "file:///a@b",
        "5 jobs/s",
        "sqlite:wrasse.db",
        "http://h:1/x",
        "a: b",
        "passes: 3",
        "author: me",
        "monkey=1",
        "add --token and --transaction",
        "publish --idempotency-key a --key-prefix b",
    ],
)
def test_what_holds_no_secret_is_shown_as_it_is(text: str) -> None:
    assert hide(text) == text


@given(ANY)
def test_what_settings_hold_is_cut_out_of_any_text(secret: str) -> None:
    secret += "PLANTED!"
    remember(f"Bearer {secret}", secret=True)
    remember(f"postgresql://u:{quote(secret, safe='')}@h/d")
    for text in (secret, f"driver: could not log in with {secret}, sorry", f"x{quote(secret, safe='')}y"):
        assert "PLANTED" not in hide(text)


PASSWORDS = ["PLANTED-abc", "a PLANTED/b@c d", "PLANTED%2Fx y", "PLANTED'\\\"x", "päss PLANTED wörd", "x\\tPLANTED"]


@pytest.mark.parametrize("password", PASSWORDS)
def test_no_command_shows_a_secret_of_the_settings(
    password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = password.replace("'", "''")
    Path("wrasse.yaml").write_text(
        f"backends: {{records: 'redis://user:{text}@127.0.0.1:1/0'}}\n"
        f"worker: {{http: {{authorization: 'Bearer {text}'}}}}\n"
        f"orphans: {{a: {{preset: workspaces, database: 'postgresql://u:{text}@127.0.0.1:1/db'}}}}\n"
        f"leases: {{token: '{text}'}}\n"
    )
    for args in (
        ("config", "show"),
        ("config", "check"),
        ("doctor",),
        ("doctor", "--json"),
        ("leases", "list"),
        ("jobs", "stats"),
    ):
        answer = wrasse(*args)
        assert "PLANTED" not in answer.out + answer.err, args


def test_no_log_line_shows_a_secret_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "wrasse.yaml").write_text("redis: {password: 'a PLANTED/b c'}\nnats: {token: PLANTED-token}")
    load(tmp_path / "wrasse.yaml", environ={})
    stream = io.StringIO()
    handler, _ = start_logging("debug", stream=stream, clock=ManualClock())
    logging.getLogger("wrasse.x").warning("login a PLANTED/b c refused", extra={"reason": "it was PLANTED-token"})
    handler.close()
    assert "refused" in stream.getvalue()
    assert "PLANTED" not in stream.getvalue()


def test_hiding_takes_linear_time() -> None:
    for text in (
        "//" * 200_000 + "@",
        "@" + "//" * 200_000,
        "a:" * 200_000 + "@",
        "password=" * 50_000,
        "s3://" * 100_000 + "@",
    ):
        assert len(hide(text)) <= len(text) + 10
