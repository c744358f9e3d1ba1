"""Recommender: learns what containers use and says what they should request (MGR-REC-01, MGR-REC-02)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from koord import seams
from koord.api.kinds import CONFIGMAPS, RECOMMENDATIONS
from koord.api.objects import Pod, Recommendation
from koord.api.v1alpha1.recommendation import (
    CONDITION_CHECKPOINT_FAILED,
    CONDITION_CONFIG_UNSUPPORTED,
    CONDITION_FETCHING_HISTORY,
    CONDITION_NO_OBJECTS_MATCHED,
)
from koord.decisions.record import Record, Subject
from koord.decisions.recorder import Recorder
from koord.kube.errors import AlreadyExists, ApiError, NotFound
from koord.kube.informers import Informer, InformerFactory
from roles.manager.controllers.base import ROLE, Controller, log
from roles.manager.controllers.resizer import Resizer
from roles.manager.controllers.state import ClusterState, namespace_of
from roles.manager.controllers.writer import Writer
from roles.manager.recommender import checkpoint, history, samples, status
from roles.manager.recommender.apply import ANNOTATION_SELECTOR, Mode, mode_of, selector_text
from roles.manager.recommender.estimate import Estimate
from roles.manager.recommender.group import ContainerGroup
from roles.manager.recommender.learner import Learner
from roles.manager.recommender.policy import Policy
from roles.manager.recommender.resolve import Missing, Target, Unsupported, resolve
from roles.manager.recommender.samples import Sample
from roles.manager.recommender.sources import MetricsAPI, NodeMetrics, of_pod_metrics
from roles.manager.recommender.status import Finding

BY_NAMESPACE = "namespace"
CHECKPOINT_EVERY = 600.0  # seconds at least between two writes
LEFTOVERS = "checkpoints"
"""The key of what is left of Recommendations that went while nobody led. No object has it: theirs have a namespace."""
_ENDED = frozenset(("Succeeded", "Failed"))


@dataclass(slots=True)
class Learnt:
    """What is known of one Recommendation."""

    uid: str
    target: str
    learner: Learner
    stored: bool  # whether a checkpoint stands
    changed: bool = False
    saved: float = float("-inf")
    loading: asyncio.Task[list[history.Point]] | None = None
    findings: list[Finding] = field(default_factory=list)


class RecommenderController(Controller):
    """Keys are Recommendations; each comes again every interval."""

    name = "recommender"

    def __init__(
        self,
        state: ClusterState,
        informers: InformerFactory,
        writer: Writer,
        recorder: Recorder,
        policy: Policy,
        namespace: str,
        clock: Callable[[], float] = seams.now,
    ) -> None:
        super().__init__()
        self.state, self.writer, self.recorder = state, writer, recorder
        self.policy, self.namespace, self.clock = policy, namespace, clock
        self.recommendations: Informer[Recommendation] = informers.informer(RECOMMENDATIONS, Recommendation, optional=True)
        self._metrics_api = MetricsAPI(writer.client)
        self._node_metrics = NodeMetrics(state.node_metrics)
        self._learnt: dict[str, Learnt] = {}
        self._resizer = Resizer(informers, writer, recorder, clock)

    def attach(self) -> None:
        """Listen."""
        self._resizer.attach()
        self.state.pods.add_handler(on_delete=lambda pod: self._resizer.forget(pod.metadata.uid))
        self.state.pods.index(BY_NAMESPACE, namespace_of)
        self.recommendations.add_handler(
            on_add=lambda obj: self.queue.add(obj.key),
            on_update=lambda old, new: self.queue.add(new.key) if (old.spec, mode_of(old)) != (new.spec, mode_of(new)) else None,
            on_delete=lambda obj: self.queue.add(obj.key),
        )

    def keys(self) -> Iterable[str]:
        """All Recommendations."""
        return (key for key, _ in self.recommendations.items())

    async def prepare(self) -> None:
        """Look for leftovers."""
        self.queue.add(LEFTOVERS)

    async def reconcile(self, key: str) -> float | None:
        """Feed what was measured since the last time, and write what follows from it."""
        if key == LEFTOVERS:
            await self._remove_leftovers()
            return None
        recommendation = self.recommendations.get(key)
        known = self._learnt.get(key)
        if known is not None and (recommendation is None or recommendation.metadata.uid != known.uid):
            await self._drop(key, known)
        if recommendation is None:
            return None
        known = self._learnt.get(key)
        if known is not None and known.target != checkpoint.target_of(recommendation):
            await self._begin_anew(key, known, recommendation)
        if mode_of(recommendation) is Mode.OFF:
            return self.policy.interval
        learnt = self._learnt.get(key) or await self._load(key, recommendation)
        learnt.findings = []
        target = await self._resolve(recommendation, learnt)
        if target is not None:
            pods = await self._pods_of(recommendation.metadata.namespace, target)
            if not pods:
                learnt.findings.append(Finding(CONDITION_NO_OBJECTS_MATCHED, "NoPods", "no pod matches the target"))
            await self._learn_history(recommendation, learnt, pods)
            if learnt.loading is None or learnt.stored:  # time goes forwards: what is measured now comes after what was before
                await self._feed(recommendation, learnt, pods)
            self._expire(learnt, pods)
            await self._resize(recommendation, learnt, pods)
        try:
            await self._save(recommendation, learnt)
        except ApiError as error:
            # What was learnt is in memory and counts; only a restart would lose it.
            log.warning("recommendation %s: its checkpoint cannot be saved: %s", key, error)
            learnt.findings.append(Finding(CONDITION_CHECKPOINT_FAILED, "NotSaved", str(error)))
        await self._write(recommendation, learnt, target)
        return self.policy.interval

    # ---------------------------------------------------------------- observing

    async def _resolve(self, recommendation: Recommendation, learnt: Learnt) -> Target | None:
        try:
            return await resolve(self.writer.client, recommendation)
        except Unsupported as error:
            learnt.findings.append(Finding(CONDITION_CONFIG_UNSUPPORTED, "TargetUnsupported", str(error)))
        except Missing as error:
            learnt.findings.append(Finding(CONDITION_NO_OBJECTS_MATCHED, "WorkloadMissing", str(error)))
        return None

    async def _pods_of(self, namespace: str, target: Target) -> list[Pod]:
        found = []
        for pod in self.state.pods.by_index(BY_NAMESPACE, namespace):
            if _counts(pod, target):
                found.append(pod)
            await self.turns.pause()
        return found

    async def _feed(self, recommendation: Recommendation, learnt: Learnt, pods: list[Pod]) -> None:
        measured = await self._metrics_api.of_namespace(recommendation.metadata.namespace) if pods else None
        for pod in pods:
            item = (measured or {}).get(pod.metadata.name)
            used = of_pod_metrics(pod, item) if item is not None else self._node_metrics.of_pod(pod)
            fed = learnt.learner.feed(used, samples.kills(pod), self.clock())
            learnt.changed = learnt.changed or fed
            await self.turns.pause()

    def _expire(self, learnt: Learnt, pods: list[Pod]) -> None:
        learnt.learner.forget_replicas({pod.metadata.uid for pod in pods})
        expired = learnt.learner.expire(self.clock())
        learnt.changed = learnt.changed or expired

    async def _learn_history(self, recommendation: Recommendation, learnt: Learnt, pods: list[Pod]) -> None:
        """Eight days of Prometheus for a Recommendation that is new; fetched beside everything else."""
        if self.policy.prometheus and pods and not learnt.stored and learnt.loading is None:
            pattern = history.pods_pattern(recommendation, [pod.metadata.name for pod in pods])
            fetching = history.fetch(self.policy.prometheus, recommendation.metadata.namespace, pattern, self.clock())
            learnt.loading = asyncio.create_task(fetching, name=f"history of {recommendation.key}")
            await seams.sleep(0)
        if learnt.loading is None or learnt.stored:
            return
        if not learnt.loading.done():
            learnt.findings.append(Finding(CONDITION_FETCHING_HISTORY, "Loading", f"from {self.policy.prometheus}"))
            self.queue.add_after(recommendation.key, 1.0)
            return
        requests = {c.name: samples.request(c, "cpu") for pod in pods for c in samples.watched(pod)}
        try:
            for one in learnt.loading.result():
                if one.container in requests:
                    sample = Sample(one.container, f"history/{one.pod}", one.time, one.cpu, one.memory, requests[one.container])
                    learnt.changed |= learnt.learner.feed((sample,))
                    await self.turns.pause()
        except history.HistoryError as error:
            log.warning("recommendation %s: no history from %s: %s; it starts without", recommendation.key, self.policy.prometheus, error)
        learnt.stored = True  # asked once: what comes from now on is measured here

    # ---------------------------------------------------------------- writing

    async def _resize(self, recommendation: Recommendation, learnt: Learnt, pods: list[Pod]) -> None:
        """Running pods follow, where that was asked for and enough is known."""
        if mode_of(recommendation) is not Mode.RESIZE_IN_PLACE:
            return
        if status.low_confidence(learnt.learner.estimates()) is not None:
            return
        finding = await self._resizer.follow(pods, learnt.learner.targets(), f"of {recommendation.key}")
        if finding is not None:
            learnt.findings.append(finding)

    async def _write(self, recommendation: Recommendation, learnt: Learnt, target: Target | None) -> None:
        in_place = mode_of(recommendation) is Mode.RESIZE_IN_PLACE
        found, now, meta = learnt.learner.estimates(in_place=in_place), self.clock(), recommendation.metadata
        said = (status.memory_growing(found), status.low_confidence(found, recommendation.status))
        learnt.findings += [one for one in said if one is not None]
        body = status.patch(recommendation, found, learnt.findings, now)
        if body:
            await self.writer.patch(RECOMMENDATIONS, meta.name, body, meta.namespace, subresource="status")
            self._record(recommendation, found, now)
        wanted = {status.ANNOTATION_BOUNDS: status.bounds(found)} if found and "podStatus" in body.get("status", {}) else {}
        if target is not None and mode_of(recommendation).touches_pods:
            # Webhooks of every replica match new pods with what the leader found out.
            wanted[ANNOTATION_SELECTOR] = selector_text(target.selectors)
        changed = {key: value for key, value in wanted.items() if meta.annotations.get(key) != value}
        if changed:
            await self.writer.patch(RECOMMENDATIONS, meta.name, {"metadata": {"annotations": changed}}, meta.namespace)

    def _record(self, recommendation: Recommendation, found: dict[str, Estimate], now: float) -> None:
        meta = recommendation.metadata
        numbers: dict[str, float | int | str] = {}
        for name, estimate in found.items():
            numbers |= {f"{name}.{resource}": text for resource, text in estimate.target.resources().items()}
            numbers |= {f"{name}.days": round(estimate.confidence, 3), f"{name}.samples": estimate.samples, f"{name}.model": estimate.model}
        subject, verdict = Subject("Recommendation", meta.namespace, meta.name, meta.uid), "Recommended" if found else "NoRecommendation"
        told = _told(self.policy, mode_of(recommendation), found)
        self.recorder.record(Record(ROLE, subject, now, verdict, self.name, told, numbers, features=("MGR-REC-02",)))

    # ---------------------------------------------------------------- checkpoints

    async def _load(self, key: str, recommendation: Recommendation) -> Learnt:
        uid, target = recommendation.metadata.uid, checkpoint.target_of(recommendation)
        learnt = Learnt(uid, target, Learner(self.policy), stored=False)
        groups: dict[str, ContainerGroup] = {}
        stored = False
        try:
            found = await self.writer.client.get(CONFIGMAPS, checkpoint.name_of(uid), self.namespace)
        except NotFound:
            pass
        else:
            if not checkpoint.is_about(found.get("data") or {}, target):
                return await self._begin_anew(key, learnt, recommendation)
            groups, errors = checkpoint.groups_of(found.get("data") or {}, self.policy.half_life, self.policy)
            stored = True
            for error in errors:
                log.error("checkpoint %s/%s: %s; that part starts empty", self.namespace, checkpoint.name_of(uid), error)
        learnt = self._learnt[key] = Learnt(uid, target, Learner(self.policy, groups), stored)
        return learnt

    async def _begin_anew(self, key: str, learnt: Learnt, recommendation: Recommendation) -> Learnt:
        """The Recommendation is about another target now: neither what was learnt of the former one nor what was said counts for it."""
        meta = recommendation.metadata
        log.info("recommendation %s: its target has changed; what was learnt of the former one is dropped", key)
        nothing = {"status": {"podStatus": None, "updateTime": None}}
        await self.writer.patch(RECOMMENDATIONS, meta.name, nothing, meta.namespace, subresource="status")
        await self.writer.patch(RECOMMENDATIONS, meta.name, {"metadata": {"annotations": {status.ANNOTATION_BOUNDS: None}}}, meta.namespace)
        await self._drop(key, learnt)
        made = self._learnt[key] = Learnt(learnt.uid, checkpoint.target_of(recommendation), Learner(self.policy), stored=False)
        return made

    async def _save(self, recommendation: Recommendation, learnt: Learnt) -> None:
        now = self.clock()
        if not learnt.changed or now - learnt.saved < CHECKPOINT_EVERY:
            return
        name = checkpoint.name_of(learnt.uid)
        body = checkpoint.body_of(learnt.uid, self.namespace, recommendation.key, learnt.learner.groups, learnt.target)
        try:
            current = await self.writer.client.get(CONFIGMAPS, name, self.namespace)
        except NotFound:
            with contextlib.suppress(AlreadyExists):
                await self.writer.create(CONFIGMAPS, body, self.namespace)
        else:
            gone = {key: None for key in (current.get("data") or {}) if key not in body["data"]}
            await self.writer.patch(CONFIGMAPS, name, {"data": {**body["data"], **gone}}, self.namespace)
        learnt.saved, learnt.changed = now, False

    async def _remove_leftovers(self) -> None:
        stored = await self.writer.client.list(CONFIGMAPS, self.namespace, label_selector=f"{checkpoint.LABEL}=true")
        names = {obj["metadata"]["name"] for obj in stored.items}
        if not names:
            return
        with contextlib.suppress(NotFound):  # the kind is not installed any more, or not yet again
            # after the checkpoints: each of them is of a Recommendation that was there before
            there = await self.writer.client.list(RECOMMENDATIONS)
            for name in sorted(names - {checkpoint.name_of(obj["metadata"]["uid"]) for obj in there.items}):
                with contextlib.suppress(NotFound):
                    await self.writer.delete(CONFIGMAPS, name, self.namespace)

    async def _drop(self, key: str, learnt: Learnt) -> None:
        """The Recommendation is gone: so is what was learnt for it."""
        if learnt.loading is not None:
            learnt.loading.cancel()
        with contextlib.suppress(NotFound):
            await self.writer.delete(CONFIGMAPS, checkpoint.name_of(learnt.uid), self.namespace)
        self._learnt.pop(key, None)


def _told(policy: Policy, mode: Mode, found: dict[str, Estimate]) -> str:
    """How the targets were found."""
    cpu = f"p{policy.cpu_percentile * 100:g} of CPU and {policy.margin:.0%} on top"
    if mode is Mode.RESIZE_IN_PLACE:
        cpu = f"p{policy.resize_cpu_percentile * 100:g} of recent CPU"
    return f"{cpu}; memory by {', '.join(sorted({one.model for one in found.values()})) or 'no model yet'}"


def _counts(pod: Pod, target: Target) -> bool:
    return pod.status.phase not in _ENDED and target.matches(pod)
