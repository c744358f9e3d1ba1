"""Carries a network plan out through tc, ipset and iptables, in the background (KA-HK-09)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from koord import seams
from roles.koordlet.actuation.journal_lines import Entry
from roles.koordlet.actuation.threeway import Undo
from roles.koordlet.hooks import tcplan
from roles.koordlet.hooks.hook import Hook
from roles.koordlet.hooks.tcplan import Command, NetworkPlan
from roles.koordlet.host.root import HostRoot
from roles.koordlet.host.tools import environment, locate

log = logging.getLogger(__name__)

TIMEOUT = 5.0
#: What was brought about is checked again after so long (seconds).
AGAIN = 60.0
_ROOT = re.compile(r"qdisc \S+ \S+ root\b")
#: A root qdisc that somebody chose; what the kernel chose has the handle 0:.
_CHOSEN = re.compile(r"qdisc (\w+) ([1-9a-f][0-9a-f]*): root\b")
#: The root qdisc of the tree; before iproute2 5 the default class has no 0x.
_TREE = re.compile(r"qdisc htb 1: root\b.* default (0x)?2\b")
#: What ``tc`` says of a NIC that is not there.
GONE = "Cannot find device"


@dataclass(frozen=True, slots=True)
class Result:
    status: int
    output: str
    errors: str


Runner = Callable[[Command], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class OnRecord:
    """What the root qdiscs of shaped NICs were before they were replaced, by a hook's record; ``sys`` is where sysfs is."""

    hook: Hook[Any]
    sys: str

    def read(self) -> dict[str, str]:
        """By NIC; "" where that is not known."""
        return {device: entry.value for device, entry in self._entries().items()}

    def add(self, device: str, qdisc: str) -> bool:
        """What was added first stays. False: it cannot be put on record."""
        return self.hook.note(Entry(f"{self.sys}/class/net/{device}", qdisc, Undo.NETWORK, "qdisc"))

    def drop(self, device: str) -> None:
        """Forget a NIC that is on record."""
        self.hook.forget(self._entries()[device])

    def _entries(self) -> dict[str, Entry]:
        return {os.path.basename(entry.path): entry for entry in self.hook.noted(Undo.NETWORK)}


class CommandError(Exception):
    """A command could not be run or failed."""


