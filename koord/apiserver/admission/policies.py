"""ValidatingAdmissionPolicies: compiled when they change, asked at every write that they match."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from koord.api.selectors import from_label_selector
from koord.apiserver.admission.matching import Attributes, compile_match, matching_resource
from koord.apiserver.errors import StatusError, forbidden
from koord.apiserver.store import Entry, Event, Obj

if TYPE_CHECKING:
    from koord.apiserver.admission.matching import Match
    from koord.apiserver.cel.policy import Policy, Verdict
    from koord.apiserver.core import Core

log = logging.getLogger(__name__)

POLICIES = "admissionregistration.k8s.io/validatingadmissionpolicies"
BINDINGS = "admissionregistration.k8s.io/validatingadmissionpolicybindings"
_CODES = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}
# (name, the object, what it looks at)
Bound = tuple[str, Obj, "Match"]


class _Unjudged(Exception):
    """A policy that cannot be asked; the text says why."""


class PolicyAdmission:
    """The policies that are bound; `active` is False while there are none."""

    def __init__(self, core: Core, *, on: bool = True) -> None:
        self.core = core
        self.active = False
        self._bound: list[tuple[str, Match, list[Bound]]] = []
        self._compiled: dict[str, tuple[int, Policy]] = {}
        if on:
            for name in (POLICIES, BINDINGS):
                core.store.bucket(name).listeners.append(self._reload)
            self._reload()

    def _reload(self, event: Event | None = None) -> None:
        """Take over what is stored now."""
        bindings: dict[str, list[Bound]] = {}
        for entry in self.core.store.bucket(BINDINGS).select(None):
            spec = entry.obj.get("spec") or {}
            bound = (entry.name, spec, compile_match(spec.get("matchResources") or {}, "resourceRules"))
            bindings.setdefault(spec.get("policyName") or "", []).append(bound)
        self._bound = []
        for entry in self.core.store.bucket(POLICIES).select(None):
            if entry.name in bindings:
                constraints = (entry.obj.get("spec") or {}).get("matchConstraints") or {}
                self._bound.append((entry.name, compile_match(constraints, "resourceRules"), bindings[entry.name]))
        self.active = bool(self._bound)

    def _policy(self, entry: Entry) -> Policy:
        """The compiled policy of a stored object, kept until that changes."""
        found = self._compiled.get(entry.name)
        if found is None or found[0] != entry.rv:
            from koord.apiserver.cel.policy import answers, compile_policy

            found = self._compiled[entry.name] = (entry.rv, compile_policy(entry.name, entry.obj["spec"], answers(self.core)))
        return found[1]

    def validate(self, attributes: Attributes) -> None:
        """Raises StatusError for what a policy denies; warnings go to the request's options."""
        seen: dict[str, Obj] = {}
        for name, match, bindings in self._bound:
            resource = matching_resource(self.core, match, attributes)
            entry = self.core.store.bucket(POLICIES).get("", name)
            if resource is None or entry is None:
                continue
            for binding, spec, bound in bindings:
                if matching_resource(self.core, bound, attributes) is None:
                    continue
                values = seen.get(resource.api_version)
                if values is None:
                    from koord.apiserver.cel.policy import values as values_of

                    values = seen[resource.api_version] = values_of(self.core, resource, attributes)
                policy = self._policy(entry)
                for params in self._params(policy, spec, attributes):
                    verdicts, audit = _ask(policy, {**values, "params": params} if not isinstance(params, _Unjudged) else params)
                    if audit:
                        log.info("audit of %s %s: %s", resource.plural, attributes.name, audit)
                    _enforce(attributes, name, binding, spec.get("validationActions") or (), verdicts)

    def _params(self, policy: Policy, binding: Obj, attributes: Attributes) -> Iterator[Obj | _Unjudged | None]:
        """The objects that a policy is asked with: None where it takes none."""
        kind, ref = policy.spec.get("paramKind"), binding.get("paramRef")
        if not kind or not ref:
            yield None
            return
        resource = self.core.resources.by_api_version(kind.get("apiVersion") or "", kind.get("kind") or "")
        if resource is None:
            yield _Unjudged(f"failed to configure policy: {kind.get('apiVersion')}, Kind={kind.get('kind')} is not served here")
            return
        namespace = (ref.get("namespace") or attributes.namespace) if resource.namespaced else ""
        if resource.namespaced and not namespace:
            yield _Unjudged("failed to configure binding: can't use namespaced paramRef to match cluster-scoped resource")
            return
        bucket = self.core.store.bucket(resource.bucket)
        if ref.get("name"):
            entry = bucket.get(namespace, ref["name"])
            found = [entry] if entry is not None else []
        else:
            selector = from_label_selector(ref.get("selector") or {})
            found = [e for e in bucket.select(namespace) if selector.matches(e.obj["metadata"].get("labels"))]
        if not found and ref.get("parameterNotFoundAction") != "Allow":
            yield _Unjudged("failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction")
        from koord.apiserver.cel.environment import readable

        yield from (readable(entry.obj) for entry in found)


def _ask(policy: Policy, values: Obj | _Unjudged) -> tuple[list[Verdict], dict[str, str]]:
    from koord.apiserver.cel.environment import CelError
    from koord.apiserver.cel.policy import Verdict

    try:
        if isinstance(values, _Unjudged):
            raise values
        if policy.causes:
            raise _Unjudged(policy.causes[0].text())
        if not policy.applies(values):
            return [], {}
        return policy.judge(values), policy.audit(values)
    except (CelError, _Unjudged) as error:
        return [Verdict(str(error))] if policy.fails else [], {}


def _enforce(attributes: Attributes, policy: str, binding: str, actions: list[str] | tuple[str, ...], verdicts: list[Verdict]) -> None:
    whose = f"ValidatingAdmissionPolicy '{policy}' with binding '{binding}'"
    for verdict in verdicts:
        if "Audit" in actions:
            log.info("audit of %s %s: %s: %s", attributes.resource.plural, attributes.name, whose, verdict.message)
        if "Warn" in actions:
            attributes.options.warnings.append(f"Validation failed for {whose}: {verdict.message}")
        if "Deny" in actions:
            raise _denied(attributes, f"{whose} denied request: {verdict.message}", verdict)


def _denied(attributes: Attributes, text: str, verdict: Verdict) -> StatusError:
    resource = attributes.resource
    out = forbidden(resource.plural, resource.group, attributes.name, text)
    out.code, out.reason = _CODES.get(verdict.reason, 422), verdict.reason
    out.details = {**(out.details or {}), "causes": [{"message": text}]}
    return out
