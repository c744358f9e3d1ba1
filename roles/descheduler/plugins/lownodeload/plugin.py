"""LowNodeLoad: relieve nodes whose real usage is high, onto nodes where it is low (DS-LNL-01..08)."""

from __future__ import annotations

from koord.accounting.resources import add
from koord.config.selectors import LabelSelector
from roles.descheduler.framework.handle import Handle
from roles.descheduler.picture import NodeView, PodView
from roles.descheduler.plugins.lownodeload.args import LowNodeLoadArgs, Pool
from roles.descheduler.plugins.lownodeload.classify import NodeClass, Placed, classify
from roles.descheduler.plugins.lownodeload.detector import Detectors
from roles.descheduler.plugins.lownodeload.select import Candidate, Pass, headroom, relieve


class LowNodeLoad:
    """A Balance plugin. Keeps only its detectors between rounds."""

    name = "LowNodeLoad"
    points = frozenset({"balance"})

    def __init__(self, args: LowNodeLoadArgs, interval: float) -> None:
        self.args = args
        lifetime = max(args.detector_cache_timeout, interval)
        self._detectors = {False: Detectors(lifetime), True: Detectors(lifetime)}
        self._pools = args.pools()
        self._selectors = [LabelSelector.compile(entry.selector) for entry in args.pod_selectors if entry.selector is not None]

    def balance(self, nodes: list[NodeView], handle: Handle) -> None:
        """One round over all pools; a node that was hot in one pool is not looked at by later ones."""
        if self.args.paused:
            handle.note(self.name, "paused", "the plugin is paused by its arguments")
            return
        for detectors in self._detectors.values():
            detectors.drop_expired(handle.now)
        processed: set[str] = set()
        for pool in self._pools:
            chosen = [
                node
                for node in nodes
                if pool.selector is None or (node.name not in processed and pool.selector.matches(node.node.metadata.labels))
            ]
            processed |= self._run_pool(pool, chosen, handle)

    def _run_pool(self, pool: Pool, nodes: list[NodeView], handle: Handle) -> set[str]:
        """Returns the names of the pool's hot nodes when the pool ran to its end."""
        fresh: list[NodeView] = []
        for node in nodes:
            if why := self._unmeasured(node):
                handle.skipped(self.name, pool.name, node, why)
            else:
                fresh.append(node)
        placed = classify(fresh, pool)
        by_class = {cls: [node for node in placed if node.node_class == cls] for cls in NodeClass}
        for entry in placed:
            handle.classified(self.name, pool, entry)
        abnormal = self._abnormal(pool, by_class, handle)
        why = self._early_exit(pool, by_class, abnormal, placed)
        if why:
            handle.note(self.name, pool.name, why)
            return set()
        self._passes(pool, by_class, abnormal, handle)
        return {node.view.name for node in by_class[NodeClass.HOT]}

    def _unmeasured(self, node: NodeView) -> str:
        """Why the node's load is not known, "" when it is. Such a node is neither source nor target."""
        if node.usage is None:
            return "it has no NodeMetric, or one that was never reported"
        accepted = self.args.node_metric_expiration_seconds
        return f"its NodeMetric is {node.metric_age:.0f} s old, {accepted} s are accepted" if node.metric_age >= accepted else ""

    def _abnormal(self, pool: Pool, by_class: dict[NodeClass, list[Placed]], handle: Handle) -> dict[bool, list[Placed]]:
        found: dict[bool, list[Placed]] = {}
        for prod, cls in ((False, NodeClass.HOT), (True, NodeClass.PROD_HOT)):
            detectors, hot = self._detectors[prod], by_class[cls]
            found[prod] = [node for node in hot if detectors.marked(node.view.name, pool.anomaly, handle.now)]
            detectors.clean_round({node.view.name for node in hot})
        return found

    def _early_exit(
        self, pool: Pool, by_class: dict[NodeClass, list[Placed]], abnormal: dict[bool, list[Placed]], placed: list[Placed]
    ) -> str:
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
        for node in prod_low:
            self._detectors[True].reset(node.view.name)
        count = len(low) + len(prod_low)
        if count <= self.args.number_of_nodes:
            return f"{count} nodes are underutilized, more than {self.args.number_of_nodes} are asked for"
        return "all nodes are underutilized" if count == len(placed) else ""

    def _passes(self, pool: Pool, by_class: dict[NodeClass, list[Placed]], abnormal: dict[bool, list[Placed]], handle: Handle) -> None:
        low, both, prod_low = by_class[NodeClass.LOW], by_class[NodeClass.BOTH_LOW], by_class[NodeClass.PROD_LOW]
        first = Pass(pool, False, abnormal[False], [*low, *both], add(headroom(low, prod=False), headroom(both, prod=False)))
        self._run_pass(first, handle)
        shared = {name: min(left, first.budget.get(name, 0)) for name, left in headroom(both, prod=False).items()}
        both_prod = {name: min(left, shared.get(name, 0)) for name, left in headroom(both, prod=True).items()}
        second = Pass(pool, True, abnormal[True], [*prod_low, *both], add(headroom(prod_low, prod=True), both_prod))
        second.expected, second.placed = first.expected, first.placed
        self._run_pass(second, handle)

    def _run_pass(self, run: Pass, handle: Handle) -> None:
        if not run.sources:
            return

        def refuse(view: PodView) -> str:
            return self._refuse(view, handle)

        def evict(candidate: Candidate) -> bool:
            return handle.evict(self.name, candidate, dry_run=self.args.dry_run)

        outcome = relieve(run, refuse, evict, node_fit=self.args.node_fit)
        for node in run.sources:
            handle.relieved(self.name, run.pool.name, node, outcome[node.view.name])
            if outcome[node.view.name].startswith("cool"):
                self._detectors[run.prod].reset(node.view.name)
            else:
                self._detectors[run.prod].normal(node.view.name)

    def _refuse(self, view: PodView, handle: Handle) -> str:
        if reason := handle.refuse(view):
            return reason
        meta = view.pod.metadata
        if self._selectors and not any(selector.matches(meta.labels) for selector in self._selectors):
            return "no pod selector matches it"
        if self.args.evictable_namespaces is not None and not self.args.evictable_namespaces.allows(meta.namespace):
            return f"namespace {meta.namespace} is not among evictableNamespaces"
        return ""
