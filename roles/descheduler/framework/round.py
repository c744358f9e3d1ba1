"""One round: every profile's Deschedule plugins, then every profile's Balance plugins (DS-FW-01).

Plugins decide; what they ask for is checked against the round's limits here (DS-FW-03) and handed to `Acting`, which carries it out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from koord import seams
from koord.api.objects import Node, Pod
from koord.api.selectors import Selector
from roles.descheduler.arrivals import expected_use
from roles.descheduler.framework.effects import Annotate, Cordon, Effect, Evict, Outcome, Pause, PluginError, Rehearse, Tell
from roles.descheduler.framework.evicting import (
    Asks,
    Assumes,
    Evicting,
    EvictOptions,
    EvictResult,
    Holds,
    Remembers,
    Replaces,
    Sees,
    Together,
)
from roles.descheduler.framework.handle import Answers, Handle, node_subject, pod_subject
from roles.descheduler.framework.limits import Counts, Limits
from roles.descheduler.framework.plugin import BALANCE, DESCHEDULE, Plugin, Reads, minds_place
from roles.descheduler.framework.recurrence import Key, Recurrence
from roles.descheduler.reading import Reading
from roles.descheduler.snapshot import NodeView, PodView, is_ready

log = logging.getLogger(__name__)

_TOLD = 10  # pods that each say which limit kept them; of the others only the number is told


class Acting(Protocol):
    """Carries out what was decided. Refusals are answers, not exceptions."""

    def may_write(self) -> bool:
        """Whether this process still leads."""

    async def evict(self, evictor: Evicting, pod: Pod, options: EvictOptions) -> EvictResult:
        """Through the profile's Evict plugin."""

    async def cordon(self, node: Node, on: bool) -> EvictResult:
        """Set or clear spec.unschedulable."""

    async def annotate(self, pod: Pod, key: str, value: str) -> EvictResult:
        """Set one annotation."""

    async def where(self, pod: Pod, /) -> str:
        """Where the scheduler would put the pod if it left now, in words; "" when nobody asks. Asked in dry runs only."""

    async def rehearse(self, pod: Pod, leaving: Sequence[Pod], /) -> bool:
        """Whether the scheduler would place the pod once the others have left, and then these; False where it cannot be asked."""

    def waited(self, seconds: float) -> None:
        """The round has waited for the answer of somebody else than this: its snapshot is as much older."""


@dataclass(slots=True)
class Profile:
    """A profile with its plugins made; they keep their memory (detectors) from round to round."""

    name: str
    selector: Selector | None
    evictor: Evicting
    filters: Sequence[Evicting]
    plugins: dict[str, list[Plugin]]
    observe: frozenset[str] = frozenset()  # plugins that only list

    def evictors(self) -> list[Evicting]:
        """The Evict plugin and the filters, each once."""
        found: list[Evicting] = []
        for evictor in (self.evictor, *self.filters):
            if all(evictor is not other for other in found):
                found.append(evictor)
        return found


