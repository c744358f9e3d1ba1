"""`koord overcommit backtest`: which prediction of a node's peak would have reclaimed how much, and how often wrongly (BEY-OVC-01)."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from koord.process.errors import ConfigurationError, UsageError
from koord.process.flags import GoCommand, duration_option
from koord.process.numbers import Finite
from roles.tools import usage

if TYPE_CHECKING:
    from roles.manager.overcommit.predictors import Recorded
    from roles.manager.overcommit.replay import Score


@click.group("overcommit", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def command() -> None:
    """Try how far nodes can be overcommitted, on usage that is known already."""


@command.command("backtest", cls=GoCommand)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--tasks-per-node", type=click.IntRange(1), default=20, show_default=True, help="Containers that share a node.")
@click.option("--groupings", type=click.IntRange(1), default=3, show_default=True, help="Ways in which they are put on nodes.")
@click.option("--seed", type=int, default=1, show_default=True, help="Which ways; the first is the order of the files.")
@click.option("--cpu-limit", type=Finite(0), default=0.0, help="Cores of a container whose limit is not recorded; 0: its highest usage.")
@duration_option("--horizon", default=7200.0, help="How far ahead a promise has to hold.")
@duration_option("--window", default=86400.0, help="How far a predictor looks back.")
@click.option("--violations", type=Finite(0, 1), default=0.01, show_default=True, help="Share of broken promises that is accepted.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format.")
def backtest(files: tuple[Path, ...], **flags: Any) -> None:
    """Replay the usage of nodes under several predictions of their peak, and name the one that reclaims most.

    FILES are CSV, gzip or not, as for `koord recommend backtest`; with a column cpu_limit, or else each container's highest usage counts as
    its limit. What is reclaimed is the part of the limits that a prediction would give to others; a violation is a moment after which
    the node used more within the horizon.
    """
    from roles.manager.overcommit.replay import chosen, replay

    if not files:
        raise UsageError("nothing to replay: give CSV files")
    nodes = [node for path in files for node in _nodes(path, flags)]
    try:
        scores = replay(nodes, horizon=flags["horizon"], window=flags["window"])
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    best = chosen(scores, flags["violations"])
    if flags["output"] == "json":
        click.echo(
            json.dumps({"nodes": len(nodes), "scores": [dataclasses.asdict(s) for s in scores], "best": best and best.name}, indent=2)
        )
    else:
        click.echo(_table(scores, best, flags["violations"]))


def _nodes(path: Path, flags: dict[str, Any]) -> list[Recorded]:
    """The containers of a file on nodes, at the moments that all of them have."""
    import numpy as np

    from roles.manager.overcommit.replay import nodes_of

    series: dict[tuple[str, str, str], dict[float, float]] = {}
    limits: dict[tuple[str, str, str], float] = {}
    for line in usage.read(path):
        key = (line.workload, line.container, line.replica)
        series.setdefault(key, {})[line.time] = line.cpu
        limits[key] = max(limits.get(key, 0.0), line.cpu_limit)
    times = sorted(set.intersection(*(set(found) for found in series.values()))) if series else []
    if len(times) < 2:
        raise ConfigurationError(f"{path}: its containers have no two moments in common")
    step = float(np.median(np.diff(times)))
    names = list(series)
    used = np.array([[series[name][time] for time in times] for name in names])
    told = np.array([limits[name] or flags["cpu_limit"] or max(series[name].values()) for name in names])
    rng = random.Random(flags["seed"])
    orders = [range(len(names)), *(rng.sample(range(len(names)), len(names)) for _ in range(flags["groupings"] - 1))]
    return nodes_of(used, told, step, flags["tasks_per_node"], orders)


def _table(scores: list[Score], best: Score | None, accepted: float) -> str:
    lines = [f"{'prediction':16} {'violations':>10} {'reclaimed':>10} {'of oracle':>10}"]
    for score in scores:
        mark = "  <- most with at most " + f"{accepted:.1%} violations" if best is not None and score is best else ""
        lines.append(f"{score.name:16} {score.violations:>10.2%} {score.reclaimed:>10.1%} {score.of_oracle:>10.1%}{mark}")
    return "\n".join(lines)
