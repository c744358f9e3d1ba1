"""All extenders of a configuration, asked in their order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from koord.api.kinds import NODES, PODS
from koord.config.extenders import Extender as Config
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.cycle.advice import Advice
from roles.scheduler.cycle.decision import Decision
from roles.scheduler.extenders import wire
from roles.scheduler.extenders.client import Extender, ExtenderError, ExtenderRefusal
from roles.scheduler.framework.interfaces import Rejection
from roles.scheduler.framework.status import Candidate
from roles.scheduler.plugins.preemption_cost import cost_of

log = logging.getLogger(__name__)

T = TypeVar("T")
_SILENT = "node(s) were refused by an extender"


class Extenders:
    """`weights` of scores is what a profile gives a plugin: an extender's 0..10 times ten times its weight joins the node's total."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self._all = [Extender(config, number) for number, config in enumerate(configs)]
        self._filters = [e for e in self._all if e.config.filter_verb]
        self._scorers = [e for e in self._all if e.config.prioritize_verb]
        self._preempting = [e for e in self._all if e.config.preempt_verb]
        self._binder = next((e for e in self._all if e.config.bind_verb), None)
        self._pods: Any = None
        self._nodes: Any = None
        for extender in self._all:
            if extender.unchecked:
                log.warning("extender %s: its certificate is not checked; give tlsConfig.caFile or caData", extender.name)

    def attach(self, informers: Any) -> None:
        """Ask for whole pods, and for whole nodes if an extender keeps none of its own."""
        if not self._all:
            return
        self._pods = informers.informer(PODS, dict, field_selector="status.phase!=Succeeded,status.phase!=Failed", transform=_lean)
        if any(not e.config.node_cache_capable for e in (*self._filters, *self._scorers)):
            self._nodes = informers.informer(NODES, dict, transform=_lean)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(extender.close() for extender in self._all))

    def concern(self, pod: PodInfo) -> bool:
        """Whether an extender has a say in where the pod goes."""
        return any(e.interested(pod) for e in (*self._filters, *self._scorers, *self._preempting))

    # ---------------------------------------------------------------- where it goes

    async def advise(self, pod: PodInfo, advice: Advice) -> None:
        """Put the answers of the extenders about the open nodes into the advice. Raises ExtenderError."""
        assert advice.open is not None
        body = self._body(pod)
        slots = {name: slot for slot, name in advice.open.items()}
        for extender in self._filters:
            if slots and extender.interested(pod):
                await self._filter(extender, body, slots, advice)
        if len(slots) > 1:
            await asyncio.gather(*(self._score(e, body, slots, advice) for e in self._scorers if e.interested(pod)))

    async def _filter(self, extender: Extender, body: wire.Object, slots: dict[str, int], advice: Advice) -> None:
        arguments = wire.node_args(body, slots, self._whole_nodes(extender))
        read = partial(wire.filtered, asked=slots.keys(), by_name=extender.config.node_cache_capable)
        answer = await self._try(extender, extender.config.filter_verb, arguments, read)
        if answer is None:
            return
        for name in slots.keys() - answer.passed:
            slot = slots.pop(name)
            # Filters let the pod in as things are: whoever left would leave in vain.
            advice.refused[slot] = (extender.name, Rejection((answer.reasons.get(name) or _SILENT,), resolvable=False))

    async def _score(self, extender: Extender, body: wire.Object, slots: dict[str, int], advice: Advice) -> None:
        """Scores are a wish: an extender that fails here gives none."""
        arguments = wire.node_args(body, slots, self._whole_nodes(extender))
        try:
            found = wire.scores(await extender.ask(extender.config.prioritize_verb, arguments))
        except (ExtenderError, wire.BadAnswer) as error:
            log.warning("extender %s gives no scores: %s", extender.name, error)
            return
        for name, score in found.items():
            slot = slots.get(name)
            if slot is not None:
                points = float(score * wire.TIMES * extender.config.weight)
                advice.scores[slot] = advice.scores.get(slot, 0.0) + points

    async def preempt(self, decision: Decision) -> None:
        """Let extenders rule out nodes on which the decision may preempt, and choose anew. Raises ExtenderError."""
        pod, left = decision.pod, decision.candidates
        for extender in self._preempting:
            if not left or not extender.interested(pod):
                continue
            candidates = left
            victims = None if extender.config.node_cache_capable else self._whole_pods(candidates)
            arguments = wire.preemption_args(self._body(pod), candidates, victims)
            answer = await self._try(extender, extender.config.preempt_verb, arguments, partial(wire.preempted, candidates=candidates))
            left = left if answer is None else tuple(candidate for candidate in answer if candidate.victims)
        if left == decision.candidates:
            return
        best = min(left, key=cost_of, default=None)
        decision.candidates = left
        decision.nominate = best.node if best is not None else ""
        decision.victims = best.victims if best is not None else ()

    async def _try(self, extender: Extender, verb: str, arguments: wire.Object, read: Callable[[Any], T]) -> T | None:
        """Ask and read the answer; None when an ignorable extender fails. Raises ExtenderError."""
        try:
            return read(await extender.ask(verb, arguments))
        except (ExtenderError, wire.BadAnswer) as error:
            text = str(error) if isinstance(error, ExtenderError) else f"extender {extender.name}/{verb}: {error}"
            if not extender.ignorable:
                raise ExtenderError(text) from error
            log.warning("%s; it is ignorable, so scheduling goes on without it", text)
            return None

    # ---------------------------------------------------------------- binding

    def binds(self, pod: PodInfo) -> Callable[[str], Awaitable[None]] | None:
        """How the pod is bound to a node if an extender does that; None leaves it to the bind plugins. The call raises ExtenderRefusal
        when the extender says no, ExtenderError when nobody knows what it did."""
        extender = self._binder
        if extender is None or not extender.interested(pod):
            return None

        async def bind(node: str) -> None:
            verb = extender.config.bind_verb
            arguments = wire.binding_args(pod.namespace, pod.name, pod.uid, node)
            try:
                refusal = wire.binding_error(await extender.ask(verb, arguments))
            except wire.BadAnswer as error:
                raise ExtenderError(f"extender {extender.name}/{verb}: {error}") from error
            if refusal:
                raise ExtenderRefusal(f"extender {extender.name}/{verb}: {refusal}")

        return bind

    @property
    def bind_is_ignorable(self) -> bool:
        """Whether the bind plugins go on when the extender cannot bind."""
        return self._binder is not None and self._binder.ignorable

    # ---------------------------------------------------------------- whole objects

    def _body(self, pod: PodInfo) -> wire.Object:
        found: wire.Object | None = self._pods.get(pod.key)
        if found is None:
            raise ExtenderError(f"pod {pod.key} is gone")
        return found

    def _whole_nodes(self, extender: Extender) -> Mapping[str, wire.Object] | None:
        if extender.config.node_cache_capable:
            return None
        return {node["metadata"]["name"]: node for node in self._nodes.list()}

    def _whole_pods(self, candidates: Sequence[Candidate]) -> Mapping[str, wire.Object]:
        """The victims of candidates: there may be a hundred thousand others."""
        keys = {victim.key for candidate in candidates for victim in candidate.victims}
        return {key: pod for key in keys if (pod := self._pods.get(key)) is not None}


def _lean(obj: wire.Object) -> wire.Object:
    """Without the bookkeeping of server-side apply, which is half of an object."""
    obj.get("metadata", {}).pop("managedFields", None)
    return obj
