"""All runtime hooks, in the order of their names, which is the order in which they are asked: one module and one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roles.koordlet.hooks.batchresource import BatchResource
from roles.koordlet.hooks.coresched import CoreSched
from roles.koordlet.hooks.cpunormalization import CPUNormalization
from roles.koordlet.hooks.cpusetallocator import CPUSetAllocator
from roles.koordlet.hooks.devices import GPUEnvInject, RDMADeviceInject
from roles.koordlet.hooks.groupidentity import GroupIdentity
from roles.koordlet.hooks.hook import Hook
from roles.koordlet.hooks.oomscoreadj import OOMScoreAdj
from roles.koordlet.hooks.resctrl import Resctrl
from roles.koordlet.hooks.tcnetwork import TCNetworkQoS
from roles.koordlet.hooks.terway import TerwayQoS
from roles.koordlet.options import Options

HOOKS: tuple[type[Hook[Any]], ...] = (
    BatchResource,
    CPUNormalization,
    CPUSetAllocator,
    CoreSched,
    GPUEnvInject,
    GroupIdentity,
    OOMScoreAdj,
    RDMADeviceInject,
    Resctrl,
    TCNetworkQoS,
    TerwayQoS,
)


def make_hooks(options: Options, gate: Callable[[str], bool]) -> tuple[Hook[Any], ...]:
    """One of each hook whose gate is on."""
    return tuple(hook for hook in (kind(options, gate) for kind in HOOKS) if hook.enabled)
