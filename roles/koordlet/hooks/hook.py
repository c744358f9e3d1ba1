"""What a runtime hook is. One module a hook, one row in ``registry.py``."""

from __future__ import annotations

import logging
from abc import ABC
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from roles.koordlet.hooks.context import Answer, ContainerContext, HostAppContext, PodContext, Stage

if TYPE_CHECKING:
    from roles.koordlet.actuation.executor import Executor
    from roles.koordlet.actuation.journal_lines import Entry
    from roles.koordlet.actuation.threeway import Undo
    from roles.koordlet.actuation.writes import Write
    from roles.koordlet.metrics.registry import Metrics
    from roles.koordlet.options import Options
    from roles.koordlet.qos.outcome import Sample
    from roles.koordlet.states.model import Snapshot

log = logging.getLogger(__name__)

R = TypeVar("R")

#: Listed pods with their containers, by the pod's cgroup directory.
Pods = Mapping[str, tuple[PodContext, tuple[ContainerContext, ...]]]


class RuleError(ValueError):
    """What a rule is made of cannot be used. ``rule`` is in force nevertheless: what could be read, or None for the last one."""

    def __init__(self, detail: str, rule: object = None) -> None:
        super().__init__(detail)
        self.rule = rule


class PartialAnswerError(ValueError):
    """Input of which only a part can be used. ``answer`` follows from that part and counts; so does the failure."""

    def __init__(self, detail: str, answer: Answer) -> None:
        super().__init__(detail)
        self.answer = answer


class Hook(ABC, Generic[R]):
    """A pure function of a rule and a context.

    ``R`` is the rule: what the hook learned from NodeSLO, Node, NodeResourceTopology and the machine. It is compared by ``==``; a
    change makes the reconciler run at once. Methods raise ``ValueError`` (an :class:`~koord.api.annotations.AnnotationError`, say)
    for input that cannot be used: what it concerns then stays as it is (but for a :class:`PartialAnswerError`), and the failure
    policy decides about the request.
    """

    name: ClassVar[str]
    """Of its feature gate, of decision records and of ``--strategy-modes``. Hooks run in the order of names."""
    pod_stages: ClassVar[tuple[Stage, ...]] = ()
    """Stages at which :meth:`pod` is asked."""
    container_stages: ClassVar[tuple[Stage, ...]] = ()
    """Stages at which :meth:`container` is asked."""
    request_only: ClassVar[bool] = False
    """Whether it only makes sense in a runtime's request: the reconciler leaves it out."""

    walks_always: ClassVar[bool] = False
    rebuilds: ClassVar[tuple[str, ...]] = ()
    """Gauge families that :meth:`samples` gives whole: series that it no longer names are forgotten."""

    def __init__(self, options: Options, gate: Callable[[str], bool]) -> None:
        self.options = options
        self.gate = gate
        self.note: Callable[[Entry], bool] = lambda entry: True
        """Puts what :meth:`act` is about to change on record; whether it may."""
        self.noted: Callable[[Undo], Iterable[Entry]] = lambda undo: ()
        """What is on record that is undone that way, whenever it was noted."""
        self.forget: Callable[[Entry], None] = lambda entry: None
        """Takes what was undone off the record."""
        self._complaint = ""

    def keep_record(self, executor: Executor) -> None:
        """Put on record by an executor what no file can say."""
        self.note, self.noted, self.forget = partial(executor.note, rule=self.name), executor.noted, executor.forget_noted

    def complain(self, text: str) -> None:
        """Log why it does not act, until that changes."""
        if text != self._complaint:
            self._complaint = text
            log.warning("hook %s: %s", self.name, text)

    @property
    def enabled(self) -> bool:
        return self.gate(self.name)

    def learn(self, snapshot: Snapshot, rule: R | None) -> R | None:
        """The rule by this snapshot; ``rule`` is the last one. Raises :class:`RuleError`."""
        return rule

    def switches(self, snapshot: Snapshot, rule: R) -> tuple[Write, ...]:
        """Kernel switches that must be set before anything else of this hook; one failing keeps the hook from writing."""
        return ()

    def only_resets(self, rule: R | None) -> bool:
        """Whether what it wants now is no more than to take back what it gave: files that koordlet never changed are left alone then."""
        return False

    def pod(self, pod: PodContext, rule: R | None) -> Answer | None:
        """For a pod as a whole."""
        return None

    def container(self, container: ContainerContext, rule: R | None) -> Answer | None:
        """For a container, or for the sandbox in the reconciler."""
        return None

    def kube_qos(self, kube_qos: str, rule: R | None) -> Answer | None:
        """For the directory of a Kubernetes QoS class."""
        return None

    def walk(self, snapshot: Snapshot, rule: R | None, pods: Pods) -> Iterable[Write]:
        """Further writes after those of the answers: once when the rule changed (until none fails), or each pass with ``walks_always``.

        ``pods`` are the listed ones by cgroup directory.
        """
        return ()

    def at_pod(self, stage: Stage, snapshot: Snapshot, pod: PodContext, rule: R | None) -> Iterable[Write]:
        """Writes beyond the answer, when a runtime tells of a pod's start or end."""
        return ()

    def act(self, snapshot: Snapshot, rule: R | None, pods: Pods, metrics: Metrics) -> None:
        """Carry out what no file can say, after a pass; not in observe mode. The one part of a hook that is not pure."""
        return

    def samples(self, rule: R | None, pods: Pods) -> Iterable[Sample]:
        """Gauges to set after a pass."""
        return ()

    def host_app(self, app: HostAppContext, rule: R | None) -> Answer | None:
        """For a host application."""
        return None
