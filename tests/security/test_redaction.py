"""What looks like a credential does not get into the database by way of an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.redact import redact

if TYPE_CHECKING:
    from collections.abc import Callable

CANARY = "c4n4ry-S3cr3t"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c4n4rySignature"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"connect to postgresql://ann:{CANARY}@db.local:5432/app failed", "ann:***@db.local:5432"),
        (f"redis://:{CANARY}@cache/0", "redis://:***@cache/0"),
        (f"amqp://u:p@{CANARY}@host/x", "u:***@host/x"),
        (f"host=db user=ann password={CANARY} dbname=app", "dbname=app"),
        (f"host=db password='{CANARY} two words' dbname=app", "dbname=app"),
        (f"Authorization: Bearer {CANARY}", "Authorization: ***"),
        (f"{{'Authorization': 'Basic {CANARY}'}}", "***'}"),
        (f"Cookie: session={CANARY}; b={CANARY}\nHost: x", "Host: x"),
        (f"{{'authorization': b'Basic {CANARY}', 'host': b'x'}}", "'host': b'x'"),
        (f"[(b'authorization', b'Basic {CANARY}'), (b'host', b'x')]", "(b'host', b'x')"),
        (f"[(b'cookie', b'session={CANARY}'), (b'host', b'x')]", "(b'host', b'x')"),
        (f"login(password=b'{CANARY}', user='ann')", "user='ann'"),
        (f"{{'password': rb\"{CANARY}\", 'id': 7}}", "'id': 7"),
        (f'"{{\\"password\\": \\"{CANARY}\\", \\"id\\": 7}}"', '\\"id\\": 7'),
        (f'{{"password": "ab\\"{CANARY}", "id": 7}}', '"id": 7'),
        (f"cut short: {{'password': '{CANARY}", "cut short"),
        (f"bearer {CANARY} was refused", "was refused"),
        (f"GET https://api/x?api_key={CANARY}&page=2", "&page=2"),
        (f'{{"client_secret": "{CANARY}", "id": 7}}', '"id": 7'),
        (f"AWS_SECRET_ACCESS_KEY={CANARY}", "AWS_SECRET_ACCESS_KEY="),
        (f"DB_PASSWORD: {CANARY}", "DB_PASSWORD:"),
        (f"token = '{CANARY}'", "token = ***"),
        (f"dbPassword={CANARY}", "dbPassword=***"),
        (f"x-api-key: {CANARY}", "x-api-key: ***"),
        (f"refresh_token => {CANARY}", "refresh_token"),
        (f"bad token {JWT} given", "given"),
        (f"key:\n{KEY}\nend", "end"),
        (f"cut short: {KEY[:60]}", "cut short"),
        ("AKIAABCDEFGHIJKLMNOP is not allowed", "is not allowed"),
        ("ghp_abcdefghijklmnopqrstuvwx0123", "***"),
    ],
)
def test_a_credential_is_masked_and_the_rest_is_kept(text: str, kept: str) -> None:
    told = redact(text)
    for secret in (CANARY, "two words", JWT, "AKIAABCDEFGHIJKLMNOP", "ghp_abc"):
        assert secret not in told
    assert kept in told


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: the customer has no address",
        '  File "/app/tokens.py", line 3, in password_reset',
        "KeyError: 'password'",
        "could not connect to db.local:5432, database app",
        "see https://example.org/a:b@c",
        "the author: Ann; tokens: none",
        "claim_token is null",
        "monkey: banana, passage: 7, compass=north",
        "",
    ],
)
def test_what_is_no_credential_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


@given(st.text(max_size=200))
def test_masking_again_changes_nothing(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: "password" * n,
        lambda n: "a" * n,
        lambda n: "://" * n,
        lambda n: "://a:" * n,
        lambda n: "-----BEGIN PRIVATE KEY-----" * n,
        lambda n: "token=" * n,
        lambda n: "token='" * n,
        lambda n: "token='" + "\\'" * n,
        lambda n: "authorization" + "\\" * n,
        lambda n: "_-" * n,
        lambda n: "eyJ" + "a" * n,
        lambda n: "cookie:" * n,
        lambda n: "secret " * n,
        lambda n: "x" * n + "password",
    ],
)
def test_a_text_that_was_made_to_be_slow_is_masked_too(make: Callable[[int], str]) -> None:
    # Steps that grew with the square of the length would outlast the patience of the suite.
    told = redact(f"{make(128_000)[:128_000]}\npassword={CANARY}")
    assert CANARY not in told
