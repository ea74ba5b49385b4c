"""Which brokers does a URL name, and what is said about one that cannot be reached?"""

from __future__ import annotations

import socket
import ssl

import pytest
from yarl import URL

from orchestrix.broker.amqp.addresses import addresses, connect_problem, host_and_port
from orchestrix.errors import ConfigError

SECRET = URL("amqps://me:s3cret@example.org/shop")


def test_one_host() -> None:
    assert [str(one) for one in addresses(" amqp://me:p%40w@example.org:5673/a%2Fb?heartbeat=7 ")] == [
        "amqp://me:p%40w@example.org:5673/a%2Fb?heartbeat=7"
    ]


def test_several_hosts_share_login_and_virtual_host() -> None:
    found = addresses("amqp://me:pw@a,b:5673,[::1]:5674/shop")
    assert sorted(map(str, found)) == [
        "amqp://me:pw@[::1]:5674/shop",
        "amqp://me:pw@a/shop",
        "amqp://me:pw@b:5673/shop",
    ]


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "http://a/", "amqp://", "amqp://me:s3cret@", "amqp://me:s3cret@a:x/", "amqp://me:s3cret@a,,b/"],
)
def test_what_cannot_be_read_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        addresses(url)
    assert "s3cret" not in str(refused.value)


def test_the_port_follows_the_scheme() -> None:
    assert [host_and_port(URL("amqp://a/")), host_and_port(URL("amqps://a/")), host_and_port(URL("amqp://a:1/"))] == [
        "a:5672",
        "a:5671",
        "a:1",
    ]


@pytest.mark.parametrize(
    ("error", "refusal", "words"),
    [
        (OSError(), (403, "ACCESS_REFUSED - no"), "rejected the login of 'me' (403 ACCESS_REFUSED - no)"),
        (OSError(), (530, "NOT_ALLOWED - none"), "no virtual host 'shop' for 'me'"),
        (OSError(), (541, "INTERNAL_ERROR"), "refused the connection (541 INTERNAL_ERROR)"),
        (TimeoutError(), None, "did not answer in time"),
        (ConnectionRefusedError(), None, "cannot connect to example.org:5671: connection refused"),
        (socket.gaierror(), None, "host name example.org cannot be resolved"),
        (ssl.SSLError(1, "WRONG_VERSION"), None, "TLS with example.org:5671 failed"),
        (ValueError("s3cret"), None, "cannot be reached (ValueError)"),
    ],
)
def test_the_reason_is_one_sentence_without_secrets(
    error: Exception, refusal: tuple[int, str] | None, words: str
) -> None:
    sentence = connect_problem(SECRET, error, refusal, None)
    assert words in sentence
    assert "s3cret" not in sentence


def test_the_last_words_of_a_socket_are_told() -> None:
    assert "does not speak" in connect_problem(SECRET, OSError(), None, "it does not speak AMQP")