class Rounds:
    """Runs rounds over snapshots. Holds no connection and no clock."""

    def __init__(
        self, profiles: Sequence[Profile], *, selector: Selector | None, limits: Limits, dry_run: bool, grace_period: int | None = None
    ) -> None:
        self.profiles = profiles
        self._selector = selector
        self.limits, self.dry_run = limits, dry_run
        self.delete_options = None if grace_period is None else {"gracePeriodSeconds": grace_period}
        self.recurrence = Recurrence()

    def reads(self) -> set[str]:
        """The sources of usage that plugins read."""
        plugins = (each for profile in self.profiles for found in profile.plugins.values() for each in found)
        return {plugin.reads for plugin in plugins if isinstance(plugin, Reads) and plugin.reads}

    async def prepare(self, nodes: Sequence[NodeView]) -> None:
        """Let the evictors ask for what they must know of the pods of these nodes; the answers may take their time."""
        chosen = self._chosen(nodes)
        for profile in self.profiles:
            pods = [pod for node in chosen if _matches(profile.selector, node) for pod in node.everyone]
            for evictor in profile.evictors():
                try:
                    await evictor.prepare(pods)
                except Exception:  # what it does not know now it refuses later
                    log.exception("profile %s: %s could not prepare the round", profile.name, evictor.name)

    def _chosen(self, nodes: Iterable[NodeView]) -> list[NodeView]:
        return [node for node in nodes if is_ready(node.node) and _matches(self._selector, node)]

    async def run(
        self,
        nodes: Iterable[NodeView],
        now: float,
        acting: Acting,
        readings: Mapping[str, Reading] | None = None,
        waiting: Sequence[Pod] = (),
        answers: Answers | None = None,
        *,
        prepared: bool = False,
    ) -> Outcome:
        """One round, after `prepare` if that was called for it (`prepared`). `now` is in seconds since the epoch; `readings` are what
        sources of usage beside koordlet have told, `waiting` pods that the scheduler has found no node for; `answers` stands between
        plugins and filters."""
        everything = list(nodes)
        chosen = self._chosen(everything)
        if len(chosen) <= 1:
            return Outcome(nodes=len(chosen), skipped=f"{len(chosen)} ready nodes match, at least two are needed to move anything")
        outcome = Outcome(nodes=len(chosen))
        counts, refused = Counts(), dict[tuple[int, str], str]()
        self.recurrence.forget(now)
        if not prepared:
            await self.prepare(everything)
        for profile in self.profiles:
            await _show(profile, everything)
        for point in (DESCHEDULE, BALANCE):
            for profile in self.profiles:
                mine = [node for node in chosen if _matches(profile.selector, node)]
                for plugin in profile.plugins[point]:
                    handle = Handle(profile.name, plugin.name, now, profile.filters, [], readings or {}, waiting, answers=answers)
                    turn = _Turn(self, profile, plugin, handle, chosen, acting, counts, refused)
                    began = asyncio.get_running_loop().time()
                    error = await turn.run(mine)
                    outcome.turns.append((plugin.name, asyncio.get_running_loop().time() - began))
                    if error:
                        outcome.errors.append(f"profile {profile.name}: {plugin.name}: {error}")
                    outcome.records += handle.records
                if outcome.errors:
                    outcome.evicted = counts.total
                    return outcome
        outcome.evicted = counts.total
        return outcome


async def _show(profile: Profile, nodes: list[NodeView]) -> None:
    for evictor in profile.evictors():
        try:
            if isinstance(evictor, Sees):
                await evictor.see(nodes)
        except Exception:  # what it does not know now it refuses later
            log.exception("profile %s: %s could not look at the nodes", profile.name, evictor.name)


