"""Keys, tokens and passwords are never shown: not in a dump of a configuration, not in a log line, not in the text of an error.

Fields are known by their names, texts by what stands in them. Rather a word too many is hidden than one too few.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

HIDDEN = "<hidden>"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET = frozenset(
    {"token", "tokens", "password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials", "authorization", "cookie"}
)
# Where something secret lies, what it is called, how long it holds: no secret itself.
_ABOUT = frozenset(
    {"file", "path", "dir", "name", "namespace", "ref", "type", "ttl", "url", "audience", "audiences", "seconds", "kind", "provider"}
)
# Keys that are names of labels, annotations and the like.
_NAMING = frozenset({"topology", "label", "annotation", "taint", "sort", "group", "match", "resource", "node", "pod", "public", "cert"})

_PRIVATE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_ENCODED = re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/=\s]{20,}")  # base64 of "-----BEGIN"
_JWT = re.compile(r"\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?")
_SCHEME = re.compile(r"\b(bearer|basic)\s+[^\s\"',;]+", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"((?:token|password|passwd|passphrase|secret|credential|authorization|api[-_ ]?key|access[-_ ]?key|private[-_ ]?key)s?"
    r"[\"']?\s*(?:[:=]|is\b|was\b)?\s*)[\"']?[^\s\"',;]+",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(\w[\w+.-]*://)[^\s/@]+@")
_OPAQUE = re.compile(r"[^\s\"',;:=()\[\]{}<>]{8,}")


def is_secret(name: str) -> bool:
    """Whether the value of a field, flag or variable of this name is to be hidden: `keyData`, `bearer_token`, `AWS_SECRET_ACCESS_KEY`."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT:
        return False
    if _SECRET & set(words):
        return True
    if len(words) > 1 and words[-1] == "data":
        return True
    return len(words) > 1 and words[-1] == "key" and words[-2] not in _NAMING


def redacted(value: Any) -> Any:
    """Plain data without its secrets. What is empty stays, so that one sees whether something is set."""
    if isinstance(value, dict):
        return {
            key: HIDDEN if item and isinstance(key, str) and is_secret(key) and _is_leaf(item) else redacted(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redacted(item) for item in value]
    return redacted_text(value) if isinstance(value, str) else value


def _is_leaf(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return not isinstance(value, dict) or all(isinstance(item, str) for item in value.values())


def redacted_text(text: str) -> str:
    """A text without private keys, JSON web tokens, passwords in URLs and Authorization headers."""
    if "BEGIN" in text:
        text = _PRIVATE.sub(HIDDEN, text)
    text = _ENCODED.sub(HIDDEN, text)
    text = _JWT.sub(HIDDEN, text)
    text = _USERINFO.sub(rf"\1{HIDDEN}@", text)
    return _SCHEME.sub(rf"\1 {HIDDEN}", text)


def redacted_output(text: str, known: Iterable[str] = ()) -> str:
    """What a program that handles credentials wrote: beside all that, what follows a telling word, the `known` secrets, and every word
    that looks like no word of a language."""
    for secret in sorted({secret for secret in known if len(secret) > 3}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _ASSIGNED.sub(rf"\1{HIDDEN}", redacted_text(text))
    return _OPAQUE.sub(lambda found: HIDDEN if _is_opaque(found[0]) else found[0], text)


def _is_opaque(word: str) -> bool:
    if word.startswith("/"):
        return False
    return (any(ch.isdigit() for ch in word) and any(ch.isalpha() for ch in word)) or len(word) > 24
