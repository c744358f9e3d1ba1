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
    be_cpu: float | None = None
    be_quota: float | None = None
    batch_cpu: int | None = None
    batch_pods: int = 0
    load_rate: float | None = None
    p50: float | None = None
    p99: float | None = None
    evictions: int = 0
    last_decision: str = ""
    nodes: tuple[SimulatedNode, ...] = field(default_factory=tuple)


def suppression(frame: Frame) -> str:
    """The best-effort tier's limit in words."""
    if frame.be_quota is None:
        return "–"
    return "none" if frame.be_quota < 0 else f"{frame.be_quota:.2f} cores"


def number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)


def plain(frame: Frame) -> str:
    """One line with everything that changes."""
    parts = [f"{frame.elapsed:6.1f}s", f"{frame.phase:<22}"]
    if frame.cpus:
        parts.append(f"node {number(frame.node_busy)}/{frame.cpus}")
        parts.append(f"service {number(frame.service_cpu)}")
        parts.append(f"best-effort {number(frame.be_cpu)} (limit {suppression(frame)})")
        parts.append(f"batch-cpu {'–' if frame.batch_cpu is None else frame.batch_cpu}")
        parts.append(f"batch pods {frame.batch_pods}")
        parts.append(f"load {number(frame.load_rate, 'g')}/s p50 {number(frame.p50, '.1f')} p99 {number(frame.p99, '.1f')} ms")
        parts.append(f"evictions {frame.evictions}")
    if frame.nodes:
        offered = sum(node.batch_cpu or 0 for node in frame.nodes)
        parts.append(f"simulated {len(frame.nodes)} nodes, batch-cpu {offered}, {sum(n.pods for n in frame.nodes)} pods")
    return " | ".join(parts)
