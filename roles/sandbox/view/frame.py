"""What the live view shows at one moment (pure), and as one plain line for a log or a pipe."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One row of the simulated nodes. CPU in cores, batch-cpu in milli-CPU (None: not offered yet)."""

    name: str
    cpus: int
    used: float | None
    batch_cpu: int | None
    pods: int
    place: str = ""
    """Where it stands in the network; empty where that is of no matter."""
    jobs: str = ""
    """What runs on it, in words."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One moment of the sandbox. CPU in cores, latencies in milliseconds; None where there is nothing to tell yet."""

    elapsed: float
    phase: str
    phase_left: float | None = None
    cpus: int = 0
    node_busy: float | None = None
    service_cpu: float | None = None
    batch_cpu_used: float | None = None
    """CPU of the batch pods, whichever tier they are in."""
    be_quota: float | None = None
    batch_cpu: int | None = None
    batch_pods: int = 0
    load_rate: float | None = None
    p50: float | None = None
    p99: float | None = None
    evictions: int = 0
    last_decision: str = ""
    phases: tuple[tuple[str, float | None], ...] = field(default_factory=tuple)
    """The phases in their order, each with its p99 once it is over."""
    nodes: tuple[SimulatedNode, ...] = field(default_factory=tuple)


def suppression(frame: Frame) -> str:
    """The best-effort tier's limit in words."""
    if frame.be_quota is None:
        return "–"
    return "none" if frame.be_quota < 0 else f"{frame.be_quota:.2f} cores"


def number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)


def others(frame: Frame) -> float | None:
    """CPU that neither the service nor batch pods use: koord itself, the system, and whatever else runs."""
    if frame.node_busy is None:
        return None
    return max(frame.node_busy - (frame.service_cpu or 0.0) - (frame.batch_cpu_used or 0.0), 0.0)


def changes(frame: Frame) -> tuple[object, ...]:
    """What a new line is worth: the phase, pods and evictions, and a limit or an offer that is another by a tenth."""
    offered = sum(node.batch_cpu or 0 for node in frame.nodes)
    return (
        frame.phase,
        frame.batch_pods,
        frame.evictions,
        None if frame.be_quota is None else round(frame.be_quota * 5 / max(frame.cpus, 1)),
        (frame.batch_cpu or 0) > 0,
        len(frame.nodes),
        round(offered / max(sum(node.cpus for node in frame.nodes), 1) / 100),
        sum(node.pods for node in frame.nodes) // max(len(frame.nodes), 1),
    )


def plain(frame: Frame) -> str:
    """One short line with what matters now."""
    said = []
    if frame.cpus:
        if frame.load_rate is not None:
            said.append(f"p99 {number(frame.p99, '.1f')} ms at {frame.load_rate:g}/s")
        said.append(f"{number(frame.node_busy, '.1f')} of {frame.cpus} CPUs busy")
        if frame.batch_pods:
            limit = f", limit {suppression(frame)}" if frame.be_quota is not None and frame.be_quota >= 0 else ""
            pods = "pod" if frame.batch_pods == 1 else "pods"
            said.append(f"{frame.batch_pods} batch {pods} use {number(frame.batch_cpu_used, '.1f')}{limit}")
        elif frame.batch_cpu:
            said.append(f"{frame.batch_cpu / 1000:.1f} offered")
        if frame.evictions:
            said.append(f"{frame.evictions} evicted")
    elif frame.nodes:
        offered = sum(node.batch_cpu or 0 for node in frame.nodes) / 1000
        said.append(f"{len(frame.nodes)} nodes, {sum(node.pods for node in frame.nodes)} pods, {offered:.0f} CPUs offered to batch")
    return f"{frame.elapsed:6.1f}s {frame.phase}" + (f": {', '.join(said)}" if said else "")
