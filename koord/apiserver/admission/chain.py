"""The admission plugins in their order, which of them are on, and the policies that users write in CEL."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from koord.api.selectors import from_label_selector
from koord.apiserver.admission.matching import CREATE, DELETE, UPDATE, Attributes, compile_match, matching_resource
from koord.apiserver.admission.quotas import Quotas
from koord.apiserver.admission.webhooks import WebhookAdmission
from koord.apiserver.errors import forbidden, not_found
from koord.apiserver.store import Entry, Event, Obj

if TYPE_CHECKING:
    from koord.apiserver.admission.matching import Match
    from koord.apiserver.cel.policy import Policy, Verdict
    from koord.apiserver.state import State


log = logging.getLogger(__name__)

IMMORTAL = frozenset({"default", "kube-system", "kube-public"})


def admit_namespace(state: State, attributes: Attributes) -> None:
    resource = attributes.resource
    if not resource.namespaced:
        if attributes.operation == DELETE and resource.kind == "Namespace" and attributes.name in IMMORTAL:
            raise forbidden("namespaces", "", attributes.name, "this namespace may not be deleted")
        return
    if attributes.operation != CREATE:
        return
    namespace = attributes.namespace
    entry = state.store.bucket("/namespaces").get("", namespace)
    if entry is None:
        raise not_found("namespaces", "", namespace)
    if entry.obj["metadata"].get("deletionTimestamp"):
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        cause = {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated", "field": "metadata.namespace"}
        details = {"name": attributes.name, "kind": resource.plural, "causes": [cause]}
        if resource.group:
            details["group"] = resource.group
        raise forbidden(resource.plural, resource.group, attributes.name, why, details)


_TAINT = "node.kubernetes.io/not-ready"


def admit_node(state: State, attributes: Attributes) -> None:
    if attributes.operation != CREATE or attributes.subresource or attributes.obj is None:
        return
    taints = attributes.obj.setdefault("spec", {}).setdefault("taints", [])
    if not any(t.get("key") == _TAINT and t.get("effect") == "NoSchedule" for t in taints):
        taints.append({"key": _TAINT, "effect": "NoSchedule"})


_CLASSES = "scheduling.k8s.io/priorityclasses"


def _default_class(state: State) -> Obj | None:
    """The class with globalDefault; of several the lowest, so that what the API server let through does least harm."""
    bucket = state.store.bucket(_CLASSES)

    def lowest() -> Obj | None:
        classes = [e.obj for e in bucket.entries.values() if e.obj.get("globalDefault")]
        return min(classes, key=lambda c: c.get("value", 0), default=None)

    version = bucket.history[-1].rv if bucket.history else bucket.compacted
    return state.derived("default priority class", version, lowest)


def admit_priority(state: State, attributes: Attributes) -> None:
    if attributes.subresource or attributes.operation not in (CREATE, UPDATE):
        return
    pod = attributes.require_object()
    spec = pod.get("spec")
    if spec is None:
        return
    if attributes.operation == UPDATE:
        # the priority of an existing pod stays, also when a client sends it back without
        before = (attributes.old or {}).get("spec") or {}
        for key in ("priority", "preemptionPolicy"):
            if spec.get(key) is None and before.get(key) is not None:
                spec[key] = before[key]
        return
    name = spec.get("priorityClassName")
    if name:
        entry = state.store.bucket(_CLASSES).get("", name)
        if entry is None:
            raise forbidden("pods", "", attributes.name, f"no PriorityClass with name {name} was found")
        chosen: Obj | None = entry.obj
    else:
        chosen = _default_class(state)
        if chosen is not None:
            spec["priorityClassName"] = chosen["metadata"]["name"]
    value = chosen.get("value", 0) if chosen else 0
    policy = (chosen.get("preemptionPolicy") if chosen else None) or "PreemptLowerPriority"
    for key, computed, what in (
        ("priority", value, "integer value of priority"),
        ("preemptionPolicy", policy, "string value of PreemptionPolicy"),
    ):
        given = spec.get(key)
        if given is not None and given != computed:
            why = f"the {what} ({given}) must not be provided in pod spec; priority admission controller computed {computed} from the given PriorityClass name"  # noqa: E501
            raise forbidden("pods", "", attributes.name, why)
        spec[key] = computed


def validate_priority(state: State, attributes: Attributes) -> None:
    if attributes.operation not in (CREATE, UPDATE):
        return
    wanted = attributes.require_object()
    if not wanted.get("globalDefault"):
        return
    for entry in state.store.bucket(_CLASSES).entries.values():
        if entry.obj.get("globalDefault") and entry.name != attributes.name:
            why = f"PriorityClass {entry.name} is already marked as default. Only one default can exist"
            raise forbidden("priorityclasses", "scheduling.k8s.io", attributes.name, why)


_KEYS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_SECONDS = 300


def admit_tolerations(state: State, attributes: Attributes) -> None:
    spec = (attributes.obj or {}).get("spec")
    if attributes.subresource or attributes.operation not in (CREATE, UPDATE) or spec is None:
        return
    present = [t.get("key") for t in spec.get("tolerations") or () if t.get("effect", "NoExecute") == "NoExecute"]
    missing = [key for key in _KEYS if key not in present and None not in present]
    if missing:
        added = ({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _SECONDS} for key in missing)
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *added]


Plug = Callable[["State", Attributes], None]
_MUTATE, _VALIDATE = "mutate", "validate"
_PODS, _NODES, _CLASS = ("", "pods"), ("", "nodes"), ("scheduling.k8s.io", "priorityclasses")
# Built-in plugins in their order: name, whether it may change the object or only refuse it, the resources that it looks at (none: all).
PLUGINS: tuple[tuple[str, str, Plug, tuple[tuple[str, str], ...]], ...] = (
    ("NamespaceLifecycle", _MUTATE, admit_namespace, ()),
    ("TaintNodesByCondition", _MUTATE, admit_node, (_NODES,)),
    ("Priority", _MUTATE, admit_priority, (_PODS,)),
    ("Priority", _VALIDATE, validate_priority, (_CLASS,)),
    ("DefaultTolerationSeconds", _MUTATE, admit_tolerations, (_PODS,)),
)
# unless asked for: nothing here takes the taint off again
_OFF = frozenset({"TaintNodesByCondition"})
MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS = "MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"
POLICIES, QUOTAS = "ValidatingAdmissionPolicy", "ResourceQuota"
# accepted in the flags for compatibility with kube-apiserver's command lines; the embedded server has no such plugin to switch off
KNOWN_ELSEWHERE = frozenset(
    {
        "AlwaysAdmit", "AlwaysDeny", "AlwaysPullImages", "CertificateApproval", "CertificateSigning", "CertificateSubjectRestriction",
        "ClusterTrustBundleAttest", "DefaultIngressClass", "DefaultStorageClass", "DenyServiceExternalIPs", "EventRateLimit",
        "ExtendedResourceToleration", "ImagePolicyWebhook", "LimitPodHardAntiAffinityTopology", "LimitRanger", "NamespaceAutoProvision",
        "NamespaceExists", "NodeRestriction", "OwnerReferencesPermissionEnforcement", "PersistentVolumeClaimResize",
        "PodNodeSelector", "PodSecurity", "PodTolerationRestriction", "RuntimeClass", "ServiceAccount", "StorageObjectInUseProtection",
    }
)  # fmt: skip


def known_plugins() -> frozenset[str]:
    """All names that the flags take."""
    return frozenset(name for name, *_ in PLUGINS) | {MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, POLICIES, QUOTAS} | KNOWN_ELSEWHERE


# -- policies ------------------------------------------------------------------------------------------------------------------------

_POLICIES = "admissionregistration.k8s.io/validatingadmissionpolicies"
_BINDINGS = "admissionregistration.k8s.io/validatingadmissionpolicybindings"
_CODES = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}
# (name, the object, what it looks at)
Bound = tuple[str, Obj, "Match"]


class _Unjudged(Exception):
    """A policy that cannot be asked; the text says why."""


class PolicyAdmission:
    """The policies that are bound; `active` is False while there are none."""

    def __init__(self, state: State, *, on: bool = True) -> None:
        self.state = state
        self.active = False
        self._bound: list[tuple[str, Match, list[Bound]]] = []
        if on:
            for name in (_POLICIES, _BINDINGS):
                state.store.bucket(name).listeners.append(self._reload)
            self._reload()

    def _reload(self, event: Event | None = None) -> None:
        """Take over what is stored now."""
        bindings: dict[str, list[Bound]] = {}
        for entry in self.state.store.bucket(_BINDINGS).select(None):
            spec = entry.obj.get("spec") or {}
            bound = (entry.name, spec, compile_match(spec.get("matchResources") or {}, "resourceRules"))
            bindings.setdefault(spec.get("policyName") or "", []).append(bound)
        self._bound = []
        for entry in self.state.store.bucket(_POLICIES).select(None):
            if entry.name in bindings:
                constraints = (entry.obj.get("spec") or {}).get("matchConstraints") or {}
                self._bound.append((entry.name, compile_match(constraints, "resourceRules"), bindings[entry.name]))
        self.active = bool(self._bound)

    def _policy(self, entry: Entry) -> Policy:
        """The compiled policy of a stored object, kept until that changes."""
        from koord.apiserver.cel.policy import answers, compile_policy

        def compiled() -> Policy:
            return compile_policy(entry.name, entry.obj["spec"], answers(self.state))

        return self.state.derived(f"policy {entry.name}", entry.rv, compiled)

    def validate(self, attributes: Attributes) -> None:
        """Raises StatusError for what a policy denies; warnings go to the request's options."""
        seen: dict[str, Obj] = {}
        for name, match, bindings in self._bound:
            resource = matching_resource(self.state, match, attributes)
            entry = self.state.store.bucket(_POLICIES).get("", name)
            if resource is None or entry is None:
                continue
            for binding, spec, bound in bindings:
                if matching_resource(self.state, bound, attributes) is None:
                    continue
                values = seen.get(resource.api_version)
                if values is None:
                    from koord.apiserver.cel.policy import values as values_of

                    values = seen[resource.api_version] = values_of(self.state, resource, attributes)
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
        resource = self.state.resources.by_api_version(kind.get("apiVersion") or "", kind.get("kind") or "")
        if resource is None:
            yield _Unjudged(f"failed to configure policy: {kind.get('apiVersion')}, Kind={kind.get('kind')} is not served here")
            return
        namespace = (ref.get("namespace") or attributes.namespace) if resource.namespaced else ""
        if resource.namespaced and not namespace:
            yield _Unjudged("failed to configure binding: can't use namespaced paramRef to match cluster-scoped resource")
            return
        bucket = self.state.store.bucket(resource.bucket)
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
            resource, text = attributes.resource, f"{whose} denied request: {verdict.message}"
            refusal = forbidden(resource.plural, resource.group, attributes.name, text)
            refusal.code, refusal.reason = _CODES.get(verdict.reason, 422), verdict.reason
            refusal.details = {**(refusal.details or {}), "causes": [{"message": text}]}
            raise refusal


