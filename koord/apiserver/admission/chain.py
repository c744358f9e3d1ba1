"""The admission plugins in their order, and which of them are on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koord.apiserver.admission import namespace, nodetaint, priority, tolerations
from koord.apiserver.admission.attributes import Attributes
from koord.apiserver.admission.policies import PolicyAdmission
from koord.apiserver.admission.quotas import Quotas
from koord.apiserver.admission.webhooks import WebhookAdmission

if TYPE_CHECKING:
    from koord.apiserver.core import Core

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
    Plugin("NamespaceLifecycle", mutate=namespace.admit),
    Plugin("TaintNodesByCondition", mutate=nodetaint.admit, default_on=False, resources=_NODES),
    Plugin("Priority", mutate=priority.admit, validate=priority.validate, resources=_PRIORITY),
    Plugin("DefaultTolerationSeconds", mutate=tolerations.admit, resources=_PODS),
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

    def mutate(self, attributes: Attributes) -> None:
        """Run the built-in plugins that may change the object."""
        key = (attributes.resource.group, attributes.resource.plural)
        plugs = self._mutators.get(key)
        if plugs is None:
            plugs = self._mutators[key] = _selected(self._mutating, key)
        for plug in plugs:
            plug(self.core, attributes)

    def validate(self, attributes: Attributes) -> None:
        """Run the built-in plugins that may refuse the object, and the policies."""
        key = (attributes.resource.group, attributes.resource.plural)
        plugs = self._validators.get(key)
        if plugs is None:
            plugs = self._validators[key] = _selected(self._validating, key)
        for plug in plugs:
            plug(self.core, attributes)
        if self.policies.active:
            self.policies.validate(attributes)

    async def mutate_by_webhooks(self, attributes: Attributes) -> None:
        await self.webhooks.mutate(attributes)

    async def validate_by_webhooks(self, attributes: Attributes) -> None:
        await self.webhooks.validate(attributes)
