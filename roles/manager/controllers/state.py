"""What the controllers observe: one informer a kind, and the configuration in force."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from koord.api.deprecated import rewrite_device
from koord.api.kinds import CONFIGMAPS, DEVICES, NODEMETRICS, NODERESOURCETOPOLOGIES, NODES, NODESLOS, PODS
from koord.api.objects import ConfigMap, Device, Node, NodeMetric, NodeResourceTopology, NodeSLO, Pod
from koord.api.sharing import PodSharer, SharedPod
from koord.config.slo import ParseResult, SLOConfig, SLOConfigStore, good_texts
from koord.config.slo_schema import COLOCATION
from koord.kube.references import ObjectRef
from koord.kube.servertime import clock_of
from koord.process.reporters import ReportTimes
from roles.manager.noderesource.reports import ReportKeeper
from roles.manager.noderesource.spread import Spread

if TYPE_CHECKING:
    from koord.kube.informers import Informer, InformerFactory
    from roles.manager.options import Options

log = logging.getLogger("koord.manager")

BY_NODE = "node"


def node_of(pod: Pod) -> str | None:
    """The node of a pod, None without one."""
    return (pod.node_name if isinstance(pod, SharedPod) else pod.spec.node_name) or None


def namespace_of(pod: Pod) -> str:
    """The namespace of a pod."""
    return pod.namespace if isinstance(pod, SharedPod) else pod.metadata.namespace


def _of_today(device: Device) -> Device:
    """A Device with today's names for its resources (API-RES-01)."""
    rewrite_device(device)
    return device


