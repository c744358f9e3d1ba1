"""The three things that are shown, one after another. Each starts on an empty cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from roles.sandbox.nodes.fleet import node_name
from roles.sandbox.training import jobs
from roles.sandbox.training.setup import NODES_PER_RACK, RACK_SEATS, REVOKE_SECONDS, SEATS
from roles.sandbox.training.stage import Outcome, Stage, StepError
from roles.tools.headline import short

Say = Callable[[str], None]
SETTLE_SECONDS = 1.5
"""How long nothing must happen where nothing may."""
RACK = "RackLayer"


async def topology(stage: Stage, outcome: Outcome, say: Say) -> None:
    """A gang goes below one rack although seats elsewhere are free; one that no rack takes waits and is told why."""
    racks = SEATS // RACK_SEATS
    for rack in range(racks - 1):
        await stage.submit(jobs.workers(f"resident-{rack}", 1, priority=jobs.MIDDLE, in_gang=False, node=node_name(rack * NODES_PER_RACK)))
    free = SEATS - (racks - 1)
    say(f"{racks - 1} of {racks} racks have one seat taken; {free} seats are free, {RACK_SEATS} workers must go below one rack")
    await stage.submit(jobs.workers("llm", RACK_SEATS, priority=jobs.MIDDLE), jobs.gang("llm", RACK_SEATS, gather=RACK))
    await stage.see(lambda: len(stage.placed("llm")) == RACK_SEATS, "the gang llm to be placed")
    found = stage.racks("llm")
    say("llm: " + ", ".join(f"{workers} workers on {rack}" for rack, workers in sorted(found.items())))
    left = free - RACK_SEATS
    wide = RACK_SEATS + 1
    await stage.submit(jobs.workers("wide", wide, priority=jobs.MIDDLE), jobs.gang("wide", wide, gather=RACK))
    await stage.see(lambda: stage.refused("PodGroup", "wide"), "a record that says why the gang wide waits")
    outcome.reasons["PodGroup wide"] = stage.reasons("PodGroup", "wide")
    why = outcome.reasons["PodGroup wide"][0]
    say(f"wide waits: {short(why.partition('nodes are available: ')[2] or why)}")
    await asyncio.sleep(SETTLE_SECONDS)
    outcome.placed = stage.placed()
    outcome.lines = [
        f"`llm` asked for {RACK_SEATS} workers below one rack (`MustGather`); {free} seats were free in {racks} racks. "
        f"It got {', '.join(f'{count} in {rack}' for rack, count in sorted(found.items()))}.",
        f"`wide` asked for {wide} below one rack: {left} seats were free, but no rack has so many. No member was bound.",
    ]
    if len(found) != 1:
        raise StepError(f"llm was spread over {len(found)} racks")
    if stage.placed("wide"):
        raise StepError(f"members of wide were placed: {stage.placed('wide')}")


async def lending(stage: Stage, outcome: Outcome, say: Say) -> None:
    """Team A borrows what team B does not use; when B comes, A's share shrinks and what it borrowed is taken back."""
    share, borrowed = SEATS // 2, SEATS // 4
    for team in ("team-a", "team-b"):
        await stage.lend(jobs.quota(team, least=share, most=SEATS))
    await stage.submit(jobs.workers("a", share + borrowed, priority=jobs.MIDDLE, in_gang=False, quota="team-a"))
    await stage.see(lambda: len(stage.placed("a")) == share + borrowed, "team A to use more than its min")
    before = stage.placed("a")
    say(f"team-a runs {len(before)} workers with a min of {share}: {borrowed} seats are borrowed from team-b")
    await stage.submit(jobs.workers("b", share, priority=jobs.MIDDLE, in_gang=False, quota="team-b"))

    def refused() -> list[str]:
        return [pod["metadata"]["name"] for pod in stage.pods("b") if stage.refused("Pod", pod["metadata"]["name"])]

    await stage.see(lambda: bool(refused()), "a worker of team B to wait")
    waiting = refused()[0]
    outcome.reasons[f"Pod {waiting}"] = stage.reasons("Pod", waiting)
    say(f"team-b comes and asks for its min of {share}; {waiting} waits")
    await stage.see(lambda: len(stage.placed("b")) == share, "team B to get its share back")
    await asyncio.sleep(SETTLE_SECONDS)
    outcome.placed = stage.placed()
    outcome.evicted = sorted(set(before) - set(stage.placed("a")))
    say(f"team-b runs {share}; taken back from team-a: {', '.join(outcome.evicted)}")
    outcome.lines = [
        f"`team-a` and `team-b` have a min of {share} workers and a max of {SEATS} each. "
        f"While `team-b` had none, `team-a` ran {len(before)}.",
        f"`team-b` came with {share}. The share of `team-a` shrank to its min, and after {REVOKE_SECONDS:g} s above it "
        f"{len(outcome.evicted)} of its workers were evicted. "
        f"Then `team-b` ran {len(stage.placed('b'))}, `team-a` {len(stage.placed('a'))}.",
    ]
    if len(outcome.evicted) != borrowed:
        raise StepError(f"{len(outcome.evicted)} workers of team A were evicted, {borrowed} had been borrowed")


