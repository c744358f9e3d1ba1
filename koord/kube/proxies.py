"""Which HTTP proxy a server is reached through: `proxy-url` of a kubeconfig, or the environment (pure)."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit


def address_of(parts: SplitResult) -> tuple[str, int]:
    """Host and port of a URL."""
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def proxy_from_environment(server: str, environ: Mapping[str, str]) -> str | None:
    """The proxy for a server URL by HTTPS_PROXY, HTTP_PROXY and NO_PROXY (upper or lower case), None for a direct way.

    NO_PROXY lists hosts, `.suffixes`, addresses and CIDRs, each with an optional port; `*` switches proxies off. Loopback
    is always reached directly.
    """
    parts = urlsplit(server)
    name = "HTTPS_PROXY" if parts.scheme == "https" else "HTTP_PROXY"
    proxy = environ.get(name) or environ.get(name.lower())
    if not proxy or _bypassed(*address_of(parts), environ):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


@lru_cache(maxsize=64)
def literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is written as, None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _bypassed(host: str, port: int, environ: Mapping[str, str]) -> bool:
    address = literal(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    listed = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    return any(_matches(entry.strip().lower(), host.lower(), address, port) for entry in listed.split(",") if entry.strip())


def _matches(entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int) -> bool:
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, number = entry.rpartition(":")
    if colon and number.isascii() and number.isdigit() and len(number) < 9 and (name.count(":") == 0 or name.endswith("]")):
        if int(number) != port:
            return False
        entry = name.strip("[]")
    if address is not None:
        return literal(entry.strip("[]")) == address
    if entry.startswith("*."):
        entry = entry[1:]
    return host.endswith(entry) if entry.startswith(".") else host == entry or host.endswith(f".{entry}")
