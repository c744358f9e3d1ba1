"""Asks the hooks that are on, in the order of their names, and lays their answers over each other. No I/O.

A hook that fails is logged once a text and left out; what others answered stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from koord import seams
from roles.koordlet.hooks.context import NOTHING, Answer, ContainerContext, HostAppContext, PodContext, Stage
from roles.koordlet.hooks.hook import Hook, PartialAnswerError, RuleError
from roles.koordlet.states.model import Snapshot

log = logging.getLogger(__name__)

#: (hook, stage or "", seconds, whether it worked)
Observer = Callable[[str, str, float, bool], None]


class HookError(Exception):
    """A hook failed and the failure policy says that the request fails with it."""

    def __init__(self, hook: str, about: str, detail: str) -> None:
        super().__init__(f"hook {hook}, {about}: {detail}")


@dataclass(slots=True)
class Answers:
    """All answers in one, and which hook each field is of."""

    answer: Answer = NOTHING
    owners: dict[str, str] = field(default_factory=dict)

    def add(self, hook: str, answer: Answer) -> None:
        self.answer = answer.over(self.answer)
        self.owners.update((name, hook) for name, _ in answer.set_fields())

    def only(self, wanted: Callable[[str], bool]) -> Answers:
        """The answers without the fields of hooks that are not wanted."""
        fields = {name: value for name, value in self.answer.set_fields() if wanted(self.owners[name])}
        return Answers(Answer(**fields), {name: self.owners[name] for name in fields})


class Asking:
    """The hooks of this process with their rules. ``strict``: the first failing hook fails the request."""

    def __init__(self, hooks: Sequence[Hook[Any]], *, strict: bool = False, observe: Observer | None = None) -> None:
        self.hooks = tuple(sorted(hooks, key=lambda h: h.name))
        self._rules: dict[str, Any] = {}
        self._told: dict[tuple[str, str], str] = {}
        self.strict = strict
        self._observe = observe

    def rule(self, hook: Hook[Any]) -> Any:
        return self._rules.get(hook.name)

    def learn(self, snapshot: Snapshot) -> frozenset[str]:
        """Take what the snapshot says into the rules; names of hooks whose rule changed."""
        changed = set()
        for hook in self.hooks:
            last = self._rules.get(hook.name)
            try:
                rule = hook.learn(snapshot, last)
                self.well(hook.name, "rule")
            except RuleError as error:
                rule = last if error.rule is None else error.rule
                self.trouble(hook.name, "rule", RuleError(f"{error}; the last good value stays"))
            except Exception as error:
                rule = last
                self.trouble(hook.name, "rule", error)
            if rule != last:
                changed.add(hook.name)
                self._rules[hook.name] = rule
        return frozenset(changed)

    # -- questions -----------------------------------------------------------------------------------------------------------

    def pod(self, pod: PodContext, stage: Stage | None = None, hooks: Iterable[Hook[Any]] | None = None) -> Answers:
        """``stage`` None: the reconciler asks. Raises HookError when strict."""
        asked = self._asked(hooks, stage, lambda h: h.pod_stages)
        return self._ask(asked, f"pod {pod.key}", stage, lambda h: h.pod(pod, self.rule(h)))

    def container(self, container: ContainerContext, stage: Stage | None = None, hooks: Iterable[Hook[Any]] | None = None) -> Answers:
        asked = self._asked(hooks, stage, lambda h: h.container_stages)
        about = f"pod {container.pod.key} container {container.name or '(sandbox)'}"
        return self._ask(asked, about, stage, lambda h: h.container(container, self.rule(h)))

    def kube_qos(self, kube_qos: str, hooks: Iterable[Hook[Any]] | None = None) -> Answers:
        asked = self._asked(hooks, None, lambda h: ())
        return self._ask(asked, f"Kubernetes QoS class {kube_qos}", None, lambda h: h.kube_qos(kube_qos, self.rule(h)))

    def host_app(self, app: HostAppContext, hooks: Iterable[Hook[Any]] | None = None) -> Answers:
        asked = self._asked(hooks, None, lambda h: ())
        return self._ask(asked, f"host application {app.name}", None, lambda h: h.host_app(app, self.rule(h)))

    def forget(self, about: Iterable[str]) -> None:
        """Drop what was logged about pods (by key) that are gone."""
        prefixes = tuple(f"pod {key}" for key in about)
        for key in [k for k in self._told if prefixes and k[1].startswith(prefixes)]:
            del self._told[key]

    # -- inside --------------------------------------------------------------------------------------------------------------

    def _asked(
        self, hooks: Iterable[Hook[Any]] | None, stage: Stage | None, stages: Callable[[Hook[Any]], tuple[Stage, ...]]
    ) -> list[Hook[Any]]:
        chosen = self.hooks if hooks is None else hooks
        if stage is None:
            return [h for h in chosen if not h.request_only]
        return [h for h in chosen if stage in stages(h)]

    def _ask(self, hooks: list[Hook[Any]], about: str, stage: Stage | None, question: Callable[[Hook[Any]], Answer | None]) -> Answers:
        answers = Answers()
        for hook in hooks:
            begun = seams.perf_counter()
            worked = True
            try:
                answer = question(hook)
                if answer is not None:
                    answers.add(hook.name, answer)
                self.well(hook.name, about)
            except Exception as error:
                worked = False
                if isinstance(error, PartialAnswerError):
                    answers.add(hook.name, error.answer)
                text = self.trouble(hook.name, about, error)
                if self.strict and stage is not None:
                    raise HookError(hook.name, about, text) from None
            finally:
                if self._observe is not None and stage is not None:
                    self._observe(hook.name, stage, seams.perf_counter() - begun, worked)
        return answers

    def trouble(self, hook: str, about: str, error: Exception) -> str:
        """Log what a hook failed of, once a text. A mistake of its own (no ValueError) must not take the others' isolation away."""
        mistake = not isinstance(error, ValueError)
        text = f"{type(error).__name__}: {error}" if mistake else str(error)
        if self._told.get((hook, about)) != text:
            self._told[(hook, about)] = text
            log.warning("hook %s, %s: %s", hook, about, text, exc_info=error if mistake else None)
        return text

    def well(self, hook: str, about: str) -> None:
        """The hook works again there."""
        self._told.pop((hook, about), None)
