"""Does a URL keep its secrets, and is each variable without effect told, and nothing wrong about it?"""

from __future__ import annotations

import pytest

from app.config import idle_variables, load, redacted
from app.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "postgresql+asyncpg://u:geheim@h/d?sslpassword=geheim&password=geheim&ssl=require",
            "postgresql+asyncpg://u:***@h/d?sslpassword=***&password=***&ssl=require",
        ),
        ("postgresql+asyncpg://h/d?password=geheim", "postgresql+asyncpg://h/d?password=***"),
        ("amqp://u:gehe@im@h/", "amqp://u:***@h/"),
        ("amqp://u:gehe#im@h/v", "amqp://***@h/v"),
        ("amqp://u:gehe/im@h/?token=geheim", "amqp://***@h/?token=***"),
        ("http://h/?Access_Token=geheim;x=1#client_secret=geheim", "http://h/?Access_Token=***;x=1#client_secret=***"),
        ("http://h/?pass%77ord=geheim", "http://h/?pass%77ord=***"),
        ("http://h/?PASSWD=geheim&a=1", "http://h/?PASSWD=***&a=1"),
        ("sqlite+aiosqlite:////home/a@b/x.db?timeout=1", "sqlite+aiosqlite:////home/a@b/x.db?timeout=1"),
        ("amqp://u@h/v", "amqp://u@h/v"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ORCHESTRIX_BROKER_ULR", "ORCHESTRIX_BROKER_URL"),
        ("ORCHESTRIX_HTTP_PORT", "ORCHESTRIX_HTTP__PORT"),
        ("ORCHESTRIX_DATABASE__POOLSIZE", "ORCHESTRIX_DATABASE__POOL_SIZE"),
        ("ORCHESTRIX_WORKER__CONCURENCY", "ORCHESTRIX_WORKER__CONCURRENCY"),
    ],
)
def test_a_slip_is_told_with_what_was_meant(name: str, meant: str) -> None:
    assert idle_variables({name: "x"}) == [f"{name} is no setting: did you mean {meant}?"]


@pytest.mark.parametrize("name", ["ORCHESTRIX_FOO", "ORCHESTRIX_API__KEY", "ORCHESTRIX_NODE_NAME", "ORCHESTRIX_"])
def test_what_is_not_near_gets_no_guess(name: str) -> None:
    assert idle_variables({name: "x"}) == [f"{name} is no setting"]


def test_a_setting_of_later_versions_is_not_called_unknown() -> None:
    (said,) = idle_variables({"ORCHESTRIX_API__TOKENS": "a:b", "ORCHESTRIX_API__AUTH": "none"})
    assert said.startswith("ORCHESTRIX_API__TOKENS has no effect yet")


def test_a_crash_point_without_its_switch_is_told() -> None:
    (said,) = idle_variables({"ORCHESTRIX_CRASH_AT": "outbox.after_claim:1"})
    assert "ignored" in said
    assert "ORCHESTRIX_TESTING=1" in said
    assert idle_variables({"ORCHESTRIX_CRASH_AT": "x", "ORCHESTRIX_TESTING": "1"}) == []


@pytest.mark.parametrize("value", ["", "a b", "-a", "x" * 41, "é"])
def test_a_bad_node_id_is_refused_in_a_sentence(value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load({"ORCHESTRIX_NODE_ID": value})
    assert str(refused.value) == (
        "ORCHESTRIX_NODE_ID: write 1 to 40 letters, digits, dots, - or _, of which the first is a letter or a digit"
    )


def test_good_node_ids_are_taken() -> None:
    for value in ("n", "9a", "a.b_c-d", "x" * 40):
        assert load({"ORCHESTRIX_NODE_ID": value}).node_id == value
