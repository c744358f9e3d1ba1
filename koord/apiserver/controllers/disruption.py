"""Status of pod disruption budgets, for clusters without kube-controller-manager. Off unless asked for: tests like to set it themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from koord import seams
from koord.api.selectors import from_label_selector
from koord.api.times import parse_time
from koord.apiserver.admission.quotas import BUCKET, CHANGING, usage
from koord.apiserver.controllers.queue import Controller
from koord.apiserver.facts import is_ready, same_wish, set_condition
from koord.apiserver.store import DELETED, Entry, Event, Obj

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


class _Pod(NamedTuple):
    """What a budget counts of a pod."""

    name: str
    ready: bool
    going: bool
    # who controls it, and the uids of all that own it
    owner: Obj | None
    owners: frozenset[str]


def _seen(pod: Obj) -> _Pod:
    meta = pod["metadata"]
    references = meta.get("ownerReferences") or ()
    owner = next((reference for reference in references if reference.get("controller")), None)
    uids = frozenset(reference["uid"] for reference in references)
    return _Pod(meta["name"], is_ready(pod), bool(meta.get("deletionTimestamp")), owner, uids)


class _Count:
    """The pods of a budget, while they are looked at one after the other: what is written meanwhile is followed."""

    def __init__(self, budget: Entry) -> None:
        self.namespace = budget.namespace
        self._budget = budget.obj
        self._selector = from_label_selector((budget.obj.get("spec") or {}).get("selector"))
        self.pods: dict[str, _Pod] = {}

    def look(self, key: str, pod: Obj | None) -> None:
        """A pod as it is now; None when it is gone."""
        if pod is not None and self._selector.matches(pod["metadata"].get("labels")):
            self.pods[key] = _seen(pod)
        else:
            self.pods.pop(key, None)

    def fits(self, budget: Entry | None) -> bool:
        """Whether it counts what a budget is about by now."""
        return budget is not None and not budget.obj["metadata"].get("deletionTimestamp") and same_wish(budget.obj, self._budget)


class DisruptionController(Controller[str]):
    """Recounts a budget when it, or a pod of its namespace, changes."""

    rests = 9

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._counting: _Count | None = None

    def start(self) -> None:
        self.core.store.bucket(_PDBS).listeners.append(self._on_budget)
        self.core.store.bucket(_PODS).listeners.append(self._on_pod)
        for key in self.core.store.bucket(_PDBS).entries:
            self.add(key)

    def _on_budget(self, event: Event) -> None:
        if event.type != DELETED:
            self.add(event.entry.key)

    def _on_pod(self, event: Event) -> None:
        entry, count = event.entry, self._counting
        if count is not None and count.namespace == entry.namespace:
            count.look(entry.key, None if event.type == DELETED else entry.obj)
        for budget in self.core.store.bucket(_PDBS).select(entry.namespace):
            self.add(budget.key)

    def _expected(self, namespace: str, pods: Collection[_Pod]) -> int:
        """How many pods there should be: the replicas of their controllers, and each pod without one for itself."""
        total = 0
        seen: dict[str, Obj] = {}
        owned: Counter[str] = Counter()
        for pod in pods:
            owned.update(pod.owners)
            if pod.owner is None:
                total += 1
            else:
                seen.setdefault(pod.owner["uid"], pod.owner)
        for uid, ref in seen.items():
            bucket = _SCALED.get((ref["apiVersion"], ref["kind"]))
            owner = self.core.store.bucket(bucket).get(namespace, ref["name"]) if bucket else None
            total += owner.obj["spec"].get("replicas", 1) if owner is not None else owned[uid]
        return total

    def work(self, key: str) -> Iterator[None]:
        """Count the pods, one a step, then write."""
        budgets, pods = self.core.store.bucket(_PDBS), self.core.store.bucket(_PODS)
        entry = budgets.entries.get(key)
        if entry is None or entry.obj["metadata"].get("deletionTimestamp"):
            return
        count = self._counting = _Count(entry)
        try:
            for place in pods.keys(entry.namespace):
                pod = pods.entries.get(place)
                if pod is not None:
                    count.look(place, pod.obj)
                yield
        finally:
            self._counting = None
        entry = budgets.entries.get(key)
        if entry is not None and count.fits(entry):  # else it is worked on again
            self._write(entry, list(count.pods.values()))

    def _write(self, entry: Entry, pods: list[_Pod]) -> None:
        obj = entry.copy()
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        here = {pod.name: pod.ready for pod in pods if not pod.going}
        # evictions that were granted and are not seen yet, without those that took too long
        granted = (status.get("disruptedPods") or {}).items()
        disrupted = {name: at for name, at in granted if name in here and seams.now() - parse_time(at) < _CONFIRMATION}
        healthy = sum(ready and name not in disrupted for name, ready in here.items())
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
            self.core.store.bucket(_PDBS).put(entry.namespace, entry.name, obj)

    def _wanted(self, spec: Obj, namespace: str, pods: Collection[_Pod]) -> tuple[int, int]:
        """(expected pods, healthy pods that must stay)."""
        if "maxUnavailable" in spec:
            expected = self._expected(namespace, pods)
            return expected, max(0, expected - scaled(spec["maxUnavailable"], expected))
        minimum = spec.get("minAvailable", 1)
        if isinstance(minimum, int):
            return len(pods), minimum
        expected = self._expected(namespace, pods)
        return expected, scaled(minimum, expected)
