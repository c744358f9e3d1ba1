"""Faults from a seed: what hurts the connections and processes of a world, and when."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from roles.sandbox.world.network import PASS, Rules, Verdict

if TYPE_CHECKING:
    from roles.sandbox.world.history import History
    from roles.sandbox.world.loop import VirtualLoop

ROLES = ("scheduler", "manager", "descheduler")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong between `at` and `at + seconds` (virtual seconds).

    `kind`: one of KINDS; a storm answers with `status`, a clock jumps by `amount` seconds.
    `target`: the name of a process, or "" for all. `share`: how many of the requests meanwhile, 0 to 1. A slow reader takes `amount` bytes
    a second; a process is killed at the write or callback number `count` from then on.
    """

    at: float
    kind: str
    target: str = ""
    seconds: float = 0.0
    share: float = 1.0
    status: int = 0
    amount: float = 0.0
    method: str = ""
    count: int = 0

    def __str__(self) -> str:
        parts = (
            (True, f"{self.at:.1f}s {self.kind}"),
            (self.target, f"of {self.target}"),
            (self.seconds, f"for {self.seconds:.1f}s"),
            (self.share < 1, f"{self.share:.0%} of requests"),
            (self.status, f"status {self.status}"),
            (self.amount, f"by {self.amount:g}"),
            (self.count, f"number {self.count}"),
        )
        return " ".join(text for said, text in parts if said)


_REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
NETWORK = ("lose-request", "lose-answer", "reset", "delay", "stall", "storm", "refuse", "resume", "slow-reader", "dead-address")
PROCESS = ("kill", "kill-step", "kill-before-write", "kill-after-write", "kill-after-commit", "freeze", "terminate")
NODE = ("clock", "silence")
AGENT = ("crash", "disk-full", "read-error", "write-error", "remount", "meddle", "container-exit")
SERVER = ("compact", "cut", "bookmark", "restart", "wipe")
DRAWN = NETWORK + PROCESS + NODE + SERVER
KINDS = DRAWN + AGENT
_ODDS = {"restart": 0.5, "wipe": 0.25, "dead-address": 0.5}
"""How often a kind is drawn in comparison with the others: 1 where it is not said."""
_COUNTS = {"kill-step": 400, "kill-before-write": 8, "kill-after-write": 8, "kill-after-commit": 8}
"""Up to which callback or write of a process is counted, until it is killed there."""
ARMED = 30.0
"""Seconds for which a count goes on; a process that does too little meanwhile lives on."""


_UNREADABLE = ("/stat", "cpuacct.usage", "cpu.stat", "memory.", "pressure", "cpuset.cpus", "cpu.cfs_quota_us", "cpu.max", "journal")
"""Parts of the names of files that cannot be read for a while."""


def draw(rng: random.Random, seconds: float, count: int, processes: list[str], kinds: tuple[str, ...] = ()) -> list[Fault]:
    """So many faults within the first `seconds`."""
    allowed = [kind for kind in DRAWN if not kinds or kind in kinds]
    if not allowed:
        return []
    odds = [_ODDS.get(kind, 1.0) for kind in allowed]
    made = [_draw_one(rng, rng.choices(allowed, odds)[0], round(rng.uniform(3.0, seconds), 2), rng.choice(processes)) for _ in range(count)]
    return sorted(made, key=lambda fault: (fault.at, fault.kind, fault.target))


