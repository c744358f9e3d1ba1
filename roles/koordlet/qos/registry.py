"""All strategies of the QoS manager, in the order in which a tick runs them: one module and one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roles.koordlet.options import Options
from roles.koordlet.qos.blkio import BlkIOReconcile
from roles.koordlet.qos.burst import CPUBurst
from roles.koordlet.qos.cpuevict import CPUEvict
from roles.koordlet.qos.interference import InterferenceDetection
from roles.koordlet.qos.memevict import MemoryEvict
from roles.koordlet.qos.memoryqos import MemoryQoS
from roles.koordlet.qos.offload import MemoryOffloading
from roles.koordlet.qos.outcome import Strategy
from roles.koordlet.qos.resctrl import RdtResctrl
from roles.koordlet.qos.suppress import BECPUSuppress
from roles.koordlet.qos.sysconfig import SystemConfig
from roles.koordlet.qos.tuning import ResourceTuning

STRATEGIES: tuple[type[Strategy[Any]], ...] = (
    BECPUSuppress,
    MemoryEvict,
    CPUEvict,
    CPUBurst,
    MemoryQoS,
    RdtResctrl,
    BlkIOReconcile,
    SystemConfig,
    InterferenceDetection,
    ResourceTuning,
    MemoryOffloading,
)

NAMES = tuple(s.name for s in STRATEGIES)

#: These only tell until they are asked for by name in ``--strategy-modes``.
OBSERVING = frozenset({InterferenceDetection.name, ResourceTuning.name})


def make_strategies(options: Options, gate: Callable[[str], bool]) -> list[Strategy[Any]]:
    """One instance of each strategy, enabled or not."""
    return [strategy(options, gate) for strategy in STRATEGIES]
