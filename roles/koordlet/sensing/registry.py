"""All collectors, in the order in which they run within a tick: the system collector needs what the others leave."""

from __future__ import annotations

from collections.abc import Callable

from roles.koordlet.options import on_host
from roles.koordlet.sensing.base import Collector, SensingContext
from roles.koordlet.sensing.be import BECollector
from roles.koordlet.sensing.coldmemory import ColdMemoryCollector
from roles.koordlet.sensing.cpi import CPICollector
from roles.koordlet.sensing.disk import DiskCollector
from roles.koordlet.sensing.gpu import GPUCollector
from roles.koordlet.sensing.hostapps import HostAppsCollector
from roles.koordlet.sensing.network import NetworkCollector
from roles.koordlet.sensing.node import NodeCollector
from roles.koordlet.sensing.nodeinfo import NodeInfoCollector
from roles.koordlet.sensing.pods import PodsCollector
from roles.koordlet.sensing.psi import PsiCollector
from roles.koordlet.sensing.rdma import RDMACollector
from roles.koordlet.sensing.resctrl import ResctrlCollector
from roles.koordlet.sensing.storage import StorageCollector
from roles.koordlet.sensing.system import SystemCollector
from roles.koordlet.sensing.throttled import ThrottledCollector
from roles.koordlet.sensing.xpu import XPUCollector

COLLECTORS: tuple[Callable[[SensingContext], Collector], ...] = (
    lambda context: XPUCollector(context, on_host(context.options, "xpu_device_infos_dir", context.host.root)),
    lambda context: NodeInfoCollector(context, context.options.collect_node_cpu_info_interval),
    lambda context: StorageCollector(context, context.options.collect_node_storage_info_interval),
    RDMACollector,
    NodeCollector,
    PodsCollector,
    lambda context: GPUCollector(context, context.gpus),
    ThrottledCollector,
    BECollector,
    HostAppsCollector,
    SystemCollector,
    lambda context: PsiCollector(context, context.options.psi_collector_interval),
    lambda context: NetworkCollector(context, context.options.psi_collector_interval),
    lambda context: DiskCollector(context, context.options.psi_collector_interval),
    lambda context: CPICollector(context, context.options.cpi_collector_interval, context.options.collect_cpi_timewindow),
    lambda context: ColdMemoryCollector(context, context.options.coldpage_collector_interval),
    lambda context: ResctrlCollector(context, context.options.resctrl_collector_interval),
)


def make_collectors(context: SensingContext) -> list[Collector]:
    """One instance of each collector, enabled or not."""
    return [factory(context) for factory in COLLECTORS]
