"""The admission plugins in their order, and which of them are on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from koord.apiserver.admission.matching import CREATE, DELETE, UPDATE, Attributes
from koord.apiserver.admission.policies import PolicyAdmission
from koord.apiserver.admission.quotas import Quotas
from koord.apiserver.admission.webhooks import WebhookAdmission
from koord.apiserver.errors import forbidden, not_found
from koord.apiserver.store import Obj

if TYPE_CHECKING:
    from koord.apiserver.core import Core


IMMORTAL = frozenset({"default", "kube-system", "kube-public"})


def admit_namespace(core: Core, attributes: Attributes) -> None:
    resource = attributes.resource
    if not resource.namespaced:
        if attributes.operation == DELETE and resource.kind == "Namespace" and attributes.name in IMMORTAL:
            raise forbidden("namespaces", "", attributes.name, "this namespace may not be deleted")
        return
    if attributes.operation != CREATE:
        return
    namespace = attributes.namespace
    entry = core.store.bucket("/namespaces").get("", namespace)
    if entry is None:
        raise not_found("namespaces", "", namespace)
    if attributes.subresource:
        return
    if entry.obj["metadata"].get("deletionTimestamp"):
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        cause = {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated", "field": "metadata.namespace"}
        details = {"name": attributes.name, "kind": resource.plural, "causes": [cause]}
        if resource.group:
            details["group"] = resource.group
        raise forbidden(resource.plural, resource.group, attributes.name, why, details)


_TAINT = "node.kubernetes.io/not-ready"


def admit_node(core: Core, attributes: Attributes) -> None:
    if attributes.operation != CREATE or attributes.subresource or attributes.obj is None:
        return
    taints = attributes.obj.setdefault("spec", {}).setdefault("taints", [])
    if not any(t.get("key") == _TAINT and t.get("effect") == "NoSchedule" for t in taints):
        taints.append({"key": _TAINT, "effect": "NoSchedule"})


_CLASSES = "scheduling.k8s.io/priorityclasses"


def _default_class(core: Core) -> Obj | None:
    """The class with globalDefault; of several the lowest, so that what the API server let through does least harm."""
    version = core.store.bucket(_CLASSES).history[-1].rv if core.store.bucket(_CLASSES).history else 0
    cached = core.cache.get("default priority class")
    if cached is not None and cached[0] == version:
        found: Obj | None = cached[1]
        return found
    classes = [e.obj for e in core.store.bucket(_CLASSES).entries.values() if e.obj.get("globalDefault")]
    found = min(classes, key=lambda c: c.get("value", 0)) if classes else None
    core.cache["default priority class"] = (version, found)
    return found


def admit_priority(core: Core, attributes: Attributes) -> None:
    if attributes.resource.plural != "pods" or attributes.subresource or attributes.operation not in (CREATE, UPDATE):
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
        entry = core.store.bucket(_CLASSES).get("", name)
        if entry is None:
            raise forbidden("pods", "", attributes.name, f"no PriorityClass with name {name} was found")
        chosen: Obj | None = entry.obj
    else:
        chosen = _default_class(core)
        if chosen is not None:
            spec["priorityClassName"] = chosen["metadata"]["name"]
    value = chosen.get("value", 0) if chosen else 0
    policy = (chosen.get("preemptionPolicy") if chosen else None) or "PreemptLowerPriority"
    given = spec.get("priority")
    if given is not None and given != value:
        why = f"the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"  # noqa: E501
        raise forbidden("pods", "", attributes.name, why)
    spec["priority"] = value
    given_policy = spec.get("preemptionPolicy")
    if given_policy is not None and given_policy != policy:
        why = f"the string value of PreemptionPolicy ({given_policy}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"  # noqa: E501
        raise forbidden("pods", "", attributes.name, why)
    spec["preemptionPolicy"] = policy


def validate_priority(core: Core, attributes: Attributes) -> None:
    if attributes.resource.plural != "priorityclasses" or attributes.operation not in (CREATE, UPDATE):
        return
    wanted = attributes.require_object()
    if not wanted.get("globalDefault"):
        return
    for entry in core.store.bucket(_CLASSES).entries.values():
        if entry.obj.get("globalDefault") and entry.name != attributes.name:
            why = f"PriorityClass {entry.name} is already marked as default. Only one default can exist"
            raise forbidden("priorityclasses", "scheduling.k8s.io", attributes.name, why)


_KEYS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_SECONDS = 300


def _covers(toleration: dict[str, Any], key: str) -> bool:
    return bool(toleration.get("effect", "NoExecute") == "NoExecute" and toleration.get("key", key) == key)


def admit_tolerations(core: Core, attributes: Attributes) -> None:
    if attributes.subresource or attributes.operation not in (CREATE, UPDATE) or attributes.obj is None:
        return
    spec = attributes.obj.get("spec")
    if spec is None:
        return
    tolerations = spec.get("tolerations") or []
    missing = [key for key in _KEYS if not any(_covers(t, key) for t in tolerations)]
    if missing:
        spec["tolerations"] = [
            *tolerations,
            *({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _SECONDS} for key in missing),
        ]


Plug = Callable[["Core", Attributes], None]


@dataclass(frozen=True, slots=True)
class Plugin:
    """One built-in admission plugin. `mutate` may change the object, `validate` may only refuse it."""

    name: str
    mutate: Plug | None = None
    validate: Plug | None = None
    default_on: bool = True
    # (group, plural) that it looks at; empty: all
    resources: frozenset[tuple[str, str]] = frozenset()


_PODS = frozenset({("", "pods")})
_NODES = frozenset({("", "nodes")})
_PRIORITY = frozenset({("", "pods"), ("scheduling.k8s.io", "priorityclasses")})

# In order. TaintNodesByCondition is off unless asked for: nothing here takes the taint off again.
PLUGINS: tuple[Plugin, ...] = (
    Plugin("NamespaceLifecycle", mutate=admit_namespace),
    Plugin("TaintNodesByCondition", mutate=admit_node, default_on=False, resources=_NODES),
    Plugin("Priority", mutate=admit_priority, validate=validate_priority, resources=_PRIORITY),
    Plugin("DefaultTolerationSeconds", mutate=admit_tolerations, resources=_PODS),
)
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
    return frozenset(p.name for p in PLUGINS) | {MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, POLICIES, QUOTAS} | KNOWN_ELSEWHERE


def _selected(plugins: Iterable[tuple[frozenset[tuple[str, str]], Plug]], key: tuple[str, str]) -> tuple[Plug, ...]:
    return tuple(plug for wanted, plug in plugins if not wanted or key in wanted)


class AdmissionChain:
    """The plugins that are on, picked once per resource."""

    def __init__(self, core: Core, *, disabled: frozenset[str] = frozenset(), enabled: frozenset[str] = frozenset()) -> None:
        self.core = core
        on = [p for p in PLUGINS if (p.default_on or p.name in enabled) and p.name not in disabled]
        self._mutating = [(p.resources, p.mutate) for p in on if p.mutate is not None]
        self._validating = [(p.resources, p.validate) for p in on if p.validate is not None]
        self._mutators: dict[tuple[str, str], tuple[Plug, ...]] = {}
        self._validators: dict[tuple[str, str], tuple[Plug, ...]] = {}
        self.policies = PolicyAdmission(core, on=POLICIES not in disabled)
        self.quotas = Quotas(core, on=QUOTAS not in disabled)
        self.webhooks = WebhookAdmission(core, mutating=MUTATING_WEBHOOKS not in disabled, validating=VALIDATING_WEBHOOKS not in disabled)

    @property
    def has_webhooks(self) -> bool:
        """Some webhook is registered: only then writes have to wait for anything."""
        return self.webhooks.active

    async def mutate(self, attributes: Attributes) -> None:
        """Run the built-in plugins that may change the object, and ask the webhooks that may."""
        key = (attributes.resource.group, attributes.resource.plural)
        plugs = self._mutators.get(key)
        if plugs is None:
            plugs = self._mutators[key] = _selected(self._mutating, key)
        for plug in plugs:
            plug(self.core, attributes)
        if self.has_webhooks:
            await self.webhooks.mutate(attributes)

    async def validate(self, attributes: Attributes) -> None:
        """Run the built-in plugins that may refuse the object, the policies and the webhooks."""
        key = (attributes.resource.group, attributes.resource.plural)
        plugs = self._validators.get(key)
        if plugs is None:
            plugs = self._validators[key] = _selected(self._validating, key)
        for plug in plugs:
            plug(self.core, attributes)
        if self.policies.active:
            self.policies.validate(attributes)
        if self.has_webhooks:
            await self.webhooks.validate(attributes)