def with_hosts(
    rng: random.Random, plan: list[Fault], seconds: float, count: int, agents: list[str], kinds: tuple[str, ...] = ()
) -> list[Fault]:
    """A plan, with faults of the agents and their hosts beside it: for each agent a third as many. They are drawn by themselves, so that
    the faults of a seed do not depend on how many hosts are modelled."""
    allowed = [kind for kind in (*AGENT, "kill", "freeze", "terminate", "clock") if not kinds or kind in kinds]
    if not agents or not allowed:
        return plan
    made = [
        _draw_host(rng, rng.choice(allowed), round(rng.uniform(3.0, seconds), 2), agent) for agent in agents for _ in range(-(-count // 3))
    ]
    return sorted([*plan, *made], key=lambda fault: (fault.at, fault.kind, fault.target))


def _draw_host(rng: random.Random, kind: str, at: float, target: str) -> Fault:
    if kind == "crash":
        return Fault(at, kind, target, 15.0, amount=rng.randint(1, 40))
    if kind in ("disk-full", "read-error", "write-error"):
        return Fault(at, kind, target, round(rng.uniform(2, 25), 1), method=rng.choice(_UNREADABLE) if kind == "read-error" else "")
    if kind in ("meddle", "container-exit"):
        return Fault(at, kind, target)
    if kind == "remount":
        return Fault(at, kind, target, round(rng.uniform(0.5, 5), 1))
    return _draw_one(rng, kind, at, target)


def _draw_one(rng: random.Random, kind: str, at: float, target: str) -> Fault:
    one_or_all = target if rng.random() < 0.7 else ""
    if kind in ("lose-request", "lose-answer", "reset"):
        return Fault(at, kind, one_or_all, round(rng.uniform(0.5, 15), 1), rng.choice((0.1, 0.3, 1.0)))
    if kind == "delay":
        return Fault(
            at, kind, one_or_all, round(rng.uniform(0.5, 15), 1), rng.choice((0.1, 0.3, 1.0)), amount=round(rng.uniform(0.05, 3), 2)
        )
    if kind == "storm":
        return Fault(at, kind, one_or_all, round(rng.uniform(1, 10), 1), rng.choice((0.3, 1.0)), status=rng.choice(tuple(_REASONS)))
    if kind == "clock":
        return Fault(at, kind, target, amount=round(rng.choice((-3600, -30, 5, 30, 3600, 1_209_600)) * rng.random(), 1))
    if kind == "silence":  # early, so that it lasts long enough to be believed
        return Fault(round(at / 3, 2), kind, target, 600.0)
    if kind == "dead-address":
        return Fault(at, kind, "", 600.0)
    if kind == "slow-reader":
        return Fault(at, kind, target, round(rng.uniform(5, 60), 1), amount=rng.choice((500, 2000, 10_000)))
    if kind in _COUNTS:
        return Fault(at, kind, target, round(rng.uniform(0.2, 10), 1), count=rng.randint(1, _COUNTS[kind]))
    if kind in SERVER:
        seconds = round(rng.uniform(0.5, 15), 1) if kind in ("restart", "wipe") else 0.0
        return Fault(at, kind, target if kind == "cut" else "", seconds)
    longest = {"stall": 90.0, "freeze": 40.0, "refuse": 20.0, "resume": 40.0}.get(kind, 10.0)
    return Fault(at, kind, target, round(rng.uniform(0.2, longest), 1))


@dataclass
class Fuse:
    """The write of a process before or after which something happens. `left` counts the writes until then."""

    target: str
    left: int
    after: bool
    then: Callable[[], object]


@dataclass
class FaultRules(Rules):
    """The faults of connections in force now."""

    loop: VirtualLoop
    history: History
    rng: random.Random
    active: list[Fault] = field(default_factory=list)
    fuses: list[Fuse] = field(default_factory=list)
    dead: frozenset[str] = frozenset()  # addresses that nobody answers at
    latency: float = 0.0005

    def request(self, client: str, head: bytes) -> Verdict:
        if client == "world":
            return PASS
        if self.fuses and (burnt := self._burnt(client, head)) is not None:
            return Verdict(after=burnt.then) if burnt.after else Verdict(before=burnt.then)
        if not self.active:
            return PASS
        for fault in self.active:
            if fault.target and fault.target != client:
                continue
            if fault.kind in ("refuse", "slow-reader") or (fault.share < 1 and self.rng.random() >= fault.share):
                continue
            if fault.method and not head.startswith(fault.method.encode()):
                continue
            verdict = self._verdict(fault, head)
            if verdict is not PASS:
                line = head.split(b"\r\n", 1)[0].decode("latin-1")
                self.history.tell(fault.kind, client, line)
                return verdict
        return PASS

    def _burnt(self, client: str, head: bytes) -> Fuse | None:
        """The fuse that this request burns down. Leases and events do not count: they would drown what a role does."""
        if not head.startswith((b"POST ", b"PUT ", b"PATCH ", b"DELETE ")):
            return None
        target = head.split(b" ", 2)[1]
        if b"/leases/" in target or b"/events" in target:
            return None
        for fuse in self.fuses:
            if fuse.target == client:
                fuse.left -= 1
                if fuse.left <= 0:
                    self.fuses.remove(fuse)
                    return fuse
        return None

    @staticmethod
    def _verdict(fault: Fault, head: bytes) -> Verdict:
        watching = b"watch=" in head.split(b"\r\n", 1)[0]
        if fault.kind == "lose-request":
            return Verdict(lose_request=True)
        if fault.kind == "lose-answer":
            return PASS if watching else Verdict(lose_answer=True)
        if fault.kind == "reset":
            return Verdict(reset=True)
        if fault.kind == "delay":
            return Verdict(delay=fault.amount)
        if fault.kind == "resume":
            return Verdict(reset=True) if watching else PASS
        if fault.kind == "stall":
            return Verdict(stall=True) if watching else PASS
        if fault.kind == "storm":
            return Verdict(answer=_answer(fault.status))
        return PASS

    def heard(self, client: str, about: str) -> None:
        for collection in ("pods", "nodes"):
            if about.startswith(f"/api/v1/{collection}?"):
                self.history.heard[client, collection] = self.history.clock()

    def behind(self, client: str, about: str) -> None:
        if about.startswith("/api/v1/pods?"):
            self.history.behind[client, "pods"] = self.history.clock()

    def refuse(self, client: str, host: str, port: int) -> str:
        if host in self.dead:
            return "timeout"
        for fault in self.active:
            if fault.kind == "refuse" and fault.target in ("", client):
                return "refused"
        return ""


def _answer(status: int) -> bytes:
    reason = _REASONS[status]
    body = f'{{"kind":"Status","apiVersion":"v1","status":"Failure","message":"fault","reason":"{reason}","code":{status}}}'
    retry = "Retry-After: 1\r\n" if status in (429, 503) else ""
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\n{retry}Content-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()
