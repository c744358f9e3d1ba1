"""Hook servers that registered themselves by a JSON file (RP-REG-01, RP-REG-02). Parsing is pure; reading is `RegistrationDirectory`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import orjson

from roles.runtime_proxy.hooktypes import HOOK_METHODS, NEVER_FIRES
from roles.runtime_proxy.options import socket_path

log = logging.getLogger(__name__)

FAIL, IGNORE = "Fail", "Ignore"
_MAX_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class HookServer:
    """One registration: where the server listens, what it wants to hear, and whether its errors are fatal."""

    source: str  # file name, the order in which servers are asked
    endpoint: str  # path of a unix socket
    hooks: tuple[str, ...]
    failure_policy: str = ""
    partial: bool = False  # an answer names what it changes; without this an empty cpuset or an OOM score of 0 is a value

    @property
    def fails(self) -> bool:
        return self.failure_policy == FAIL


class RegistrationError(ValueError):
    """A registration file that cannot be used; the text says which key and what is accepted."""


def parse_registration(source: str, content: bytes) -> HookServer:
    """Parse one registration file. Raises RegistrationError."""
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise RegistrationError(f"{source}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise RegistrationError(f"{source}: expected an object with remote-endpoint, failure-policy and runtime-hooks")
    endpoint = document.get("remote-endpoint")
    try:
        endpoint = str(socket_path(endpoint if isinstance(endpoint, str) else ""))
    except ValueError:
        raise RegistrationError(f"{source}: remote-endpoint must be the path of a unix socket, found {endpoint!r}") from None
    hooks = [] if document.get("runtime-hooks") is None else document["runtime-hooks"]
    if not isinstance(hooks, list) or not all(isinstance(hook, str) for hook in hooks):
        raise RegistrationError(f"{source}: runtime-hooks must be a list of hook type names, found {hooks!r}")
    policy = "" if document.get("failure-policy") is None else document["failure-policy"]
    if not isinstance(policy, str):
        raise RegistrationError(f"{source}: failure-policy must be Fail or Ignore, found {policy!r}")
    partial = document.get("partial-answers", False)
    if not isinstance(partial, bool):
        raise RegistrationError(f"{source}: partial-answers must be true or false, found {partial!r}")
    return HookServer(source, endpoint, tuple(hooks), policy, partial)


def registrations(directory: Path) -> list[Path]:
    """The regular files of a directory whose names end in json, in the order in which servers are asked. Raises OSError."""
    return [directory / name for name in sorted(os.listdir(directory)) if name.endswith("json") and os.path.isfile(directory / name)]


def content_of(file: str | os.PathLike[str]) -> bytes:
    """What a registration file holds, as far as it is read. Raises OSError."""
    with open(file, "rb") as opened:
        return opened.read(_MAX_FILE)


def unknown_hooks(server: HookServer) -> list[str]:
    """Hook type names of a registration that can never fire."""
    return [hook for hook in server.hooks if hook not in HOOK_METHODS and hook not in NEVER_FIRES]


def faults(server: HookServer) -> list[str]:
    """What is wrong with a registration that can be used all the same; each with its key and what is accepted."""
    found = [f"runtime-hooks: {hook!r} does not exist; accepted: {', '.join(HOOK_METHODS)}" for hook in unknown_hooks(server)]
    if server.failure_policy not in ("", FAIL, IGNORE):
        found.append(f"failure-policy: {server.failure_policy!r} is not known; accepted: {FAIL}, {IGNORE}")
    return found


def never_asked(servers: Iterable[HookServer]) -> list[str]:
    """Which server is not asked for which hook type, because another one comes first."""
    first: dict[str, str] = {}
    found = []
    for server in servers:
        for hook in dict.fromkeys(server.hooks):
            if hook in HOOK_METHODS and first.setdefault(hook, server.source) != server.source:
                found.append(f"{server.source} is never asked for {hook}: {first[hook]}, which comes first, is")
    return found


def first_for(servers: Iterable[HookServer], hook: str) -> HookServer | None:
    """The one server that is asked for a hook type: the first in file-name order that lists it."""
    return next((server for server in servers if hook in server.hooks), None)


class RegistrationDirectory:
    """The directory of registration files, read again when a file's identity, size or modification time changed.

    A file that stops being readable keeps its last good content; a file that never was good is left out; both are said once
    per version of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._servers: dict[str, HookServer] = {}
        self._unreadable: dict[str, int] = {}  # names of files that cannot be read, and why: said once, tried again each time

    @property
    def servers(self) -> tuple[HookServer, ...]:
        return tuple(self._servers[name] for name in sorted(self._servers))

    def refresh(self) -> bool:
        """Read what changed. Returns True when the set of servers changed."""
        before = self.servers
        present: set[str] = set()
        try:
            files = registrations(self._path)
        except OSError as error:
            if self._seen.get("") != (error.errno or 0, 0, 0):
                self._seen[""] = (error.errno or 0, 0, 0)
                log.error("cannot list hook registrations in %s: %s; the last known ones stay", self._path, error.strerror)
            return False
        self._seen.pop("", None)
        for file in files:
            present.add(file.name)
            self._load(file)
        self._unreadable = {name: why for name, why in self._unreadable.items() if name in present}
        for name in set(self._seen) - present:
            del self._seen[name]
            if self._servers.pop(name, None):
                log.info("hook server %s was withdrawn", name)
        if before == self.servers:
            return False
        for line in never_asked(self.servers):
            log.warning("hook server %s", line)
        return True

    def _load(self, file: Path) -> None:
        try:
            status = file.stat()
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            if self._seen.get(file.name) == version:
                return
            content = content_of(file)
        except OSError as error:
            if self._unreadable.get(file.name) != (error.errno or 0):
                self._unreadable[file.name] = error.errno or 0
                log.warning("cannot read hook registration %s: %s; it is tried again", file, error.strerror)
            return
        self._unreadable.pop(file.name, None)
        self._seen[file.name] = version
        try:
            server = parse_registration(file.name, content)
        except RegistrationError as error:
            kept = "its last good content stays" if file.name in self._servers else "it is ignored"
            log.error("hook registration %s; %s", error, kept)
            return
        for fault in faults(server):
            log.warning("hook registration %s: %s; %s", file.name, fault, "it is used as Ignore" if "policy" in fault else "it never fires")
        self._servers[file.name] = server
        log.info(
            "hook server %s at %s for %s, failure policy %s",
            file.name,
            server.endpoint,
            ", ".join(server.hooks),
            server.failure_policy or "none",
        )
