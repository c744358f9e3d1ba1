"""What the adapted community plugins share: lenient arguments, which pods they look at, how containers are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import ConfigDict, model_validator
from pydantic.alias_generators import to_camel

from koord.api import names
from koord.api.objects import ContainerStatus, Pod
from koord.api.qos import kubernetes_qos
from koord.api.times import parse_time
from koord.config.errors import ConfigError
from koord.config.model import ConfigModel
from roles.descheduler.cost import eviction_cost, restart_cost
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.plugin import DESCHEDULE
from roles.descheduler.selection import Namespaces, optional_selector
from roles.descheduler.snapshot import NodeView, PodView

_QOS = {"BestEffort": 0, "Burstable": 1, "Guaranteed": 2}


class LenientModel(ConfigModel):
    """A part of community arguments: what it does not know it ignores, as upstream's decoder of these plugins does."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", strict=True)


class CommunityNamespaces(Namespaces, LenientModel):
    """Either the namespaces that count, or those that do not."""


class CommunityArgs(LenientModel):
    """Namespaces and labels of the pods that a plugin looks at."""

    namespaces: CommunityNamespaces | None = None
    """Namespaces whose pods are looked at."""
    label_selector: dict[str, Any] | None = None
    """Only pods that match are looked at."""

    @model_validator(mode="after")
    def _selects(self) -> CommunityArgs:
        optional_selector(self.label_selector, "labelSelector")
        return self

    def chosen(self) -> Callable[[Pod], bool]:
        """Whether a pod is one that the plugin looks at."""
        selector = optional_selector(self.label_selector, "labelSelector")
        namespaces = self.namespaces
        if selector is None and namespaces is None:
            return lambda pod: True

        def looks_at(pod: Pod) -> bool:
            allowed = namespaces is None or namespaces.allows(pod.metadata.namespace)
            return allowed and (selector is None or selector.matches(pod.metadata.labels))

        return looks_at


A = TypeVar("A", bound=CommunityArgs)


class ChoosingPlugin(Generic[A]):
    """A plugin that looks at the pods that its arguments choose. It has no memory."""

    point: ClassVar[str] = DESCHEDULE

    def __init__(self, args: A, interval: float) -> None:
        self.args = args
        self._chosen = args.chosen()


def one_of(path: str, values: Iterable[str], accepted: tuple[str, ...]) -> None:
    """Raises ConfigError for a value that is not accepted."""
    for index, value in enumerate(values):
        if value not in accepted:
            raise ConfigError(f"{path}[{index}]", f"{value!r} is not known; accepted: {', '.join(accepted)}")


def may_leave(view: PodView, handle: Handle, chosen: Callable[[Pod], bool]) -> bool:
    """Whether a pod is looked at, and every filter lets it go."""
    return not view.leaving and chosen(view.pod) and not handle.filter(view.pod)


def candidates(node: NodeView, handle: Handle, chosen: Callable[[Pod], bool]) -> list[PodView]:
    """Active pods of a node that are looked at and may leave, those whose eviction costs less first."""
    return cheapest_first(view for view in node.pods if may_leave(view, handle, chosen))


def candidates_of_all_phases(node: NodeView, handle: Handle, chosen: Callable[[Pod], bool]) -> list[Pod]:
    """The same with pods that have ended."""
    pods = [pod for pod in node.everyone if chosen(pod) and not handle.filter(pod)]
    return sorted(pods, key=_cost)


def in_name_order(views: Iterable[PodView]) -> list[PodView]:
    """Pods by namespace and name."""
    return sorted(views, key=lambda view: (view.pod.metadata.namespace, view.pod.metadata.name))


def cheapest_first(views: Iterable[PodView]) -> list[PodView]:
    """Pods by what the eviction costs by its annotation, then by namespace and name."""
    return sorted(views, key=lambda view: _cost(view.pod))


def _cost(pod: Pod) -> tuple[int, str, str]:
    return eviction_cost(pod), pod.metadata.namespace, pod.metadata.name


def least_important_first(views: Iterable[PodView], now: float) -> list[PodView]:
    """Priority low to high (none is lowest), pods that had rather stay last among equals, then BestEffort, Burstable, Guaranteed, then
    what the eviction costs by its annotation, then how much work would be lost. `now` is in seconds since the epoch."""
    return sorted(in_name_order(views), key=lambda view: (importance(view), restart_cost(view.pod, now)))


def importance(view: PodView) -> tuple[float, bool, int, int]:
    """How important the pod is by its own word; remembered with what else is known of it."""
    known = view.known
    if known is None:
        return _importance(view.pod)
    if known.rank is None:
        known.rank = _importance(view.pod)
    return known.rank


def _importance(pod: Pod) -> tuple[float, bool, int, int]:
    priority = float("-inf") if pod.spec.priority is None else float(pod.spec.priority)
    qos = _QOS.get(pod.status.qos_class or kubernetes_qos(pod), 1)
    if not pod.metadata.annotations:
        return priority, False, qos, 0
    return priority, names.ANNOTATION_DESCHEDULER_PREFER_NO_EVICTION in pod.metadata.annotations, qos, eviction_cost(pod)


def statuses(pod: Pod, *, init: bool, ephemeral: bool = False) -> Iterator[ContainerStatus]:
    """Statuses of the containers that count."""
    yield from pod.status.container_statuses
    if init:
        yield from pod.status.init_container_statuses
    if ephemeral:
        yield from pod.status.ephemeral_container_statuses


def container_reasons(found: Iterable[ContainerStatus]) -> set[str]:
    """Reasons for which containers wait or have ended."""
    reasons = set()
    for status in found:
        for state in (status.state.waiting, status.state.terminated):
            if state is not None and state.reason:
                reasons.add(state.reason)
    return reasons


def exit_codes(found: Iterable[ContainerStatus]) -> set[int]:
    """Exit codes of containers that have ended."""
    return {status.state.terminated.exit_code for status in found if status.state.terminated is not None}


def owner_kinds(pod: Pod) -> set[str]:
    """Kinds of the pod's owners."""
    return {owner.kind for owner in pod.metadata.owner_references}


def age(pod: Pod, now: float) -> float:
    """Seconds since the pod was made; negative for one from the future."""
    created = pod.metadata.creation_timestamp
    return now - parse_time(created) if created else 0.0