# -- the chain -----------------------------------------------------------------------------------------------------------------------


class AdmissionChain:
    """The plugins that are on, picked once per resource."""

    def __init__(self, state: State, *, disabled: frozenset[str] = frozenset(), enabled: frozenset[str] = frozenset()) -> None:
        self.state = state
        self._on = [row for row in PLUGINS if row[0] not in disabled and (row[0] not in _OFF or row[0] in enabled)]
        self._picked: dict[tuple[str, str, str], list[Plug]] = {}
        self.policies = PolicyAdmission(state, on=POLICIES not in disabled)
        self.quotas = Quotas(state, on=QUOTAS not in disabled)
        self.webhooks = WebhookAdmission(state, mutating=MUTATING_WEBHOOKS not in disabled, validating=VALIDATING_WEBHOOKS not in disabled)

    @property
    def has_webhooks(self) -> bool:
        """Some webhook is registered: only then writes have to wait for anything."""
        return self.webhooks.active

    def _run(self, what: str, attributes: Attributes) -> None:
        group, plural = attributes.resource.group, attributes.resource.plural
        plugs = self._picked.get((what, group, plural))
        if plugs is None:
            plugs = [plug for _, kind, plug, wanted in self._on if kind == what and (not wanted or (group, plural) in wanted)]
            self._picked[(what, group, plural)] = plugs
        for plug in plugs:
            plug(self.state, attributes)

    async def mutate(self, attributes: Attributes) -> None:
        """Run the built-in plugins that may change the object, and ask the webhooks that may; the plugins again after what these change."""
        self._run(_MUTATE, attributes)
        again = await self.webhooks.mutate(attributes) if self.has_webhooks else None
        if again is not None:
            self._run(_MUTATE, attributes)
            await self.webhooks.mutate_again(again, attributes)

    async def validate(self, attributes: Attributes) -> None:
        """Run the built-in plugins that may refuse the object, the policies and the webhooks."""
        self._run(_VALIDATE, attributes)
        if self.policies.active:
            self.policies.validate(attributes)
        if self.has_webhooks:
            await self.webhooks.validate(attributes)