class ClusterState:
    """Informers and configuration. `on_config` handlers are told which keys changed."""

    def __init__(self, informers: InformerFactory, options: Options) -> None:
        self.nodes: Informer[Node] = informers.informer(NODES, Node)
        self.pods: Informer[Pod] = informers.informer(PODS, Pod, namespace=options.namespace or None, transform=PodSharer(self._kept_key))
        self.clock: Callable[[], float] = clock_of(informers.client)  # by which reports come
        self.node_metrics: Informer[NodeMetric] = informers.informer(
            NODEMETRICS, NodeMetric, transform=ReportKeeper(self._kept_key, ReportTimes(self._now)), optional=True
        )
        self.node_slos: Informer[NodeSLO] = informers.informer(NODESLOS, NodeSLO, optional=True)
        self.devices: Informer[Device] = informers.informer(DEVICES, Device, transform=_of_today, optional=True)
        self.topologies: Informer[NodeResourceTopology] = informers.informer(NODERESOURCETOPOLOGIES, NodeResourceTopology, optional=True)
        self.config_maps: Informer[ConfigMap] = informers.informer(
            CONFIGMAPS, ConfigMap, namespace=options.config_namespace, field_selector=f"metadata.name={options.slo_config_name}"
        )
        self.config_key = f"{options.config_namespace}/{options.slo_config_name}"
        self.pods.index(BY_NODE, node_of)
        self._store = SLOConfigStore()
        self._texts: list[tuple[SLOConfig, Mapping[str, str]]] = []  # of configurations that count for some node, the present one last
        self._data: Mapping[str, str] | None = None
        self.spread = Spread(options.config_spread / 100)
        self.spreads = False  # whether somebody lets the nodes go one after the other
        self._handlers: list[Callable[[frozenset[str]], None]] = []
        self._releases: list[Callable[[str], None]] = []
        self._reporters: list[Callable[[ParseResult], None]] = []
        self.config_maps.add_handler(on_add=self._on_config, on_update=lambda old, new: self._on_config(new))

    def _now(self) -> float:
        return self.clock()

    def _kept_key(self, key: str) -> str | None:
        """A pod's key as it is kept already, so that an update or a report keeps no second one."""
        pod = self.pods.get(key)
        return pod.key if isinstance(pod, SharedPod) else None

    @property
    def config_ref(self) -> ObjectRef:
        """The ConfigMap, whether or not it is there."""
        namespace, _, name = self.config_key.partition("/")
        return ObjectRef("ConfigMap", name, namespace)

    @property
    def config(self) -> SLOConfig:
        """The configuration in force."""
        return self._store.config

    def config_of(self, node: str) -> SLOConfig:
        """The configuration in force for a node: an edit reaches one after the other."""
        return self.spread.former(node) or self.config

    @property
    def texts(self) -> Mapping[str, str]:
        """What the configuration in force was read from."""
        return self._texts[-1][1] if self._texts else {}

    @property
    def former_texts(self) -> list[Mapping[str, str]]:
        """Of the configurations that still count for nodes that wait, the oldest first."""
        self._forget_texts()
        return [texts for _, texts in self._texts[:-1]]

    def _forget_texts(self) -> None:
        used = self.spread.formers()
        self._texts = [(config, texts) for config, texts in self._texts[:-1] if any(config is one for one in used)] + self._texts[-1:]

    def restore(self, texts: Mapping[str, str], former: Iterable[Mapping[str, str]]) -> None:
        """What was in force under the leader before stays so where the present text cannot be read.

        What it wrote by keys that are not there any more, of `former` ones too, is taken back.
        """
        if self._data is not None and any(map(self.config.stale, self.config.keys)):
            self._store.restore(texts)
            self._texts = [(self._store.config, texts)]
            self._take(self._data)
        self._store.remember(set(texts).union(*former))
        self._texts = [(self.config, good_texts(self._data or {}, self.config, self.texts))]

    def resume(self, waiting: Mapping[str, tuple[SLOConfig, Mapping[str, str]]]) -> None:
        """Nodes for which configurations of before still count, each with what it was read from."""
        self.spread.resume({name: config for name, (config, _) in waiting.items()}, sum(1 for _ in self.nodes.items()))
        former = {id(config): (config, texts) for config, texts in waiting.values()}
        self._texts = [*former.values(), *self._texts[-1:]]

    def on_config(self, handler: Callable[[frozenset[str]], None]) -> None:
        """Tell `handler` the keys that changed."""
        self._handlers.append(handler)

    def on_release(self, handler: Callable[[str], None]) -> None:
        """Tell `handler` the nodes for which a changed configuration counts now."""
        self._releases.append(handler)

    def release(self, node: str) -> None:
        """The changed configuration counts for a node from here on."""
        for handler in self._releases:
            handler(node)

    def on_parsed(self, reporter: Callable[[ParseResult], None]) -> None:
        """Tell `reporter` of each parse, with its errors."""
        self._reporters.append(reporter)

    def config_synced(self) -> None:
        """The first list of the ConfigMap is in: if it is not there, defaults come into force."""
        if self.config_maps.get(self.config_key) is None:
            self._take(None)

    def _on_config(self, config_map: ConfigMap) -> None:
        if config_map.key == self.config_key:
            self._take(config_map.data)

    def _take(self, data: Mapping[str, str] | None) -> None:
        before = self._store.config
        result = self._store.update(data)
        if data is not None:
            self._data = data
        if data is not None or not self._texts:
            self._texts.append((result.config, good_texts(data or {}, result.config, self.texts)))
        for error in result.errors:
            log.error("%s: %s", self.config_key, f"{error}; the last good value stays in force" if error.path else error.message)
        for warning in result.warnings:
            log.warning("%s: %s", self.config_key, warning)
        for reporter in self._reporters:
            reporter(result)
        if result.changed:
            if self.spreads and before.available:
                # Without a ConfigMap nobody has said that co-location is off: what is said now has nothing to be spread from.
                said = before.cluster_enabled or not before.stale(COLOCATION)
                self.spread.begin([name for name, _ in self.nodes.items() if said or self.spread.former(name) is not None], before)
            for handler in self._handlers:
                handler(result.changed)
        self._forget_texts()  # on a standby nobody asks for them
