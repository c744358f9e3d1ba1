"""Wires the observing half: kubelet, collectors, predictions and reports, from options. Holds no logic of its own."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from roles.koordlet.host.proc import clock_ticks
from roles.koordlet.host.root import HostRoot
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.options import Options, on_host
from roles.koordlet.prediction.loop import PredictionLoop
from roles.koordlet.prediction.models import Models, PredictionOptions
from roles.koordlet.prediction.reclaimable import ReclaimableReporter
from roles.koordlet.report.device_loop import DeviceLoop
from roles.koordlet.report.nodemetric_loop import NodeMetricLoop
from roles.koordlet.report.podresources import KUBELET_SOCKET, PodResourcesProxy
from roles.koordlet.report.topology_loop import TopologyLoop
from roles.koordlet.sensing.base import Round, SensingContext, Shared
from roles.koordlet.sensing.gpu import GPU
from roles.koordlet.sensing.loop import SensingLoop
from roles.koordlet.sensing.nvml import load as load_nvml
from roles.koordlet.sensing.nvmlthread import NVMLThread
from roles.koordlet.sensing.rdma import RDMA
from roles.koordlet.sensing.registry import make_collectors
from roles.koordlet.sensing.xpu import XPU
from roles.koordlet.states.kubelet import KubeletClient, KubeletOptions
from roles.koordlet.states.kubelet_trust import Machine
from roles.koordlet.states.model import HostState
from roles.koordlet.states.nodestate import NodeState
from roles.koordlet.states.pods import PodCache
from roles.koordlet.store.store import MetricStore

if TYPE_CHECKING:
    from koord.kube.client import Client
    from koord.kube.informers import InformerFactory
    from koord.process.life import Life


@dataclass(frozen=True, slots=True)
class Parts:
    """What the observing half is built from."""

    options: Options
    client: Client
    informers: InformerFactory
    gate: Callable[[str], bool]
    state: NodeState
    store: MetricStore
    metrics: Metrics
    shared: Shared = field(default_factory=Shared)


def make_kubelet(parts: Parts, root: HostRoot) -> KubeletClient:
    """The way to this node's kubelet."""
    options = parts.options
    kubelet = KubeletOptions(
        address_type=options.kubelet_preferred_address_type,
        insecure=options.kubelet_insecure_tls,
        read_only_port=options.kubelet_read_only_port,
        timeout=options.kubelet_sync_timeout,
    )
    machine = Machine(root.kubelet, root.proc, options.kubelet_ca_file)
    return KubeletClient(kubelet, parts.metrics, parts.client.config, machine)


def make_sensing(
    parts: Parts, host: HostState, pod_cache: PodCache, on_tick: Callable[[Round], None], change: Callable[[str, str, str], str]
) -> SensingLoop:
    """All collectors and their loop."""
    options, state = parts.options, parts.state
    context = SensingContext(
        host=host,
        store=parts.store,
        metrics=parts.metrics,
        pods=lambda: pod_cache.pods,
        pods_known=lambda: pod_cache.synced,
        slo=lambda: state.slo,
        memory_policy=lambda: state.policy.memory,
        gate=parts.gate,
        shared=parts.shared,
        options=options,
        ticks_per_second=clock_ticks(),
        page_size=resource.getpagesize(),
        change=change,
        gpus=_gpus(host.root) if parts.gate("Accelerators") else None,
    )
    return SensingLoop(
        make_collectors(context),
        files=host.files,
        store=parts.store,
        metrics=parts.metrics,
        interval=options.collect_res_used_interval,
        least_distance=options.pressure_tick_distance,
        on_tick=on_tick,
        sweep=host.cgroups.age,
    )


def _gpus(root: HostRoot) -> NVMLThread:
    cards = NVMLThread(lambda: load_nvml(root))
    cards.start()
    return cards


def make_models(options: Options) -> Models:
    return Models(
        PredictionOptions(
            directory=options.prediction_checkpoint_filepath,
            training_interval=options.prediction_training_interval,
            cpu_half_life=options.prediction_cpu_histogram_decay_halflife,
            memory_half_life=options.prediction_memory_histogram_decay_halflife,
            cold_start=options.prediction_cold_start_duration,
            safety_margin=options.prediction_safety_margin_percent,
            expiration=options.prediction_model_expiration_duration,
            checkpoint_interval=options.prediction_model_checkpoint_interval,
            checkpoints_per_step=options.prediction_model_checkpoint_max_per_step,
        )
    )


def spawn_reports(
    life: Life,
    parts: Parts,
    *,
    root: HostRoot,
    pods: PodCache,
    kubelet: KubeletClient,
    reportable: asyncio.Event,
    trainable: asyncio.Event,
) -> None:
    """Prediction and the three reports, each a supervised task."""
    options, state, stopping = parts.options, parts.state, life.stopping
    models = make_models(options)
    prediction = PredictionLoop(models, parts.store, lambda: pods.pods)
    life.spawn(lambda: prediction.run(stopping, trainable), "prediction", restart=True)
    if options.enable_node_metric_report:
        report = NodeMetricLoop(
            client=parts.client,
            state=state,
            pods=lambda: pods.pods,
            store=parts.store,
            metrics=parts.metrics,
            reclaimable=ReclaimableReporter(models, parts.metrics),
            export=parts.gate("NodeMetricPromMetrics"),
            cold_memory=lambda: parts.shared.cold_memory,
        )
        life.spawn(lambda: report.run(stopping, reportable), "NodeMetric report", restart=True)
    if parts.gate("PodResourcesProxy") and not options.observe_only:
        directory = on_host(options, "pod_resources_proxy_path", root)
        proxy = PodResourcesProxy(directory, root.kubelet_path(KUBELET_SOCKET), lambda: pods.pods)
        life.spawn(lambda: proxy.run(stopping), "PodResources proxy", restart=True)
    interval = options.node_topology_sync_interval
    if interval > 0:
        topology = TopologyLoop(
            client=parts.client,
            state=state,
            pod_cache=pods,
            store=parts.store,
            kubelet=kubelet,
            root=root,
            interval=interval,
            query_kubelet=not options.disable_query_kubelet_config,
            publish=parts.gate("NodeTopologyReport"),
        )
        life.spawn(lambda: topology.run(stopping, lambda: state.synced and pods.synced), "NodeResourceTopology report", restart=True)
    wanted = (("Accelerators", XPU), ("Accelerators", GPU), ("RDMADevices", RDMA))
    sources = tuple(
        name for gate, name in wanted if parts.gate(gate) and (name != GPU or not options.xpu_enforce_collect_from_device_infos)
    )
    if sources:
        devices = DeviceLoop(
            client=parts.client,
            informers=parts.informers,
            state=state,
            store=parts.store,
            interval=interval if interval > 0 else Options().node_topology_sync_interval,
            sources=sources,
        )
        life.spawn(lambda: devices.run(stopping), "Device report", restart=True)
