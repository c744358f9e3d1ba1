"""The roles of a sandbox: one row a role, run inside this process or as processes of their own.

A row's `start` builds the role's own `App` on the sandbox's client and informers; its `arguments` are the command line that does the same
in a process. Both come from the same settings, so that the two ways behave alike. A role with files of the user's own in it (plugins) is
always a process, started again when they change.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from koord.process.errors import ConfigurationError, FatalError
from roles.sandbox import objects, reload
from roles.sandbox.rolesets import descheduler, koordlet, manager, scheduler

if TYPE_CHECKING:
    from roles.sandbox.compose import Sandbox

log = logging.getLogger(__name__)

END_SECONDS = 2.0
READY_SECONDS = 120.0


def _nothing(sandbox: Sandbox) -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class Role:
    """One role. `local_only` roles run only where this machine is a node."""

    name: str
    start: Callable[[Sandbox], Awaitable[None]]
    arguments: Callable[[Sandbox], list[str]]
    local_only: bool = False
    awaited: bool = False
    """Whether the sandbox is up only when it is ready."""
    sources: Callable[[Sandbox], list[str]] = _nothing
    """Files and folders of the user's own that the role runs."""


# The manager is first: its webhooks must stand before pods are created.
ROLES: tuple[Role, ...] = (
    Role("manager", manager.start, manager.arguments, awaited=True),
    Role("scheduler", scheduler.start, scheduler.arguments, awaited=True, sources=scheduler.sources),
    Role("descheduler", descheduler.start, descheduler.arguments, awaited=True),
    Role("koordlet", koordlet.start, koordlet.arguments, local_only=True),
)


async def start(sandbox: Sandbox) -> None:
    """Start every role that has a place here, and wait until the awaited ones are ready. Raises what a role raises, or FatalError."""
    sandbox.undo(lambda: stop(sandbox))
    for role in ROLES:
        if role.local_only and sandbox.kubelet is None:
            continue
        sandbox.endpoints[role.name] = f"http://127.0.0.1:{sandbox.port(role.name)}"
        sources = role.sources(sandbox)
        if sources and (against := await reload.mistakes(_command(sandbox, role), _environment(sandbox, role))):
            raise ConfigurationError(f"{role.name}: {against}")
        if sandbox.processes or sources:
            process = await _spawn(sandbox, role)
            sandbox.life.spawn(_watch(sandbox, role, process, sources), f"process {role.name}")
        else:
            await role.start(sandbox)
    for role in ROLES:
        if role.awaited:
            await _ready(sandbox, role.name)


async def _ready(sandbox: Sandbox, name: str, process: asyncio.subprocess.Process | None = None) -> None:
    """Wait for a role's `/readyz`, or for the end of its process. Raises FatalError with its answer when it does not come."""
    import aiohttp

    url, answer = f"{sandbox.endpoints[name]}/readyz?verbose", "no answer"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + READY_SECONDS
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as session:
        while loop.time() < deadline and not sandbox.life.stopping.is_set():
            if process is not None and process.returncode is not None:
                return  # whoever waits for it says so
            try:
                async with session.get(url) as response:
                    answer = (await response.text()).strip()
                    if response.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError) as error:
                answer = str(error) or type(error).__name__
            await asyncio.sleep(0.1)
    if not sandbox.life.stopping.is_set():
        raise FatalError(f"role {name} is not ready after {READY_SECONDS:.0f} s: {' '.join(answer.split())}")


def _command(sandbox: Sandbox, role: Role) -> list[str]:
    return [*objects.self_command(), role.name, f"--kubeconfig={sandbox.kubeconfig}", *role.arguments(sandbox)]


def _environment(sandbox: Sandbox, role: Role) -> dict[str, str]:
    roles = {"NODE_NAME": "local", "agent_mode": "hostMode", "POD_NAMESPACE": objects.SYSTEM_NAMESPACE}
    return {**os.environ, **objects.python_env(), **roles, **sandbox.environment.get(role.name, {})}


async def _spawn(sandbox: Sandbox, role: Role) -> asyncio.subprocess.Process:
    """Start a role as a process; its log goes to the run's directory, and its end is the end of the sandbox."""
    argv, env = _command(sandbox, role), _environment(sandbox, role)
    with _log(sandbox, role).open("ab") as output:
        process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env=env)
    sandbox.children.append(process)
    return process


def _log(sandbox: Sandbox, role: Role) -> Path:
    return sandbox.scratch / f"{role.name}.log"


async def _watch(sandbox: Sandbox, role: Role, process: asyncio.subprocess.Process, sources: list[str]) -> None:
    async def again() -> asyncio.subprocess.Process:
        started = await _spawn(sandbox, role)
        await _ready(sandbox, role.name, started)
        return started

    async def mistakes() -> str:
        return await reload.mistakes(_command(sandbox, role), _environment(sandbox, role))

    if sources:
        code = await reload.Reloading(sources, mistakes=mistakes, spawn=again, say=sandbox.say).run(process)
    else:
        code = await process.wait()
    if not sandbox.life.stopping.is_set():
        sandbox.life.fail(f"role {role.name} ended with status {code}; its log is {_log(sandbox, role)}")


async def stop(sandbox: Sandbox) -> None:
    """End the role processes: SIGTERM to all, SIGKILL to those that remain."""
    await asyncio.gather(*(reload.end(process, END_SECONDS) for process in sandbox.children if process.returncode is None))
