"""LowNodeLoad: relieve nodes whose real usage is high, onto nodes where it is low (DS-LNL-01..08)."""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import ClassVar

from koord.accounting.resources import add
from roles.descheduler.columns import Columns
from roles.descheduler.framework.effects import PAUSE, Effect, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.pace import free
from roles.descheduler.framework.plugin import BALANCE
from roles.descheduler.percentile import Shifts, shift
from roles.descheduler.plugins.lownodeload import explain
from roles.descheduler.plugins.lownodeload.args import LowNodeLoadArgs, Pool
from roles.descheduler.plugins.lownodeload.classify import Classifier, NodeClass, Placed
from roles.descheduler.plugins.lownodeload.detector import Detectors
from roles.descheduler.plugins.lownodeload.effect import Effects
from roles.descheduler.plugins.lownodeload.room import Expected, headroom
from roles.descheduler.plugins.lownodeload.select import Outcome, Pass, relieve
from roles.descheduler.selection import PodChoice
from roles.descheduler.snapshot import NodeView, Vector

log = logging.getLogger(__name__)

OUTLIVES = 1.5  # intervals: a round may begin late, and with the interval itself every round would forget the one before

ByClass = dict[NodeClass, list[Placed]]


@dataclass(slots=True)
class _Seen:
    """Nodes of one round over all pools: those with metrics, and those that were hot in some pool."""

    measured: set[str] = field(default_factory=set)
    hot: set[str] = field(default_factory=set)


