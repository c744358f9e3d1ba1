"""Get, list and watch: selectors, versions, pages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson

from koord.api.selectors import SelectorError, parse_field_selector, parse_label_selector
from koord.apiserver.errors import StatusError, bad_request, expired, field_forbidden, invalid, not_supported, too_large_resource_version
from koord.apiserver.rest.context import flag, whole_number
from koord.apiserver.store import Entry, Obj

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource


Getter = Callable[[Obj], str]
Match = Callable[[Obj], bool]

_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_EVENT = (*(f"involvedObject.{key}" for key in _REFERENCE), "reason", "reportingComponent", "source", "type")
# (group, plural) -> what a field selector may name; metadata.name and metadata.namespace work everywhere
_FIELDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork", "status.phase",
        "status.podIP", "status.podIPs", "status.nominatedNodeName",
    ),
    ("", "nodes"): ("spec.unschedulable",),
    ("", "namespaces"): ("status.phase", "name"),
    ("", "secrets"): ("type",),
    ("", "services"): ("spec.clusterIP", "spec.type"),
    ("", "replicationcontrollers"): ("status.replicas",),
    ("apps", "replicasets"): ("status.replicas",),
    ("batch", "jobs"): ("status.successful",),
    ("resource.k8s.io", "resourceslices"): ("spec.driver", "spec.nodeName"),
    ("", "events"): _EVENT,
    ("events.k8s.io", "events"): (*_EVENT, *(f"regarding.{key}" for key in _REFERENCE)),
}  # fmt: skip
# where a field is that has another name in the object, and what counts where it is absent
_PLACES = {"name": "metadata.name", "status.podIPs": "status.podIP", "status.successful": "status.succeeded"}
_PLACES |= {f"regarding.{key}": f"involvedObject.{key}" for key in _REFERENCE}
_ABSENT = {"spec.hostNetwork": "false", "spec.unschedulable": "false", "status.replicas": "0", "status.successful": "0"}


@cache
def _getter(place: str, absent: str = "") -> Getter:
    path = place.split(".")

    def getter(obj: Obj) -> str:
        value: Any = obj
        for key in path:
            # what a stricter definition would refuse may be stored
            value = value.get(key) if isinstance(value, dict) else None
            if value is None:
                return absent
        return str(value).lower() if isinstance(value, bool) else str(value)

    return getter


def _source(obj: Obj) -> str:
    return (obj.get("source") or {}).get("component") or obj.get("reportingComponent") or ""


def _field(resource: Resource, field: str) -> Getter:
    """What gets the value of a field. Raises StatusError 400 for one that cannot be selected by."""
    if field in ("metadata.name", "metadata.namespace"):
        return _getter(field)
    if resource.custom:
        selectable = (resource.crd_version or {}).get("selectableFields") or ()
        if any(field == known["jsonPath"].lstrip(".") for known in selectable):
            return _getter(field)
    elif field in _FIELDS.get((resource.group, resource.plural), ()):
        return _source if field == "source" else _getter(_PLACES.get(field, field), _ABSENT.get(field, ""))
    raise bad_request(f"field label not supported: {field}")


def field_matcher(resource: Resource, text: str) -> Callable[[Obj], bool] | None:
    """A predicate for a field selector. Raises StatusError 400 for fields that cannot be selected by."""
    try:
        selector = parse_field_selector(text)
    except SelectorError as err:
        raise bad_request(str(err)) from err
    if not selector.requirements:
        return None
    rules = [(_field(resource, wanted.field), wanted.value, wanted.negated) for wanted in selector.requirements]
    if len(rules) == 1:
        getter, wanted, negated = rules[0]
        return lambda obj: (getter(obj) == wanted) != negated
    return lambda obj: all((g(obj) == w) != n for g, w, n in rules)


_MATCHES = ("", "Exact", "NotOlderThan")
_LAST_VERSION = (1 << 64) - 1
_LONGEST_VERSION = 200  # digits; leading zeros are none of a number's size
_TOKEN_VERSION = "meta.k8s.io/v1"  # of continue tokens


@dataclass(slots=True)
class ListQuery:
    """The query of a list or a watch."""

    namespace: str | None
    match: Match | None
    rv: str = ""
    rv_match: str = ""
    limit: int = 0
    continue_: str = ""
    send_initial_events: bool | None = None
    allow_bookmarks: bool = False
    timeout_seconds: int = 0


@dataclass(slots=True)
class Page:
    """One answer to a list."""

    entries: list[Entry]
    rv: int
    continue_: str = ""
    remaining: int | None = None


def parse_query(resource: Resource, namespace: str | None, query: dict[str, str]) -> ListQuery:
    """Read the query parameters. Raises StatusError 400 or 422 for what makes no sense."""
    checked_version(query)
    return ListQuery(
        namespace,
        matcher(resource, query.get("labelSelector", ""), query.get("fieldSelector", "")),
        query.get("resourceVersion", ""),
        query.get("resourceVersionMatch", ""),
        whole_number(query, "limit"),
        query.get("continue", ""),
        flag(query, "sendInitialEvents") if "sendInitialEvents" in query else None,
        flag(query, "allowWatchBookmarks"),
        whole_number(query, "timeoutSeconds"),
    )


def checked_version(query: dict[str, str]) -> int:
    """The resourceVersion of a query, 0 where it has none. Raises StatusError 400."""
    text = query.get("resourceVersion", "")
    digits = text.isascii() and text.isdigit()
    if digits and len(text) <= _LONGEST_VERSION and int(text) <= _LAST_VERSION:
        return int(text)
    if not text:
        return 0
    why = "value out of range" if digits else "invalid syntax"
    raise bad_request(f'invalid resource version: resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": {why}')


def matcher(resource: Resource, labels: str, fields: str) -> Match | None:
    """One predicate for both selectors; None when everything matches."""
    by_fields = field_matcher(resource, fields) if fields else None
    if not labels:
        return by_fields
    try:
        selector = parse_label_selector(labels)
    except SelectorError as err:
        raise bad_request(f"unable to parse requirement: {err}") from err
    if selector.everything:
        return by_fields
    matches = selector.matches

    if by_fields is None:
        return lambda obj: matches(obj["metadata"].get("labels"))
    also = by_fields
    return lambda obj: matches(obj["metadata"].get("labels")) and also(obj)


def _check_list(query: ListQuery) -> None:
    if not query.rv_match and query.send_initial_events is None:
        return
    match, field = query.rv_match, "resourceVersionMatch"
    wrong = (
        (match and not query.rv, field_forbidden(field, "resourceVersionMatch is forbidden unless resourceVersion is provided")),
        (match and query.continue_, field_forbidden(field, "resourceVersionMatch is forbidden when continue is provided")),
        (match not in _MATCHES, not_supported(field, match, _MATCHES)),
        (match == "Exact" and query.rv == "0", field_forbidden(field, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"')),
        (query.send_initial_events is not None, field_forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")),
    )
    if causes := [cause for holds, cause in wrong if holds]:
        raise invalid("ListOptions", "meta.k8s.io", "", causes)


def list_page(core: Core, resource: Resource, query: ListQuery) -> Page:
    """The entries that a list asks for."""
    _check_list(query)
    bucket = core.store.bucket(resource.bucket)
    current = core.store.rv
    if query.continue_:
        rv, start = decode_continue(query.continue_)
        if query.rv and query.rv != "0":
            raise bad_request("specifying resource version is not allowed when using continue")
        if rv < 0:
            rv = current
        elif rv > current:  # of a server whose state is lost
            raise _gone(query, start, rv)
    else:
        rv, start = current, ""
        wanted = int(query.rv or 0)
        if wanted > current:
            raise too_large_resource_version(wanted, current)
        if wanted and (query.rv_match == "Exact" or (query.limit and not query.rv_match)):
            rv = wanted
    if rv == current:
        entries = bucket.select(query.namespace, start)
        return _cut(query, entries, current)
    past = bucket.at(rv)
    if past is None:
        raise _gone(query, start, rv)
    inside = (e for e in past if (query.namespace is None or e.namespace == query.namespace) and e.key > start)
    return _cut(query, inside, rv)


def _gone(query: ListQuery, start: str, rv: int) -> StatusError:
    if not query.continue_:
        return expired(f"The resourceVersion for the provided list is too old: {rv}")
    err = expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue "
        "parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided "
        "token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was "
        "returned and now may show up in the list."
    )
    err.metadata = {"continue": encode_continue(-1, start)}
    return err


def _cut(query: ListQuery, entries: Any, rv: int) -> Page:
    match = query.match
    if match is not None:
        entries = (e for e in entries if match(e.obj))
    if not query.limit or query.rv == "0":  # any version will do: no need for pages
        return Page(list(entries), rv)
    page: list[Entry] = []
    for entry in entries:
        if len(page) == query.limit:
            # a count of the rest is only known where nothing is filtered
            rest = None if match is not None else 1 + sum(1 for _ in entries)
            return Page(page, rv, encode_continue(rv, page[-1].key), rest)
        page.append(entry)
    return Page(page, rv)


def encode_continue(rv: int, start: str) -> str:
    """A continue token: the version of the first page and the last key shown."""
    return base64.urlsafe_b64encode(orjson.dumps({"v": _TOKEN_VERSION, "rv": rv, "start": start})).decode().rstrip("=")


def decode_continue(token: str) -> tuple[int, str]:
    """Version and last key of a continue token."""
    try:
        raw = orjson.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        version, rv, start = raw.get("v") or "", int(raw.get("rv") or 0), str(raw.get("start") or "")
    except (binascii.Error, ValueError, AttributeError, TypeError) as err:
        raise _unusable(str(err)) from err
    if version != _TOKEN_VERSION:
        raise _unusable(f"server does not recognize this encoded version {version}")
    if not rv:
        raise _unusable(f"incorrect encoded start resourceVersion (version {_TOKEN_VERSION})")
    if not start:
        raise _unusable(f"encoded start key empty (version {_TOKEN_VERSION})")
    if start.count("/") != 1:  # no name and no namespace has one
        raise _unusable(start)
    return rv, start


def _unusable(why: str) -> StatusError:
    return bad_request(f"invalid continue token: continue key is not valid: {why}")
