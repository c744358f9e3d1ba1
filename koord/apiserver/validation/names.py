"""Rules for names, labels and annotations. Each rule returns what is wrong, "" for nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from koord.api.selectors import LONGEST_KEY
from koord.apiserver.errors import Cause, field_forbidden, invalid_value, required, too_long
from koord.apiserver.remember import short_ones
from koord.apiserver.store import Obj

Rule = Callable[[str], str]

ANNOTATIONS_LIMIT = 256 * 1024
_STANDARD_FINALIZERS = ("orphan", "foregroundDeletion", "kubernetes")


def _pattern(pattern: str, longest: int, about: str, examples: str) -> Rule:
    """The rule that a name matches a pattern, with the words in which kube-apiserver says so."""
    matches = re.compile(pattern).fullmatch
    text = f"{about} (e.g. {examples}, regex used for validation is '{pattern}')"

    @short_ones(65_536, longest, len)
    def rule(name: str) -> str:
        if len(name) > longest:
            return f"must be no more than {longest} characters"
        return "" if matches(name) else text

    return rule


_ALNUM = "must start and end with an alphanumeric character"
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
dns_label = _pattern(
    _LABEL,
    63,
    f"a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and {_ALNUM}",
    "'my-name',  or '123-abc'",
)
dns_1035_label = _pattern(
    "[a-z]([-a-z0-9]*[a-z0-9])?",
    63,
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an "
    "alphanumeric character",
    "'my-name',  or 'abc-123'",
)
dns_subdomain = _pattern(
    rf"{_LABEL}(\.{_LABEL})*",
    253,
    f"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and {_ALNUM}",
    "'example.com'",
)
_name_part = _pattern(
    "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]",
    63,
    f"name part must consist of alphanumeric characters, '-', '_' or '.', and {_ALNUM}",
    "'MyName',  or 'my.name',  or '123-abc'",
)
label_value = _pattern(
    "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
    63,
    f"a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and {_ALNUM}",
    "'MyValue',  or 'my_value',  or '12345'",
)


def path_segment(name: str) -> str:
    """A name that only has to fit into a path."""
    if name in (".", ".."):
        return f"may not be '{name}'"
    return next((f"may not contain '{bad}'" for bad in "/%" if bad in name), "")


@cache
def name_rule(flags: str) -> Rule:
    """The rule for the names of a resource, by the flags of its row."""
    return next((rule for flag, rule in (("n", path_segment), ("5", dns_1035_label), ("l", dns_label)) if flag in flags), dns_subdomain)


@short_ones(65_536, LONGEST_KEY, len)
def qualified_name(key: str) -> str:
    """`[prefix/]name`."""
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        return (
            "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
            "character with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        )
    if slash and not prefix:
        return "prefix part must be non-empty"
    if slash and dns_subdomain(prefix):
        return "prefix part " + dns_subdomain(prefix)
    if not name:
        return "name part must be non-empty"
    wrong = _name_part(name)
    return f"name part {wrong}" if wrong.startswith("must be") else wrong


def check_name(rule: Rule, value: str, path: str, causes: list[Cause]) -> bool:
    """Add a cause for a value that breaks a rule; whether it does."""
    wrong = rule(value)
    if wrong:
        causes.append(invalid_value(path, value, wrong))
    return bool(wrong)


def label_map(values: Obj, path: str, causes: list[Cause]) -> None:
    """Check a label map."""
    for key, value in values.items():
        check_name(qualified_name, key, path, causes)
        check_name(label_value, value, path, causes)


def label_selector(selector: Obj, path: str, causes: list[Cause]) -> None:
    """Check a LabelSelector."""
    label_map(selector.get("matchLabels") or {}, f"{path}.matchLabels", causes)
    for i, wanted in enumerate(selector.get("matchExpressions") or ()):
        where, operator, values = f"{path}.matchExpressions[{i}]", wanted.get("operator") or "", wanted.get("values") or ()
        if operator in ("In", "NotIn"):
            if not values:
                causes.append(required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
        elif operator not in ("Exists", "DoesNotExist"):
            causes.append(invalid_value(f"{where}.operator", operator, "not a valid selector operator"))
        elif values:
            causes.append(field_forbidden(f"{where}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
        check_name(qualified_name, wanted.get("key") or "", f"{where}.key", causes)
        for at, value in enumerate(values):
            check_name(label_value, value, f"{where}.values[{at}]", causes)


def annotation_map(values: Obj, path: str, causes: list[Cause]) -> None:
    """Check an annotation map: its keys, and the size of all of it."""
    for key in values:
        if wrong := qualified_name(key.lower()):
            causes.append(invalid_value(path, key, wrong))
    if sum(len(key.encode()) + len(value.encode()) for key, value in values.items()) > ANNOTATIONS_LIMIT:
        causes.append(too_long(path, ANNOTATIONS_LIMIT))


def owner_references(refs: list[Obj], causes: list[Cause]) -> None:
    """Check metadata.ownerReferences."""
    for ref in refs:
        for key in ("apiVersion", "kind", "name", "uid"):
            if not ref.get(key):
                text = "version must not be empty" if key == "apiVersion" else "must not be empty"
                causes.append(invalid_value(f"metadata.ownerReferences.{key}", ref.get(key) or "", text))
        if ref.get("apiVersion") == "v1" and ref.get("kind") == "Event":
            text = "/v1, Kind=Event is disallowed from being an owner"
            causes.append(invalid_value("metadata.ownerReferences", ref, text))
    controllers = [f"{ref.get('kind', '')}/{ref.get('name', '')}" for ref in refs if ref.get("controller")]
    if len(controllers) > 1:
        text = f'Only one reference can have Controller set to true. Found "true" in references for {controllers[0]} and {controllers[1]}'
        causes.append(invalid_value("metadata.ownerReferences", refs, text))


def pathless(finalizers: list[str]) -> list[str]:
    """Those that any two writers may choose."""
    return [finalizer for finalizer in finalizers if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS]


def metadata(meta: Obj, *, namespaced: bool, rule: Rule, any_finalizer: bool, causes: list[Cause]) -> None:
    """Check ObjectMeta. Finalizers need a path but where `any_finalizer` goes."""
    name, base = meta.get("name"), meta.get("generateName")
    if base and (wrong := rule(base[:-1] if base.endswith("-") else base)):
        causes.append(invalid_value("metadata.generateName", base, wrong))
    if not name:
        causes.append(required("metadata.name", "name or generateName is required"))
    else:
        check_name(rule, name, "metadata.name", causes)
    if namespaced and not meta.get("namespace"):
        causes.append(required("metadata.namespace"))
    for key, check in (("labels", label_map), ("annotations", annotation_map)):
        if meta.get(key):
            check(meta[key], f"metadata.{key}", causes)
    if meta.get("ownerReferences"):
        owner_references(meta["ownerReferences"], causes)
    for i, finalizer in enumerate(meta.get("finalizers") or ()):
        if check_name(qualified_name, finalizer, "metadata.finalizers", causes):
            continue
        if not any_finalizer and pathless([finalizer]):
            text = "name is neither a standard finalizer name nor is it fully qualified"
            causes.append(invalid_value(f"metadata.finalizers[{i}]", finalizer, text))
