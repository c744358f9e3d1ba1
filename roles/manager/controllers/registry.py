"""Every controller of the manager: one row here, one module with its class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from koord.decisions.recorder import Recorder
from koord.kube.events import EventRecorder
from koord.kube.informers import InformerFactory
from roles.manager.controllers.abnormalnode import AbnormalNodeController, AbnormalNodeRemoval
from roles.manager.controllers.base import Controller
from roles.manager.controllers.colocationprofile import ColocationProfileController
from roles.manager.controllers.deviceslices import DeviceSliceController, DeviceSliceRemoval
from roles.manager.controllers.nodemetric import NodeMetricController
from roles.manager.controllers.noderesource import NodeResourceController
from roles.manager.controllers.nodeslo import NodeSLOController
from roles.manager.controllers.quotaprofile import QuotaProfileController
from roles.manager.controllers.recommender import RecommenderController
from roles.manager.controllers.state import ClusterState
from roles.manager.controllers.writer import Writer
from roles.manager.journal import Journal, ManagerFile
from roles.manager.metrics import Metrics
from roles.manager.noderesource.plan import PLUGIN_NAMES
from roles.manager.options import Options, selected


@dataclass(frozen=True, slots=True)
class Parts:
    """What controllers are made of."""

    options: Options
    state: ClusterState
    informers: InformerFactory
    writer: Writer
    metrics: Metrics
    recorder: Recorder
    events: EventRecorder
    replay_log: ManagerFile | None = None


def _noderesource(parts: Parts) -> Controller:
    options = parts.options
    plugins = tuple(name for name in PLUGIN_NAMES if selected(name, options.noderesource_plugins))
    return NodeResourceController(
        parts.state,
        parts.writer,
        parts.metrics,
        parts.recorder,
        plugins=plugins,
        gates=options.gates,
        smoothing=options.overcommit_smoothing,
        events=parts.events,
        journal=Journal(parts.replay_log, plugins) if parts.replay_log is not None else None,
    )


def _recommender(parts: Parts) -> Controller:
    options = parts.options
    return RecommenderController(parts.state, parts.informers, parts.writer, parts.recorder, options.recommender, options.webhook.namespace)


def _abnormalnode(parts: Parts) -> Controller:
    if parts.options.gates.enabled("AbnormalNodes"):
        interval = parts.options.abnormal_node_interval
        return AbnormalNodeController(parts.state, parts.writer, parts.recorder, parts.events, interval=interval)
    return AbnormalNodeRemoval(parts.state, parts.writer)


def _deviceslices(parts: Parts) -> Controller:
    if parts.options.gates.enabled("DeviceResourceSlices"):
        return DeviceSliceController(parts.state, parts.informers, parts.writer)
    return DeviceSliceRemoval(parts.writer)


# name, gate that must be on ("" for none), how it is made
CONTROLLERS: tuple[tuple[str, str, Callable[[Parts], Controller]], ...] = (
    ("nodemetric", "", lambda p: NodeMetricController(p.state, p.writer, p.metrics)),
    ("noderesource", "", _noderesource),
    ("nodeslo", "", lambda p: NodeSLOController(p.state, p.writer, p.metrics)),
    ("quotaprofile", "", lambda p: QuotaProfileController(p.state, p.informers, p.writer, p.events)),
    (
        "colocationprofile",
        "ColocationProfileController",
        lambda p: ColocationProfileController(p.state, p.informers, p.writer, p.options),
    ),
    ("recommender", "Recommender", _recommender),
    ("abnormalnode", "", _abnormalnode),
    ("deviceslices", "", _deviceslices),
)


def build(parts: Parts) -> list[Controller]:
    """The controllers that --controllers and the gates select, listening."""
    result = []
    for name, gate, make in CONTROLLERS:
        if selected(name, parts.options.controllers) and (not gate or parts.options.gates.enabled(gate)):
            controller = make(parts)
            controller.attach()
            result.append(controller)
    return result
