"""Whether moves end, and what they cost: the shipped profile of the descheduler in a world on virtual time (roles/sandbox/world), with five
mixes of workloads that crowd on some of the nodes. A row a mix: pods moved for each time that a hot node was relieved."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import orjson
import yaml

from roles.sandbox.nodes.fleet import node_name
from roles.sandbox.world import configuration, runner
from roles.sandbox.world.spec import Spec, Workload
from roles.sandbox.world.world import World, quiet
from tests.benchmarks.table import Row, script

INSTALLED = Path(__file__).resolve().parents[2] / "configs" / "install" / "30-config.yaml"
MOVES_A_NODE = 2.0
ROUNDS = 5  # in a row that a node must have been hot before it is acted upon: as installed


def crowd(name: str, node: int, replicas: int, cpu: int, usage: int = 400, **more: Any) -> Workload:
    """A workload whose pods would all like to be on one node, and use far more than they request."""
    return Workload(name, replicas, cpu, 256, usage=usage, prefers=node_name(node), **more)


def mixes() -> dict[str, list[Workload]]:
    """Nodes have 6 CPUs, of which 65 % make them hot, and 45 % let them take pods."""
    calm = [Workload("calm", 6, 300, 256, usage=40)]
    return {
        "services": [*calm, *(crowd(f"web-{each}", each % 2, 2, 300) for each in range(4))],
        "many small pods": [*calm, *(crowd(f"small-{each}", each % 2, 4, 100) for each in range(8))],
        "budgets": [*calm, crowd("free", 0, 3, 300), crowd("held", 0, 2, 300, min_available=2), crowd("half", 1, 4, 300, min_available=2)],
        "gangs": [*calm, crowd("train", 0, 2, 300, gang=2), crowd("web", 0, 3, 300), crowd("elastic", 1, 4, 300, gang=2)],
        "large and small": [*calm, crowd("large", 0, 2, 600), crowd("small", 0, 4, 100), crowd("mid", 1, 3, 450)],
    }


def shipped(retry: float, report: int = 60, profiles: str = "load") -> dict[str, Any]:
    """The configuration that is installed; only its Lease is the world's, which says how often nodes report, too."""
    documents = yaml.safe_load_all(INSTALLED.read_text())
    text = next(each["data"]["koord-descheduler-config"] for each in documents if each["metadata"]["name"] == "koord-descheduler-config")
    found: dict[str, Any] = yaml.safe_load(text)
    found["leaderElection"] = configuration._election("koord-descheduler", retry)
    for address in ("healthzBindAddress", "metricsBindAddress"):
        found.pop(address, None)
    return found


def lived(works: list[Workload], nodes: int, minutes: float) -> dict[str, Any]:
    """What a world came to: nodes that were hot, that are so at the end, how often one was relieved, and pods that were moved for it. A
    node is hot when it was so in more than five rounds in a row: before that no pod leaves, for usage goes up and down."""
    scratch = Path(tempfile.mkdtemp(prefix="koord-convergence-"))
    try:
        spec = Spec(
            seed=1, nodes=nodes, minutes=minutes, faults=0, calm=60.0, gpu_nodes=0, hostile=0, koordlets=0, workloads=tuple(works),
            schedulers=1, managers=1, deschedulers=1,
        )  # fmt: skip
        world = World(spec, scratch)
        with quiet():
            world.run()
        streak: dict[str, int] = {}
        ever: set[str] = set()
        relieved = 0
        moved = last = 0.0
        for at, _, record in world.records:
            if record.role != "descheduler" or record.rule != "LowNodeLoad":
                continue
            if record.verdict == "Classified":
                name, before = record.subject.name, streak.get(record.subject.name, 0)
                streak[name] = before + 1 if record.numbers["class"] in ("hot", "prodHot") else 0
                relieved += before > ROUNDS and not streak[name]
                ever |= {name} if streak[name] > ROUNDS else set()
            elif record.verdict == "Evicted":
                moved, last = moved + 1, at
        now = sum(rounds > ROUNDS for rounds in streak.values())
        return {"ever": len(ever), "now": now, "relieved": relieved, "moved": int(moved), "last": last / 60}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def in_a_child(works: list[Workload], nodes: int, minutes: float) -> dict[str, Any]:
    """A world leaves nothing behind for the next one."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        with os.fdopen(writing, "wb") as out:
            out.write(orjson.dumps(lived(works, nodes, minutes)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        body = answer.read()
    os.waitpid(pid, 0)
    found: dict[str, Any] = orjson.loads(body)
    return found


def rows(quick: bool) -> list[Row]:
    nodes, minutes = (4, 12.0) if quick else (6, 30.0)
    runner.prepare()
    configuration.descheduler = shipped
    made = []
    for name, works in mixes().items():
        found = in_a_child(works, nodes, minutes)
        relieved = found["relieved"]
        pods = sum(work.replicas for work in works)
        what = f"descheduler: moves for each time a hot node was relieved, {name}, {nodes} nodes, {pods} pods, {minutes:g} virtual minutes"
        counts = f"{found['ever']} nodes were hot, {found['now']} are"
        note = f"{counts}; relieved {relieved} times by {found['moved']} moves, the last one after {found['last']:.0f} min"
        made.append(Row(what, found["moved"] / relieved if relieved else float(found["moved"]), "moves", MOVES_A_NODE, note=note))
        print(made[-1], file=sys.stderr, flush=True)
    return made


if __name__ == "__main__":
    script(rows)
