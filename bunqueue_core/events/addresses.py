"""Where webhooks may point: never at the server's own machine or network, unless a setting allows it.

URLs are read as browsers and published clients read them (the WHATWG URL standard), so that ``127.1``, ``0x7f.1``,
``2130706433`` and full-width digits are what a connection would make of them. The same rules look at a URL when it is registered
or followed, and at every address that its name resolves to when a connection is made: by then it may be another one.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any, Final

from bunqueue_core.model.errors import ValidationError

#: Characters that a webhook's URL may have.
MAX_URL_CHARACTERS: Final = 2048

_PREFIX: Final = "Webhook URL cannot point to "
_LOCALHOST: Final = _PREFIX + "localhost"
_METADATA: Final = _PREFIX + "cloud metadata endpoints"

#: Azure's metadata and agent endpoint: a public address that is the host's own inside Azure.
_AZURE_HOST: Final = ipaddress.IPv4Address("168.63.129.16")

_V4_RANGES: Final = tuple(
    (ipaddress.IPv4Network(network), f"{_PREFIX}{what} IP")
    for network, what in (
        ("10.0.0.0/8", "private"),
        ("172.16.0.0/12", "private"),
        ("192.168.0.0/16", "private"),
        ("169.254.0.0/16", "link-local"),
        ("0.0.0.0/8", "unspecified"),
        ("127.0.0.0/8", "loopback"),
        ("224.0.0.0/4", "multicast"),
    )
)
_V6_RANGES: Final = tuple(
    (ipaddress.IPv6Network(network), f"{_PREFIX}{what} IP")
    for network, what in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("fc00::/7", "private (ULA)"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
        ("64:ff9b:1::/48", "reserved"),  # translation within a site, RFC 8215
    )
)
_RESERVED: Final = _PREFIX + "reserved IP"

#: Addresses of IPv6 that lead to an IPv4 address, with the place of its lowest bit: mapped and compatible (RFC 4291), translated
#: (RFC 2765 and 6052), 6to4 (RFC 3056).
_EMBEDDINGS: Final = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),
    (ipaddress.IPv6Network("::/96"), 0),
    (ipaddress.IPv6Network("::ffff:0:0:0/96"), 0),
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),
    (ipaddress.IPv6Network("2002::/16"), 80),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A URL, normalised.

    Attributes:
        href: the whole, in ASCII, with everything percent-encoded that needs it.
        scheme: ``http`` or ``https``.
        host: name (lower case, IDNA) or address, an IPv6 address without brackets.
    """

    href: str
    scheme: str
    host: str


def check_webhook_url(value: Any, *, base: str | None = None, allow_private: bool = False) -> Target:
    """Read a webhook's URL and refuse what may not be called.

    Args:
        value: what a client sent, or a redirect.
        base: URL that a redirect may be relative to.
        allow_private: let it point anywhere, the own machine included.

    Raises:
        ValidationError: with the text that clients know.
    """
    if value is None or value == "":
        raise ValidationError("Webhook URL is required")
    if isinstance(value, str) and len(value) > MAX_URL_CHARACTERS:
        raise ValidationError(f"Webhook URL too long (max {MAX_URL_CHARACTERS} characters)")
    target = _parse(value, base)
    if target.scheme not in ("http", "https"):
        raise ValidationError("Webhook URL must use http or https protocol")
    problem = None if allow_private else forbidden_host(target.host)
    if problem is not None:
        raise ValidationError(problem)
    return target


def forbidden_host(host: str) -> str | None:
    """Why no webhook may point to ``host`` (a :attr:`Target.host`), or None. Looks nothing up."""
    name = host.removesuffix(".")
    if name in ("localhost", "127.0.0.1", "::1") or name.endswith(".localhost"):
        return _LOCALHOST
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return _METADATA if name.endswith(".internal") else None
    return forbidden_address(address)


def forbidden_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address | str) -> str | None:
    """Why no webhook may connect to ``address``, or None. A zone (``fe80::1%eth0``) counts for nothing."""
    if isinstance(address, str):
        address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        for network, text in _V6_RANGES:
            if address in network:
                return text
        for network, shift in _EMBEDDINGS:
            if address in network:
                return forbidden_address(ipaddress.IPv4Address((int(address) >> shift) & 0xFFFF_FFFF))
    else:
        if address == _AZURE_HOST:
            return _METADATA
        for network4, text in _V4_RANGES:
            if address in network4:
                return text
    return None if address.is_global else _RESERVED


def _parse(value: Any, base: str | None) -> Target:
    # It comes with the server, which alone registers and calls webhooks; the table of commands is imported without it.
    from ada_url import URL

    if not isinstance(value, str) or "\0" in value:
        raise ValidationError("Invalid URL format")
    try:
        url = URL(value, base=base)
        href: str = url.href
        scheme: str = url.protocol.removesuffix(":")
        host: str = url.hostname
    except ValueError:  # UnicodeEncodeError included
        raise ValidationError("Invalid URL format") from None
    return Target(href, scheme, host.removeprefix("[").removesuffix("]"))


__all__ = ["MAX_URL_CHARACTERS", "Target", "check_webhook_url", "forbidden_address", "forbidden_host"]
