"""Best-effort pods that start while their tier is squeezed: how much the tier keeps for them, and their share of it (KA-SUP-02). Pure.

At the least quota a sandbox alone would take minutes, and a plain BestEffort pod weighs nothing beside batch pods that already run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from roles.koordlet.actuation.writes import About, Batch, Hold, Write, sequence
from roles.koordlet.host.cgroup import BESTEFFORT
from roles.koordlet.host.errors import HostError
from roles.koordlet.qos import view
from roles.koordlet.states.model import ContainerState, HostState, PodState, Snapshot

MIN_QUOTA_US = 2000
#: While a best-effort pod starts, and for how long after it came that is believed (seconds): an image may never come.
STARTING_QUOTA_US, STARTING_FOR = 50_000, 120.0
#: The weight of such a pod (shares): that of a pod that requests a core.
STARTING_SHARES = 1024
SHARES = "cpu.shares"
#: What a kubelet says of a container that it is making; one that is pulled in vain, or waits for its next try, has another reason.
MAKING = ("", "ContainerCreating", "PodInitializing")


def starting_quota(capacity_milli: int, pods: int = 1) -> int:
    """The least quota (µs) while best-effort pods start: half a core for each, but no more than a twentieth of the node."""
    return max(min(STARTING_QUOTA_US * pods, capacity_milli * 100 // 20), MIN_QUOTA_US)


def pending(snapshot: Snapshot, before: Mapping[str, float], now: float) -> dict[str, float]:
    """Pods of the tier that run nothing yet, or of which a container is made (anew), by uid, with the time at which each was first seen:
    whoever set their creation has another clock than this machine."""
    return {p.uid: before.get(p.uid, now) for p in snapshot.pods if p.kube_qos == BESTEFFORT and _starts(p)}


def _starts(pod: PodState) -> bool:
    return pod.phase == "Pending" or (pod.phase == "Running" and any(map(_made, pod.all_containers())))


def _made(container: ContainerState) -> bool:
    waiting = container.status.state.waiting if container.status is not None else None
    return waiting is not None and waiting.reason in MAKING


def starting(snapshot: Snapshot, came: Mapping[str, float], now: float) -> list[PodState]:
    """Those of them of which that is not long ago; ``came`` is what :func:`pending` says."""
    return [p for p in snapshot.pods if p.uid in came and now - came[p.uid] < STARTING_FOR]


def lifts(host: HostState, pods: Sequence[PodState], before: Iterable[str]) -> tuple[tuple[Batch, ...], tuple[str, ...]]:
    """Writes that give pods that start their weight and take it from those that have started; the directories that have it now.

    The files are held, so that the hook which keeps weights in order waits.
    """
    wanted = {pod.cgroup_dir: pod for pod in pods if _light(host, pod.cgroup_dir) or pod.cgroup_dir in before}
    take = [Write(SHARES, directory, str(STARTING_SHARES), about=About.of(pod), hold=Hold.TAKE) for directory, pod in wanted.items()]
    give = [Write(SHARES, directory, "", hold=Hold.RELEASE) for directory in before if directory not in wanted]
    return tuple(batch for batch in (sequence(*take), sequence(*give)) if batch), tuple(wanted)


def _light(host: HostState, directory: str) -> bool:
    """Whether a pod has less weight than one that starts, and the kernel takes another one (not of an idle group)."""
    try:
        shares = host.cgroups.spec(SHARES).encode(str(STARTING_SHARES))
        have = int(host.files.text(host.cgroups.file(SHARES, directory)).split()[0])
        return have < int(shares.split()[0]) and not view.idle(host, directory)
    except (HostError, ValueError, IndexError):
        return False
