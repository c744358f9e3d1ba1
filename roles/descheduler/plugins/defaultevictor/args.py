"""Arguments of DefaultEvictor (DS-K8S-11): which pods are protected."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from koord.api.selectors import SelectorError, parse_label_selector
from koord.config.errors import ConfigError, did_you_mean
from koord.config.model import ConfigModel, Seconds
from roles.descheduler.protection import PriorityThreshold
from roles.descheduler.selection import optional_selector

EXTRA = ("PodsWithPVC", "PodsWithoutPDB", "PodsWithResourceClaims")
DEFAULTS = ("PodsWithLocalStorage", "DaemonSetPods", "SystemCriticalPods", "FailedBarePods")
POLICIES = ("Preferred", "Mandatory")


class StorageClass(ConfigModel):
    """A storage class by its name."""

    name: str = Field(min_length=1)
    """Name of the StorageClass."""


class PodsWithPVC(ConfigModel):
    """Only claims of these storage classes protect a pod; none: all do."""

    protected_storage_classes: list[StorageClass] = []
    """Classes whose claims protect a pod; empty: every claim does."""


class ProtectionConfig(ConfigModel):
    """Details of single protections."""

    pods_with_pvc: PodsWithPVC | None = Field(None, alias="PodsWithPVC")
    """Which claims protect a pod."""


class PodProtections(ConfigModel):
    """Protections that are added to the default ones, and default ones that are left out."""

    extra_enabled: list[str] = []
    """Protections besides the default ones."""
    default_disabled: list[str] = []
    """Default protections that are left out."""
    config: ProtectionConfig | None = None
    """Details of protections."""

    @model_validator(mode="after")
    def _known(self) -> PodProtections:
        for field, given, known in (("extraEnabled", self.extra_enabled, EXTRA), ("defaultDisabled", self.default_disabled, DEFAULTS)):
            for index, name in enumerate(given):
                if name not in known:
                    hint = did_you_mean(name, known)
                    raise ConfigError(f"{field}[{index}]", f"{name!r} is not known{hint}; accepted: {', '.join(known)}")
                if given.count(name) > 1:
                    raise ConfigError(f"{field}[{index}]", f"{name!r} is given twice")
        return self


class DefaultEvictorArgs(ConfigModel):
    """DefaultEvictor. The booleans are upstream's older way to say what podProtections says."""

    node_selector: str = ""
    """Nodes that count for nodeFit, as a selector text ("a=b,c")."""
    evict_local_storage_pods: bool = False
    """Pods with local storage may leave."""
    evict_daemon_set_pods: bool = False
    """Pods of DaemonSets may leave."""
    evict_system_critical_pods: bool = False
    """Pods with a system-critical priority may leave."""
    ignore_pvc_pods: bool = False
    """Pods with claims stay."""
    ignore_pods_without_pdb: bool = Field(False, alias="ignorePodsWithoutPDB")
    """Pods that no PodDisruptionBudget covers stay."""
    evict_failed_bare_pods: bool = False
    """Pods without owner may leave once they have failed."""
    label_selector: dict[str, Any] | None = None
    """Only pods that match may leave."""
    namespace_label_selector: dict[str, Any] | None = None
    """Only pods of namespaces that match may leave."""
    priority_threshold: PriorityThreshold | None = None
    """Pods at or above this priority stay."""
    node_fit: bool = False
    """A pod may leave only if another node would take it."""
    min_replicas: int = Field(0, ge=0)
    """Pods of owners with fewer replicas stay; below 2: no limit."""
    min_pod_age: Seconds | None = Field(None, ge=0)
    """Younger pods stay; unset: no limit."""
    no_eviction_policy: str = "Preferred"
    """What the annotation `prefer-no-eviction` does: `Preferred` (such pods go last) or `Mandatory` (they stay)."""
    pod_protections: PodProtections = PodProtections()
    """Protections by name, instead of the booleans above."""

    @field_validator("node_selector")
    @classmethod
    def _node_selector(cls, text: str) -> str:
        try:
            parse_label_selector(text)
        except SelectorError as error:
            raise ConfigError("", str(error)) from None
        return text

    @model_validator(mode="after")
    def _consistent(self) -> DefaultEvictorArgs:
        optional_selector(self.label_selector, "labelSelector")
        optional_selector(self.namespace_label_selector, "namespaceLabelSelector")
        threshold = self.priority_threshold
        if threshold is not None and threshold.value is not None and threshold.name:
            raise ConfigError("priorityThreshold", "only one of value and name may be set")
        if self.no_eviction_policy not in POLICIES:
            raise ConfigError("noEvictionPolicy", f"{self.no_eviction_policy!r} is not known; accepted: {', '.join(POLICIES)}")
        older = [name for name, given in self._older() if given]
        if older and (self.pod_protections.extra_enabled or self.pod_protections.default_disabled):
            raise ConfigError("podProtections", f"cannot be mixed with the older {', '.join(older)}")
        return self

    def _older(self) -> list[tuple[str, bool]]:
        return [
            ("evictLocalStoragePods", self.evict_local_storage_pods),
            ("evictDaemonSetPods", self.evict_daemon_set_pods),
            ("evictSystemCriticalPods", self.evict_system_critical_pods),
            ("ignorePvcPods", self.ignore_pvc_pods),
            ("ignorePodsWithoutPDB", self.ignore_pods_without_pdb),
            ("evictFailedBarePods", self.evict_failed_bare_pods),
        ]

    def protections(self) -> frozenset[str]:
        """The protections that hold, whichever way they were asked for."""
        held = set(DEFAULTS) - set(self.pod_protections.default_disabled) | set(self.pod_protections.extra_enabled)
        older = {
            "PodsWithLocalStorage": self.evict_local_storage_pods,
            "DaemonSetPods": self.evict_daemon_set_pods,
            "SystemCriticalPods": self.evict_system_critical_pods,
            "FailedBarePods": self.evict_failed_bare_pods,
        }
        held -= {name for name, off in older.items() if off}
        held |= {name for name, on in (("PodsWithPVC", self.ignore_pvc_pods), ("PodsWithoutPDB", self.ignore_pods_without_pdb)) if on}
        return frozenset(held)

    def protected_storage_classes(self) -> frozenset[str]:
        """Storage classes whose claims protect; empty: all."""
        config = self.pod_protections.config
        if config is None or config.pods_with_pvc is None:
            return frozenset()
        return frozenset(entry.name for entry in config.pods_with_pvc.protected_storage_classes)
