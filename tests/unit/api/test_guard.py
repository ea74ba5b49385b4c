"""Can a page of another site use the API through somebody's browser?"""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from orchestrix.api.guards.origin_guard import OriginGuard
from orchestrix.api.problems import Problem

OPEN = OriginGuard(
    check_host=True, allowed=("orchestrix.example", "10.0.0.7:8080", "[FD00:0::1]:8080", "[fd00::2]", "x:99999")
)


def refused(guard: OriginGuard, method: str = "GET", path: str = "/apps", **headers: str | list[str]) -> str | None:
    """The code of the problem; None if the request is admitted."""
    pairs = [
        (name.replace("_", "-").lower().encode(), one.encode("latin-1"))
        for name, value in headers.items()
        for one in (value if isinstance(value, list) else [value])
    ]
    try:
        guard.admit(method, path, Headers(raw=pairs))
    except Problem as problem:
        return problem.code
    return None


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8080",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:8080",
        "127.1.2.3:1",
        "[::1]",
        "[::1]:8080",
        "[::ffff:127.0.0.1]:80",
        "app.localhost:3000",
        "orchestrix.example",
        "ORCHESTRIX.example:9999",
        "10.0.0.7:8080",
        "[fd00::1]:8080",
        "[FD00:0:0::1]:8080",
        "[fd00::2]",
        "[fd00::2]:9999",
    ],
)
def test_names_of_loopback_and_allowed_ones_are_right(host: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        assert refused(OPEN, method, host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example#localhost",
        "localhost@evil.example",
        "evil.example@localhost",
        "localhost/x",
        "0.0.0.0:8080",
        "0x7f.1",
        "2130706433",
        "10.0.0.7",
        "10.0.0.7:8081",
        "192.168.1.1",
        "[::2]",
        "[fd00::1]",
        "[fd00::1]:8081",
        "[fd00::3]:8080",
        "fd00::2",
        "x",
        ":8080",
        "[::1",
        "[fe80::1]",
        "notlocalhost",
        "x.orchestrix.example",
        "localhost:99999",
        "localhost:x",
        "a b",
        "",
        "é",
    ],
)
def test_another_host_is_refused_whatever_is_asked(host: str) -> None:
    for method, path in (("GET", "/apps"), ("POST", "/apps"), ("GET", "/docs"), ("HEAD", "/health")):
        assert refused(OPEN, method, path, host=host) == "misdirected"
        assert refused(OriginGuard(), method, path, host=host) is None


def test_no_host_and_two_hosts_are_refused() -> None:
    assert refused(OPEN) == "misdirected"
    assert refused(OPEN, host=["localhost", "localhost"]) == "misdirected"


@pytest.mark.parametrize("guard", [OPEN, OriginGuard()])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://localhost:8081"},
        {"origin": "http://127.0.0.1:8080"},
        {"origin": "file://"},
        {"origin": "http://localhost:8080.evil.example"},
        {"origin": "http://[::1"},
        {"origin": "http://localhost:99999"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "Cross-Site"},
        {"sec_fetch_site": "?"},
        {"origin": "http://localhost:8080", "sec_fetch_site": "cross-site"},
        {"origin": "http://evil.example", "sec_fetch_site": "same-origin"},
        {"origin": ["http://localhost:8080", "http://evil.example"]},
    ],
)
def test_another_origin_changes_nothing_and_follows_nothing(guard: OriginGuard, headers: dict[str, str]) -> None:
    for method, path in (
        ("POST", "/cluster/nodes/n/drain"),
        ("PUT", "/apps/1"),
        ("PATCH", "/apps/1"),
        ("DELETE", "/schedules/x"),
        ("PROPFIND", "/apps"),
        ("GET", "/apps/1/events"),
        ("GET", "/jobs/1/logs"),
    ):
        assert refused(guard, method, path, host="localhost:8080", **headers) == "foreign_origin"
    assert refused(guard, "GET", host="localhost:8080", upgrade="websocket", **headers) == "foreign_origin"
    assert refused(guard, "GET", "/docs", host="localhost:8080", **headers) is None, "links lead here"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://localhost:8080"},
        {"origin": "http://LOCALHOST:8080"},
        {"sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none"},
        {"origin": "http://localhost:8080", "sec_fetch_site": "same-origin"},
    ],
)
def test_its_own_pages_and_programs_may(headers: dict[str, str]) -> None:
    assert refused(OPEN, "POST", host="localhost:8080", **headers) is None


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://api.example", "api.example"),
        ("https://api.example", "api.example:443"),
        ("http://api.example:80", "api.example"),
        ("https://[2001:db8::1]:8443", "[2001:db8::1]:8443"),
    ],
)
def test_a_proxy_may_take_the_tls_away(origin: str, host: str) -> None:
    assert refused(OriginGuard(), "POST", host=host, origin=origin) is None


def test_the_sentence_names_what_to_do() -> None:
    with pytest.raises(Problem) as caught:
        OPEN.admit("GET", "/apps", Headers({"host": "evil.example"}))
    assert "ORCHESTRIX_HTTP__ALLOWED_HOSTS" in caught.value.detail
    assert (caught.value.status, "evil.example" in caught.value.detail) == (421, True)