class LowNodeLoad:
    """A Balance plugin. Keeps only its detectors between rounds."""

    name: ClassVar[str] = "LowNodeLoad"
    point: ClassVar[str] = BALANCE

    def __init__(self, args: LowNodeLoadArgs, interval: float) -> None:
        self.args = args
        lifetime = max(args.detector_cache_timeout, OUTLIVES * interval)
        if lifetime > args.detector_cache_timeout:
            log.info("detectorCacheTimeout is raised to %.0f s: it must outlive the descheduling interval, %.0f s", lifetime, interval)
        self._detectors = {False: Detectors(lifetime), True: Detectors(lifetime)}
        self._pools = args.pools()
        for pool in self._pools:
            if pool.lopsided:
                names = ", ".join(pool.lopsided)
                log.warning(
                    "LowNodeLoad, pool %s: %s: a low and a high threshold belong together; alone they relieve no node", pool.name, names
                )
        self._seen = {False: _Seen(), True: _Seen()}
        self._effects = Effects()
        self._choice = PodChoice(args.evictable_namespaces, args.pod_selectors)

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """One round over all pools; a node that was hot in one pool is not looked at by later ones."""
        if self.args.paused:
            handle.note("the plugin is paused by its arguments")
            return
        for detectors in self._detectors.values():
            detectors.drop_expired(handle.now)
        shifts: dict[str, Vector] = {}
        for node in nodes:
            if handle.pause():
                yield PAUSE
            try:
                if by := shift(node.metric, self.args.percentile):
                    shifts[node.name] = by
            except ValueError as error:
                handle.note(f"node {node.name} is judged by its average usage: a percentile of its NodeMetric cannot be read: {error}")
            for measured in self._effects.observe(node, handle.now, shifts.get(node.name)):
                yield explain.measured(node, measured)
        self._effects.only({node.name for node in nodes})
        processed: set[str] = set()
        expected: Expected = {}
        self._seen = {False: _Seen(), True: _Seen()}
        for pool in self._pools:
            chosen = [
                node
                for node in nodes
                if pool.selector is None or (node.name not in processed and pool.selector.matches(node.node.metadata.labels))
            ]
            processed |= yield from self._run_pool(pool, chosen, shifts, expected, handle)
            if handle.pause(len(chosen)):
                yield PAUSE
        self._effects.not_hot(self._seen[False].measured - self._seen[True].hot)
        for prod, seen in self._seen.items():
            self._detectors[prod].clean_round(seen.measured - seen.hot)

    def _run_pool(
        self, pool: Pool, nodes: list[NodeView], shifts: Shifts, expected: Expected, handle: Handle
    ) -> Generator[Effect, bool, set[str]]:
        """Returns the names of the pool's hot nodes when the pool ran to its end."""
        fresh: list[NodeView] = []
        for node in nodes:
            if handle.pause():
                yield PAUSE
            if why := self._unmeasured(pool, node):
                explain.skipped(handle, pool, node, why)
            else:
                fresh.append(node)
        classifier = Classifier(fresh, pool, shifts)
        placed: list[Placed] = []
        by_class: ByClass = {cls: [] for cls in NodeClass}
        for node in classifier.measured:
            if handle.pause():
                yield PAUSE
            entry = classifier.place(node)
            placed.append(entry)
            by_class[entry.node_class].append(entry)
            explain.classified(handle, pool, entry)
        if handle.pause(len(placed)):
            yield PAUSE
        hot = yield from self._act(pool, by_class, placed, expected, handle)
        by_class.clear()
        yield from free(handle, placed)
        return hot

    def _act(
        self, pool: Pool, by_class: ByClass, placed: list[Placed], expected: Expected, handle: Handle
    ) -> Generator[Effect, bool, set[str]]:
        abnormal = self._abnormal(pool, by_class, handle)
        if why := self._early_exit(pool, by_class, abnormal, placed):
            handle.note(f"pool {pool.name}: {why}")
            self._left_hot(pool, by_class, why, handle)
            return set()
        yield from self._passes(pool, by_class, abnormal, expected, handle)
        return {node.view.name for node in by_class[NodeClass.HOT]}

    def _unmeasured(self, pool: Pool, node: NodeView) -> str:
        """Why the node's load is not known, "" when it is. Such a node is neither source nor target."""
        if node.usage is not None and (unknown := sorted(pool.known - node.usage.keys())):
            return f"its NodeMetric does not tell how much {' and '.join(unknown)} is used"
        if node.usage is None:
            return "it has no NodeMetric, or one that was never reported"
        accepted = self.args.node_metric_expiration_seconds
        return f"its NodeMetric is {node.metric_age:.0f} s old, {accepted} s are accepted" if node.metric_age >= accepted else ""

    def _abnormal(self, pool: Pool, by_class: ByClass, handle: Handle) -> dict[bool, list[Placed]]:
        found: dict[bool, list[Placed]] = {}
        for prod, cls in ((False, NodeClass.HOT), (True, NodeClass.PROD_HOT)):
            detectors, hot = self._detectors[prod], by_class[cls]
            found[prod] = [node for node in hot if detectors.marked(node.view.name, pool.anomaly, handle.now)]
            self._seen[prod].measured |= {node.view.name for nodes in by_class.values() for node in nodes}
        hot_names = {node.view.name for node in by_class[NodeClass.HOT]}
        self._seen[False].hot |= hot_names
        # a hot node is not looked at for Prod, which breaks no run of being hot for Prod
        self._seen[True].hot |= hot_names | {node.view.name for node in by_class[NodeClass.PROD_HOT]}
        return found

    def _left_hot(self, pool: Pool, by_class: ByClass, why: str, handle: Handle) -> None:
        """Say of each hot node why nothing was done for it."""
        for prod, cls in ((False, NodeClass.HOT), (True, NodeClass.PROD_HOT)):
            for node in by_class[cls]:
                run, wanted = self._detectors[prod].run_of(node.view.name), pool.anomaly.consecutive_abnormalities
                young = f"hot in {run} rounds in a row, pods leave when it was so in more than {wanted}" if 0 < run <= wanted else ""
                explain.relieved(handle, pool, node, f"still hot: {young or why}")

    def _early_exit(self, pool: Pool, by_class: ByClass, abnormal: dict[bool, list[Placed]], placed: list[Placed]) -> str:
        low = [*by_class[NodeClass.LOW], *by_class[NodeClass.BOTH_LOW]]
        prod_low = by_class[NodeClass.PROD_LOW]
        if not by_class[NodeClass.HOT] and not by_class[NodeClass.PROD_HOT]:
            return "no node is overutilized"
        if not abnormal[False] and not abnormal[True]:
            return "no overutilized node has been so for long enough"
        if not low and not prod_low:
            return "no node is underutilized"
        for node in low:
            self._detectors[False].reset(node.view.name)
        for node in (*prod_low, *by_class[NodeClass.BOTH_LOW]):
            self._detectors[True].reset(node.view.name)
        # Without prod thresholds every normal node is prodLow: it can take no pods, so it must not count as one that could.
        count = len(low) + (len(prod_low) if pool.prod_enabled else 0)
        if count <= self.args.number_of_nodes:
            return f"{count} nodes are underutilized, more than {self.args.number_of_nodes} are asked for"
        return "all nodes are underutilized" if count == len(placed) else ""

    def _passes(self, pool: Pool, by_class: ByClass, abnormal: dict[bool, list[Placed]], expected: Expected, handle: Handle) -> Turn:
        low, both, prod_low = by_class[NodeClass.LOW], by_class[NodeClass.BOTH_LOW], by_class[NodeClass.PROD_LOW]
        max_age, percentile = self.args.node_metric_expiration_seconds, self.args.percentile
        columns = yield from Columns.paced([node.view for nodes in by_class.values() for node in nodes])
        for _ in columns.learn() if self.args.node_fit else ():
            yield PAUSE
        for view in columns.nodes:
            for pod, _ in expected.get(view.name, ()):
                columns.expect(view.name, pod)
        room = add(headroom(low, expected, prod=False), headroom(both, expected, prod=False))
        first = Pass(pool, False, abnormal[False], [*low, *both], room, columns, expected, max_age, percentile)
        yield from self._run_pass(first, handle)
        left_over = {name: max(left, 0) for name, left in first.budget.items()}  # the last pod may have taken more than there was
        shared = {name: min(left, left_over.get(name, 0)) for name, left in headroom(both, expected, prod=False).items()}
        both_prod = {name: min(left, shared.get(name, 0)) for name, left in headroom(both, expected, prod=True).items()}
        room = add(headroom(prod_low, expected, prod=True), both_prod)
        second = Pass(pool, True, abnormal[True], [*prod_low, *both], room, columns, expected, max_age, percentile)
        yield from self._run_pass(second, handle)
        yield from columns.free(handle)

    def _run_pass(self, run: Pass, handle: Handle) -> Turn:
        if not run.sources:
            return
        refuse = self._choice.filter_with(handle.filter)
        outcome: dict[str, Outcome] = {}
        yield from relieve(run, refuse, outcome, handle, self._effects, node_fit=self.args.node_fit, dry_run=self.args.dry_run)
        for node in run.sources:
            minutes = self._effects.hot_for(node.view.name, handle.now) / 60
            since = f", hot for {minutes:.0f} min" if minutes >= 1 else ""
            found = outcome[node.view.name]
            explain.relieved(handle, run.pool, node, found.message + since, found.terms, cooling=found.cooling)
            if found.cooling:
                self._detectors[run.prod].reset(node.view.name)
            else:
                self._detectors[run.prod].normal(node.view.name)
