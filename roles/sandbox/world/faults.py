"""Faults from a seed: what hurts the connections and processes of a world, and when."""

from __future__ import annotations

import random
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

    `kind`: one of NETWORK or PROCESS; a storm answers with `status`, a clock jumps by `amount` seconds.
    `target`: the name of a process, or "" for all. `share`: how many of the requests meanwhile, 0 to 1.
    """

    at: float
    kind: str
    target: str = ""
    seconds: float = 0.0
    share: float = 1.0
    status: int = 0
    amount: float = 0.0
    method: str = ""

    def __str__(self) -> str:
        parts = [f"{self.at:.1f}s {self.kind}"]
        if self.target:
            parts.append(f"of {self.target}")
        if self.seconds:
            parts.append(f"for {self.seconds:.1f}s")
        if self.share < 1:
            parts.append(f"{self.share:.0%} of requests")
        if self.status:
            parts.append(f"status {self.status}")
        if self.amount:
            parts.append(f"by {self.amount:g}")
        return " ".join(parts)


_REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
NETWORK = ("lose-request", "lose-answer", "reset", "delay", "stall", "storm", "refuse")
HOST = ("crash", "disk-full", "read-error", "remount", "meddle")
PROCESS = ("kill", "freeze", "terminate", "clock", "silence", "compact", "cut")


def draw(rng: random.Random, seconds: float, count: int, processes: list[str], kinds: tuple[str, ...] = ()) -> list[Fault]:
    """So many faults within the first `seconds`."""
    allowed = kinds or NETWORK + PROCESS
    made = [_draw_one(rng, rng.choice(allowed), round(rng.uniform(3.0, seconds), 2), rng.choice(processes)) for _ in range(count)]
    return sorted(made, key=lambda fault: (fault.at, fault.kind, fault.target))


def with_hosts(
    rng: random.Random, plan: list[Fault], seconds: float, count: int, agents: list[str], kinds: tuple[str, ...] = ()
) -> list[Fault]:
    """A plan, with faults of the agents and their hosts beside it: for each agent a third as many. They are drawn by themselves, so that
    the faults of a seed do not depend on how many hosts are modelled."""
    allowed = [kind for kind in (*HOST, "kill", "freeze", "terminate", "clock") if not kinds or kind in kinds]
    if not agents or not allowed:
        return plan
    made = [
        _draw_host(rng, rng.choice(allowed), round(rng.uniform(3.0, seconds), 2), agent) for agent in agents for _ in range(-(-count // 3))
    ]
    return sorted([*plan, *made], key=lambda fault: (fault.at, fault.kind, fault.target))


def _draw_host(rng: random.Random, kind: str, at: float, target: str) -> Fault:
    if kind == "crash":
        return Fault(at, kind, target, 15.0, amount=rng.randint(1, 40))
    if kind in ("disk-full", "read-error"):
        return Fault(at, kind, target, round(rng.uniform(2, 25), 1), method=rng.choice(("/stat", "cpuacct.usage", "cpu.stat", "memory.")))
    if kind == "meddle":
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
    if kind == "silence":
        return Fault(at, kind, target, 600.0)
    longest = {"stall": 60.0, "freeze": 40.0, "refuse": 20.0}.get(kind, 10.0)
    return Fault(at, kind, target, round(rng.uniform(0.2, longest), 1))


@dataclass
class FaultRules(Rules):
    """The faults of connections in force now."""

    loop: VirtualLoop
    history: History
    rng: random.Random
    active: list[Fault] = field(default_factory=list)
    latency: float = 0.0005

    def request(self, client: str, head: bytes) -> Verdict:
        if not self.active or client == "world":
            return PASS
        for fault in self.active:
            if fault.target and fault.target != client:
                continue
            if fault.kind == "refuse" or (fault.share < 1 and self.rng.random() >= fault.share):
                continue
            if fault.method and not head.startswith(fault.method.encode()):
                continue
            verdict = self._verdict(fault, head)
            if verdict is not PASS:
                line = head.split(b"\r\n", 1)[0].decode("latin-1")
                self.history.tell(fault.kind, client, line)
                return verdict
        return PASS

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
        if fault.kind == "stall":
            return Verdict(stall=True) if watching else PASS
        if fault.kind == "storm":
            return Verdict(answer=_answer(fault.status))
        return PASS

    def refuse(self, client: str, host: str, port: int) -> str:
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
