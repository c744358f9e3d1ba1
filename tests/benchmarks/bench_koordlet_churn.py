"""koordlet's memory while pods come and go: resident memory after many pods, less that after the first thousand (root, cgroup v1).

Ten thousand pods of two containers pass through a node, a hundred at a time, once with everything enforced and once in observe mode.
Series are kept for a minute, so that those of the pods that stay are full when memory is taken first.
usage: bench_koordlet_churn.py [--quick] [--pods=N] [--at-once=N] [--modes=enforce,observe] [--gates=A=true,…]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

from tests.benchmarks.bench_koordlet import SLO, option
from tests.benchmarks.koordlet_node import Agent, Machine, agent, machine, real_cgroups
from tests.benchmarks.table import Row, current_rss_mib, script

#: Pods that stay, and how long the others live (seconds): long enough to be listed, measured and limited.
STAY, LIFE = 10, 1.5
#: Memory is taken with the staying pods alone, after so long (seconds): what is gone is swept out once a minute.
REST, FIRST = 65.0, 1000
GATES = "PSICollector=true,InterferenceDetection=true,ResourceTuning=true,CgroupReconcile=true,AuditEvents=true"


def batches(begin: int, end: int) -> Iterator[range]:
    at_once = int(option("at-once", "100"))
    for number in range(begin, end, at_once):
        yield range(number, min(number + at_once, end))


async def passed(node: Machine, one: Agent, listed: list[int], begin: int, end: int) -> float:
    """Let pods pass; MiB when they are gone."""
    for batch in batches(STAY + begin, STAY + end):
        await asyncio.to_thread(node.come, batch)
        listed[:] = [*range(STAY), *batch]
        await asyncio.sleep(LIFE)
        listed[:] = range(STAY)
        await asyncio.to_thread(node.go, batch)
    await asyncio.sleep(REST)
    return current_rss_mib(one.pid)


async def churn(node: Machine, pods: int, mode: str) -> tuple[float, float, int]:
    """MiB after the first pods and after all of them, and errors in the log."""
    listed = list(range(STAY))
    flags = (
        f"--mode={mode}", "--kubelet-sync-interval=500ms", "--runtime-hooks-reconcile-interval=1s", "--psi-collector-interval=1s",
        "--tsdb-retention-duration=1m",
    )  # fmt: skip
    async with agent(node, slo=SLO, gates=option("gates", GATES), flags=flags, numbers=lambda: listed) as one:
        first = await passed(node, one, listed, 0, min(FIRST, pods // 2))
        return first, await passed(node, one, listed, min(FIRST, pods // 2), pods), len(one.complaints())


def rows(quick: bool) -> list[Row]:
    if not real_cgroups():
        return []
    pods = int(option("pods", "2000" if quick else "10000"))
    out = []
    for mode in option("modes", "enforce,observe").split(","):
        with machine(STAY) as node:
            first, last, complaints = asyncio.run(churn(node, pods, mode))
        note = (
            f"{pods} pods; {first:.1f} MiB after the first {min(FIRST, pods // 2)}, {last:.1f} MiB at the end; {complaints} errors logged"
        )
        out.append(Row(f"koordlet RSS growth while pods come and go, {mode}", last - first, "MiB", 2.0, note=note))
    return out


if __name__ == "__main__":
    sys.exit(script(rows))
