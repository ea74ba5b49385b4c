"""What does a line of the README do when somebody types it?"""

from __future__ import annotations

import shlex
from urllib.parse import urlsplit

import httpx

from tests.documents import README, block
from tests.support import NO_TLS

ADDRESS = "http://127.0.0.1:8080"


def page(holding: str) -> list[str]:
    """The lines of the shell block that holds `holding`, continued lines joined and comments taken away."""
    text = block(README, "sh", holding).replace("\\\n", " ")
    return [line.split(" # ")[0].strip() for line in text.splitlines()]


def request(line: str) -> httpx.Request:
    """The request of a curl line, without its address, so that it needs no curl and suits any port."""
    words = iter(shlex.split(line))
    assert next(words) == "curl"
    method, url, headers, content = "GET", "", {}, None
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word == "-d":
            content = next(words)
        else:
            url = word
    assert url.startswith(f"{ADDRESS}/"), f"{line} asks somebody else"
    parts = urlsplit(url)
    return httpx.Request(method, f"{ADDRESS}{parts.path}?{parts.query}", headers=headers, content=content)


async def asked(line: str, api_url: str) -> httpx.Response:
    """The answer of the API at `api_url` to the curl line."""
    found = request(line)
    async with httpx.AsyncClient(base_url=api_url, timeout=30, trust_env=False, verify=NO_TLS) as client:
        target = found.url.raw_path.decode().rstrip("?")
        return await client.request(found.method, target, headers=found.headers, content=found.content)
