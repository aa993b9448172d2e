"""Where webhooks may point."""

from __future__ import annotations

import pytest

from bunqueue_core.events.addresses import check_webhook_url, forbidden_address
from bunqueue_core.model.errors import ValidationError

TO = "Webhook URL cannot point to "
LOCALHOST, LOOPBACK, PRIVATE, ULA = TO + "localhost", TO + "loopback IP", TO + "private IP", TO + "private (ULA) IP"
LINK, NOWHERE, METADATA = TO + "link-local IP", TO + "unspecified IP", TO + "cloud metadata endpoints"
RESERVED, MULTICAST = TO + "reserved IP", TO + "multicast IP"
INVALID, SCHEME, REQUIRED = (
    "Invalid URL format",
    "Webhook URL must use http or https protocol",
    "Webhook URL is required",
)
TOO_LONG = "Webhook URL too long (max 2048 characters)"


def refusal(url: object) -> str:
    with pytest.raises(ValidationError) as caught:
        check_webhook_url(url)
    return str(caught.value)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (None, REQUIRED),
        ("", REQUIRED),
        ("x" * 2049, TOO_LONG),
        ("https://e.example.com/" + "x" * 2027, TOO_LONG),
        ("not a url", INVALID),
        ("hooks.example.com/x", INVALID),
        ("http://", INVALID),
        ("https://hooks.example.com:99999/", INVALID),
        ("http://x:y/", INVALID),
        ("http://256.1.1.1/", INVALID),
        ("http://1.2.3.4.5/", INVALID),
        ("http://[::1%25eth0]/", INVALID),
        ("http://a%00b/", INVALID),
        ("http://example.com/\0", INVALID),
        ("http://\ud800.example.com/", INVALID),
        (5, INVALID),
        (["http://example.com/"], INVALID),
        (b"http://example.com/", INVALID),
        ("ftp://example.com/", SCHEME),
        ("file:///etc/passwd", SCHEME),
        ("javascript:alert(1)", SCHEME),
        ("ws://example.com/", SCHEME),
        # The scheme counts before the host.
        ("ftp://127.0.0.1/", SCHEME),
    ],
)
def test_what_is_no_web_address_is_refused(url: object, text: str) -> None:
    assert refusal(url) == text


@pytest.mark.parametrize(
    ("host", "text"),
    [
        # Names and addresses of the own machine.
        ("localhost", LOCALHOST),
        ("LOCALHOST:8080", LOCALHOST),
        ("api.localhost", LOCALHOST),
        ("localhost.", LOCALHOST),
        ("ｌｏｃａｌｈｏｓｔ", LOCALHOST),
        ("127.0.0.1", LOCALHOST),
        ("127.1", LOCALHOST),
        ("2130706433", LOCALHOST),
        ("0x7f000001", LOCALHOST),
        ("0x7f.1", LOCALHOST),
        ("0177.0.0.1", LOCALHOST),
        ("127.0.0.1.", LOCALHOST),
        ("１２７.0.0.1", LOCALHOST),
        ("①②⑦.1", LOCALHOST),
        ("127。0。0。1", LOCALHOST),
        ("%31%32%37.1", LOCALHOST),
        ("127.0.0.2", LOOPBACK),
        ("[::1]", LOCALHOST),
        ("[0:0:0:0:0:0:0:1]", LOCALHOST),
        ("0.0.0.0", NOWHERE),
        ("0", NOWHERE),
        ("[::]", NOWHERE),
        # Networks nearby.
        ("10.0.0.1", PRIVATE),
        ("10.255.255.255", PRIVATE),
        ("172.16.0.1", PRIVATE),
        ("172.31.255.255", PRIVATE),
        ("192.168.0.1", PRIVATE),
        ("0300.0250.1", PRIVATE),
        ("169.254.1.1", LINK),
        ("[fc00::1]", ULA),
        ("[fdff::1]", ULA),
        ("[fe80::1]", LINK),
        ("[febf::1]", LINK),
        ("[fec0::1]", PRIVATE),
        # IPv4 within IPv6.
        ("[::ffff:127.0.0.1]", LOOPBACK),
        ("[::ffff:10.0.0.1]", PRIVATE),
        ("[::ffff:7f00:1]", LOOPBACK),
        ("[::127.0.0.1]", LOOPBACK),
        ("[::ffff:0:127.0.0.1]", LOOPBACK),
        ("[64:ff9b::10.0.0.1]", PRIVATE),
        ("[2002:7f00:1::]", LOOPBACK),
        # User information is not the host.
        ("example.com@127.0.0.1", LOCALHOST),
        ("user:pw@10.0.0.1:99", PRIVATE),
        ("example.com\\@127.0.0.1", None),
        # The services of clouds.
        ("169.254.169.254", LINK),
        ("metadata.google.internal", METADATA),
        ("anything.internal", METADATA),
        ("anything.internal.", METADATA),
        ("168.63.129.16", METADATA),
        ("100.100.100.200", RESERVED),
        ("[fd00:ec2::254]", ULA),
        # Ranges that lead nowhere in the Internet.
        ("100.64.0.1", RESERVED),
        ("198.18.0.1", RESERVED),
        ("240.0.0.1", RESERVED),
        ("255.255.255.255", RESERVED),
        ("224.0.0.1", MULTICAST),
        ("[ff02::1]", MULTICAST),
        ("[2001:db8::1]", RESERVED),
        ("[64:ff9b:1::1]", RESERVED),
        # What is left.
        ("11.0.0.1", None),
        ("172.15.0.1", None),
        ("172.32.0.1", None),
        ("192.169.0.1", None),
        ("8.8.8.8", None),
        ("[2606:4700::1111]", None),
        ("[64:ff9b::8.8.8.8]", None),
        ("internal.example.com", None),
        ("a_b.example.com", None),
        ("localhost.example.com", None),
    ],
)
def test_hosts_are_read_as_a_connection_would_read_them(host: str, text: str | None) -> None:
    url = f"http://{host}/x"
    if text is None:
        check_webhook_url(url)
    else:
        assert refusal(url) == text
        check_webhook_url(url, allow_private=True)


@pytest.mark.parametrize(
    ("url", "href", "host"),
    [
        ("HTTPS://Hooks.Example.COM/Path", "https://hooks.example.com/Path", "hooks.example.com"),
        ("http:hooks.example.com", "http://hooks.example.com/", "hooks.example.com"),
        (" http://a.example\t/\n", "http://a.example/", "a.example"),
        ("http://faß.example/ä?ö", "http://xn--fa-hia.example/%C3%A4?%C3%B6", "xn--fa-hia.example"),
        ("http://a.example:080/x/../y", "http://a.example/y", "a.example"),
        ("http://[2606:4700::0:1111]:81/", "http://[2606:4700::1111]:81/", "2606:4700::1111"),
    ],
)
def test_a_url_is_normalised(url: str, href: str, host: str) -> None:
    target = check_webhook_url(url)
    assert (target.href, target.host) == (href, host)


def test_a_redirect_may_be_relative() -> None:
    assert check_webhook_url("../b?c", base="https://a.example/x/y/z").href == "https://a.example/x/b?c"
    assert check_webhook_url("//b.example/", base="https://a.example/").href == "https://b.example/"


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("fe80::1%eth0", LINK),
        ("::1", LOOPBACK),
        ("127.0.0.1", LOOPBACK),
        ("93.184.216.34", None),
        ("2606:4700::1", None),
    ],
)
def test_addresses_that_a_name_resolves_to(address: str, text: str | None) -> None:
    assert forbidden_address(address) == text
