"""Asking the one hook server that a stage of a call has (RP-REG-02, RP-REG-03, RP-REG-04), for the CRI and the Docker way alike."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from roles.runtime_proxy import merge
from roles.runtime_proxy.concurrency import Background
from roles.runtime_proxy.deadline import Deadline, share
from roles.runtime_proxy.hookclient import HookClient, HookError
from roles.runtime_proxy.hooktypes import POD_HOOKS
from roles.runtime_proxy.logfilter import RepeatFilter
from roles.runtime_proxy.registration import HookServer, first_for

log = logging.getLogger(__name__)
log.addFilter(RepeatFilter())

_OPTIONAL = 0.2  # part of what is left of the caller's time that a hook may take when the call goes on without it
_BINDING = 0.75  # the same for a hook whose failure ends the call
_FAREWELL = 1.0  # seconds that post hooks have to end when the process does


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
    """Pre and post hooks of all calls."""

    def __init__(
        self,
        hooks: HookClient,
        servers: Callable[[], tuple[HookServer, ...]],
        rules: HookRules,
        count: Callable[[str, str, str], None],
    ) -> None:
        self._hooks = hooks
        self._servers = servers
        self._rules = rules
        self._count = count
        self._background = Background()

    def asks(self, hook_type: str, labels: Any) -> bool:
        """Whether a server is asked at this stage."""
        return first_for(self._servers(), hook_type) is not None and not self._rules.skips(labels)

    async def pre(self, hook_type: str, record: Any, labels: Any, deadline: Deadline | None = None) -> Any:
        """The answer of the server asked before the engine, or None. Raises HookRefusal.

        A server whose policy is not Fail gets a fifth of what is left of the caller's time: if it hangs, enough is left for the
        engine. One whose policy is Fail gets three quarters: the rest is for saying why the call was refused.
        """
        server = first_for(self._servers(), hook_type)
        if server is None or self._rules.skips(labels):
            return None
        try:
            answer = await self._hooks.call(server, hook_type, record, share(deadline, _BINDING if server.fails else _OPTIONAL))
        except HookError as error:
            self._count(hook_type, server.source, "error")
            if server.fails:
                raise HookRefusal(f"hook server err: {error}") from None
            log.warning("%s: %s answered with an error, the request goes on unchanged: %s", hook_type, server.source, error)
            return None
        self._count(hook_type, server.source, "ok")
        if server.partial:
            merge.complete(answer, record)
        name = "annotations" if hook_type in POD_HOOKS else "container_annotations"
        annotations, known = getattr(answer, name), getattr(record, name)
        for key in [key for key in annotations if not self._rules.allows(key)]:
            if key not in known or known[key] != annotations[key]:  # many servers answer with all that they were told
                log.warning("%s: %s may not set annotation %s; it is left out", hook_type, server.source, key)
            del annotations[key]
        return answer

    def post(self, hook_type: str, record: Any, labels: Any, sandbox_id: str) -> None:
        """Tell the server after the engine, those of one pod in order. Nobody waits: the answer is on its way, an error changes nothing."""
        server = first_for(self._servers(), hook_type)
        if server is None or self._rules.skips(labels):
            return
        told = type(record)()
        told.CopyFrom(record)
        if not self._background.put(sandbox_id, lambda: self._tell(server, hook_type, told)):
            self._count(hook_type, server.source, "dropped")
            log.warning("%s: %s is too slow; it is not told of pod %s", hook_type, server.source, sandbox_id)

    async def _tell(self, server: HookServer, hook_type: str, record: Any) -> None:
        try:
            await self._hooks.call(server, hook_type, record, None)
            self._count(hook_type, server.source, "ok")
        except HookError as error:
            self._count(hook_type, server.source, "error")
            log.warning("%s: %s answered with an error: %s", hook_type, server.source, error)

    async def close(self) -> None:
        """Let post hooks under way end, for a second at most."""
        await self._background.close(_FAREWELL)
