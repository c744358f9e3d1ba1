"""Pods found by namespace and labels, so that a selector looks at the pods that it may mean and at no others. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from koord.api.selectors import Requirement, Selector
from roles.descheduler.snapshot import PodView


@dataclass(slots=True, eq=False)
class Alike:
    """Pods of one template: the first of them, and their numbers in the order in which they were added."""

    view: PodView
    template: bytes
    numbers: list[int] = field(default_factory=list)


class PodIndex:
    """Pods by namespace and by their labels. Of each template one pod is looked at. First all pods are added, then `index` learns the
    labels that will be asked for; answers come in the order in which pods were added."""

    def __init__(self) -> None:
        self.rows = array("q")  # of each pod that of its node
        self._of_row: list[list[PodView]] = []  # no list of all pods: the garbage collector would look through it in one go
        self._begins = array("q")
        self.accepted: set[int] = set()  # numbers of pods whose eviction was accepted
        self.templates: dict[bytes, Alike] = {}
        self._spaces: dict[str, _Namespace] = {}

    def view(self, number: int) -> PodView:
        """A pod by its number."""
        row = self.rows[number]
        return self._of_row[row][number - self._begins[row]]

    def places(self) -> Any:
        """`rows` for numpy; after it no pod can be added."""
        return np.frombuffer(self.rows, dtype=np.int64)

    def add(self, views: list[PodView]) -> None:
        """The pods of the next node. The row of a node is kept beside each: hundreds of thousands of pods lie far apart in memory, and
        their nodes' names farther."""
        templates, rows, row = self.templates, self.rows, len(self._of_row)
        self._of_row.append(views)
        self._begins.append(len(rows))
        for number, view in enumerate(views, len(rows)):
            known = view.known
            template = known.template if known is not None and known.template else view.template
            alike = templates.get(template)
            if alike is None:
                alike = templates[template] = Alike(view, template)
            elif known is not None:
                known.template = alike.template  # one object for all: it is found sooner, and the others' memory is free
            if view.accepted:
                self.accepted.add(number)
            alike.numbers.append(number)
        rows.extend([row] * len(views))

    def index(self, keys: Collection[str]) -> Iterator[None]:
        """Learn which pods have which of these labels; stops after each template, so that others may have their turn."""
        for alike in self.templates.values():
            meta = alike.view.pod.metadata
            space = self._spaces.get(meta.namespace)
            if space is None:
                space = self._spaces[meta.namespace] = _Namespace({key: {} for key in keys})
            space.pods.append(alike)
            for key in keys:
                value = meta.labels.get(key)
                if value is not None:
                    space.labelled[key].setdefault(value, []).append(alike)
            yield

    def alike(self, namespace: str, selector: Selector) -> list[Alike]:
        """Pods of a namespace that the selector matches. Costs as much as the rarest label that the selector asks for is common."""
        space = self._spaces.get(namespace)
        if selector.nothing or space is None:
            return []
        wanted = [space.having(each) for each in selector.requirements if each.operator == "In" and each.key in space.labelled]
        found = space.pods
        if wanted:
            rarest = min(wanted, key=lambda each: sum(len(few) for few in each))
            found = [each for few in rarest for each in few]
        if wanted and len(selector.requirements) == 1:
            return found
        return [each for each in found if selector.matches(each.view.pod.metadata.labels)]

    def matching(self, namespace: str, selector: Selector) -> list[PodView]:
        """The same, each of the pods."""
        return [self.view(number) for number in in_order(self.alike(namespace, selector))]

    def tables(self) -> Iterator[dict[Any, Any] | list[Any]]:
        """The large ones among its tables, for whoever frees them bit by bit."""
        yield self.templates
        yield self._of_row
        for space in self._spaces.values():
            yield space.pods
            yield from space.labelled.values()


def in_order(found: list[Alike]) -> Sequence[int]:
    """The numbers of all these pods."""
    return found[0].numbers if len(found) == 1 else sorted(chain.from_iterable(each.numbers for each in found))


@dataclass(slots=True)
class _Namespace:
    labelled: dict[str, dict[str, list[Alike]]]
    pods: list[Alike] = field(default_factory=list)

    def having(self, requirement: Requirement) -> list[list[Alike]]:
        by_value = self.labelled[requirement.key]
        return [by_value.get(value, []) for value in requirement.values]


def asked_for(selector: Selector) -> Iterator[str]:
    """The labels by which pods that a selector means may be found."""
    return (each.key for each in selector.requirements if each.operator == "In")
