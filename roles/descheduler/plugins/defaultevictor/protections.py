"""Which pods DefaultEvictor protects (DS-K8S-11). Pure: a pod and what surrounds it in, the reason against its eviction out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from koord.api import names
from koord.api.objects import PersistentVolumeClaim, Pod, PodDisruptionBudget, Volume
from koord.api.selectors import SelectorError, from_label_selector
from koord.api.times import parse_time
from roles.descheduler.plugins.defaultevictor.args import DefaultEvictorArgs
from roles.descheduler.protection import Protected, forced, is_claim, refuse
from roles.descheduler.selection import optional_selector


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a pod is judged by besides itself. `now` is in seconds since the epoch."""

    now: float
    priority_of_class: Callable[[str], int | None]
    pods_of_owner: Callable[[str, str], Sequence[Pod]]
    budgets_of: Callable[[str], Sequence[PodDisruptionBudget]]  # of a namespace
    claim: Callable[[str], PersistentVolumeClaim | None]  # namespace/name
    namespace_labels: Callable[[str], Mapping[str, str] | None]


class Protections:
    """The protections of one set of arguments, compiled."""

    def __init__(self, args: DefaultEvictorArgs) -> None:
        self.args = args
        self.held = args.protections()
        self._classes = args.protected_storage_classes()
        self._labels = optional_selector(args.label_selector)
        self._namespaces = optional_selector(args.namespace_label_selector)

    def refuse(self, pod: Pod, around: Surroundings) -> str:
        """Why the pod is protected, "" when it is not."""
        if forced(pod):
            return ""
        checks = (self._protected, self._wishes, self._labels_and_age, self._replicas, self._budget)
        return next((reason for check in checks if (reason := check(pod, around))), "")

    def refuse_namespace(self, pod: Pod, around: Surroundings) -> str:
        """Why the pod's namespace protects it."""
        if self._namespaces is None:
            return ""
        labels = around.namespace_labels(pod.metadata.namespace)
        if labels is None or not self._namespaces.matches(labels):
            return f"the labels of namespace {pod.metadata.namespace} do not match namespaceLabelSelector"
        return ""

    def _protected(self, pod: Pod, around: Surroundings) -> str:
        protected = Protected(
            daemon_sets="DaemonSetPods" in self.held,
            bare_failed="FailedBarePods" in self.held,
            local_storage="PodsWithLocalStorage" in self.held,
            claim=lambda pod, volume: self._claimed(pod, volume, around),
            critical="SystemCriticalPods" in self.held,
            threshold=self.args.priority_threshold,
        )
        return refuse(pod, protected, around.priority_of_class)

    def _claimed(self, pod: Pod, volume: Volume, around: Surroundings) -> bool:
        """Whether a volume is a claim that protects. One that is not known protects: nothing says that it may go."""
        if "PodsWithPVC" not in self.held or not is_claim(volume):
            return False
        named = volume.persistent_volume_claim
        name = named.claim_name if named is not None else f"{pod.metadata.name}-{volume.name}"
        claim = around.claim(f"{pod.metadata.namespace}/{name}") if self._classes else None
        return claim is None or (claim.spec.storage_class_name or "") in self._classes

    def _wishes(self, pod: Pod, around: Surroundings) -> str:
        if self.args.no_eviction_policy == "Mandatory" and names.ANNOTATION_DESCHEDULER_PREFER_NO_EVICTION in pod.metadata.annotations:
            return f"its annotation {names.ANNOTATION_DESCHEDULER_PREFER_NO_EVICTION} is mandatory"
        return "it has resource claims" if "PodsWithResourceClaims" in self.held and pod.spec.resource_claims else ""

    def _labels_and_age(self, pod: Pod, around: Surroundings) -> str:
        if self._labels is not None and not self._labels.matches(pod.metadata.labels):
            return "its labels do not match labelSelector"
        if self.args.min_pod_age is None:
            return ""
        if pod.status.start_time is None:
            return "it has not started yet, and minPodAge is set"
        age = around.now - parse_time(pod.status.start_time)
        return f"it started {age:.0f} s ago, minPodAge is {self.args.min_pod_age:.0f} s" if age < self.args.min_pod_age else ""

    def _replicas(self, pod: Pod, around: Surroundings) -> str:
        owners = pod.metadata.owner_references
        if self.args.min_replicas <= 1 or len(owners) != 1:
            return ""
        count = len(around.pods_of_owner(owners[0].uid, pod.metadata.namespace))
        return f"its owner has {count} pods, minReplicas is {self.args.min_replicas}" if count < self.args.min_replicas else ""

    def _budget(self, pod: Pod, around: Surroundings) -> str:
        if "PodsWithoutPDB" not in self.held:
            return ""
        return "" if any(_covers(budget, pod) for budget in around.budgets_of(pod.metadata.namespace)) else "no disruption budget covers it"


def _covers(budget: PodDisruptionBudget, pod: Pod) -> bool:
    try:
        return from_label_selector(budget.spec.selector).matches(pod.metadata.labels)
    except SelectorError:
        return False
