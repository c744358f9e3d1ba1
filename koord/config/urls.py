"""Addresses of HTTP servers as users write them (pure)."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit


def is_http_url(text: Any) -> bool:
    """Whether a text names a host, and a port if it has one, of HTTP or HTTPS."""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, TypeError, AttributeError):  # a port that is no number or too large, half of an IPv6 address, no text
        return False
    return good and isinstance(text, str) and text.isprintable() and " " not in text
