"""The runtime proxy of a machine and the hook servers that registered with it: whether their sockets are there and answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from roles.koordlet.host.root import HostRoot, rooted
from roles.runtime_proxy.registration import FAIL, HookServer, RegistrationError, content_of, faults, parse_registration, registrations
from roles.tools.doctor.facts import HookSocket, HostFacts
from roles.tools.doctor.finding import Finding, fail, ok, warn

PROXY = "koord-runtimeproxy/runtimeproxy.sock"
_PATIENCE = 2.0  # seconds


async def gather(root: HostRoot, *, live: bool) -> tuple[HookSocket, ...]:
    """Every registration and what its socket says; a socket in a tree of files is only looked for."""
    found = []
    for server in _registered(root):
        if isinstance(server, HookSocket):
            found.append(server)
            continue
        path = rooted(root.root, server.endpoint)
        problem = _missing(path) or (await _refusal(path) if live else "") or "; ".join(faults(server))
        found.append(HookSocket(server.source, server.endpoint, _binding(server), problem))
    return tuple(found)


def _registered(root: HostRoot) -> Iterator[HookServer | HookSocket]:
    """The registrations, in the order in which servers are asked; one that cannot be used as a finding."""
    try:
        files = registrations(Path(root.hooks_config))
    except OSError:
        return
    for file in files:
        try:
            yield parse_registration(file.name, content_of(file))
        except (OSError, RegistrationError) as error:
            yield HookSocket(file.name, "", False, str(error))


def _binding(server: HookServer) -> bool:
    return server.failure_policy == FAIL and any(hook.startswith("Pre") for hook in server.hooks)


def _missing(path: str) -> str:
    return "" if os.path.exists(path) else "its socket is not there"


async def _refusal(path: str) -> str:
    """Why nobody can be asked at a socket that is there; "" when somebody can."""
    try:
        async with asyncio.timeout(_PATIENCE):
            _, writer = await asyncio.open_unix_connection(path)
    except TimeoutError:
        return "its socket does not accept connections"
    except OSError as error:
        return f"no process listens on its socket: {error.strerror}"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


def judge(facts: HostFacts) -> Iterator[Finding]:
    """The runtime proxy, where there is one, and who is asked by it."""
    proxy = facts.runtime_proxy
    if proxy is None:
        return
    if proxy.error:
        how = "systemctl restart koord-runtime-proxy (its log says why); while it is away kubelet has no runtime"
        yield fail("runtime proxy", f"{proxy.path} does not answer: {proxy.error}", how)
    else:
        yield ok("runtime proxy", f"{proxy.path}: {proxy.answer or 'exists'}")
    if not facts.hook_sockets:
        yield warn(
            "hook servers", "none is registered", "start koordlet: it registers itself; without a hook server the proxy changes nothing"
        )
    for one in facts.hook_sockets:
        where = f"{one.source} at {one.endpoint}" if one.endpoint else one.source
        if not one.problem:
            yield ok("hook servers", where)
        elif one.binding:
            how = "start that server, or take its registration away: its policy is Fail, so that no pod starts without it"
            yield fail("hook servers", f"{where}: {one.problem}", how)
        else:
            how = "see that the server runs (koordlet makes its socket again within seconds); until then pods start without its hooks"
            yield warn("hook servers", f"{where}: {one.problem}", how)
