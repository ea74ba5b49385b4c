"""Does a URL keep its secrets, and is each variable without effect told, and nothing wrong about it?"""

from __future__ import annotations

import re

import pytest

from orchestrix.config.settings import PREFIX, Settings, can_be_section, idle_variables, load, names, redacted
from orchestrix.errors import ConfigError


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
    assert idle_variables({name: "x"}) == [f"{name} is not a setting: did you mean {meant}?"]


@pytest.mark.parametrize("name", ["ORCHESTRIX_FOO", "ORCHESTRIX_API__KEY", "ORCHESTRIX_NODE_NAME", "ORCHESTRIX_"])
def test_what_is_not_near_gets_no_guess(name: str) -> None:
    assert idle_variables({name: "x"}) == [f"{name} is not a setting"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ORCHESTRIX_CONFIG_FILE", ""),
        ("ORCHESTRIX_CONFIGURATION", "ORCHESTRIX_CONFIG"),
        ("ORCHESTRIX_TESTINGS", ""),
        ("ORCHESTRIX_SOAKED", ""),
        ("ORCHESTRIX_CRASH_ATT", ""),
        ("orchestrix_testing", ""),
    ],
)
def test_what_only_begins_like_a_variable_of_ours_is_told(name: str, meant: str) -> None:
    assert idle_variables({name: "x"}) == [f"{name} is not a setting" + (f": did you mean {meant}?" if meant else "")]


@pytest.mark.parametrize(
    "name", ["ORCHESTRIX_CONFIG", "ORCHESTRIX_TESTING", "ORCHESTRIX_SOAK", "ORCHESTRIX_TEST_RABBITMQ_URL"]
)
def test_what_is_no_setting_and_has_its_use_is_not_told(name: str) -> None:
    assert idle_variables({name: "x"}) == []


@pytest.mark.parametrize("section", ["config", "testing", "soakers", "crash_at", "tests", "testament"])
def test_a_section_may_begin_as_such_a_variable_does(section: str) -> None:
    assert can_be_section(section)
    found = load({f"ORCHESTRIX_{section.upper()}__HOST": "h"}).origin.sections
    assert found == {section: {"host": "h"}}


@pytest.mark.parametrize("section", ["test_bed", "stra\u00dfe", "mail_", "a__b", "http", "origin", "a b", ""])
def test_what_no_variable_can_reach_is_no_section(section: str) -> None:
    assert not can_be_section(section)


def test_tokens_are_read_and_no_secret_is_shown_by_chance() -> None:
    settings = load({"ORCHESTRIX_API__TOKENS": "ada:geheim, bob@x.org:two:2=", "ORCHESTRIX_API__TOKEN": "geheim"})
    secrets = {name: secret.get_secret_value() for name, secret in settings.api.tokens.items()}
    assert secrets == {"ada": "geheim", "bob@x.org": "two:2="}
    assert settings.api.token is not None
    assert settings.api.token.get_secret_value() == "geheim"
    assert "geheim" not in repr(settings) + str(settings)


@pytest.mark.parametrize("text", ["", "  "])
def test_no_tokens_are_no_tokens(text: str) -> None:
    settings = load({"ORCHESTRIX_API__TOKENS": text, "ORCHESTRIX_API__TOKEN": text.strip()})
    assert (dict(settings.api.tokens), settings.api.token) == ({}, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("geheim", "token 1 must be name:secret"),
        ("ada:", "token 1 must be name:secret"),
        (":geheim", "token 1 must be name:secret"),
        ("ada:geheim,", "token 2 must be name:secret"),
        (",", "token 1 must be name:secret"),
        ("ada:geheim,bob:ge heim", "token 2 must be name:secret"),
        ("ada:gehéim", "token 1 must be name:secret"),
        ("a b:geheim", "token 1 must be name:secret"),
        (f"{'x' * 101}:geheim", "token 1 must be name:secret"),
        ("orchestrator:geheim", "token 1: the name orchestrator is reserved"),
        ("anonymous:geheim", "token 1: the name anonymous is reserved"),
        ("ada:geheim,ada:geheim2", "the name or the secret of token 2 was given more than once"),
        ("ada:geheim,bob:geheim", "the name or the secret of token 2 was given more than once"),
    ],
)
def test_bad_tokens_are_refused_by_their_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load({"ORCHESTRIX_API__TOKENS": text})
    assert str(refused.value).startswith(f"ORCHESTRIX_API__TOKENS: {said}")
    assert "geh" not in str(refused.value)


