"""Co-location on cgroup v2 in a virtual machine: unmanaged (A) and under koordlet (B) in turns, paired; needs QEMU and tests/vm/kernel.sh.

Times are those of an emulated processor, ten times and more those of a real one: what counts is B to A.
usage: bench_colocation_vm.py
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.table import Row, script
from tests.vm.machine import run

PROGRAM = Path(__file__).resolve().parents[1] / "vm" / "colocation.py"


def spread(values: Sequence[float]) -> str:
    """The interval from the least to the greatest: of n pairs it holds the median with 1 - 2^(1-n)."""
    return f"{min(values):.3g} to {max(values):.3g} ({100 * (1 - 2 ** (1 - len(values))):.0f} %)"


def rows(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="koord-vm-") as directory:
        found: dict[str, Any] = run(PROGRAM, Path(directory), seconds=1200.0)
    if "error" in found:
        raise SystemExit(found["error"])
    alone, first, second = found["alone"], found["A"], found["B"]
    out = [Row("cgroup v2, the service alone, p99", 1000 * alone["p99"], "ms", note=f"p50 {1000 * alone['p50']:.3g} ms")]
    for name, which in (("(A) unmanaged", first), ("(B) under koordlet", second)):
        for quantile in ("p50", "p99"):
            values = [1000 * phase[quantile] for phase in which]
            out.append(Row(f"cgroup v2, {name}, {quantile}", statistics.median(values), "ms", note=f"median; {spread(values)}"))
        jobs = [phase["jobs"] for phase in which]
        out.append(Row(f"cgroup v2, {name}, work of the jobs", statistics.median(jobs), "cores", note=f"median; {spread(jobs)}"))
    ratios = [b["p99"] / a["p99"] for a, b in zip(first, second, strict=True)]
    out.append(Row("cgroup v2, p99 under koordlet to unmanaged", statistics.median(ratios), "", note=f"median of pairs; {spread(ratios)}"))
    return out


if __name__ == "__main__":
    sys.exit(script(rows))
