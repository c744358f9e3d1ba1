"""All collectors, in the order in which they run within a tick: the system collector needs what the others leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roles.koordlet.sensing.base import Collector, SensingContext
from roles.koordlet.sensing.be import BECollector
from roles.koordlet.sensing.coldmemory import ColdMemoryCollector
from roles.koordlet.sensing.cpi import CPICollector
from roles.koordlet.sensing.disk import DiskCollector
from roles.koordlet.sensing.gpu import GPUCollector, GPULibrary
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

if TYPE_CHECKING:
    from roles.koordlet.options import Options


def make_collectors(
    context: SensingContext, options: Options, xpu_directory: str = "", gpus: GPULibrary | None = None
) -> tuple[Collector, ...]:
    """One instance of each collector, enabled or not; ``gpus`` is the library of the machine's graphics cards."""
    return (
        XPUCollector(context, xpu_directory or options.xpu_device_infos_dir),
        NodeInfoCollector(context, options.collect_node_cpu_info_interval),
        StorageCollector(context, options.collect_node_storage_info_interval),
        RDMACollector(context),
        NodeCollector(context),
        PodsCollector(context),
        GPUCollector(context, gpus),
        ThrottledCollector(context),
        BECollector(context),
        HostAppsCollector(context),
        SystemCollector(context),
        PsiCollector(context, options.psi_collector_interval),
        NetworkCollector(context, options.psi_collector_interval),
        DiskCollector(context, options.psi_collector_interval),
        CPICollector(context, options.cpi_collector_interval, options.collect_cpi_timewindow),
        ColdMemoryCollector(context, options.coldpage_collector_interval),
        ResctrlCollector(context, options.resctrl_collector_interval),
    )
