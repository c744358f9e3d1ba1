"""DefaultEvictor: evicts at once through the Eviction API (DS-K8S-11)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

from cachetools import TTLCache

from koord.api import kinds
from koord.api.objects import Namespace, PersistentVolumeClaim, Pod, PodDisruptionBudget
from koord.kube import errors
from koord.kube.informers import Informer
from koord.kube.references import reference
from roles.descheduler.background import GATE, Background
from roles.descheduler.fitting import OtherNodes
from roles.descheduler.framework.evicting import EvictOptions, EvictResult, NoController, Setup
from roles.descheduler.plugins.defaultevictor.args import DefaultEvictorArgs
from roles.descheduler.plugins.defaultevictor.protections import Protections, Surroundings
from roles.descheduler.protection import forced
from roles.descheduler.snapshot import NodeView

EVICTED = 600.0
"""Seconds for which an eviction is remembered: longer than a cache of pods that is behind stays so."""


class DefaultEvictor(NoController):
    """An Evict and Filter plugin. Watches budgets, claims and namespaces only where its arguments ask about them."""

    name: ClassVar[str] = "DefaultEvictor"

    def __init__(self, args: DefaultEvictorArgs, setup: Setup) -> None:
        self.args = args
        self._setup = setup
        self._background = Background(setup.clock, on=setup.gates.enabled(GATE))
        # of all profiles: by uid, because a pod whose watch has stalled looks as if nobody had asked it to leave
        self._evicted: TTLCache[str, None] = setup.once("evicted", lambda: TTLCache(10_000, EVICTED, timer=setup.clock))
        self._protections = Protections(args)
        self._nodes = OtherNodes(setup.cluster, args.node_selector) if args.node_fit else None
        informers, held = setup.informers, self._protections.held
        self._budgets: Informer[PodDisruptionBudget] | None = None
        self._claims: Informer[PersistentVolumeClaim] | None = None
        self._namespaces: Informer[Namespace] | None = None
        if "PodsWithoutPDB" in held:
            self._budgets = informers.informer(kinds.PODDISRUPTIONBUDGETS, PodDisruptionBudget)
            self._budgets.index("namespace", lambda budget: budget.metadata.namespace)
        if "PodsWithPVC" in held and args.protected_storage_classes():
            self._claims = informers.informer(kinds.PERSISTENTVOLUMECLAIMS, PersistentVolumeClaim)
        if args.namespace_label_selector is not None:
            self._namespaces = informers.informer(kinds.NAMESPACES, Namespace)

    async def prepare(self, pods: Iterable[Pod]) -> None:
        """Wait until the caches that it reads are filled."""
        self._setup.cluster.gangs.forget_assumed()
        for informer in (self._budgets, self._claims, self._namespaces):
            if informer is not None:
                await informer.wait_synced()
        if self._nodes is not None:
            self._nodes.begin()

    async def see(self, nodes: Sequence[NodeView]) -> None:
        """With nodeFit, the nodes where pods may fit."""
        if self._nodes is not None:
            await self._nodes.see(nodes)

    def filter(self, pod: Pod) -> str:
        """Why the pod is protected, or its gang cannot do without it."""
        if self._background.under_way(pod):
            return "its eviction in background is under way"
        return self._protections.refuse(pod, self._surroundings()) or ("" if forced(pod) else self._setup.cluster.gangs.refuse(pod))

    def pre_eviction_filter(self, pod: Pod) -> str:
        """Why its namespace protects it, or why no other node could take it."""
        return self._protections.refuse_namespace(pod, self._surroundings()) or (self._nodes.refuse(pod) if self._nodes else "")

    def assume(self, pod: Pod) -> Callable[[], None]:
        """Count the pod, which a dry run lists, as gone from its gang."""
        return self._setup.cluster.gangs.assume(pod)

    def leaving(self, pod: Pod) -> bool:
        """Whether it has been evicted, or somebody takes it away in background."""
        return self.accepted(pod) or self._background.under_way(pod)

    def accepted(self, pod: Pod) -> bool:
        """Whether it has been evicted, though the cache of pods may not show that yet. What is begun in background may still fail."""
        return pod.metadata.uid in self._evicted

    async def evict(self, pod: Pod, options: EvictOptions) -> EvictResult:
        """Ask the Eviction API, for this very pod. A disruption budget's no is an answer."""
        meta, metrics = pod.metadata, self._setup.metrics
        labels = (options.plugin, meta.namespace, pod.spec.node_name)
        if self.accepted(pod):
            return EvictResult(False, "it has been evicted already; the cache of pods has not heard of that yet")
        try:
            await self._setup.client.evict(meta.namespace, meta.name, uid=meta.uid, options=options.delete_options)
        except errors.ApiError as error:
            if self._background.begun(pod, error):
                metrics.evicted("background", *labels)
                return EvictResult(True, f"its eviction in background has begun: {error}")
            metrics.evicted("error", *labels)
            why = "a disruption budget does not allow it now" if isinstance(error, errors.TooManyRequests) else "the API server refused"
            return EvictResult(False, f"{why}: {error}")
        if not (options.delete_options or {}).get("dryRun"):
            self._evicted[meta.uid] = None
        self._setup.cluster.gangs.left(pod)
        metrics.evicted("success", *labels)
        note = f"Pod evicted from node {pod.spec.node_name} by {options.plugin}: {options.reason}"
        self._setup.events.event(reference(pod, kinds.PODS), "Normal", "Descheduled", note, action="Migrating")
        return EvictResult(True, "evicted through the Eviction API")

    def _surroundings(self) -> Surroundings:
        cluster = self._setup.cluster
        return Surroundings(
            self._setup.clock(), cluster.priority_of, cluster.pods_of_owner, self._budgets_of, self._claim, self._labels_of_namespace
        )

    def _budgets_of(self, namespace: str) -> list[PodDisruptionBudget]:
        return self._budgets.by_index("namespace", namespace) if self._budgets is not None else []

    def _claim(self, key: str) -> PersistentVolumeClaim | None:
        return self._claims.get(key) if self._claims is not None else None

    def _labels_of_namespace(self, name: str) -> Mapping[str, str] | None:
        found = self._namespaces.get(name) if self._namespaces is not None else None
        return None if found is None else found.metadata.labels
