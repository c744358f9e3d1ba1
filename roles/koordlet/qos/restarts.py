"""Containers that are still to start, or to start again: they begin with the whole quota of their limit, and on cgroup v1 the kernel gives
none more than its pod has. Pure."""

from __future__ import annotations

from koord.api.names import RESOURCE_CPU
from koord.api.quantity import milli_or
from roles.koordlet.states.model import ContainerState, PodState

#: By label. Nobody gives them their quota back while they are down, so they count as about to start at any time.
AGENT_LABEL = "koord-app"
AGENTS = frozenset({"koordlet", "koordlet-guard"})


def limit_milli(container: ContainerState, *, asked: bool = False) -> int:
    """CPU limit in milli-cores, 0 for none; `asked`: that of a resize that waits."""
    spec = container.asked if asked else container.spec
    if spec is None:
        return 0
    return max(milli_or(spec.resources.limits.get(RESOURCE_CPU)), 0)


def awaited_milli(pod: PodState) -> int:
    """The largest CPU limit (milli-cores) of a container that starts when nobody may be there to make room for it; 0 for none."""
    agent = pod.labels.get(AGENT_LABEL) in AGENTS
    return max((limit_milli(c) for c in pod.all_containers() if agent or _starts(pod, c)), default=0)


def _starts(pod: PodState, container: ContainerState) -> bool:
    if container.running or container.spec is None:
        return False
    ended = container.status.state.terminated if container.status is not None else None
    if ended is None:
        return True
    policy = container.spec.restart_policy or pod.pod.spec.restart_policy
    if container.init and not container.spec.is_sidecar:
        policy = "OnFailure"
    return policy != "Never" and (policy != "OnFailure" or ended.exit_code != 0)
