"""Evictors: what an Evict or Filter plugin of a profile is (DS-FW-02).

A profile has exactly one Evict plugin and any number of Filter plugins; a pod may leave when every filter lets it. MigrationController is
both (its `evict` makes a PodMigrationJob, its controller carries jobs out), DefaultEvictor is both (its `evict` asks the Eviction API).

Deciding stays pure: `filter` and `pre_eviction_filter` answer from memory, at once, and `evict` is only called by the round that carries
decisions out. A plugin is made once for each profile that names it, by its row in `roles/descheduler/registry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from koord.api.objects import Pod, Reservation

if TYPE_CHECKING:
    from koord.config.gates import FeatureGates
    from koord.decisions.recorder import Recorder
    from koord.kube.client import Client
    from koord.kube.events import EventRecorder
    from koord.kube.informers import InformerFactory
    from koord.kube.leases import Leadership
    from roles.descheduler.arrivals import Expected
    from roles.descheduler.cluster import ClusterState
    from roles.descheduler.metrics import Metrics
    from roles.descheduler.relief import Relief
    from roles.descheduler.snapshot import NodeView, Vector
    from roles.descheduler.workloads import Workloads

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EvictOptions:
    """Who wants a pod to leave, and why. `plugin` becomes the trigger of a migration and the strategy of the metric."""

    plugin: str
    reason: str
    delete_options: dict[str, Any] | None = None  # metav1.DeleteOptions on the wire; None: the plugin's own default
    relief: Relief | None = None  # where the pod may go; None: anywhere


@dataclass(frozen=True, slots=True)
class EvictResult:
    """What became of one eviction. `message` says what was done, or why nothing was; it stands in the pod's decision record."""

    accepted: bool
    message: str = ""
    listed: bool = False  # nothing was done: the plugin's own dry run is on


class Evicting(Protocol):
    """An Evict and/or Filter plugin of one profile."""

    @property
    def name(self) -> str:
        """The name by which configurations know it."""

    async def prepare(self, pods: Iterable[Pod]) -> None:
        """Called before each round with the pods on the profile's nodes: the time to fetch what `filter` must know and caches do not
        hold. Errors are logged by the round; the round goes on, and what is not known must make `filter` refuse."""

    def filter(self, pod: Pod) -> str:
        """Why the pod may not leave, "" when it may. From memory; asked several times a round."""

    def pre_eviction_filter(self, pod: Pod) -> str:
        """The last question before an eviction, for what is too costly to ask of every pod (node fit): why not, "" when it may."""

    async def evict(self, pod: Pod, options: EvictOptions) -> EvictResult:
        """Take the pod away, or begin to. Limits of the round and the global dry run have been dealt with. An ApiError is a refusal."""

    def controllers(self) -> Sequence[Controller]:
        """What must run beside the rounds, on the leader only."""


@dataclass(frozen=True, slots=True)
class Controller:
    """A coroutine that runs while this process leads: started once before the first round, cancelled when leading ends.

    It is given the leadership (None without leader election) and must check `leadership.held` before each write. An exception that it
    raises ends the process.
    """

    name: str
    run: Callable[[Leadership | None], Coroutine[Any, Any, None]]


class Foresees(Protocol):
    """Knows what the scheduler would do."""

    async def refuse(self, pods: Sequence[Pod], held: Sequence[Reservation]) -> str:
        """Why the successors of pods that leave together would not come into the places that are held for them, "" when they would, or
        nobody can tell."""


@dataclass(slots=True)
class Setup:
    """What an Evict or Filter plugin is made with. `profile` is the profile's name and the reporting component of `events`."""

    profile: str
    dry_run: bool  # the configuration's own; evict is not called then
    client: Client
    informers: InformerFactory
    cluster: ClusterState
    workloads: Workloads
    recorder: Recorder
    events: EventRecorder
    metrics: Metrics
    gates: FeatureGates
    clock: Callable[[], float]  # seconds since the epoch
    shared: dict[str, Any] = field(default_factory=dict)  # one for the whole process
    successors: Foresees | None = None  # None: the scheduler is not asked before pods leave for places that are held

    def once(self, key: str, make: Callable[[], T]) -> T:
        """What belongs to the process and not to a profile (a controller of all jobs, a limiter of all evictions): made by the first."""
        if key not in self.shared:
            self.shared[key] = make()
        made: T = self.shared[key]
        return made


@runtime_checkable
class KnowsLeaving(Protocol):
    """An evictor that begins evictions which take time (migrations)."""

    def leaving(self, pod: Pod) -> bool:
        """Whether an eviction of this pod is under way, and nothing has refused it: the next round must not let another one leave for the
        same reason."""

    def accepted(self, pod: Pod) -> bool:
        """Whether it was accepted. The pod's usage then counts no more, though it is still there."""


@runtime_checkable
class Together(Protocol):
    """An evictor that takes some pods only together with others."""

    def together(self, pod: Pod) -> Sequence[Pod]:
        """The pods that leave with it."""


@runtime_checkable
class Holds(Protocol):
    """An evictor that begins what others must not finish in its stead."""

    def holds(self, pod: Pod) -> str:
        """Why no other evictor may evict the pod now, "" when one may: a migration that waits for a place would wait for nobody."""


@runtime_checkable
class KnowsArriving(Protocol):
    """An evictor that knows where pods will go."""

    def expected(self) -> Sequence[Expected]:
        """The places that are held for pods, and those that migrations will ask for."""

    def brought(self, pod: Pod) -> Vector | None:
        """What a pod that came by a migration used where it came from; None if it did not."""


@runtime_checkable
class Asks(Protocol):
    """An evictor that has to ask somebody about a pod before it can judge it."""

    async def ask(self, pod: Pod) -> None:
        """Called for the pods that a plugin wants to leave, right before they are judged for the last time; in dry runs too."""


@runtime_checkable
class Remembers(Protocol):
    """An evictor that keeps what has become of the pods that it took away."""

    async def remember(self, pods: Sequence[str], helped: bool, message: str) -> None:
        """Whether the leaving of these pods (their uids) has helped. An ApiError is logged by the round."""


@runtime_checkable
class Sees(Protocol):
    """An evictor that asks about nodes."""

    async def see(self, nodes: Sequence[NodeView]) -> None:
        """Called after `prepare` with the round's snapshot of all nodes, which pods leave as the round goes on."""


@runtime_checkable
class Explains(Protocol):
    """An evictor that can say more than the first reason why a pod stays. Asked about pods of nodes that could not be relieved."""

    def reasons(self, pod: Pod) -> list[str]:
        """Everything that keeps the pod, what `filter` tells in front."""

    def waits_for(self, pod: Pod) -> str:
        """What the eviction of the pod, which is under way, waits for; "" when it waits for nothing that is known."""


@runtime_checkable
class Assumes(Protocol):
    """An evictor whose filter counts what leaves: in a dry run it is told what would, and counts it until the next `prepare`."""

    def assume(self, pod: Pod) -> Callable[[], None]:
        """Count the pod as one that leaves. What is returned takes that back."""


@runtime_checkable
class Replaces(Protocol):
    """An evictor that has a say in where the pod goes."""

    def successor(self, pod: Pod, relief: Relief | None) -> Pod:
        """The pod as the scheduler would be asked to place it again; its uid and node are still those of the pod that leaves."""


class NoController:
    """What most plugins answer."""

    async def prepare(self, pods: Iterable[Pod]) -> None:
        """Nothing to fetch."""

    def pre_eviction_filter(self, pod: Pod) -> str:
        """No further question."""
        return ""

    def controllers(self) -> Sequence[Controller]:
        """None."""
        return ()
