"""Which requests a webhook or a policy is about: rules, scope, selectors, match policy; and the request as both see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from koord.api.selectors import EVERYTHING, Selector, from_label_selector
from koord.apiserver.rbac import covers
from koord.apiserver.resources import SUBRESOURCE_KINDS, api_version
from koord.apiserver.store import Obj

if TYPE_CHECKING:
    from koord.apiserver.resources import Resource
    from koord.apiserver.rest.context import Options
    from koord.apiserver.state import State


CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"


@dataclass(slots=True)
class Attributes:
    """One write on its way through admission. Plugins change `obj` in place; webhooks may replace it."""

    operation: str
    resource: Resource
    subresource: str
    namespace: str
    name: str
    obj: Obj | None
    old: Obj | None
    options: Options
    # the options object of the request, for webhooks
    wire_options: Obj = field(default_factory=dict)
    # decodes and defaults what a webhook made of the object
    reread: Callable[[Obj], Obj] = lambda obj: obj

    @property
    def place(self) -> str:
        """The namespace that the request is about: for kube-apiserver a namespace lies in itself."""
        return self.name if self.resource.kind == "Namespace" and not self.resource.group else self.namespace

    def require_object(self) -> Obj:
        assert self.obj is not None
        return self.obj


# what decides about admission is itself admitted by nobody else, or a mistake in it could not be repaired
_NEVER = frozenset(
    {
        "mutatingwebhookconfigurations", "validatingwebhookconfigurations", "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    }
)  # fmt: skip
_KNOWN = 500  # kinds of requests for which it is remembered whether a webhook or policy is about them
_OPTION_KINDS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}


@dataclass(frozen=True, slots=True)
class Match:
    """What a webhook, a policy or a binding looks at. Without rules (None): everything."""

    rules: tuple[Obj, ...] | None
    excluded: tuple[Obj, ...] = ()
    namespaces: Selector = EVERYTHING
    objects: Selector = EVERYTHING
    exact: bool = False
    known: dict[tuple[Any, ...], Resource | None] = field(default_factory=dict, compare=False, repr=False)
    """What the rules said of kinds of requests: every write asks every webhook, and most have nothing to do with it."""


def compile_match(raw: Obj, rules: str, excluded: str = "excludeResourceRules") -> Match:
    """`raw` with its rules under the key `rules`. Raises SelectorError."""
    return Match(
        tuple(raw[rules]) if raw.get(rules) else None,
        tuple(raw.get(excluded) or ()),
        from_label_selector(raw.get("namespaceSelector") or {}),
        from_label_selector(raw.get("objectSelector") or {}),
        raw.get("matchPolicy") == "Exact",
    )


def _resource_listed(wanted: list[str], plural: str, subresource: str) -> bool:
    for pattern in wanted:
        name, _, sub = pattern.partition("/")
        if name not in ("*", plural):
            continue
        if sub in (subresource, "*") or (pattern == "*" and not subresource):
            return True
    return False


def _rule_matches(rule: Obj, resource: Resource, attributes: Attributes) -> bool:
    scope = rule.get("scope") or "*"
    if scope != "*" and (scope == "Namespaced") != bool(attributes.namespace):
        return False
    if rule.get("resourceNames") and attributes.name not in rule["resourceNames"]:
        return False
    return (
        covers(rule.get("operations"), attributes.operation)
        and covers(rule.get("apiGroups"), resource.group)
        and covers(rule.get("apiVersions"), resource.version)
        and _resource_listed(rule.get("resources") or [], resource.plural, attributes.subresource)
    )


def matching_resource(state: State, match: Match, attributes: Attributes) -> Resource | None:
    """The resource (version) in which the request is to be seen; None when it does not match."""
    resource = attributes.resource
    if resource.group == "admissionregistration.k8s.io" and resource.plural in _NEVER:
        return None
    found = resource if match.rules is None else _ruled(state, match.rules, match, attributes)
    if found is None or not _selected(state, match, attributes):
        return None
    return None if match.excluded and _ruled(state, match.excluded, match, attributes) is not None else found


def _ruled(state: State, rules: tuple[Obj, ...], match: Match, attributes: Attributes) -> Resource | None:
    """The resource (version) that one of the rules is about, as was found before for the same kind of request."""
    resource = attributes.resource
    names = any(rule.get("resourceNames") for rule in rules)
    key = (
        rules is match.rules, state.resources.revision, resource.group, resource.version, resource.plural, attributes.operation,
        attributes.subresource, bool(attributes.namespace), attributes.name if names else "",
    )  # fmt: skip
    known = match.known
    if key not in known:
        if len(known) >= _KNOWN:
            known.clear()
        known[key] = _first_ruled(state, rules, match, attributes)
    return known[key]


def _first_ruled(state: State, rules: tuple[Obj, ...], match: Match, attributes: Attributes) -> Resource | None:
    resource = attributes.resource
    if any(_rule_matches(rule, resource, attributes) for rule in rules):
        return resource
    if match.exact:
        return None
    versions = [r for r in state.resources.of_group(resource.group) if r.bucket == resource.bucket and r is not resource]
    return next((r for r in versions if any(_rule_matches(rule, r, attributes) for rule in rules)), None)


def _labels(obj: Obj | None) -> Obj:
    return ((obj or {}).get("metadata") or {}).get("labels") or {}


def _selected(state: State, match: Match, attributes: Attributes) -> bool:
    if not match.namespaces.everything:
        if attributes.resource.kind == "Namespace" and not attributes.resource.group:
            labels = _labels(attributes.obj or attributes.old)
        elif attributes.namespace:
            entry = state.store.bucket("/namespaces").get("", attributes.namespace)
            labels = _labels(entry.obj if entry else None)
        else:
            labels = None
        if labels is not None and not match.namespaces.matches(labels):
            return False
    if match.objects.everything:
        return True
    return any(o is not None and match.objects.matches(_labels(o)) for o in (attributes.obj, attributes.old))


def in_version(obj: Obj, resource: Resource, subresource: str = "") -> Obj:
    """The object under the API version that was asked for; the body of a subresource under its own."""
    if subresource in SUBRESOURCE_KINDS:
        group, version, kind = SUBRESOURCE_KINDS[subresource]
        return {"kind": kind, "apiVersion": api_version(group, version), **obj}
    if resource.custom and obj.get("apiVersion") != resource.api_version:
        return {**obj, "apiVersion": resource.api_version}
    if "kind" not in obj:
        return {"kind": resource.kind, "apiVersion": resource.api_version, **obj}
    return obj


def describe(resource: Resource, attributes: Attributes) -> Obj:
    """The request without its objects: what an AdmissionReview and the variable `request` of CEL have in common."""
    asked = attributes.resource
    options = {"kind": _OPTION_KINDS.get(attributes.operation, "ConnectOptions"), "apiVersion": "meta.k8s.io/v1"}
    if attributes.operation != DELETE:
        options |= attributes.options.wire
    out: Obj = {
        "kind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "resource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
        "requestKind": {"group": asked.group, "version": asked.version, "kind": asked.kind},
        "requestResource": {"group": asked.group, "version": asked.version, "resource": asked.plural},
        "operation": attributes.operation,
        "userInfo": attributes.options.user.wire(),
        "dryRun": attributes.options.dry_run,
        "options": attributes.wire_options or options,
    }
    if attributes.subresource:
        out["subResource"] = out["requestSubResource"] = attributes.subresource
        kind = SUBRESOURCE_KINDS.get(attributes.subresource)
        if kind is not None:
            out["kind"] = out["requestKind"] = dict(zip(("group", "version", "kind"), kind, strict=True))
    if attributes.name:
        out["name"] = attributes.name
    if attributes.place:
        out["namespace"] = attributes.place
    return out
