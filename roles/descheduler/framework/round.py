"""One round: every profile's Deschedule plugins, then every profile's Balance plugins (DS-FW-01). Pure: a picture in, records out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from koord.api.objects import Pod
from koord.config.selectors import LabelSelector
from koord.decisions.record import Record
from roles.descheduler import registry
from roles.descheduler.config import DeschedulerConfiguration, ResolvedProfile
from roles.descheduler.evictability import evictability
from roles.descheduler.framework.handle import Counts, Handle, Limits
from roles.descheduler.picture import NodeView, PodView, is_ready


@dataclass(slots=True)
class Outcome:
    """What a round decided, or why there was none."""

    records: list[Record]
    nodes: int
    would_evict: int
    skipped: str = ""


class Profile:
    """A profile with its plugins made; they keep their memory (detectors) from round to round."""

    def __init__(self, profile: ResolvedProfile, interval: float) -> None:
        self.name = profile.name
        self.selector = LabelSelector.compile(profile.node_selector) if profile.node_selector is not None else None
        self.filter_args = profile.args["MigrationController"]
        made = {name: factory(profile.args[name], interval) for name, _, factory in registry.PLUGINS if name in profile.args}
        self.plugins: dict[str, list[Any]] = {
            point: [made[name] for name in profile.plugins[point] if name in made] for point in ("deschedule", "balance")
        }


class Rounds:
    """Runs rounds over pictures. Holds no connection and no clock."""

    def __init__(self, config: DeschedulerConfiguration, profiles: Iterable[ResolvedProfile]) -> None:
        self._selector = LabelSelector.compile(config.node_selector) if config.node_selector is not None else None
        self._limits = Limits(
            config.max_no_of_pods_to_evict_per_node, config.max_no_of_pods_to_evict_per_namespace, config.max_no_of_pods_to_evict_total
        )
        self._profiles = [Profile(profile, config.descheduling_interval) for profile in profiles]

    def run(self, nodes: list[NodeView], now: float, priority_of_class: Callable[[str], int | None]) -> Outcome:
        """One round. `now` is in seconds since the epoch."""
        chosen = [node for node in nodes if is_ready(node.node) and _matches(self._selector, node)]
        if len(chosen) <= 1:
            return Outcome([], len(chosen), 0, f"{len(chosen)} ready nodes match, at least two are needed to move anything")
        counts = Counts()
        handles = {profile.name: self._handle(profile, now, counts, priority_of_class) for profile in self._profiles}
        for point in ("deschedule", "balance"):
            for profile in self._profiles:
                mine = [node for node in chosen if _matches(profile.selector, node)]
                for plugin in profile.plugins[point]:
                    getattr(plugin, point)(mine, handles[profile.name])
        records = [record for handle in handles.values() for record in handle.records]
        return Outcome(records, len(chosen), counts.total)

    def _handle(self, profile: Profile, now: float, counts: Counts, priority_of_class: Callable[[str], int | None]) -> Handle:
        why_not: Callable[[Pod], str] = evictability(profile.filter_args, priority_of_class)

        def of_view(view: PodView) -> str:
            return why_not(view.pod)

        return Handle(profile.name, now, self._limits, counts, of_view)


def _matches(selector: LabelSelector | None, node: NodeView) -> bool:
    return selector is None or selector.matches(node.node.metadata.labels)
