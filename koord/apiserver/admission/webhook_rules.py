"""Which webhooks a request goes to: rules, scope, selectors, match policy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from koord.apiserver.admission.attributes import Attributes
from koord.kube.selectors import Selector, from_label_selector

if TYPE_CHECKING:
    from koord.apiserver.core import Core
    from koord.apiserver.resources import Resource

Obj = dict[str, Any]

_USER = re.compile(r"request\.userInfo\.username == '([^'\\]*)'")
_NEVER = frozenset({"mutatingwebhookconfigurations", "validatingwebhookconfigurations"})


@dataclass(frozen=True, slots=True)
class Hook:
    """One registered webhook, ready to match."""

    configuration: str
    name: str
    raw: Obj
    rules: tuple[Obj, ...]
    namespaces: Selector
    objects: Selector
    exact: bool
    ignore_failure: bool
    timeout: float
    reinvoke: bool
    dry_run_safe: bool
    users: tuple[str, ...] = ()
    """Names that the match conditions want the user to have, all of them."""


def compile_hooks(configurations: list[Obj]) -> list[Hook]:
    """All webhooks in calling order: by configuration name, then as listed."""
    out: list[Hook] = []
    for configuration in sorted(configurations, key=lambda c: c["metadata"]["name"]):
        for raw in configuration.get("webhooks") or ():
            out.append(
                Hook(
                    configuration["metadata"]["name"],
                    raw["name"],
                    raw,
                    tuple(raw.get("rules") or ()),
                    from_label_selector(raw.get("namespaceSelector") or {}),
                    from_label_selector(raw.get("objectSelector") or {}),
                    raw.get("matchPolicy") == "Exact",
                    raw.get("failurePolicy") == "Ignore",
                    float(raw.get("timeoutSeconds", 10)),
                    raw.get("reinvocationPolicy") == "IfNeeded",
                    raw.get("sideEffects") in ("None", "NoneOnDryRun"),
                    _users(raw.get("matchConditions") or ()),
                )
            )
    return out


def _users(conditions: Iterable[Obj]) -> tuple[str, ...]:
    """Of match conditions only comparisons of the user's name are understood; others are taken as met, so that no webhook is left out."""
    found = (_USER.fullmatch(str(condition.get("expression", "")).strip()) for condition in conditions)
    return tuple(match[1] for match in found if match)


def _listed(wanted: list[str], value: str) -> bool:
    return "*" in wanted or value in wanted


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
    return (
        _listed(rule.get("operations") or [], attributes.operation)
        and _listed(rule.get("apiGroups") or [], resource.group)
        and _listed(rule.get("apiVersions") or [], resource.version)
        and _resource_listed(rule.get("resources") or [], resource.plural, attributes.subresource)
    )


def matching_resource(core: Core, hook: Hook, attributes: Attributes) -> Resource | None:
    """The resource (version) in which the webhook wants to see the request; None when it does not care."""
    resource = attributes.resource
    if any(user != attributes.options.user.name for user in hook.users):
        return None
    if resource.group == "admissionregistration.k8s.io" and resource.plural in _NEVER:
        return None
    if any(_rule_matches(rule, resource, attributes) for rule in hook.rules):
        found: Resource | None = resource
    elif hook.exact:
        found = None
    else:
        versions = [r for r in core.resources.of_group(resource.group) if r.bucket == resource.bucket and r is not resource]
        found = next((r for r in versions if any(_rule_matches(rule, r, attributes) for rule in hook.rules)), None)
    if found is None or not _selected(core, hook, attributes):
        return None
    return found


def _labels(obj: Obj | None) -> Obj:
    return ((obj or {}).get("metadata") or {}).get("labels") or {}


def _selected(core: Core, hook: Hook, attributes: Attributes) -> bool:
    if not hook.namespaces.everything:
        if attributes.resource.kind == "Namespace" and not attributes.resource.group:
            labels = _labels(attributes.obj or attributes.old)
        elif attributes.namespace:
            entry = core.store.bucket("/namespaces").get("", attributes.namespace)
            labels = _labels(entry.obj if entry else None)
        else:
            labels = None
        if labels is not None and not hook.namespaces.matches(labels):
            return False
    if hook.objects.everything:
        return True
    return any(o is not None and hook.objects.matches(_labels(o)) for o in (attributes.obj, attributes.old))
