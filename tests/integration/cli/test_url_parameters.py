"""Does every parameter of a URL do what it says, or is it refused in a sentence?"""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from sqlalchemy import make_url

from orchestrix.broker.amqp.addresses import addresses
from orchestrix.errors import ConfigError, Unavailable
from orchestrix.persistence.dialects import tls
from orchestrix.persistence.dialects.tls import wanted
from orchestrix.persistence.engine import Database

POSTGRESQL, MARIADB = "postgresql+asyncpg://u:geheim@db.example/x", "mysql+asyncmy://u:geheim@db.example/x"


@pytest.mark.parametrize(
    ("url", "names"),
    [
        (f"{POSTGRESQL}?sslfoo=1", ["sslfoo", "sslmode"]),
        (f"{POSTGRESQL}?connect_timeout=5", ["connect_timeout", "target_session_attrs"]),
        (f"{POSTGRESQL}?sslmode=always", ["sslmode=always", "verify-full"]),
        (f"{POSTGRESQL}?ssl=disable&sslmode=require", ["disable and require"]),
        (f"{POSTGRESQL}?sslrootcert=/nowhere.pem", ["sslrootcert", "cannot be read"]),
        (f"{MARIADB}?autocommit=1", ["autocommit", "unix_socket"]),
        (f"{MARIADB}?ssl_ca=/nowhere.pem", ["sslrootcert", "cannot be read"]),
        ("sqlite+aiosqlite:///a?b=c.db", ["'b'", "%3F"]),
    ],
)
def test_a_parameter_that_is_not_known_is_refused_in_a_sentence(url: str, names: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        Database(url)
    assert all(name in str(refused.value) for name in names), str(refused.value)
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    ("query", "mode", "verifies", "host"),
    [
        ("", None, None, None),
        ("?ssl=true", "require", None, None),
        ("?sslmode=disable", "disable", None, None),
        ("?sslmode=require", "require", None, None),
        ("?sslmode=verify-ca", "verify-ca", ssl.CERT_REQUIRED, False),
        ("?sslmode=verify-full", "verify-full", ssl.CERT_REQUIRED, True),
        ("?ssl_mode=VERIFY_IDENTITY", "verify-full", ssl.CERT_REQUIRED, True),
    ],
)
@pytest.mark.parametrize("url", [POSTGRESQL, MARIADB])
async def test_tls_is_wanted_as_the_url_says(
    url: str, query: str, mode: str | None, verifies: ssl.VerifyMode | None, host: bool | None
) -> None:
    found = wanted(make_url(url + query))
    assert found.mode == mode
    context = found.context
    assert (context and context.verify_mode, context and context.check_hostname) == (verifies, host)
    database = Database(url + query)  # the driver takes what is left
    assert not set(database._engine.url.query) & tls.PARAMETERS
    await database.close()


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["postgres_url", "mariadb_url"])
async def test_without_tls_at_the_server_what_asks_for_it_is_refused(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = request.getfixturevalue(kind)
    database = Database(f"{url}?sslmode=require")
    with pytest.raises(Unavailable):
        await database.ping()
    await database.close()
    monkeypatch.setattr(tls, "_is_here", lambda host: False)
    if kind == "mariadb_url":
        with pytest.raises(ConfigError, match="cannot choose"):
            Database(f"{url}?ssl=prefer")
        return
    for _ in range(2):
        database = Database(f"{url}?ssl=prefer")
        await database.ping()
        await database.close()
    assert caplog.text.count("is not encrypted") == 1


@pytest.mark.parametrize("query", ["ssl=true", "heartbeat=soon", "sslmode=verify-full", "timeout=-1"])
def test_a_brokers_parameter_without_effect_is_refused(query: str) -> None:
    with pytest.raises(ConfigError, match=query.partition("=")[0]):
        addresses(f"amqp://u:geheim@h1,h2/v?{query}")


def test_a_brokers_known_parameters_are_taken(tmp_path: Path) -> None:
    assert len(addresses(f"amqps://u:p@h1,h2/v?cafile={tmp_path}/ca.pem&heartbeat=10")) == 2
