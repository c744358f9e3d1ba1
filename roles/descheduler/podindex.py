"""Pods found by namespace and labels, so that a selector looks at the pods that it may mean and at no others. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from koord.api.objects import LabelSelector
from koord.api.selectors import Requirement, Selector
from roles.descheduler.picture import PodView


class PodIndex:
    """Pods by namespace and by their labels: by each of them, or by `keys` alone, which costs less where it is known what will be asked.
    Answers come in the order in which pods were added."""

    def __init__(self, views: Iterable[PodView] = (), keys: Collection[str] | None = None) -> None:
        self._keys = keys
        self._spaces: dict[str, _Namespace] = {}
        for view in views:
            self.add(view)

    def add(self, view: PodView) -> None:
        """One more pod."""
        meta = view.pod.metadata
        space = self._spaces.get(meta.namespace)
        if space is None:
            space = self._spaces[meta.namespace] = _Namespace()
        labels, number = meta.labels, len(space.pods)
        for key in labels if self._keys is None else self._keys:
            value = labels.get(key)
            if value is None:
                continue
            by_value = space.labelled.get(key)
            if by_value is None:
                by_value = space.labelled[key] = {}
            found = by_value.get(value)
            if found is None:
                by_value[value] = [number]
            else:
                found.append(number)
        space.pods.append(view)

    def matching(self, namespace: str, selector: Selector) -> list[PodView]:
        """Pods of a namespace that the selector matches. Costs as much as the rarest label that the selector asks for is common."""
        space = self._spaces.get(namespace)
        if selector.nothing or space is None:
            return []
        pods = space.pods
        wanted = [each for each in selector.requirements if each.operator == "In" and (self._keys is None or each.key in self._keys)]
        if not wanted:
            return [view for view in pods if selector.matches(view.pod.metadata.labels)]
        found = min((space.having(each) for each in wanted), key=_count)
        numbers = found[0] if len(found) == 1 else sorted(number for numbers in found for number in numbers)
        if len(selector.requirements) == 1:
            return [pods[number] for number in numbers]
        return [pods[number] for number in numbers if selector.matches(pods[number].pod.metadata.labels)]

    def tables(self) -> Iterator[dict[str, list[int]]]:
        """The large ones among its tables, for whoever frees them bit by bit."""
        return (by_value for space in self._spaces.values() for by_value in space.labelled.values())


class _Namespace:
    """Pods in the order in which they came, and their numbers by the values of labels."""

    __slots__ = ("labelled", "pods")

    def __init__(self) -> None:
        self.pods: list[PodView] = []
        self.labelled: dict[str, dict[str, list[int]]] = {}

    def having(self, requirement: Requirement) -> list[list[int]]:
        by_value = self.labelled.get(requirement.key, {})
        return [by_value.get(value, []) for value in requirement.values]


def _count(found: list[list[int]]) -> int:
    return sum(map(len, found))


def asked_for(selector: LabelSelector | None) -> Iterable[str]:
    """The labels by which pods that a selector means may be found."""
    if selector is None:
        return ()
    return (*selector.match_labels, *(each.key for each in selector.match_expressions if each.operator == "In"))