@pytest.mark.parametrize("value", ["ge heim", "gehéim", "ge,heim"])
def test_a_token_that_no_api_can_have_is_refused(value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load({"ORCHESTRIX_API__TOKEN": value})
    assert str(refused.value) == "ORCHESTRIX_API__TOKEN: a secret must be visible ASCII characters without a comma"


def test_tokens_and_nobody_asked_contradict() -> None:
    with pytest.raises(ConfigError, match=r"api\.tokens .* api\.auth is none"):
        load({"ORCHESTRIX_API__TOKENS": "ada:geheim", "ORCHESTRIX_API__AUTH": "none"})
    assert load({"ORCHESTRIX_API__AUTH": "none"}).api.auth == "none"
    with pytest.raises(ConfigError, match="ORCHESTRIX_API__AUTH"):
        load({"ORCHESTRIX_API__AUTH": "basic"})


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
        "ORCHESTRIX_NODE_ID: write 1 to 40 letters, digits, dots, - or _, starting with a letter or a digit"
    )


def test_good_node_ids_are_taken() -> None:
    for value in ("n", "9a", "a.b_c-d", "x" * 40):
        assert load({"ORCHESTRIX_NODE_ID": value}).node_id == value


@pytest.mark.req("S0-66", "S0-67", "S0-68", "S0-69", "S0-70", "S0-71", "S0-8", "S0-9")
def test_the_cluster_has_the_times_that_are_asked_for() -> None:
    cluster = load({}).cluster
    assert (cluster.heartbeat, cluster.dead) == (10, 30)
    assert (cluster.lease, cluster.renew) == (30, 10)
    assert (cluster.handoff_ack, cluster.handoff_retries, cluster.handoff_hard) == (5, 3, 60)
    assert (cluster.orphan_check, cluster.reconcile, cluster.presence) == (30, 10, 2)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"CLUSTER__RENEW": "15"}, "cluster.renew (15) must be below half of cluster.lease (30)"),
        ({"CLUSTER__LEASE": "20"}, "cluster.renew (10) must be below half of cluster.lease (20)"),
        ({"CLUSTER__HEARTBEAT": "20"}, "cluster.heartbeat (20) must be below half of cluster.dead (30)"),
        ({"CLUSTER__HANDOFF_HARD": "15"}, "cluster.handoff_hard (15) is not above"),
        ({"CLUSTER__HANDOFF_ACK": "30"}, "cluster.handoff_hard (60) is not above"),
        ({"CLUSTER__PRESENCE": "30"}, "cluster.presence (30) is not below cluster.dead (30)"),
        ({"JOBS__BEAT": "15"}, "jobs.beat (15) must be below half of jobs.silent (30)"),
        ({"REGISTRY__BEAT": "46"}, "registry.beat (46) must be at most half of registry.dead (90), or one missed"),
        ({"REGISTRY__DEAD": "59"}, "registry.beat (30) must be at most half of registry.dead (59)"),
        ({"REGISTRY__SWEEP": "91"}, "registry.sweep (91) must be at most registry.dead (90), or dead executors"),
        ({"REGISTRY__PROBE": "91"}, "registry.probe (91) must be at most registry.dead (90), or an attempt would be"),
        (
            {"SHARDS__CHECK": "10.5"},
            "shards.check (10.5) must be at most two thirds of shards.heartbeat_timeout (15), or",
        ),
        (
            {"SHARDS__HEARTBEAT_TIMEOUT": "7"},
            "shards.check (5) must be at most two thirds of shards.heartbeat_timeout (7)",
        ),
        ({"REGISTRY__CALL_TIMEOUT": "91"}, "registry.call_timeout (91) must be at most registry.dead (90), or an"),
    ],
)
def test_times_that_contradict_each_other_are_refused_in_a_sentence(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load({f"ORCHESTRIX_{name}": value for name, value in environ.items()})
    assert str(refused.value).startswith(f"the settings: {said}")


def test_a_time_that_is_none_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match="ORCHESTRIX_CLUSTER__LEASE"):
        load({"ORCHESTRIX_CLUSTER__LEASE": "-1"})


