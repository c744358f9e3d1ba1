"""All collectors, in the order in which they run within a tick: the system collector needs what the others leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """Periods of collectors that have their own, in seconds, and the one directory that a collector reads."""

    node_info: float = 60.0
    storage: float = 1.0
    psi: float = 10.0
    cold_page: float = 5.0
    resctrl: float = 10.0
    cpi: float = 60.0
    cpi_window: float = 10.0
    xpu_directory: str = "/var/run/koordlet/xpu-device-infos"
    gpus: GPULibrary | None = None
    """The library of the machine's graphics cards."""


Factory = Callable[[SensingContext, CollectorSettings], Collector]

COLLECTORS: tuple[Factory, ...] = (
    lambda context, intervals: XPUCollector(context, intervals.xpu_directory),
    lambda context, intervals: NodeInfoCollector(context, intervals.node_info),
    lambda context, intervals: StorageCollector(context, intervals.storage),
    lambda context, _: RDMACollector(context),
    lambda context, _: NodeCollector(context),
    lambda context, _: PodsCollector(context),
    lambda context, settings: GPUCollector(context, settings.gpus),
    lambda context, _: ThrottledCollector(context),
    lambda context, _: BECollector(context),
    lambda context, _: HostAppsCollector(context),
    lambda context, _: SystemCollector(context),
    lambda context, intervals: PsiCollector(context, intervals.psi),
    lambda context, intervals: NetworkCollector(context, intervals.psi),
    lambda context, intervals: DiskCollector(context, intervals.psi),
    lambda context, intervals: CPICollector(context, intervals.cpi, intervals.cpi_window),
    lambda context, intervals: ColdMemoryCollector(context, intervals.cold_page),
    lambda context, intervals: ResctrlCollector(context, intervals.resctrl),
)


def make_collectors(context: SensingContext, intervals: CollectorSettings) -> list[Collector]:
    """One instance of each collector, enabled or not."""
    return [factory(context, intervals) for factory in COLLECTORS]
