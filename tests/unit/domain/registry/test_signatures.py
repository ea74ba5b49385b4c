"""Does a signature show that a node has just sent this very body?"""

from __future__ import annotations

import pytest

from orchestrix.domain.registry.signatures import MAX_AGE_S, sign, signature_refusal

NOW = 1_800_000_000.9
HEADER = "t=1800000000,v1=1cd77f07c7f231a8a17cd9bc413e578ccb209c24eb17a0577ce1eb9218a4f3ed"
"""Made by `printf '1800000000.{}' | openssl dgst -sha256 -hmac s3cret`."""


def test_it_is_the_digest_of_the_time_and_the_body() -> None:
    assert sign("s3cret", b"{}", NOW) == HEADER
    assert signature_refusal("s3cret", HEADER, b"{}", NOW) is None


@pytest.mark.parametrize(
    ("token", "header", "body", "age", "words"),
    [
        ("s3cret", None, b"{}", 0, "not signed"),
        ("s3cret", "", b"{}", 0, "must be t="),
        ("s3cret", HEADER + " ", b"{}", 0, "must be t="),
        ("s3cret", HEADER.replace("v1", "v2"), b"{}", 0, "must be t="),
        ("s3cret", HEADER.replace("t=18", "t=٣٣"), b"{}", 0, "must be t="),
        ("other", HEADER, b"{}", 0, "wrong"),
        ("s3cret", HEADER, b"{ }", 0, "wrong"),
        ("s3cret", HEADER.replace("t=1800000000", "t=1800000001"), b"{}", 0, "wrong"),
        ("s3cret", HEADER, b"{}", MAX_AGE_S + 1, "older than 60 s"),
        ("s3cret", HEADER, b"{}", -MAX_AGE_S - 2, "clocks"),
    ],
)
def test_any_other_is_refused(token: str, header: str | None, body: bytes, age: float, words: str) -> None:
    why = signature_refusal(token, header, body, NOW + age)
    assert why is not None
    assert words in why


@pytest.mark.parametrize("age", [-MAX_AGE_S + 1, 0, MAX_AGE_S - 1])
def test_within_its_age_it_is_good(age: float) -> None:
    assert signature_refusal("s3cret", HEADER, b"{}", NOW + age) is None
