"""Resizing running pods in place: how often, how far their quotas let them grow, and what came of it (MGR-REC-03).

Observes and writes; `recommender.resize` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from koord.accounting.resources import parse
from koord.api.kinds import ELASTICQUOTAS, PODS
from koord.api.names import QUOTA_ROOT
from koord.api.objects import ElasticQuota, Pod
from koord.api.quantity import QuantityError
from koord.api.v1alpha1.recommendation import CONDITION_RESIZE_PENDING
from koord.decisions.record import Number, Record, Subject
from koord.decisions.recorder import Recorder
from koord.kube.errors import ApiError, NotFound
from koord.kube.informers import Informer, InformerFactory
from roles.manager.controllers.base import ROLE, log
from roles.manager.controllers.writer import Writer
from roles.manager.recommender import resize
from roles.manager.recommender.estimate import Amount
from roles.manager.recommender.status import Finding
from roles.manager.webhooks.quota_topology import QuotaTopology, resolve

ASSUMED = 120.0
"""Seconds after which what a pod grew by is taken to stand in its quota's status."""
_NAMED = 3  # pods that a condition names


class Resizer:
    """Brings running pods to their targets. A new leader waits for a pause first: it does not know what the one before has done."""

    def __init__(self, informers: InformerFactory, writer: Writer, recorder: Recorder, clock: Callable[[], float]) -> None:
        self._writer, self._recorder, self._clock = writer, recorder, clock
        self._quotas: Informer[ElasticQuota] = informers.informer(ELASTICQUOTAS, ElasticQuota, optional=True)
        self._tree = QuotaTopology()
        self._keys: dict[str, str] = {}
        self._began: float | None = None
        self._not_before: dict[str, float] = {}
        self._follows: dict[str, tuple[str, float]] = {}  # pod uid -> the Recommendation that it follows, and when it last did
        self._grown: list[tuple[float, str, Mapping[str, int]]] = []

    def attach(self) -> None:
        """Listen."""
        self._quotas.add_handler(self._on_quota, lambda old, new: self._on_quota(new), self._on_quota_gone)

    def _on_quota(self, quota: ElasticQuota) -> None:
        self._tree.on_quota(quota)
        self._keys[quota.metadata.name] = quota.key

    def _on_quota_gone(self, quota: ElasticQuota) -> None:
        self._tree.on_quota_gone(quota)
        if self._keys.get(quota.metadata.name) == quota.key:
            del self._keys[quota.metadata.name]

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        self._not_before.pop(uid, None)
        self._follows.pop(uid, None)

    async def follow(self, pods: Iterable[Pod], targets: Mapping[str, Amount], about: str) -> Finding | None:
        """One round for the pods of Recommendation `about`; what stands in the way of some. Raises NotLeading."""
        if self._began is None:
            self._began = self._clock()
        waiting: dict[str, list[str]] = {}
        for pod in pods:
            now, uid = self._clock(), pod.metadata.uid
            leader, at = self._follows.get(uid, (about, now))
            if leader != about and now - at < resize.PAUSE:
                waiting.setdefault(f"follows another Recommendation{leader.removeprefix('of')}", []).append(pod.metadata.name)
                continue
            self._follows[uid] = (about, now)
            not_before = self._not_before.get(uid, self._began + resize.PAUSE)
            step = resize.decide(pod, targets, now=now, not_before=not_before, room=lambda growth, pod=pod: self._room(pod, growth))  # type: ignore[misc]
            if step.body:
                self._not_before[uid] = now + step.pause
                step = await self._resize(pod, step, about)
            if step.waits:
                waiting.setdefault(step.reason, []).append(pod.metadata.name)
        if not waiting:
            return None
        return Finding(CONDITION_RESIZE_PENDING, "Waiting", "; ".join(f"{_some(names)}: {why}" for why, names in sorted(waiting.items())))

    async def _resize(self, pod: Pod, step: resize.Step, about: str) -> resize.Step:
        meta = pod.metadata
        try:
            # of this pod only: what follows its limits would set other limits of a namesake that the watch does not show yet
            await self._writer.resize(PODS, meta.name, {**step.body, "metadata": {"uid": meta.uid}}, meta.namespace)
        except NotFound:
            return resize.Step("the pod is gone, or this API server has no pods/resize (Kubernetes 1.33 and later)", waits=True)
        except ApiError as error:
            log.warning("pod %s: its resize is refused: %s; it is left alone for %.0f s", pod.key, error, step.pause)
            return resize.Step(f"the API server refuses the resize: {error}", waits=True)
        for quota in self._chain(pod) if step.growth else ():
            self._grown.append((self._clock(), quota, step.growth))
        subject, told = Subject("Pod", meta.namespace, meta.name, meta.uid), f"{step.reason} {about}"
        numbers: dict[str, Number] = {**step.changes}
        self._recorder.record(Record(ROLE, subject, self._clock(), "Resized", "recommender", told, numbers, features=("MGR-REC-03",)))
        return step

    def _chain(self, pod: Pod) -> list[str]:
        """The pod's quota and those above it, by name."""
        found: list[str] = []
        name = resolve(pod.metadata.labels, pod.metadata.namespace, self._tree, False)
        while name and name != QUOTA_ROOT and name not in found and (quota := self._tree.get(name)) is not None:
            found.append(name)
            name = quota.parent
        return found

    def _room(self, pod: Pod, growth: Mapping[str, int]) -> str:
        """Why the requests of a pod may not grow by so much; "" if they may."""
        self._grown = [entry for entry in self._grown if entry[0] > self._clock() - ASSUMED]
        for name in self._chain(pod):
            quota = self._quotas.get(self._keys.get(name, ""))
            if quota is None:
                continue
            try:
                ceiling, used = parse(quota.spec.max), parse(quota.status.used)
            except QuantityError as error:
                return f"quota {name} cannot be read: {error}"
            for resource, amount in growth.items():
                assumed = sum(grown.get(resource, 0) for _, which, grown in self._grown if which == name)
                if resource in ceiling and used.get(resource, 0) + assumed + amount > ceiling[resource]:
                    return f"quota {name} has no room for more {resource}"
        return ""


def _some(names: list[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(sorted(names)[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