async def preemption(stage: Stage, outcome: Outcome, say: Say) -> None:
    """A job that can never fit evicts nobody; one that can displaces a lower job, and only as many pods as it needs."""
    lower = ["sweep", *(f"research-{number}" for number in range(1, SEATS // RACK_SEATS))]
    for name in lower:
        priority = jobs.LOW if name == "sweep" else jobs.MIDDLE
        await stage.submit(jobs.workers(name, RACK_SEATS, priority=priority), jobs.gang(name, RACK_SEATS, gather=RACK))
        await stage.see(lambda name=name: len(stage.placed(name)) == RACK_SEATS, f"{name} to be placed")  # type: ignore[misc]
    before = stage.placed()
    say(f"{len(lower)} jobs fill all {len(before)} seats; sweep has the lowest priority")
    huge = SEATS + 1
    await stage.submit(jobs.workers("huge", huge, priority=jobs.HIGH), jobs.gang("huge", huge))
    await stage.see(lambda: stage.refused("PodGroup", "huge"), "a record that says why the gang huge waits")
    await asyncio.sleep(SETTLE_SECONDS)
    outcome.reasons["PodGroup huge"] = stage.reasons("PodGroup", "huge")
    spared = stage.placed() == before
    say(f"huge has the highest priority and {huge} workers: {'nobody was evicted' if spared else 'SOMEBODY WAS EVICTED'}")
    if not spared:
        raise StepError(f"pods were evicted for a job that cannot fit: {sorted(set(before) - set(stage.placed()))}")
    await stage.withdraw("huge")
    await stage.submit(jobs.workers("prod", RACK_SEATS, priority=jobs.HIGH), jobs.gang("prod", RACK_SEATS))
    await stage.see(lambda: len(stage.placed("prod")) == RACK_SEATS, "the gang prod to get room")
    await asyncio.sleep(SETTLE_SECONDS)
    outcome.placed = stage.placed()
    outcome.evicted = sorted(set(before) - set(outcome.placed))
    say(f"prod runs; displaced: {', '.join(outcome.evicted)}")
    outcome.lines = [
        f"{len(lower)} gangs of {RACK_SEATS} filled the cluster. `huge` ({huge} workers, higher than all) could not fit even alone: "
        "nobody was evicted for it.",
        f"`prod` ({RACK_SEATS} workers, same priority) displaced {', '.join(f'`{name}`' for name in outcome.evicted)} and nobody else.",
    ]
    if outcome.evicted != sorted(name for name in before if name.startswith("sweep-")):
        raise StepError(f"not the job of the lowest priority went as a whole, but {outcome.evicted}")


Step = Callable[[Stage, Outcome, Say], Awaitable[None]]
STEPS: tuple[tuple[str, str, Step], ...] = (
    ("topology", "A gang below one rack", topology),
    ("lending", "Quota is lent and taken back", lending),
    ("preemption", "Room for a whole job, or nobody is evicted", preemption),
)
