"""How an edit of slo-controller-config comes to the nodes: previewed, told, and then one after the other.

`noderesource.spread` decides whose turn it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from koord.accounting.pods import pod_requests
from koord.api import names
from koord.api.objects import Node
from koord.api.quantity import QuantityError
from koord.config.slo import SLOConfig, SLOConfigStore
from koord.decisions.record import Number, Record, Subject
from koord.decisions.recorder import Recorder
from koord.kube.events import EventRecorder
from koord.kube.patch import diff_merge_patch
from roles.manager.controllers import nodemetric, nodeslo
from roles.manager.controllers.base import ROLE, Turns, log
from roles.manager.controllers.memory import EditMemory, Remembered, Texts
from roles.manager.controllers.state import BY_NODE, ClusterState
from roles.manager.noderesource import batch
from roles.manager.noderesource.plan import Plan, moved, unlike
from roles.manager.noderesource.spread import Move, Preview

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(eq=False)
class EditSpreader:
    """`under(node, config)` is what a node would be told under a configuration."""

    _state: ClusterState
    _recorder: Recorder
    _events: EventRecorder | None
    _clock: Callable[[], float]
    _turns: Turns
    _under: Callable[[Node, SLOConfig], Plan]
    _memory: EditMemory
    _unannounced: bool = False

    async def resume(self) -> None:
        """This replica leads now: an edit that was on its way, or came while nobody led, goes on as one that is spread.

        A node follows the configuration under which least would be written to it; so what the leader before has done counts, and not
        what it meant to do.
        """
        state, before = self._state, await self._memory.load()
        if before is not None:
            state.restore(before.present, before.former)
        waiting: dict[str, tuple[SLOConfig, Texts]] = {}
        asked: SLOConfig | None = None
        while before is not None and asked is not state.config and state.config.available:  # it may be edited meanwhile
            asked, waiting = state.config, {}
            candidates = _read([*before.former, before.present], state.texts)
            for name in [name for name, _ in state.nodes.items()] if candidates else ():
                former = _told_if_it_fails(name, self._followed, name, candidates)
                if former is not None:
                    waiting[name] = former
                await self._turns.pause()
        state.spreads = True
        if waiting:
            self._unannounced = True
            state.resume(waiting)

    def _followed(self, name: str, candidates: list[tuple[SLOConfig, Texts]]) -> tuple[SLOConfig, Texts] | None:
        """The configuration of before that a node follows still; None for the present one."""
        node, slo, metric = self._state.nodes.get(name), self._state.node_slos.get(name), self._state.node_metrics.get(name)
        if node is None:
            return None

        def distance(config: SLOConfig) -> tuple[int, float]:
            other = slo is not None and bool(diff_merge_patch(slo.spec, nodeslo.build(config, node, slo.spec)))
            asked = metric is not None and nodemetric.present(metric) != nodemetric.policy(config.colocation_for(node))
            plan = self._under(node, config)
            return other + asked + unlike(plan), moved(node, plan)

        best, least = None, distance(self._state.config)
        for candidate in reversed(candidates):
            found = distance(candidate[0])
            if found < least:
                best, least = candidate, found
        return best

    async def _remember(self) -> None:
        """Before anything is let go, so that whoever leads next knows of it."""
        if self._state.config.available:
            await self._memory.keep(Remembered(dict(self._state.texts), [dict(texts) for texts in self._state.former_texts]))

    def begun(self) -> None:
        """There is a new edit, and nobody was told yet what it will do."""
        self._unannounced = True

    async def round(self, *, held: bool) -> None:
        """Preview what was not looked at, tell of it, and let the next nodes follow; none while something is `held`."""
        spread = self._state.spread
        while unseen := spread.unseen():
            for name in unseen:
                move = _told_if_it_fails(name, self._move, name)
                spread.found(name, move)
                if move is None:
                    self._state.release(name)
                await self._turns.pause()
        if self._unannounced:
            self._unannounced = False
            self._tell(spread.preview())
        await self._remember()
        for name in spread.release(self._clock(), held=held):
            self._state.release(name)
        await self._remember()

    def _move(self, name: str) -> Move | None:
        """What the edit does to a node; None for nothing."""
        node, former, config = self._state.nodes.get(name), self._state.spread.former(name), self._state.config
        if node is None or former is None or not config.available:
            return None
        now, then = self._under(node, former), self._under(node, config)
        agents = [(nodeslo.build(one, node, {}), nodemetric.policy(one.colocation_for(node))) for one in (former, config)]
        if now.answers == then.answers and agents[0] == agents[1]:
            return None
        before, after = (plan.resources.get(names.RESOURCE_BATCH_CPU, 0) for plan in (now, then))
        return Move(before, after, self._pods_in_excess(name, then) if after < before else 0)

    def _pods_in_excess(self, node: str, plan: Plan) -> int:
        """Pods of Batch on a node that would have to go until the requests of the rest fit: the largest first."""
        most = 0
        for resource in batch.NAMES:
            asked = []
            for pod in self._state.pods.by_index(BY_NODE, node):
                try:
                    asked.append(0 if pod.is_terminal else pod_requests(pod).get(resource, 0))
                except QuantityError:
                    continue
            excess, gone = sum(asked) - plan.resources.get(resource, 0), 0
            for amount in sorted(asked, reverse=True):
                if excess <= 0:
                    break
                excess, gone = excess - amount, gone + 1
            most = max(most, gone)
        return most

    def _tell(self, preview: Preview) -> None:
        """What an edit will do, before it does it."""
        if not preview.nodes:
            return
        about = self._state.config_ref
        if self._events is not None:
            self._events.event(about, "Warning" if preview.pods else "Normal", "ConfigSpread", str(preview))
        numbers: dict[str, Number] = {
            "nodes": preview.nodes,
            "shrinking": preview.shrinking,
            "growing": preview.growing,
            "pods": preview.pods,
        }
        subject, features = Subject(about.kind, about.namespace, about.name), ("MGR-NR-01",)
        self._recorder.record(Record(ROLE, subject, self._clock(), "Spread", "noderesource", str(preview), numbers, features=features))


def _told_if_it_fails(name: str, look: Callable[P, T | None], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What a look at a node finds. A node that fails does not wait: it must not hold up the others, and its own reconcile tells more."""
    try:
        return look(*args, **kwargs)
    except Exception as error:  # one bad node must not stop the others
        log.error("node %s: what an edit of slo-controller-config does to it cannot be told; it follows at once", name, exc_info=error)
        return None


def _read(former: Iterable[Texts], present: Texts) -> list[tuple[SLOConfig, Texts]]:
    """Configurations from their texts, without those that are the present one or can decide nothing."""
    found = []
    for texts in former:
        config = SLOConfigStore().update(texts).config
        if texts != present and config.available:
            found.append((config, texts))
    return found
