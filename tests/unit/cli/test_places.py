"""Does the flag beat the environment, and the environment `dev.json`?"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrix.cli import devfile, endpoints
from orchestrix.config.settings import load
from orchestrix.errors import ConfigError
from tests.unit.cli.test_devfile import URLS

ENV = {
    "ORCHESTRIX_DATABASE_URL": "postgresql+asyncpg://env/d",
    "ORCHESTRIX_BROKER_URL": "amqp://env/",
    "ORCHESTRIX_API_URL": "http://env:1/",
}


def test_the_flag_comes_first(tmp_path: Path) -> None:
    settings = load(ENV, database_url="mysql+asyncmy://flag/d", broker_url="amqps://flag/", api_url="https://flag")
    assert endpoints.database(settings, tmp_path) == "mysql+asyncmy://flag/d"
    assert endpoints.broker(settings, tmp_path)() == "amqps://flag/"
    assert endpoints.api(settings, tmp_path) == "https://flag"


def test_the_environment_comes_before_dev(tmp_path: Path) -> None:
    with devfile.claimed(tmp_path):
        devfile.write(tmp_path, **URLS)
        settings = load(ENV)
        assert endpoints.database(settings, tmp_path) == ENV["ORCHESTRIX_DATABASE_URL"]
        assert endpoints.broker(settings, tmp_path)() == ENV["ORCHESTRIX_BROKER_URL"]
        assert endpoints.api(settings, tmp_path) == "http://env:1"


def test_dev_comes_last(tmp_path: Path) -> None:
    with devfile.claimed(tmp_path):
        devfile.write(tmp_path, **URLS)
        settings = load({})
        assert endpoints.database(settings, tmp_path) == URLS["database_url"]
        assert endpoints.broker(settings, tmp_path)() == URLS["broker_url"]
        assert endpoints.api(settings, tmp_path) == URLS["api_url"]


def test_an_empty_variable_is_none(tmp_path: Path) -> None:
    with devfile.claimed(tmp_path):
        devfile.write(tmp_path, **URLS)
        settings = load(dict.fromkeys(ENV, ""))
        assert endpoints.database(settings, tmp_path) == URLS["database_url"]
        assert endpoints.broker(settings, tmp_path)() == URLS["broker_url"]
        assert endpoints.api(settings, tmp_path) == URLS["api_url"]


def test_nothing_at_all_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ORCHESTRIX_DATABASE_URL"):
        endpoints.database(load({}), tmp_path)
    with pytest.raises(ConfigError, match="ORCHESTRIX_BROKER_URL"):
        endpoints.broker(load({}), tmp_path)
    with pytest.raises(ConfigError, match="--api or ORCHESTRIX_API_URL, or run `orchestrix dev`"):
        endpoints.api(load({}), tmp_path)


def test_embedded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="orchestrix dev"):
        endpoints.broker(load({}, broker_url="embedded"), tmp_path)


@pytest.mark.parametrize(
    "url", ["ftp://x", "127.0.0.1:8080", "http://", "http://x:99999", "http://a b", "http://é", "x"]
)
def test_an_api_url_is_one_of_http(url: str) -> None:
    with pytest.raises(ConfigError, match="8080"):
        endpoints.http_url(url)


def test_a_bad_api_url_is_named_without_its_password() -> None:
    with pytest.raises(ConfigError) as refused:
        endpoints.http_url("ftp://u:geheim@h/?token=geheim")
    assert "geheim" not in str(refused.value)


def test_a_path_in_front_is_kept() -> None:
    assert endpoints.http_url("http://[::1]:8/base/?x#y") == "http://[::1]:8/base"
