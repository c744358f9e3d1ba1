"""Pods found by namespace and labels, so that a selector looks at the pods that it may mean and at no others. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from koord.api.selectors import Selector
from roles.descheduler.picture import PodView


class PodIndex:
    """Pods by namespace and by each of their labels. Answers come in the order in which pods were added."""

    def __init__(self, views: Iterable[PodView] = ()) -> None:
        self._pods: dict[str, list[PodView]] = {}
        self._labelled: dict[tuple[str, str, str], list[int]] = {}
        for view in views:
            self.add(view)

    def add(self, view: PodView) -> None:
        """One more pod."""
        namespace = view.pod.metadata.namespace
        pods = self._pods.setdefault(namespace, [])
        for key, value in view.pod.metadata.labels.items():
            self._labelled.setdefault((namespace, key, value), []).append(len(pods))
        pods.append(view)

    def matching(self, namespace: str, selector: Selector) -> list[PodView]:
        """Pods of a namespace that the selector matches. Costs as much as the rarest label that the selector asks for is common."""
        pods = self._pods.get(namespace, [])
        if selector.nothing or not pods:
            return []
        wanted = [requirement for requirement in selector.requirements if requirement.operator == "In"]
        if not wanted:
            return [view for view in pods if selector.matches(view.pod.metadata.labels)]
        found = min(([self._labelled.get((namespace, each.key, value), []) for value in each.values] for each in wanted), key=_count)
        numbers = found[0] if len(found) == 1 else sorted(number for numbers in found for number in numbers)
        return [pods[number] for number in numbers if selector.matches(pods[number].pod.metadata.labels)]


def _count(found: list[list[int]]) -> int:
    return sum(map(len, found))
