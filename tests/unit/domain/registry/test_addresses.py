"""What is an executor's address, and which addresses are never called, or only where they are allowed?"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrix.domain.registry.addresses import AllowList, IpAddress, judge, parse_address

EVERYTHING = "0.0.0.0/0,::/0"


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("http://10.0.0.7:9999", "http://10.0.0.7:9999"),
        ("HTTPS://GPU-1.Example:1", "https://gpu-1.example:1"),
        ("http://worker_1:65535", "http://worker_1:65535"),
        ("http://[FD00:0:0::0007]:80", "http://[fd00::7]:80"),
        ("http://[64:ff9b::10.0.0.7]:80", "http://[64:ff9b::a00:7]:80"),
        (f"http://{'a' * 63}.{'b' * 63}:80", f"http://{'a' * 63}.{'b' * 63}:80"),
    ],
)
def test_an_address_has_one_normal_form(text: str, normal: str) -> None:
    assert str(parse_address(text)) == normal
    assert parse_address(normal) == parse_address(text)


def test_the_host_is_given_without_brackets() -> None:
    address = parse_address("http://[fd00::7]:80")
    assert (address.scheme, address.host, address.port) == ("http", "fd00::7", 80)


FORM = "write http://host:port or https://host:port and nothing more, e.g. http://10.0.0.7:9999"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", FORM),
        ("10.0.0.7:9999", FORM),
        ("ftp://h:80", FORM),
        ("http://h", FORM),
        ("http://:80", FORM),
        ("http://h:", FORM),
        ("http://h:8x", FORM),
        ("http://h :80", FORM),
        (" http://h:80", FORM),
        ("http://h:80\n", FORM),
        ("http://hü:80", FORM),
        ("http://h:٣", FORM),
        ("http://fd00::7:80", FORM),
        ("http://[fe80::1%eth0]:80", FORM),
        ("http://h:80/", f"{FORM}: without the slash at the end"),
        ("http://h:80/run", f"{FORM}: without a path, a query or a fragment"),
        ("http://h:80?a=1", f"{FORM}: without a path, a query or a fragment"),
        ("http://h:80#a", f"{FORM}: without a path, a query or a fragment"),
        ("http://u:geheim@h:80", f"{FORM}: without a user"),
        ("http://h\\@x:80", f"{FORM}: without a user"),
        ("http://h:0", "the port must be a number from 1 to 65535 without leading zeros"),
        ("http://h:65536", "the port must be a number from 1 to 65535 without leading zeros"),
        ("http://h:080", "the port must be a number from 1 to 65535 without leading zeros"),
        ("http://[fd00::g]:80", FORM),
        ("http://[fd00]:80", "what is in brackets must be an IPv6 address, e.g. http://[fd00::7]:9999"),
        ("http://[10.0.0.7]:80", "what is in brackets must be an IPv6 address, e.g. http://[fd00::7]:9999"),
        ("http://[::ffff:10.0.0.7]:80", "write the IPv4 address itself: 10.0.0.7"),
        ("http://" + "a" * 240 + ":99999999", f"an address has at most 255 characters: {FORM}"),
    ],
)
def test_nothing_more_than_scheme_host_and_port_is_an_address(text: str, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_address(text)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "0x7f000001", "010.0.0.1", "10.0.0.256", "h.1"])
def test_no_other_way_to_write_a_number_is_an_ipv4_address(host: str) -> None:
    with pytest.raises(ValueError, match="four numbers from 0 to 255"):
        parse_address(f"http://{host}:80")


@pytest.mark.parametrize("host", ["h.", ".h", "a..b", "-a", "a-", "a" * 64])
def test_a_host_is_a_name(host: str) -> None:
    with pytest.raises(ValueError, match="a host name has up to 253 characters"):
        parse_address(f"http://{host}:1")


@given(st.text(st.characters(codec="ascii"), max_size=30))
def test_whatever_comes_is_an_address_in_its_form_or_refused(text: str) -> None:
    for one in (text, f"http://{text}", f"http://{text}:80"):
        try:
            address = parse_address(one)
        except ValueError:
            continue
        assert str(address).lower() == str(address)
        assert parse_address(str(address)) == address
        assert not set(address.host) & set("/@?#[]%\\ ")


# The allow list.


def verdict(
    address: str, *ips: str, allow: str = EVERYTHING, listening: tuple[tuple[IpAddress | None, int], ...] = ()
) -> str | None:
    parsed = parse_address(address)
    found = [ip_address(ip) for ip in (ips or (parsed.host,))]
    return judge(parsed, found, AllowList.parse(allow), listening)


@pytest.mark.parametrize(
    ("address", "ips", "allow", "allowed"),
    [
        ("http://10.1.2.3:80", (), "10.0.0.0/8", True),
        ("http://11.1.2.3:80", (), "10.0.0.0/8", False),
        ("http://10.1.2.3:80", (), "10.1.2.3", True),
        ("http://10.1.2.3:80", (), "10.0.0.0/8:80", True),
        ("http://10.1.2.3:81", (), "10.0.0.0/8:80", False),
        ("http://10.1.2.3:9000", (), " 11.0.0.0/8 , 10.0.0.0/8:9000-9099,", True),
        ("http://10.1.2.3:9099", (), "10.0.0.0/8:9000-9099", True),
        ("http://10.1.2.3:9100", (), "10.0.0.0/8:9000-9099", False),
        ("http://[fd00::7]:80", (), "fd00::/8", True),
        ("http://[fd00::7]:80", (), "[fd00::/8]", True),
        ("http://[fd00::7]:80", (), "[fd00::/8]:80", True),
        ("http://[fd00::7]:81", (), "[fd00::/8]:80", False),
        ("http://[fd00::7]:80", (), "fd00::7", True),
        ("http://[fd00::7]:80", (), "0.0.0.0/0", False),
        ("http://10.1.2.3:80", (), "::/0", False),
        ("http://h:80", ("10.0.0.1", "10.0.0.2"), "10.0.0.0/8", True),
        ("http://h:80", ("10.0.0.1", "11.0.0.2"), "10.0.0.0/8", False),
        ("http://h:80", ("11.0.0.2", "10.0.0.1"), "10.0.0.0/8", False),
        ("http://h:80", ("10.0.0.1", "fd00::1"), "10.0.0.0/8,fd00::/8", True),
        ("http://h:80", ("::ffff:10.0.0.1",), "10.0.0.0/8", True),
        ("http://h:80", ("::ffff:10.0.0.1",), "::/0", False),
        ("http://h:80", ("11.0.0.1",), "h", True),
        ("http://h:80", ("11.0.0.1",), "H:80", True),
        ("http://h:81", ("11.0.0.1",), "h:80", False),
        ("http://gpu-1.example:80", ("11.0.0.1",), "gpu-1.example", True),
        ("http://x.gpu-1.example:80", ("11.0.0.1",), "gpu-1.example", False),
        ("http://a.b.svc.cluster.local:80", ("11.0.0.1",), "*.svc.cluster.local", True),
        ("http://a.svc.cluster.local:80", ("11.0.0.1",), "*.svc.cluster.local:81-90,*.svc.cluster.local:70-80", True),
        ("http://svc.cluster.local:80", ("11.0.0.1",), "*.svc.cluster.local", False),
        ("http://xsvc.cluster.local:80", ("11.0.0.1",), "*.svc.cluster.local", False),
        ("http://a.svc.cluster.local.evil:80", ("11.0.0.1",), "*.svc.cluster.local", False),
        ("http://10.1.2.3:80", (), "", False),
    ],
)
def test_what_the_list_holds_is_called(address: str, ips: tuple[str, ...], allow: str, allowed: bool) -> None:
    assert (verdict(address, *ips, allow=allow) is None) is allowed


@pytest.mark.parametrize("ip", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_this_machine(ip: str) -> None:
    address = parse_address("http://localhost:80")
    assert judge(address, [ip_address(ip)], AllowList.loopback(), ()) is None
    assert judge(address, [ip_address(ip), ip_address("10.0.0.1")], AllowList.loopback(), ()) is not None


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("10.0.0.0/33", "this is no network: write one such as 10.0.0.0/8 or 10.0.0.0/8:9999"),
        ("10.0.0.256", "this is no network: write one such as 10.0.0.0/8 or 10.0.0.0/8:9999"),
        ("gpu/8", "this is no network: write one such as 10.0.0.0/8 or 10.0.0.0/8:9999"),
        ("10.0.0.1/8", "the network begins at another address: write 10.0.0.0/8"),
        ("fd00::1/8", "the network begins at another address: write fd00::/8"),
        ("fd00::/8:9999", "this is no network: write one such as fd00::/8 or, with ports, [fd00::/8]:9999"),
        ("[10.0.0.0/8]:80", "this is no network: write one such as fd00::/8 or, with ports, [fd00::/8]:9999"),
        ("h:0", "write a port from 1 to 65535 or a range such as 9000-9099"),
        ("h:", "write a port from 1 to 65535 or a range such as 9000-9099"),
        ("h:90-80", "write a port from 1 to 65535 or a range such as 9000-9099"),
        ("h:1-65536", "write a port from 1 to 65535 or a range such as 9000-9099"),
        ("[fd00::/8]:x", "write a port from 1 to 65535 or a range such as 9000-9099"),
        ("*", "a star must be followed by a dot and a name, e.g. *.svc.cluster.local"),
        ("*x.example", "a star must be followed by a dot and a name, e.g. *.svc.cluster.local"),
        ("*.", "a host name has up to 253 characters"),
        ("a.*.example", "a host name has up to 253 characters"),
        ("http://h:80", "this is no network"),
    ],
)
def test_a_wrong_entry_is_named(entry: str, problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        AllowList.parse(f"10.0.0.0/8, {entry} ,h")
    assert str(caught.value).startswith(f"'{entry}': {problem}")


def test_a_host_of_the_list_has_up_to_253_characters() -> None:
    longest = ".".join(["a" * 63] * 3 + ["b" * 61])
    assert AllowList.parse(longest).hosts[0][0] == longest
    with pytest.raises(ValueError, match="up to 253 characters"):
        AllowList.parse(longest + "b")


def test_the_entries_may_be_given_one_by_one() -> None:
    assert AllowList.parse(["10.0.0.0/8", "h:80"]) == AllowList.parse("10.0.0.0/8,h:80")


# What is never called, also where everything is allowed.


@pytest.mark.parametrize(
    ("ip", "what"),
    [
        ("169.254.169.254", "a cloud's metadata service"),
        ("fd00:ec2::254", "a cloud's metadata service"),
        ("fd20:ce::254", "a cloud's metadata service"),
        ("100.100.100.200", "a cloud's metadata service"),
        ("168.63.129.16", "a cloud's metadata service"),
        ("192.0.0.192", "a cloud's metadata service"),
        ("169.254.1.1", "link-local"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("224.0.0.1", "multicast"),
        ("239.1.2.3", "multicast"),
        ("ff02::1", "multicast"),
        ("255.255.255.255", "broadcast"),
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("::", "unspecified"),
        ("::ffff:169.254.169.254", "a cloud's metadata service"),
        ("::169.254.169.254", "a cloud's metadata service"),
        ("::ffff:0:169.254.169.254", "a cloud's metadata service"),
        ("64:ff9b::169.254.169.254", "a cloud's metadata service"),
        ("64:ff9b:1::169.254.169.254", "a cloud's metadata service"),
        ("2002:a9fe:a9fe::1", "a cloud's metadata service"),
        ("::ffff:0.0.0.0", "unspecified"),
        ("64:ff9b::255.255.255.255", "broadcast"),
        ("2002:e000:1::", "multicast"),
    ],
)
@pytest.mark.parametrize("allow", [EVERYTHING, "h"])
def test_some_addresses_are_never_called(ip: str, what: str, allow: str) -> None:
    said = f"http://h:80 ({ip_address(ip)}) is {what} and never called, whatever ORCHESTRIX_REGISTRY__ALLOW holds"
    assert verdict("http://h:80", ip, allow=allow) == said
    assert verdict("http://h:80", "10.0.0.1", ip, allow=allow) == said


def test_an_address_that_is_named_itself_is_named_once() -> None:
    assert (
        verdict("http://169.254.169.254:80")
        == "http://169.254.169.254:80 is a cloud's metadata service and never called, "
        "whatever ORCHESTRIX_REGISTRY__ALLOW holds"
    )


@pytest.mark.parametrize("host", ["metadata.google.internal", "Metadata.Google.Internal", "metadata", "instance-data"])
def test_the_names_of_metadata_services_are_never_called(host: str) -> None:
    assert "a cloud's metadata service" in str(verdict(f"http://{host}:80", "10.0.0.1", allow=f"{EVERYTHING},{host}"))


@pytest.mark.parametrize("ip", ["10.0.0.1", "127.0.0.1", "::1", "fd00::1", "64:ff9b::8.8.8.8", "2002:808:808::1"])
def test_other_addresses_are_called_where_everything_is_allowed(ip: str) -> None:
    assert verdict("http://h:80", ip) is None


@given(st.integers(0, 2**32 - 1).map(IPv4Address), st.integers(0, 2**64 - 1))
def test_no_way_to_write_an_ipv4_address_in_ipv6_changes_the_verdict(ip: IPv4Address, low: int) -> None:
    address, everything = parse_address("http://h:80"), AllowList.parse(EVERYTHING)
    plain = judge(address, [ip], everything, ()) is None
    number = int(ip)
    for wrapped in (0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80 | low):
        assert (judge(address, [IPv6Address(wrapped)], everything, ()) is None) is plain, IPv6Address(wrapped)


NODE = (ip_address("10.0.0.5"), 8080)


@pytest.mark.parametrize(
    ("ip", "port", "node", "called"),
    [
        ("10.0.0.5", 8080, NODE, False),
        ("10.0.0.5", 8081, NODE, True),
        ("10.0.0.6", 8080, NODE, True),
        ("::ffff:10.0.0.5", 8080, NODE, False),
        ("64:ff9b::10.0.0.5", 8080, NODE, False),
        ("127.0.0.1", 8080, (None, 8080), False),
        ("10.0.0.6", 8080, (None, 8080), False),
        ("10.0.0.6", 8081, (None, 8080), True),
        ("10.0.0.6", 8080, (ip_address("0.0.0.0"), 8080), False),
        ("10.0.0.6", 8080, (ip_address("::"), 8080), False),
        ("::1", 8080, (ip_address("::1"), 8080), False),
        ("::1%lo", 8080, (ip_address("::1"), 8080), False),
        ("10.0.0.5", 8080, (ip_address("::ffff:10.0.0.5"), 8080), False),
    ],
)
def test_no_node_is_called(ip: str, port: int, node: tuple[IpAddress | None, int], called: bool) -> None:
    for allow in (EVERYTHING, "h"):
        said = verdict(f"http://h:{port}", ip, allow=allow, listening=(node,))
        assert (said is None) is called
        assert called or "a node of the cluster" in str(said)


@pytest.mark.parametrize(
    ("address", "ips", "allow", "sentence"),
    [
        (
            "http://10.0.0.7:80",
            (),
            "",
            "http://10.0.0.7:80 is not called: ORCHESTRIX_REGISTRY__ALLOW is not set, so no executor is. Set it to the"
            " networks or names of your executors, as 10.0.0.7:80",
        ),
        (
            "http://10.0.0.7:80",
            (),
            "h",
            "http://10.0.0.7:80 is not in ORCHESTRIX_REGISTRY__ALLOW: add 10.0.0.7:80 if it is to be called",
        ),
        (
            "http://[fd00::7]:80",
            (),
            "h",
            "http://[fd00::7]:80 is not in ORCHESTRIX_REGISTRY__ALLOW: add [fd00::7]:80 if it is to be called",
        ),
        (
            "http://gpu:80",
            ("10.0.0.7",),
            "h",
            "http://gpu:80 is not in ORCHESTRIX_REGISTRY__ALLOW: add its name, gpu:80, or its networks "
            "if it is to be called",
        ),
    ],
)
def test_the_sentence_says_what_to_add(address: str, ips: tuple[str, ...], allow: str, sentence: str) -> None:
    assert verdict(address, *ips, allow=allow) == sentence


def test_what_is_suggested_is_an_entry_that_allows_it() -> None:
    for address, entry in (("http://10.0.0.7:80", "10.0.0.7:80"), ("http://[fd00::7]:80", "[fd00::7]:80")):
        assert entry in str(verdict(address, allow="h"))
        assert verdict(address, allow=entry) is None


def test_a_name_without_addresses_is_not_called() -> None:
    said = judge(parse_address("http://h:80"), [], AllowList.parse("h"), ())
    assert said == "http://h:80 has no IP address, so ORCHESTRIX_REGISTRY__ALLOW cannot be checked"
    assert not AllowList.parse(EVERYTHING).holds(parse_address("http://h:80"), [])
