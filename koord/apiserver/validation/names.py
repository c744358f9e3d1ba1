"""Rules for names, labels and annotations."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from koord.apiserver.errors import Cause, invalid_value, required

Obj = dict[str, Any]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric "
    "character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_LABEL_1035_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an "
    "alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_NAME_PART_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
ANNOTATIONS_LIMIT = 256 * 1024


@lru_cache(maxsize=4096)
def dns_label(name: str) -> str:
    """ "" or what is wrong with a DNS-1123 label."""
    if len(name) > 63:
        return "must be no more than 63 characters"
    return "" if _LABEL.fullmatch(name) else _LABEL_TEXT


@lru_cache(maxsize=4096)
def dns_1035_label(name: str) -> str:
    """ "" or what is wrong with a DNS-1035 label."""
    if len(name) > 63:
        return "must be no more than 63 characters"
    return "" if _LABEL_1035.fullmatch(name) else _LABEL_1035_TEXT


def dns_subdomain(name: str) -> str:
    """ "" or what is wrong with a DNS-1123 subdomain."""
    if len(name) > 253:
        return "must be no more than 253 characters"
    return "" if _SUBDOMAIN.fullmatch(name) else _SUBDOMAIN_TEXT


def path_segment(name: str) -> str:
    """ "" or what is wrong with a name that only has to fit into a path."""
    if name in (".", ".."):
        return f"may not be '{name}'"
    for bad in "/%":
        if bad in name:
            return f"may not contain '{bad}'"
    return ""


def name_rule(flags: str) -> Callable[[str], str]:
    """The rule for the names of a resource, by the flags of its row."""
    if "n" in flags:
        return path_segment
    if "5" in flags:
        return dns_1035_label
    return dns_label if "l" in flags else dns_subdomain


@lru_cache(maxsize=65_536)
def qualified_name(key: str) -> str:
    """ "" or what is wrong with `[prefix/]name`."""
    prefix, slash, name = key.rpartition("/")
    if slash and (not prefix or "/" in prefix):
        return (
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
            "character with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            if "/" in prefix
            else "prefix part must be non-empty"
        )
    if slash and dns_subdomain(prefix):
        return "prefix part " + dns_subdomain(prefix)
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 characters"
    return "" if _QUALIFIED.fullmatch(name) else _NAME_PART_TEXT


@lru_cache(maxsize=65_536)
def label_value(value: str) -> str:
    """ "" or what is wrong with a label value."""
    if len(value) > 63:
        return "must be no more than 63 characters"
    return "" if _LABEL_VALUE.fullmatch(value) else _VALUE_TEXT


def label_map(values: Obj, path: str, causes: list[Cause]) -> None:
    """Check a label map."""
    for key, value in values.items():
        wrong = qualified_name(key)
        if wrong:
            causes.append(invalid_value(path, key, wrong))
        wrong = label_value(value)
        if wrong:
            causes.append(invalid_value(path, value, wrong))


def annotation_map(values: Obj, path: str, causes: list[Cause]) -> None:
    """Check an annotation map: its keys, and the size of all of it."""
    size = 0
    for key, value in values.items():
        wrong = qualified_name(key.lower())
        if wrong:
            causes.append(invalid_value(path, key, wrong))
        size += len(key) + len(value)
    if size > ANNOTATIONS_LIMIT:
        causes.append(Cause("FieldValueTooLong", path, f"Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"))


def owner_references(refs: list[Obj], causes: list[Cause]) -> None:
    """Check metadata.ownerReferences."""
    controllers = [f"{ref.get('kind', '')}/{ref.get('name', '')}" for ref in refs if ref.get("controller")]
    for ref in refs:
        for key in ("apiVersion", "kind", "name", "uid"):
            if not ref.get(key):
                text = "version must not be empty" if key == "apiVersion" else "must not be empty"
                causes.append(invalid_value(f"metadata.ownerReferences.{key}", ref.get(key) or "", text))
    if len(controllers) > 1:
        text = f'Only one reference can have Controller set to true. Found "true" in references for {controllers[0]} and {controllers[1]}'
        causes.append(invalid_value("metadata.ownerReferences", refs, text))


def metadata(meta: Obj, *, namespaced: bool, rule: Callable[[str], str], causes: list[Cause]) -> None:
    """Check ObjectMeta."""
    name, base = meta.get("name"), meta.get("generateName")
    if base and (wrong := rule(base[:-1] if base.endswith("-") else base)):
        causes.append(invalid_value("metadata.generateName", base, wrong))
    if not name:
        causes.append(required("metadata.name", "name or generateName is required"))
    else:
        wrong = rule(name)
        if wrong:
            causes.append(invalid_value("metadata.name", name, wrong))
    if namespaced and not meta.get("namespace"):
        causes.append(required("metadata.namespace"))
    if meta.get("labels"):
        label_map(meta["labels"], "metadata.labels", causes)
    if meta.get("annotations"):
        annotation_map(meta["annotations"], "metadata.annotations", causes)
    if meta.get("ownerReferences"):
        owner_references(meta["ownerReferences"], causes)
    for i, finalizer in enumerate(meta.get("finalizers") or ()):
        wrong = qualified_name(finalizer)
        if wrong:
            causes.append(invalid_value("metadata.finalizers", finalizer, wrong))
        elif "/" not in finalizer and finalizer not in ("orphan", "foregroundDeletion", "kubernetes"):
            text = "name is neither a standard finalizer name nor is it fully qualified"
            causes.append(invalid_value(f"metadata.finalizers[{i}]", finalizer, text))