class _Turn:
    """One plugin's turn: drives its generator and answers each effect."""

    def __init__(
        self,
        rounds: Rounds,
        profile: Profile,
        plugin: Plugin,
        handle: Handle,
        cluster: Sequence[NodeView],
        acting: Acting,
        counts: Counts,
        refused: dict[tuple[int, str], str],
    ) -> None:
        self._rounds, self._profile, self._plugin, self.handle, self._acting = rounds, profile, plugin, handle, acting
        # looked up once: whether an evictor does what only some do costs as much as the rest of an eviction
        evictor = profile.evictor
        self._together = evictor if isinstance(evictor, Together) else None
        self._assumes = evictor if isinstance(evictor, Assumes) else None
        self._replaces = evictor if isinstance(evictor, Replaces) else None
        self._asks = [each for each in profile.evictors() if isinstance(each, Asks)]
        self._counts, self._dry_run = counts, rounds.dry_run
        self._observed: Counts | None = None  # evictions that the plugin's own dry run only lists
        self._nodes = {node.name: node for node in cluster}
        self.refused = refused  # what evictors have answered in this round, by evictor and pod
        self._holders = [each for other in rounds.profiles for each in other.evictors() if each is not evictor and isinstance(each, Holds)]
        self._put_back: list[Callable[[], None]] = []
        self._promised: list[tuple[NodeView, PodView]] = []  # who is expected where; the plugin itself counts it meanwhile
        self._limited: Counter[str] = Counter()

    async def run(self, nodes: list[NodeView]) -> str:
        """Returns what went wrong, "" when nothing did."""
        generator: Any = None
        try:
            generator = self._plugin.turn(nodes, self.handle)
            if not isinstance(generator, Generator):
                raise TypeError(f"turn returned {type(generator).__name__}, not a generator: it has no yield")
            effect = next(generator)
            while True:
                await seams.sleep(0)  # deciding takes its time; renewing the lease must have its turn
                if isinstance(effect, Effect):
                    effect = generator.send(isinstance(effect, Pause) or await self._perform(effect))
                else:  # raised where it was yielded, so that the traceback shows the line
                    effect = generator.throw(TypeError(f"turn yielded {type(effect).__name__}, not an effect such as Evict or PAUSE"))
        except StopIteration:  # the turn is over
            pass
        except PluginError as error:
            self.handle.note(f"failed: {error}")
            return str(error)
        except Exception as error:  # a plugin's mistake ends the round, not the process
            log.exception("plugin %s failed in profile %s", self._plugin.name, self._profile.name)
            self.handle.note(f"failed: {type(error).__name__}: {error}")
            return f"{type(error).__name__}: {error}"
        finally:
            if isinstance(generator, Generator):
                generator.close()
            for why, count in self._limited.items():
                if count > _TOLD:
                    self.handle.note(f"{why}: {count - _TOLD} more pods would have left")
            for put_back in reversed(self._put_back):
                put_back()
            for target, view in self._promised:
                target.expect(view.requests, expected_use(view), prod=view.is_prod)
        return ""

    async def _tell(self, effect: Tell) -> bool:
        self.handle.record(node_subject(self._nodes[effect.node.metadata.name]), "Measured", effect.message, effect.numbers)
        evictor = self._profile.evictor
        if isinstance(evictor, Remembers) and not self._dry_run and self._acting.may_write():
            try:
                await evictor.remember(effect.pods, effect.helped, effect.message)
            except Exception:  # it stands in the record
                log.exception("profile %s: what moves have done could not be written", self._profile.name)
        return True

    async def _perform(self, effect: Evict | Cordon | Annotate | Tell | Rehearse) -> bool:
        if isinstance(effect, Tell):
            return await self._tell(effect)
        if isinstance(effect, Rehearse):
            moved = [self._replaces.successor(pod, None) if self._replaces else pod for pod in effect.leaving]
            return await self._acting.rehearse(effect.pod, moved)
        if self._plugin.name in self._profile.observe:
            effect = msgspec.structs.replace(effect, dry_run=True)
        if isinstance(effect, Evict):
            return await self._evict(effect)
        switch = self._switch(effect)
        if isinstance(effect, Cordon):
            what = "Cordoned" if effect.on else "Uncordoned"
            subject = node_subject(self._nodes[effect.node.metadata.name])
            result = None if switch else await self._acting.cordon(effect.node, effect.on)
            would = "WouldCordon" if effect.on else "WouldUncordon"
        else:
            what, would, subject = "Annotated", "WouldAnnotate", pod_subject(effect.pod)
            result = None if switch else await self._acting.annotate(effect.pod, effect.key, effect.value)
        numbers: dict[str, float | int | str] = {effect.key: effect.value} if isinstance(effect, Annotate) else {}
        if result is None:
            self.handle.record(subject, would, f"{effect.reason}; dry run{switch}", numbers)
            return True
        if not result.accepted:
            self.handle.record(subject, f"Not{what}", result.message, numbers)
            return False
        self.handle.record(subject, what, effect.reason, numbers)
        return True

    def _switch(self, effect: Evict | Cordon | Annotate) -> str:
        """Which dry-run switch is on, in words; "" for none."""
        if self._dry_run:
            return " by the configuration"
        if self._plugin.name in self._profile.observe:
            return f" by observe of profile {self._profile.name}"
        return f" by the arguments of {self._plugin.name}" if effect.dry_run else ""

    async def _evict(self, effect: Evict) -> bool:
        pod, evictor = effect.pod, self._profile.evictor
        others = list(self._together.together(pod)) if self._together else []
        counts, everybody = self._counts_of(effect), [pod, *others]
        if why := counts.all_exceeded(self._rounds.limits, everybody):
            self._limited[why] += 1
            self.handle.refused[pod.metadata.uid] = why
            if self._limited[why] <= _TOLD:
                self._told(effect, "NotEvicted", why)
            return False
        for each in everybody:
            if why := await self._judged(each):
                about = "" if each is pod else f"its gang moves as one, and pod {each.key} may not: "
                return self._kept(effect, about + why)
        place = self._place(pod)
        if why := self._barred(pod, place):
            return self._kept(effect, why, f"{effect.reason}, but {why}")
        switch = self._switch(effect)
        for each in everybody:
            counts.add(each.spec.node_name, each.metadata.namespace)
        if switch:
            self.handle.listed.add(pod.metadata.uid)
            self._told(effect, "WouldEvict", f"{effect.reason}; dry run{switch}{await self._where(effect)}")
            if self._assumes:
                put_back = [self._assumes.assume(each) for each in everybody]
                if not self._dry_run:
                    self._put_back += put_back
        else:
            result = await self._acting.evict(
                evictor, pod, EvictOptions(self._plugin.name, effect.reason, self._rounds.delete_options, effect.relief)
            )
            if not result.accepted:
                for each in everybody:
                    counts.add(each.spec.node_name, each.metadata.namespace, -1)
                self.refused[id(evictor), pod.metadata.uid] = result.message
                return self._kept(effect, result.message, f"{effect.reason}, but {result.message}")
            if place and not result.listed:
                self._rounds.recurrence.left(place, pod.metadata.uid, self._alike(pod), self.handle.now)
            if result.listed:
                self.handle.listed.add(pod.metadata.uid)
            verdict, where = ("WouldEvict", await self._where(effect)) if result.listed else ("Evicted", "")
            self._told(effect, verdict, "; ".join(filter(None, (effect.reason, result.message))) + where)
            for each in others:
                message = f"pod {pod.key} of its gang, which moves as one, leaves: {effect.reason}"
                self.handle.record(pod_subject(each), verdict, message, {"node": each.spec.node_name, "reason": effect.reason})
        if self._dry_run or not effect.dry_run:
            self._promise(effect)
        for each in everybody:
            if each.spec.node_name in self._nodes:
                back = self._nodes[each.spec.node_name].take(each.metadata.uid)
                if effect.dry_run and not self._dry_run:
                    self._put_back.append(back)
        return True

    def _promise(self, effect: Evict) -> None:
        """The node that the plugin reckons with, or the one that the migration prefers, counts the pod for whoever decides after it."""
        pod, first = effect.pod, next(iter(effect.relief.nodes), "") if effect.relief is not None else ""
        source, target = self._nodes.get(pod.spec.node_name), self._nodes.get(effect.target or first)
        view = next((view for view in source.pods if view.pod.metadata.uid == pod.metadata.uid), None) if source is not None else None
        if target is not None and view is not None:
            self._promised.append((target, view))

    async def _judged(self, pod: Pod) -> str:
        """Why a pod stays. Filters are asked again: what this round has decided since the plugin asked counts for them."""
        for evictor in self._asks:
            await self._asked(evictor, pod)
        return self.handle.filter(pod) or self.handle.pre_eviction_filter(pod)

    def _kept(self, effect: Evict, why: str, message: str = "") -> bool:
        """The pod stays, and the plugin is told so."""
        self.handle.refused[effect.pod.metadata.uid] = why
        self._told(effect, "NotEvicted", message or why)
        return False

    def _barred(self, pod: Pod, place: Key | None) -> str:
        """What the profile's filters do not know: the evictor's answer to another plugin of this round, another evictor's work that is
        under way, and that pods like it have come back."""
        evictor, uid = self._profile.evictor, pod.metadata.uid
        held = (other.holds(pod) for other in self._holders)
        answered = self.refused.get((id(evictor), uid), "") or next(filter(None, held), "")
        return answered or (self._rounds.recurrence.refuse(place, uid, self.handle.now) if place else "")

    def _place(self, pod: Pod) -> Key | None:
        """Whose pods come back where, if the plugin minds where pods are and nobody holds a place elsewhere for the next one."""
        owner, node = pod.metadata.controller, pod.spec.node_name
        if owner is None or not node or not minds_place(self._plugin) or self._replaces:
            return None
        return self._plugin.name, owner.uid, node

    def _alike(self, pod: Pod) -> list[str]:
        """The pods of the same workload on the node."""
        owner, node = pod.metadata.controller, self._nodes.get(pod.spec.node_name)
        there = [] if node is None or owner is None else node.everyone
        return [pod.metadata.uid, *(other.metadata.uid for other in there if other.metadata.controller == owner)]

    async def _asked(self, evictor: Asks, pod: Pod) -> None:
        began = seams.monotonic()
        try:
            await evictor.ask(pod)
        except Exception:  # what it does not know it refuses
            log.exception("profile %s: nothing could be asked about pod %s", self._profile.name, pod.key)
        self._acting.waited(seams.monotonic() - began)

    async def _where(self, effect: Evict) -> str:
        """Where the pod would go: what the plugin reckons, and what the scheduler would do."""
        found = await self._acting.where(self._replaces.successor(effect.pod, effect.relief) if self._replaces else effect.pod)
        return (f"; it would fit {effect.target}" if effect.target else "") + (f"; {found}" if found else "")

    def _counts_of(self, effect: Evict) -> Counts:
        """A plugin that only lists must not use up what others may really evict."""
        if self._dry_run or not effect.dry_run:
            return self._counts
        if self._observed is None:
            self._observed = self._counts.copy()
        return self._observed

    def _told(self, effect: Evict, verdict: str, message: str) -> None:
        numbers = {**effect.numbers, "target": effect.target, "node": effect.pod.spec.node_name, "reason": effect.reason}
        self.handle.record(pod_subject(effect.pod), verdict, message, numbers)


def _matches(selector: Selector | None, node: NodeView) -> bool:
    return selector is None or selector.matches(node.node.metadata.labels)