def test_very_many_unknown_variables_are_not_all_told() -> None:
    environ = {f"ORCHESTRIX_NONSENSE_{n}": "x" for n in range(2000)}
    sentences = idle_variables(environ)
    assert len(sentences) == 21
    assert sentences[-1] == "1980 more ORCHESTRIX_ variables are not settings"
    [long] = idle_variables({"ORCHESTRIX_" + "X" * 100_000: "x"})
    assert len(long) < 300


FOREIGN = re.compile(r"Input should|valid (string|integer|number|boolean)|unable to|Value error|finite|pydantic")
BAD = ["", " ", "x", "WARN", "nan", "inf", "-inf", "1e308", "1e-9", "-1", "0x10", "1,5", "9" * 400, "1_0", "é"]


def variables() -> list[str]:
    """All of those that take no free text."""
    free = (
        "database_url",
        "broker_url",
        "api_url",
        "sagas",
        "workers",
        "resources",
        "http.host",
        "metrics.host",
        "http.allowed_hosts",
        "http.public_url",
        "http.cors_origins",
        "registry.allow",
    )
    return [PREFIX + name.upper().replace(".", "__") for name in names() if name not in free and "token" not in name]


@pytest.mark.parametrize("variable", [*variables(), "PORT", "LOG_LEVEL", "PROCESS_NAME"])
def test_a_bad_value_is_refused_in_our_own_words(variable: str) -> None:
    said = [refusal(variable, value) for value in BAD]
    refused = [one for one in said if one]
    assert len(refused) >= 5
    assert not [one for one in refused if FOREIGN.search(one) or len(one) > 300]
    assert all(one.startswith((f"{variable}: ", "the settings: ")) for one in refused)


