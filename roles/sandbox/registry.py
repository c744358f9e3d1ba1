"""The roles of a sandbox: one row a role, run inside this process or as processes of their own.

A row's `start` builds the role's own `App` on the sandbox's client and informers; its `arguments` are the command line that does the same
in a process. Both come from the same settings, so that the two ways behave alike.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koord.process.errors import FatalError
from roles.sandbox import objects
from roles.sandbox.rolesets import descheduler, koordlet, manager, scheduler

if TYPE_CHECKING:
    from roles.sandbox.compose import Sandbox

log = logging.getLogger(__name__)

END_SECONDS = 2.0
READY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Role:
    """One role. `local_only` roles run only where this machine is a node."""

    name: str
    start: Callable[[Sandbox], Awaitable[None]]
    arguments: Callable[[Sandbox], list[str]]
    local_only: bool = False
    awaited: bool = False
    """Whether pods must not be created before it is ready."""


# The manager is first: its webhooks must stand before pods are created.
ROLES: tuple[Role, ...] = (
    Role("manager", manager.start, manager.arguments, awaited=True),
    Role("scheduler", scheduler.start, scheduler.arguments, awaited=True),
    Role("descheduler", descheduler.start, descheduler.arguments),
    Role("koordlet", koordlet.start, koordlet.arguments, local_only=True),
)


async def start(sandbox: Sandbox) -> None:
    """Start every role that has a place here, and wait for those that pods depend on. Raises what a role raises, or FatalError."""
    for role in ROLES:
        if role.local_only and sandbox.kubelet is None:
            continue
        if sandbox.processes:
            await _spawn(sandbox, role)
        else:
            await role.start(sandbox)
        sandbox.endpoints[role.name] = f"http://127.0.0.1:{sandbox.port(role.name)}"
    for role in ROLES:
        if role.awaited:
            await _ready(sandbox, role.name)


async def _ready(sandbox: Sandbox, name: str) -> None:
    """Wait for a role's `/readyz`. Raises FatalError with its answer when it does not come."""
    import aiohttp

    url, answer = f"{sandbox.endpoints[name]}/readyz?verbose", "no answer"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + READY_SECONDS
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as session:
        while loop.time() < deadline and not sandbox.life.stopping.is_set():
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


async def _spawn(sandbox: Sandbox, role: Role) -> None:
    """Start a role as a process; its log goes to the run's directory, and its end is the end of the sandbox."""
    log_path = sandbox.scratch / f"{role.name}.log"
    argv = [*objects.self_command(), role.name, f"--kubeconfig={sandbox.kubeconfig}", *role.arguments(sandbox)]
    env = {**os.environ, **objects.python_env(), "NODE_NAME": "local", "agent_mode": "hostMode", "POD_NAMESPACE": objects.SYSTEM_NAMESPACE}
    env |= sandbox.environment.get(role.name, {})
    with log_path.open("ab") as output:
        process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env=env)
    sandbox.children.append(process)
    sandbox.life.spawn(_watch(sandbox, role.name, process), f"process {role.name}")


async def _watch(sandbox: Sandbox, name: str, process: asyncio.subprocess.Process) -> None:
    code = await process.wait()
    if not sandbox.life.stopping.is_set():
        sandbox.life.fail(f"role {name} ended with status {code}; its log is {sandbox.scratch / f'{name}.log'}")


async def stop(sandbox: Sandbox) -> None:
    """End the role processes: SIGTERM to all, SIGKILL to those that remain."""
    alive = [p for p in sandbox.children if p.returncode is None]
    for process in alive:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    if alive:
        await asyncio.wait([asyncio.ensure_future(p.wait()) for p in alive], timeout=END_SECONDS)
    for process in alive:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
