"""How much of a pod's memory is asked back in a step, by what its last step did to it (BEY-OFF-01). Pure.

The step follows the pod's own memory pressure: whole while nothing waits, none at the target. Pages that are read back say that the step
took what is used: it is halved, and the pod is left alone for a while that doubles each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from roles.koordlet.states.slo import OffloadStrategy

#: A step is at least so much (bytes): less is not worth a write.
LEAST = 1 << 20
#: First pause after pages were read back, and the longest (seconds).
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 1800.0
#: The step after a back-off, as a share of the configured one: it grows by as much with each step that did no harm.
SMALLEST = 1 / 8


@dataclass(frozen=True, slots=True)
class Counted:
    """A pod's memory as it is: bytes, stall time in µs, pages read back, when (monotonic seconds of the strategy)."""

    usage: int
    stall: int
    refaults: int
    at: float


@dataclass(frozen=True, slots=True)
class Offload:
    """``share`` of the configured step; ``peak`` is the most that the pod had; nothing is asked before ``until``."""

    last: Counted | None = None
    share: float = SMALLEST
    peak: int = 0
    pause: float = 0.0
    until: float = 0.0
    asked: int = 0
    """Bytes of the last step, 0 for none."""
    why: str = ""
    stalled: float = 0.0
    """Percent of the time since the last look."""
    read_back: float = 0.0
    """Pages a second."""


def step(before: Offload, now: Counted, config: OffloadStrategy) -> Offload:
    """The state with what is asked back now (``asked``) and why."""
    peak = max(before.peak, now.usage)
    last = before.last
    if last is None or now.at <= last.at or now.stall < last.stall or now.refaults < last.refaults:
        return replace(before, last=now, peak=peak, asked=0, why="first look")
    passed = now.at - last.at
    stalled = 100.0 * (now.stall - last.stall) / 1e6 / passed
    read_back = (now.refaults - last.refaults) / passed
    seen = replace(before, last=now, peak=peak, stalled=stalled, read_back=read_back, asked=0)
    target = config.stall_per_mille / 10
    if stalled > target or read_back > config.refaults_per_second:
        why = f"memory stalls for {stalled:.2f} % of the time" if stalled > target else f"{read_back:.0f} pages a second are read back"
        pause = min(max(before.pause * 2, FIRST_PAUSE), LONGEST_PAUSE) if before.asked or now.at >= before.until else before.pause
        return replace(seen, share=max(before.share / 2, SMALLEST), pause=pause, until=max(before.until, now.at + pause), why=why)
    if now.at < before.until:
        return replace(seen, why="left alone after a back-off")
    floor = peak * (100 - config.most_percent) // 100
    wanted = int(now.usage * config.step_percent / 100 * before.share * (1 - stalled / target))
    asked = min(wanted, config.step_bytes, now.usage - floor)
    if asked < LEAST:
        return replace(seen, why="nothing that would be worth it", share=min(before.share + SMALLEST, 1.0))
    # a step that did no harm makes the next one larger, and forgets the pauses little by little
    return replace(seen, share=min(before.share + SMALLEST, 1.0), pause=before.pause * 0.9, asked=asked, why="idle memory")
