"""Asking the one hook server that a stage of a call has (RP-REG-02, RP-REG-03, RP-REG-04), for the CRI and the Docker way alike."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol

from roles.runtime_proxy.hookclient import HookError
from roles.runtime_proxy.hooktypes import POD_HOOKS
from roles.runtime_proxy.registration import HookServer, first_for
from roles.runtime_proxy.sparing import Sparing

log = logging.getLogger(__name__)
log.addFilter(Sparing())


class HookCaller(Protocol):
    async def call(self, server: HookServer, hook_type: str, request: Any, deadline: float | None) -> Any: ...


class HookRefusal(Exception):
    """A pre hook failed and its server's policy is Fail: the call ends with this text and the engine is not asked."""


@dataclass(frozen=True, slots=True)
class HookRules:
    """Which pods hooks are kept away from, and which annotations their answers may set (patterns; `*` is every one)."""

    skip_key: str = ""
    skip_value: str = ""
    annotations: tuple[str, ...] = ("*",)

    def skips(self, labels: Any) -> bool:
        return bool(self.skip_key) and labels.get(self.skip_key) == self.skip_value

    def allows(self, annotation: str) -> bool:
        return any(fnmatchcase(annotation, pattern) for pattern in self.annotations)


class Stages:
    """Pre and post hooks of all calls. An empty hook type means that the call has no hook at that stage."""

    def __init__(
        self,
        hooks: HookCaller,
        servers: Callable[[], tuple[HookServer, ...]],
        rules: HookRules,
        count: Callable[[str, str, str], None],
    ) -> None:
        self._hooks = hooks
        self._servers = servers
        self._rules = rules
        self._count = count

    async def pre(self, hook_type: str, record: Any, labels: Any, deadline: float | None = None) -> Any:
        """The answer of the server asked before the engine, or None. Raises HookRefusal."""
        server = first_for(self._servers(), hook_type)
        if server is None or self._rules.skips(labels):
            return None
        try:
            answer = await self._hooks.call(server, hook_type, record, deadline)
        except HookError as error:
            self._count(hook_type, server.source, "error")
            if server.fails:
                raise HookRefusal(f"hook server err: {error}") from None
            log.warning("%s: %s answered with an error, the request goes on unchanged: %s", hook_type, server.source, error)
            return None
        self._count(hook_type, server.source, "ok")
        annotations = answer.annotations if hook_type in POD_HOOKS else answer.container_annotations
        for key in [key for key in annotations if not self._rules.allows(key)]:
            log.warning("%s: %s may not set annotation %s; it is left out", hook_type, server.source, key)
            del annotations[key]
        return answer

    async def post(self, hook_type: str, record: Any, labels: Any, deadline: float | None = None) -> None:
        """Tell the server after the engine; an error changes nothing."""
        server = first_for(self._servers(), hook_type)
        if server is None or self._rules.skips(labels):
            return
        try:
            await self._hooks.call(server, hook_type, record, deadline)
            self._count(hook_type, server.source, "ok")
        except HookError as error:
            self._count(hook_type, server.source, "error")
            log.warning("%s: %s answered with an error: %s", hook_type, server.source, error)
