"""The decision log with what a replay needs: what it costs the scheduler in CPU and bytes, and how quickly it is decided again."""

from __future__ import annotations

import gzip
import tempfile
import uuid
from pathlib import Path

import msgspec

from koord.api.objects import OwnerReference, Pod
from roles.scheduler import testing
from roles.tools.replay.files import files_of
from roles.tools.replay.running import Run
from tests.benchmarks.scheduling import run_app
from tests.benchmarks.table import Row, script


def pods(count: int) -> list[Pod]:
    """Pods of twenty workloads, named as controllers name them."""
    made = []
    for number in range(count):
        owner = number % 20
        found = testing.pod(f"app-{owner}-7d4b9c6f5{owner:02d}-{uuid.uuid4().hex[:5]}", uid=str(uuid.uuid4()), cpu=f"{100 + owner * 10}m")
        reference = OwnerReference(
            api_version="apps/v1", kind="ReplicaSet", name=f"app-{owner}", uid=str(uuid.UUID(int=owner)), controller=True
        )
        meta = msgspec.structs.replace(
            found.metadata, owner_references=(reference,), labels={"app": f"app-{owner}", "pod-template-hash": "x"}
        )
        made.append(msgspec.structs.replace(found, metadata=meta))
    return made


def size(paths: list[Path]) -> int:
    """Bytes, compressed."""
    return sum(len(gzip.compress(path.read_bytes(), 6)) if path.suffix != ".gz" else path.stat().st_size for path in paths)


def rows(quick: bool) -> list[Row]:
    nodes, count = (500, 1000) if quick else (5000, 10_000)
    with tempfile.TemporaryDirectory() as folder:
        plain, log = Path(folder, "plain"), Path(folder, "log")
        empty = Path(folder, "empty")
        runs = [
            (run_app(nodes, pods(count), log=plain / str(turn), journal=False).cpu, run_app(nodes, pods(count), log=log / str(turn)).cpu)
            for turn in range(2 if quick else 3)
        ]
        records, with_all = (min(each) for each in zip(*runs, strict=True))
        run_app(nodes, [], log=empty)
        last = log / str(len(runs) - 1)
        before = size([*empty.glob("*.replay.jsonl*")])
        journal, told = size([*last.glob("*.replay.jsonl*")]) - before, size([*last.glob("scheduler.jsonl*")])
        found = Run().run(files_of(last))
    cost = (with_all - records) / count * 1e6
    return [
        Row("decision log: bytes a decision, compressed", (journal + told) / count, "bytes", 300.0,
            note=f"{journal / count:.0f} of them for a replay; {before / nodes:.0f} a node at the beginning"),
        Row("decision log: CPU a decision for what a replay needs", cost, "µs", 30.0, note="30 µs are 3 % of a pod's millisecond"),
        Row("replay, decisions a CPU second", found.decisions / found.seconds, "1/s", 1000.0, better="higher",
            note=f"{found.same} of {found.decisions} as in the log"),
    ]  # fmt: skip


if __name__ == "__main__":
    script(rows)
