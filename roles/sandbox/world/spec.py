"""What a world consists of."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from roles.sandbox.world import configuration
from roles.sandbox.world.faults import Fault
from roles.sandbox.world.host.layout import ALL, Drawn

NAMESPACE = "apps"


@dataclass(frozen=True, slots=True)
class Workload:
    """A ReplicaSet. CPU in milli-CPU, memory in MiB; `run_seconds` 0 runs for ever; `min_available` 0 has no disruption budget."""

    name: str
    replicas: int
    cpu: int
    memory: int
    qos: str = "LS"
    priority: str = "koord-prod"
    usage: int = 50
    curve: str = "steady"
    run_seconds: int = 0
    min_available: int = 0
    gang: int = 0
    quota: str = ""
    batch: bool = False
    gpu: int = 0  # percent of a card
    claim: int = 0  # cards that a claim of each pod asks for
    limit: int = 100  # percent of what it requests that it may have
    resizes: tuple[tuple[float, int], ...] = ()  # when its pods are resized in place, and to how many percent
    prefers: str = ""  # the node that it likes best
    spread: int = 0  # by how many pods nodes may differ; 0: not asked for
    pool: str = ""  # the pool of nodes that it needs
    shuns: str = ""  # the label of pods beside which its own do not run
    at: float = 0.0  # when its user creates it
    until: float = 0.0  # when its user deletes it; 0: never


@dataclass(frozen=True, slots=True)
class Chore:
    """Something that is done at a time: `taint` or `clear` a node, move it to a `pool`, or label a pod of a workload as `loud`."""

    at: float
    kind: str
    what: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.what} {self.value}".rstrip()


@dataclass(frozen=True, slots=True)
class Spec:
    """What a world consists of. `minutes` of virtual time with workloads and faults; `calm` seconds after the last fault."""

    seed: int = 0
    nodes: int = 3
    pods: int = 20
    minutes: float = 1.0
    faults: int = 6
    calm: float = 60.0
    cpus: int = 6
    memory_gib: int = 16
    gpu_nodes: int = 2
    gpus: int = 2
    claims: bool = False  # whether cards are published as slices, and pods have them by claims as well
    schedulers: int = 2
    managers: int = 2
    deschedulers: int = 2
    webhooks: bool = True
    hostile: int = 4  # attacks of a tenant (roles/sandbox/hostile.py)
    policies: bool = False  # the admission policies of configs/install, for which the tenant's rights are enforced
    koordlets: int = 1  # nodes on a modelled host with an agent of their own
    host: Drawn = ALL  # what is fixed of these
    kinds: tuple[str, ...] = ()
    sorts: tuple[str, ...] = ()
    workloads: tuple[Workload, ...] = ()
    plan: tuple[Fault, ...] | None = None
    chores: tuple[Chore, ...] | None = None  # what operators do; None: drawn
    profiles: str = "load"  # of configuration.PROFILES
    report: int = configuration.REPORT  # seconds between two reports of a node
    herd: bool = False  # one program serves all nodes (herd.py)
    keep: int = 0  # entries of the history that are kept; 0: all
    beside: str = ""  # the directory of another release, of which one of two replicas is
    alone: bool = False  # all of the replicas are


_PROFILES = (*("load",) * 6, "both", "both", "community")
LARGE = 50
"""Nodes beyond which a world is modelled more coarsely."""


def sized(spec: Spec) -> Spec:
    """A world of many nodes as it can be lived: one program for all kubelets, a report each four minutes, machines that hold ten pods, and
    a history that remembers its last entries. The roles are the same. It stays calm until the last reports have had their effect."""
    if spec.nodes <= LARGE:
        return spec
    return replace(spec, cpus=32, memory_gib=128, report=240, herd=True, keep=5_000, calm=1200.0)


def drawn(seed: int) -> Spec:
    """A small world as a seed draws it: 2 to 4 nodes, 10 to 26 pods, 5 to 12 faults. Each role has a standby in every second world, one in
    two has an agent on a modelled host and a tenant who attacks: what is not there cannot hide what the rest does, and costs nothing.
    In one of three the descheduler runs the community's plugins, mostly beside its own, and in another third pods have cards by claims."""
    rng = random.Random(f"world/{seed}/size")
    return Spec(
        seed,
        schedulers=rng.choice((1, 2)),
        managers=rng.choice((1, 2)),
        deschedulers=rng.choice((1, 2)),
        nodes=rng.choice((2, 3, 3, 4)),
        pods=rng.randint(10, 26),
        faults=rng.randint(5, 12),
        koordlets=rng.choice((0, 1)),
        hostile=rng.choice((0, 4)),
        profiles=random.Random(f"world/{seed}/profiles").choice(_PROFILES),
        claims=random.Random(f"world/{seed}/claims").random() < 1 / 3,
    )