def refusal(variable: str, value: str) -> str:
    """What is said against it; nothing if it is taken."""
    try:
        load({variable: value})
    except ConfigError as wrong:
        return str(wrong)
    return ""


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PORT", "", "PORT: write a whole number from 0 to 65535 (it is empty)"),
        ("PORT", "http", "PORT: write a whole number from 0 to 65535"),
        ("LOG_LEVEL", "WARN", "LOG_LEVEL: write one of debug, info, warning, error: did you mean warning?"),
        ("LOG_LEVEL", "", "LOG_LEVEL: write one of debug, info, warning, error (it is empty)"),
        ("ORCHESTRIX_LOG__LEVEL", "loud", "ORCHESTRIX_LOG__LEVEL: write one of debug, info, warning, error"),
        (
            "ORCHESTRIX_LOG__FORMAT",
            "jsn",
            "ORCHESTRIX_LOG__FORMAT: write one of auto, json, pretty: did you mean json?",
        ),
        ("ORCHESTRIX_CLUSTER__LEASE", "inf", "ORCHESTRIX_CLUSTER__LEASE: write a number from 0.01 to 2592000"),
        ("ORCHESTRIX_HTTP__ALLOWED_HOSTS", "*", "ORCHESTRIX_HTTP__ALLOWED_HOSTS: write host names separated by commas"),
        ("ORCHESTRIX_HTTP__ALLOWED_HOSTS", "http://x/", "ORCHESTRIX_HTTP__ALLOWED_HOSTS: write host names"),
        ("ORCHESTRIX_HTTP__CORS_ORIGINS", "*", "ORCHESTRIX_HTTP__CORS_ORIGINS: write origins with commas"),
        ("ORCHESTRIX_HTTP__CORS_ORIGINS", "ui.example", "ORCHESTRIX_HTTP__CORS_ORIGINS: write origins with commas"),
        ("ORCHESTRIX_HTTP__CORS_ORIGINS", "http://x/", "ORCHESTRIX_HTTP__CORS_ORIGINS: write origins with commas"),
        ("ORCHESTRIX_HTTP__PUBLIC_URL", "node.example", "ORCHESTRIX_HTTP__PUBLIC_URL: write http or https URLs with"),
        ("ORCHESTRIX_HTTP__PUBLIC_URL", "ftp://a", "ORCHESTRIX_HTTP__PUBLIC_URL: write http or https URLs with"),
        ("ORCHESTRIX_HTTP__PUBLIC_URL", "http://a?x=1", "ORCHESTRIX_HTTP__PUBLIC_URL: write http or https URLs with"),
        ("ORCHESTRIX_HTTP__PUBLIC_URL", "http://a:0", "ORCHESTRIX_HTTP__PUBLIC_URL: write http or https URLs with"),
        ("ORCHESTRIX_HTTP__PUBLIC_URL", "http://a:65536", "ORCHESTRIX_HTTP__PUBLIC_URL: write http or https URLs with"),
        ("ORCHESTRIX_HTTP__PUBLIC_URL", f"http://a/{'x' * 300}", "ORCHESTRIX_HTTP__PUBLIC_URL: write http or https"),
        ("ORCHESTRIX_HTTP__PUBLIC_URL", "http://[::g]", "ORCHESTRIX_HTTP__PUBLIC_URL: write http or https URLs with"),
        ("ORCHESTRIX_HTTP__PUBLIC_URL", "http://[:::]", "ORCHESTRIX_HTTP__PUBLIC_URL: there is no IPv6 address in"),
        ("ORCHESTRIX_HTTP__PUBLIC_URL", "http://0.0.0.0:1", "ORCHESTRIX_HTTP__PUBLIC_URL: no executor can call 0.0.0."),
        (
            "ORCHESTRIX_HTTP__PUBLIC_URL",
            "http://a,http://[::]",
            "ORCHESTRIX_HTTP__PUBLIC_URL: no executor can call 0.0",
        ),
        ("ORCHESTRIX_HTTP__MAX_CONNECTIONS", "0", "ORCHESTRIX_HTTP__MAX_CONNECTIONS: write a whole number from 8 to"),
        ("ORCHESTRIX_API__TOKENS", "ada:x", "ORCHESTRIX_API__TOKENS: the secret of token 1 is too short"),
    ],
)
def test_the_words_say_what_to_write(variable: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load({variable: value})
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e308", "1e-9", "0", "-1"])
def test_times_that_are_none_are_refused(value: str) -> None:
    times = [name for name in variables() if isinstance(_default(name), float)]
    assert len(times) > 12
    for name in times:
        with pytest.raises(ConfigError, match=f"{name}: write a number"):
            load({name: value})


def _default(variable: str) -> object:
    value: object = Settings().value_of(variable.removeprefix(PREFIX).lower().replace("__", "."))
    return value


def test_the_registry_has_the_times_that_are_asked_for() -> None:
    registry = load({}).registry
    assert (registry.beat, registry.dead, registry.cleanup) == (30, 90, 30)
    assert (registry.call_timeout, registry.probe) == (10, 30)
    assert (registry.allow, registry.token, registry.secrets()) == (None, None, {})


@pytest.mark.req("S1-7", "S1-9", "S1-10")
def test_the_variables_of_s1s_framework_are_taken() -> None:
    """With defaults of our own: its port is 3000, and its level is debug."""
    settings = load({})
    assert (settings.node_id, settings.http.port, settings.log.level) == ("coordinator", 8080, "info")
    settings = load({"PROCESS_NAME": "c-2", "PORT": "3000", "LOG_LEVEL": "debug"})
    assert (settings.node_id, settings.http.port, settings.log.level) == ("c-2", 3000, "debug")


@pytest.mark.req("S1-13", "S1-14", "S1-35")
def test_shards_take_the_names_and_the_times_of_s1() -> None:
    shards = load({}).shards
    assert (shards.window, shards.heartbeat_timeout, shards.check, shards.plain) == (2, 15, 5, "protect")
    assert shards.allocation == "even"
    assert load({"ORCHESTRIX_SHARDS__ALLOCATION": "minimal"}).shards.allocation == "minimal"
    shards = load({"HEARTBEAT_TIMEOUT_SECONDS": "15", "HEARTBEAT_CHECK_INTERVAL_SECONDS": "10"}).shards
    assert (shards.heartbeat_timeout, shards.check) == (15, 10), "not below half of it"
    shards = load({"HEARTBEAT_TIMEOUT_SECONDS": "60", "ORCHESTRIX_SHARDS__HEARTBEAT_TIMEOUT": "30"}).shards
    assert shards.heartbeat_timeout == 30, "our own name comes first"
    with pytest.raises(ConfigError, match=r"shards.check \(10\) must be at most"):
        load({"HEARTBEAT_TIMEOUT_SECONDS": "14", "HEARTBEAT_CHECK_INTERVAL_SECONDS": "10"})


@pytest.mark.req("S1-11", "S1-12")
def test_the_socket_for_plain_clients_has_the_names_of_s1() -> None:
    shards = load({}).shards
    assert (shards.zmq, shards.zmq_endpoint, shards.zmq_is_open) == (False, "tcp://0.0.0.0:5555", True)
    environ = {"SHARD_COORDINATOR_BIND_HOST": "tcp://127.0.0.1", "SHARD_COORDINATOR_BIND_PORT": "6000"}
    shards = load({**environ, "ORCHESTRIX_SHARDS__ZMQ": "on"}).shards
    assert (shards.zmq, shards.zmq_endpoint, shards.zmq_is_open) == (True, "tcp://127.0.0.1:6000", False)


@pytest.mark.parametrize(
    ("host", "is_open"),
    [
        ("tcp://0.0.0.0", True),
        ("tcp://*", True),
        ("10.0.0.1", True),
        ("eth0", True),
        ("tcp://[::]", True),
        ("localhost", False),
        ("tcp://127.0.0.2", False),
        ("tcp://[::1]", False),
    ],
)
def test_who_can_reach_the_socket_for_plain_clients(host: str, is_open: bool) -> None:
    shards = load({"SHARD_COORDINATOR_BIND_HOST": host}).shards
    assert shards.zmq_host == "tcp://" + host.removeprefix("tcp://")
    assert shards.zmq_is_open is is_open
    assert (
        load({"SHARD_COORDINATOR_BIND_HOST": host, "ORCHESTRIX_SHARDS__ZMQ_AUTH": "none"}).shards.zmq_is_open is False
    )
    keys = {"ORCHESTRIX_SHARDS__ZMQ_SERVER_KEY": "a", "ORCHESTRIX_SHARDS__ZMQ_CLIENT_KEYS": "b"}
    assert load({"SHARD_COORDINATOR_BIND_HOST": host, **keys}).shards.zmq_is_open is False


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (
            {"SHARD_COORDINATOR_BIND_HOST": "tcp://0.0.0.0:5555"},
            "SHARD_COORDINATOR_BIND_HOST: write tcp:// and an addr",
        ),
        ({"SHARD_COORDINATOR_BIND_HOST": "ipc:///tmp/x"}, "SHARD_COORDINATOR_BIND_HOST: write tcp:// and an address"),
        ({"SHARD_COORDINATOR_BIND_PORT": "70000"}, "SHARD_COORDINATOR_BIND_PORT: write a whole number from 0 to 65535"),
        ({"ORCHESTRIX_SHARDS__ZMQ": "perhaps"}, "ORCHESTRIX_SHARDS__ZMQ: write true or false"),
        ({"ORCHESTRIX_SHARDS__ZMQ_AUTH": "off"}, "ORCHESTRIX_SHARDS__ZMQ_AUTH: write one of curve, none"),
        (
            {"ORCHESTRIX_SHARDS__ZMQ_SERVER_KEY": "a"},
            "shards.zmq_server_key and shards.zmq_client_keys need each other",
        ),
        (
            {"ORCHESTRIX_SHARDS__ZMQ_CLIENT_KEYS": "a"},
            "shards.zmq_server_key and shards.zmq_client_keys need each othe",
        ),
        (
            {
                "ORCHESTRIX_SHARDS__ZMQ_AUTH": "none",
                "ORCHESTRIX_SHARDS__ZMQ_SERVER_KEY": "a",
                "ORCHESTRIX_SHARDS__ZMQ_CLIENT_KEYS": "b",
            },
            "shards.zmq_server_key is set, but shards.zmq_auth is none: unset one of them",
        ),
    ],
)
def test_what_cannot_be_a_socket_for_plain_clients_is_refused(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(environ)
    assert said in str(refused.value)


def test_the_limits_of_the_registrys_times_are_taken() -> None:
    environ = {"BEAT": "45", "DEAD": "90", "SWEEP": "90", "PROBE": "90", "CALL_TIMEOUT": "90"}
    registry = load({f"ORCHESTRIX_REGISTRY__{name}": value for name, value in environ.items()}).registry
    assert (registry.beat, registry.cleanup, registry.probe, registry.call_timeout) == (45, 90, 90, 90)


def test_a_shorter_dead_time_shortens_what_follows_it() -> None:
    registry = load({}, registry__beat=5, registry__dead=15).registry
    assert (registry.cleanup, registry.probe, registry.call_timeout) == (15, 15, 10)
    assert load({}, registry__beat=1, registry__dead=3, registry__probe=2).registry.probe == 2


def test_a_setting_goes_by_one_name_alone() -> None:
    settings = load({}, registry__sweep=5)
    assert settings.registry.cleanup == settings.value_of("registry.sweep") == 5
    assert "registry.sweep" in names()
    assert "registry.cleanup" not in names()
    with pytest.raises(ConfigError, match="ORCHESTRIX_REGISTRY__SWEEP: write a number"):
        load({"ORCHESTRIX_REGISTRY__SWEEP": "x"})


@pytest.mark.parametrize(
    ("text", "entries"),
    [("", None), (" , ", None), ("10.0.0.0/8, [fd00::/8]:80-90", ("10.0.0.0/8", "[fd00::/8]:80-90"))],
)
def test_the_allow_list_is_split_and_unset_where_it_is_empty(text: str, entries: tuple[str, ...] | None) -> None:
    assert load({"ORCHESTRIX_REGISTRY__ALLOW": text}).registry.allow == entries


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("geheim", {"": "geheim"}),
        (" geheim=+/ ", {"": "geheim=+/"}),
        ("shop:geheim", {"shop": "geheim"}),
        ("shop:geheim, mail:ge:heim", {"shop": "geheim", "mail": "ge:heim"}),
        ("", {}),
        (" ", {}),
    ],
)
def test_the_registrys_token_is_one_secret_or_one_for_each_app(text: str, secrets: dict[str, str]) -> None:
    settings = load({"ORCHESTRIX_REGISTRY__TOKEN": text})
    assert {app: one.get_secret_value() for app, one in settings.registry.secrets().items()} == secrets
    assert "heim" not in repr(settings) + str(settings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gehei", "the secret of token 1 is too short: use at least 6 characters"),
        ("ge heim", "token 1 must be name:secret, or one secret for all apps: visible ASCII characters without spaces"),
        ("geheim,geheim2", "token 1 must be name:secret"),
        ("shop:geheim,shop:geheim2", "the name or the secret of token 2 was given more than once"),
        ("shop:geheim,", "token 2 must be name:secret"),
    ],
)
def test_a_bad_token_of_the_registry_is_refused_without_showing_it(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load({"ORCHESTRIX_REGISTRY__TOKEN": text})
    assert str(refused.value).startswith(f"ORCHESTRIX_REGISTRY__TOKEN: {said}")
    assert "geh" not in str(refused.value)


def test_origins_are_schemes_with_hosts() -> None:
    origins = load({"ORCHESTRIX_HTTP__CORS_ORIGINS": "https://UI.example, http://localhost:3000"}).http.cors_origins
    assert origins == ("https://ui.example", "http://localhost:3000")
    assert (load({}).http.gzip, load({"ORCHESTRIX_HTTP__GZIP": "true"}).http.gzip) == (False, True)


def test_public_urls_are_http_urls_with_or_without_a_path() -> None:
    text = "https://Orchestrix.example/jobs/, http://10.0.0.1:8080,http://[::1]:80,,http://10.0.0.1:8080/"
    urls = ("https://Orchestrix.example/jobs", "http://10.0.0.1:8080", "http://[::1]:80")
    assert load({"ORCHESTRIX_HTTP__PUBLIC_URL": text}).http.public_url == urls


def test_a_password_in_a_public_url_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as refused:
        load({"ORCHESTRIX_HTTP__PUBLIC_URL": "https://ada:geheim@a"})
    assert str(refused.value).startswith("ORCHESTRIX_HTTP__PUBLIC_URL: write http or https URLs")
    assert "geheim" not in str(refused.value)


def test_allowed_hosts_are_names_with_or_without_a_port() -> None:
    text = "orchestrix.example, 10.0.0.7:8080,[::1]:80,,localhost"
    hosts = load({"ORCHESTRIX_HTTP__ALLOWED_HOSTS": text}).http.allowed_hosts
    assert hosts == ("orchestrix.example", "10.0.0.7:8080", "[::1]:80", "localhost")
