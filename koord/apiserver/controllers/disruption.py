"""Status of pod disruption budgets, for clusters without kube-controller-manager. Off unless asked for: tests like to set it themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from koord import seams
from koord.api.selectors import from_label_selector
from koord.api.times import parse_time
from koord.apiserver.admission.quotas import BUCKET, CHANGING, usage
from koord.apiserver.controllers.queue import Controller
from koord.apiserver.rest.subresources import is_ready, set_condition
from koord.apiserver.store import DELETED, Event, Obj

if TYPE_CHECKING:
    from koord.apiserver.core import Core


class QuotaController(Controller[str]):
    """Looks at writes of namespaces that have a quota only."""

    rests = 9

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._bucket = core.store.bucket(BUCKET)

    def start(self) -> None:
        for key in self._bucket.entries:
            self.add(key)
        self._bucket.listeners.append(self._on_quota)
        self.core.store.listeners.append(self._on_event)

    def work(self, key: str) -> Iterator[None]:
        return self.core.admission.quotas.recount(key)

    def _on_quota(self, event: Event) -> None:
        if event.type != DELETED and (event.prev is None or event.prev.obj.get("spec") != event.entry.obj.get("spec")):
            self.add(event.entry.key)

    def _on_event(self, event: Event) -> None:
        if not self._bucket.entries or not event.entry.namespace:
            return
        if event.type != DELETED and (event.prev is None or not self._changed(event)):
            return
        for quota in self._bucket.select(event.entry.namespace):
            self.add(quota.key)

    def _changed(self, event: Event) -> bool:
        """Whether an update changes what is used, such as a pod that has ended."""
        obj = event.entry.obj
        resource = self.core.resources.by_api_version(obj["apiVersion"], obj["kind"])
        if resource is None or resource.group or resource.plural not in CHANGING or event.prev is None:
            return False
        now = seams.now()
        return usage("", resource.plural, event.prev.obj, now) != usage("", resource.plural, obj, now)


_PDBS, _PODS = "policy/poddisruptionbudgets", "/pods"
# seconds that an eviction may take until the pod is seen going
_CONFIRMATION = 120
_SCALED = {
    ("apps/v1", "ReplicaSet"): "apps/replicasets",
    ("apps/v1", "StatefulSet"): "apps/statefulsets",
    ("v1", "ReplicationController"): "/replicationcontrollers",
}


def scaled(value: int | str | None, total: int) -> int:
    """An int-or-percent of a total, rounded up."""
    if isinstance(value, str):
        return -(-int(value.rstrip("%")) * total // 100)
    return value or 0


class DisruptionController(Controller[str]):
    """Recounts a budget when it, or a pod of its namespace, changes."""

    rests = 9

    def start(self) -> None:
        self.core.store.bucket(_PDBS).listeners.append(self._on_budget)
        self.core.store.bucket(_PODS).listeners.append(self._on_pod)
        for key in self.core.store.bucket(_PDBS).entries:
            self.add(key)

    def _on_budget(self, event: Event) -> None:
        if event.type != DELETED:
            self.add(event.entry.key)

    def _on_pod(self, event: Event) -> None:
        for entry in self.core.store.bucket(_PDBS).select(event.entry.namespace):
            self.add(entry.key)

    def _expected(self, namespace: str, pods: list[Obj]) -> int:
        """How many pods there should be: the replicas of their controllers, and each pod without one for itself."""
        total, seen = 0, set()
        for pod in pods:
            ref = next((r for r in pod["metadata"].get("ownerReferences") or () if r.get("controller")), None)
            if ref is None:
                total += 1
                continue
            if ref["uid"] in seen:
                continue
            seen.add(ref["uid"])
            bucket = _SCALED.get((ref["apiVersion"], ref["kind"]))
            owner = self.core.store.bucket(bucket).get(namespace, ref["name"]) if bucket else None
            if owner is not None:
                total += owner.obj["spec"].get("replicas", 1)
            else:
                total += sum(any(r["uid"] == ref["uid"] for r in p["metadata"].get("ownerReferences") or ()) for p in pods)
        return total

    def work(self, key: str) -> None:
        bucket = self.core.store.bucket(_PDBS)
        entry = bucket.entries.get(key)
        if entry is None or entry.obj["metadata"].get("deletionTimestamp"):
            return
        obj = entry.copy()
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        selector = from_label_selector(spec.get("selector"))
        pods = [e.obj for e in self.core.store.bucket(_PODS).select(entry.namespace) if selector.matches(e.obj["metadata"].get("labels"))]
        here = {p["metadata"]["name"]: p for p in pods if not p["metadata"].get("deletionTimestamp")}
        # evictions that were granted and are not seen yet, without those that took too long
        granted = (status.get("disruptedPods") or {}).items()
        disrupted = {name: at for name, at in granted if name in here and seams.now() - parse_time(at) < _CONFIRMATION}
        healthy = sum(is_ready(p) and name not in disrupted for name, p in here.items())
        expected, desired = self._wanted(spec, entry.namespace, pods)
        allowed = max(0, healthy - desired) if expected > 0 else 0
        new: Obj = {
            "observedGeneration": obj["metadata"].get("generation", 1),
            "disruptionsAllowed": allowed,
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "conditions": list(status.get("conditions") or ()),
        }
        state = ("True", "SufficientPods") if allowed else ("False", "InsufficientPods")
        held = {"type": "DisruptionAllowed", "status": state[0], "reason": state[1], "message": ""}
        set_condition(new, {**held, "observedGeneration": new["observedGeneration"]})
        if disrupted:
            new["disruptedPods"] = disrupted
        if new != status:
            obj["status"] = new
            bucket.put(entry.namespace, entry.name, obj)

    def _wanted(self, spec: Obj, namespace: str, pods: list[Obj]) -> tuple[int, int]:
        """(expected pods, healthy pods that must stay)."""
        if "maxUnavailable" in spec:
            expected = self._expected(namespace, pods)
            return expected, max(0, expected - scaled(spec["maxUnavailable"], expected))
        minimum = spec.get("minAvailable", 1)
        if isinstance(minimum, int):
            return len(pods), minimum
        expected = self._expected(namespace, pods)
        return expected, scaled(minimum, expected)
