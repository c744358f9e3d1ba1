"""How much of the GPUs is allocated on the openb workloads of a folder: `make bench-openb DATA=DIR [BENCH_ARGS=--json=FILE]`."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import click

from koord.process import tuning
from tests.benchmarks import openb

PROFILES = ("packing", "installed")


def figures(outcomes: list[openb.Outcome]) -> dict[str, float]:
    """Means over the seeds; percent, seconds and milliseconds."""
    return {
        "at100": round(statistics.fmean(one.at100 for one in outcomes), 2),
        "at130": round(statistics.fmean(one.at130 for one in outcomes), 2),
        "secondsPerRun": round(statistics.fmean(one.seconds for one in outcomes), 1),
        "cpuSecondsPerRun": round(statistics.fmean(one.cpu for one in outcomes), 1),
        "decisionP50Ms": round(statistics.fmean(one.p50 for one in outcomes) * 1e3, 2),
    }


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of the trace.")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="Runs of each workload.")
@click.option("--workload", "only", multiple=True, help="Only these workloads.")
@click.option("--profile", "profiles", multiple=True, type=click.Choice(PROFILES), help="Only these profiles.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures to this file, too.")
def main(data: Path, seeds: int, only: tuple[str, ...], profiles: tuple[str, ...], path: Path | None) -> None:
    """Allocated share of all GPUs, percent, at 100 % and 130 % of demand, beside what is published of FGD."""
    tuning.keep_memory()
    tuning.relax_collector()
    machines, lists, known = openb.read_nodes(data), openb.workloads(data), openb.published(data)
    unknown = sorted(set(only) - set(lists))
    if unknown:
        raise click.UsageError(f"no workload {', '.join(unknown)} in {data}; there are {', '.join(lists)}")
    result: list[dict[str, Any]] = []
    click.echo("| workload | profile | at 100 % | at 130 % | FGD at 100 % | FGD at 130 % | s a run | CPU s | p50, ms |")
    click.echo("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for workload in only or lists:
        for kind in profiles or PROFILES:
            outcomes = [openb.run(machines, lists[workload], openb.profile(kind), openb.FIRST_SEED + n) for n in range(seeds)]
            row = figures(outcomes)
            shares = {"at100": row["at100"], "at130": row["at130"]}
            result.append({"workload": workload, "profile": kind, "seeds": seeds, **shares})
            fgd = [f"{value:.2f}" for value in known[workload]] if workload in known else ["", ""]
            click.echo(
                f"| {workload} | {kind} | {row['at100']:.2f} | {row['at130']:.2f} | {' | '.join(fgd)} | "
                f"{row['secondsPerRun']} | {row['cpuSecondsPerRun']} | {row['decisionP50Ms']} |"
            )
            if path is not None:
                path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
