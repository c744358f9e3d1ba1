"""How arguments choose namespaces and pods; shared by the plugins (DS-CFG-01)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import model_validator

from koord.api.objects import Pod
from koord.api.selectors import Selector
from koord.config.errors import ConfigError
from koord.config.model import ConfigModel
from koord.config.selectors import compile_selector


class Namespaces(ConfigModel):
    """Either the namespaces that count, or those that do not."""

    include: list[str] = []
    """Only these."""
    exclude: list[str] = []
    """All but these. Not together with include."""

    @model_validator(mode="after")
    def _one(self) -> Namespaces:
        if self.include and self.exclude:
            raise ConfigError("", "only one of include and exclude may be set")
        return self

    def allows(self, namespace: str) -> bool:
        return (not self.include or namespace in self.include) and namespace not in self.exclude


class PodSelector(ConfigModel):
    """A named label selector; one without a selector is ignored."""

    name: str = ""
    """Name of the selector, for records."""
    selector: dict[str, Any] | None = None
    """LabelSelector; one without is passed over."""


class SelectionArgs(ConfigModel):
    """Which nodes a plugin looks at, and which of their pods may leave."""

    paused: bool = False
    """Do nothing."""
    dry_run: bool = False
    """Decide and record, evict nothing."""
    node_selector: dict[str, Any] | None = None
    """LabelSelector of the nodes that are looked at; unset: all."""
    evictable_namespaces: Namespaces | None = None
    """Namespaces whose pods may leave."""
    pod_selectors: list[PodSelector] = []
    """Pods that may leave; one matching selector is enough. Empty: all."""
    node_fit: bool = True
    """A pod may leave only if another node would take it."""

    @model_validator(mode="after")
    def _selectable(self) -> SelectionArgs:
        optional_selector(self.node_selector)
        PodChoice(self.evictable_namespaces, self.pod_selectors)
        return self


class PodChoice:
    """Which pods a plugin may touch: those of its namespaces that match any of its selectors (no selector: all)."""

    def __init__(self, namespaces: Namespaces | None, selectors: Sequence[PodSelector] = ()) -> None:
        """Raises ConfigError for a selector that cannot be used."""
        self._namespaces = namespaces
        self._selectors = [
            compile_selector(entry.selector, f"podSelectors[{index}].selector")
            for index, entry in enumerate(selectors)
            if entry.selector is not None
        ]

    def selected(self, pod: Pod) -> bool:
        """Whether a selector matches, or there is none."""
        return not self._selectors or any(selector.matches(pod.metadata.labels) for selector in self._selectors)

    def refuse(self, pod: Pod) -> str:
        """Why the pod is not chosen, "" when it is."""
        if not self.selected(pod):
            return "no pod selector matches it"
        if self._namespaces is not None and not self._namespaces.allows(pod.metadata.namespace):
            return f"namespace {pod.metadata.namespace} is not evictable by the plugin's arguments"
        return ""

    def filter_with(self, refuse: Callable[[Pod], str]) -> Callable[[Pod], str]:
        """The plugin's own choice after what the profile's filters say."""
        return lambda pod: self.refuse(pod) or refuse(pod)


def optional_selector(selector: dict[str, Any] | None, path: str = "nodeSelector") -> Selector | None:
    """A compiled selector, None for one that was left out. Raises ConfigError."""
    return None if selector is None else compile_selector(selector, path)