async def run_command(command: Command, root: HostRoot | None = None) -> Result:
    """Run a program, the machine's own if need be, for at most :data:`TIMEOUT` seconds. Raises CommandError."""
    program = locate(command[0], root)
    if program is None:
        raise CommandError(f"{command[0]}: No such file or directory; it is needed for network QoS")
    try:
        process = await asyncio.create_subprocess_exec(
            *program,
            *command[1:],
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise CommandError(f"{command[0]}: {error.strerror}; it is needed for network QoS") from None
    try:
        out, err = await asyncio.wait_for(process.communicate(), TIMEOUT)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise CommandError(f"{' '.join(command)}: did not end within {TIMEOUT:g} s") from None
    return Result(process.returncode or 0, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


class Commands:
    """What a NIC is asked and given back by."""

    def __init__(self, runner: Runner) -> None:
        self._run = runner

    async def _must(self, command: Command) -> str:
        result = await self._run(command)
        if result.status != 0:
            raise CommandError(f"{' '.join(command)}: {(result.errors or result.output).strip() or f'status {result.status}'}")
        return result.output

    async def _give_back(self, device: str, before: str) -> None:
        """Remove the tree, and give the NIC the kind of root qdisc back that somebody had chosen, unless another one was chosen since."""
        shown = await self._root(device)
        if _TREE.match(shown):
            await self._must(("tc", "qdisc", "del", "dev", device, "root"))
        elif _CHOSEN.match(shown):
            return
        if chosen := _CHOSEN.match(before):
            await self._must(("tc", "qdisc", "replace", "dev", device, "root", "handle", f"{chosen[2]}:", chosen[1]))

    async def undo(self, device: str, before: str) -> None:
        """Give a NIC back, whose root qdisc was ``before``, and remove what is known by its names. Raises CommandError."""
        await self._give_back(device, before)
        for name in tcplan.SETS:
            with contextlib.suppress(CommandError):  # without the tools there is nothing of theirs to remove
                if (await self._run(tcplan.rule_of(name, "-C"))).status == 0:
                    await self._must(tcplan.rule_of(name, "-D"))
                if (await self._run(("ipset", "list", "-name", tcplan.SETS[name]))).status == 0:
                    await self._must(("ipset", "destroy", tcplan.SETS[name]))

    async def _root(self, device: str) -> str:
        """The line of the root qdisc; not every tool can be asked for it alone."""
        shown = await self._must(("tc", "qdisc", "show", "dev", device))
        return next((line for line in shown.splitlines() if _ROOT.match(line)), "")


class NetworkApplier(Commands):
    """One change at a time; the newest wanted plan wins. A failed one is tried again when it is wanted again."""

    def __init__(self, runner: Runner, record: OnRecord, clock: Callable[[], float] = seams.monotonic) -> None:
        super().__init__(runner)
        self._record = record
        self._clock = clock
        self._wanted: NetworkPlan | None = None
        self._done: NetworkPlan | None = None
        self._done_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._complaint = ""
        self._lacking: set[str] = set()

    def want(self, wanted: NetworkPlan) -> None:
        """Bring a plan about soon."""
        self._wanted = wanted
        fresh = wanted == self._done and self._clock() - self._done_at < AGAIN
        if not fresh and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._work(), name="network QoS")

    async def settled(self) -> None:
        """Wait for what is under way."""
        if self._task is not None:
            await self._task

    async def _work(self) -> None:
        while (wanted := self._wanted) is not None:
            try:
                await (self._set_up(wanted) if wanted.active else self._take_down(wanted.device))
                await self._leave_others(wanted.device)
            except CommandError as error:
                if str(error) != self._complaint:
                    log.warning("network QoS: %s", error)
                self._complaint = str(error)
                self._done = None
                return
            if self._complaint or wanted != self._done:
                log.info("network QoS on %s is %s", wanted.device, "set up" if wanted.active else "off")
            self._complaint, self._done, self._done_at = "", wanted, self._clock()
            if wanted == self._wanted:
                return

    # -- steps ---------------------------------------------------------------------------------------------------------------

    async def _set_up(self, wanted: NetworkPlan) -> None:
        shown = await self._root(wanted.device)
        ours = _TREE.match(shown) is not None
        if not ours and _CHOSEN.match(shown) and wanted.device in self._record.read():
            self._record.drop(wanted.device)  # somebody has chosen another one since
        if not self._record.add(wanted.device, "" if ours else shown):
            raise CommandError(f"the root qdisc of {wanted.device} cannot be put on record; it is left alone")
        if not ours:
            await self._must(tcplan.qdisc(wanted))
        for command in tcplan.classes(wanted):
            await self._must(command)
        shown = await self._must(("tc", "filter", "show", "dev", wanted.device, "parent", "1:"))
        for command in tcplan.filters(wanted, shown):
            result = await self._run(command)
            if result.status != 0:
                self._without(command, result)
        for command in tcplan.stale_classes(wanted, await self._must(("tc", "class", "show", "dev", wanted.device))):
            result = await self._run(command)
            if result.status != 0 and command[1] == "class":
                raise CommandError(f"{' '.join(command)}: {result.errors.strip()}")
        for name, addresses in wanted.members:
            await self._must(("ipset", "create", tcplan.SETS[name], "hash:ip", "-exist"))
            if (await self._run(tcplan.rule_of(name, "-C"))).status != 0:
                await self._must(tcplan.rule_of(name, "-A"))
            for command in tcplan.set_changes(name, addresses, await self._must(("ipset", "save", tcplan.SETS[name]))):
                await self._must(command)

    def _without(self, command: Command, result: Result) -> None:
        """A kernel without a kind of filter: the other ways to find a class still work."""
        kind = "cgroup" if "cgroup" in command else "u32"
        if kind not in self._lacking:
            self._lacking.add(kind)
            log.warning("network QoS: %s: %s; traffic is not classified that way", " ".join(command), result.errors.strip())

    async def _leave_others(self, device: str) -> None:
        """NICs that the default route has left are not shaped any more. Those that are gone took their rules along; the others are tried
        again with the next look."""
        for other, before in self._record.read().items():
            if other == device:
                continue
            try:
                await self._give_back(other, before)
            except CommandError as error:
                if GONE not in str(error):
                    log.warning("network QoS: %s is still shaped: %s", other, error)
                    continue
            self._record.drop(other)

    async def _take_down(self, device: str) -> None:
        """Remove what this agent, now or in a former life, set up."""
        recorded = self._record.read()
        await self.undo(device, recorded.get(device, ""))
        if device in recorded:
            self._record.drop(device)
