"""RemoveInterferingPods: move pods that slow services down, as the agents of their nodes ask for (BEY-INT-01)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from roles.descheduler.columns import Columns
from roles.descheduler.framework.effects import PAUSE, Evict, Turn
from roles.descheduler.framework.handle import Handle
from roles.descheduler.framework.plugin import DESCHEDULE
from roles.descheduler.selection import PodChoice, SelectionArgs, optional_selector
from roles.descheduler.snapshot import NodeView, PodView


class RemoveInterferingPodsArgs(SelectionArgs):
    """RemoveInterferingPods. A request in a NodeMetric older than `maxMetricAgeSeconds` does not count."""

    max_metric_age_seconds: int = Field(300, ge=1)
    """Age of a NodeMetric beyond which what it asks for does not count."""


class RemoveInterferingPods:
    """A Deschedule plugin without memory. One pod leaves a node at a time, as the next report may ask for no other one."""

    name: ClassVar[str] = "RemoveInterferingPods"
    point: ClassVar[str] = DESCHEDULE

    def __init__(self, args: RemoveInterferingPodsArgs, interval: float) -> None:
        self.args = args
        self._nodes = optional_selector(args.node_selector)
        self._choice = PodChoice(args.evictable_namespaces, args.pod_selectors)

    def turn(self, nodes: list[NodeView], handle: Handle) -> Turn:
        """The pods that agents ask to move, longest first."""
        if self.args.paused:
            handle.note("the plugin is paused by its arguments")
            return
        selected = [node for node in nodes if self._nodes is None or self._nodes.matches(node.node.metadata.labels)]
        columns = yield from Columns.paced(selected)
        if self.args.node_fit and any(node.asked for node in selected):
            for _ in columns.learn():
                yield PAUSE
        for node in selected:
            if handle.pause():
                yield PAUSE
            if node.metric_age > self.args.max_metric_age_seconds:
                continue
            for view, target in self._candidates(node, columns, handle):
                request = node.asked[view.key]
                reason = f"pod {request.get('victim', 'unknown')} waits for {request.get('signal', 'unknown')} because of it"
                numbers: dict[str, float | int | str] = {key: value for key, value in request.items() if key != "reason"}
                if (yield Evict(view.pod, reason, target, numbers, self.args.dry_run)):
                    break
        yield from columns.free(handle)

    def _candidates(self, node: NodeView, columns: Columns, handle: Handle) -> Iterator[tuple[PodView, str]]:
        refuse = self._choice.filter_with(handle.filter)
        asked = [view for view in node.pods if view.key in node.asked and not view.leaving]
        if gone := node.asked.keys() - {view.key for view in asked}:
            names = ", ".join(sorted(gone))
            handle.note(f"no pod leaves node {node.name} before a report without {names}, on the way out or gone")
            return
        for view in sorted(asked, key=lambda view: (node.asked[view.key].get("since", ""), view.key)):
            if why := refuse(view.pod):
                handle.note(f"pod {view.key} is asked to leave node {node.name} and may not: {why}")
                continue
            target = columns.elsewhere(view) if self.args.node_fit else ""
            if self.args.node_fit and not target:
                handle.note(f"pod {view.key} is asked to leave node {node.name}, and no other node has room for it")
                continue
            yield view, target
