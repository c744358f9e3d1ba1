"""`koord recommend backtest`: what the recommender would have done with usage that is known already (BEY-REC-01)."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from koord.config.errors import ConfigError
from koord.process import commands
from koord.process.errors import ConfigurationError, UsageError
from koord.process.flags import GoCommand, bool_option, flags_of, taken
from roles.manager.recommender import fleets, history
from roles.manager.recommender.backtest import MOVING_MAXIMUM, VPA_DEFAULTS, Outcome, Series, Usage, replay
from roles.manager.recommender.policy import Policy, checked
from roles.tools import usage


class Row(NamedTuple):
    """One replay: where usage is from, who decided, with what it was set, and what came of it."""

    source: str
    policy: str
    setting: str
    outcome: Outcome


@click.group("recommend", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def command() -> None:
    """Try the recommender before anything is applied."""


@command.command("backtest", cls=GoCommand)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--synthetic", default="", help=f"Made-up fleets instead, separated by commas: {', '.join(fleets.SHAPES)}.")
@click.option("--containers", type=click.IntRange(1), default=40, show_default=True, help="Containers of each made-up fleet.")
@click.option("--days", type=click.IntRange(2), default=14, show_default=True, help="Days of a made-up fleet.")
@click.option("--seed", type=int, default=1, show_default=True, help="Which made-up fleet.")
@click.option("--prometheus", default="", help="Take the last eight days of a namespace from this Prometheus, http(s)://...")
@click.option("--namespace", default="", help="That namespace.")
@click.option("--pods", default=".+", show_default=True, help="A regular expression of pod names there.")
@flags_of(Policy, but=("interval", "prometheus"))
@bool_option("--curve", default=True, help="Also replay other settings, and mark those that no other beats in everything.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format.")
def backtest(files: tuple[Path, ...], **flags: Any) -> None:
    """Replay usage: slack and OOM-free share, beside the Vertical Pod Autoscaler's defaults and a moving maximum as of Autopilot.

    FILES are CSV, gzip or not, with the columns timestamp (seconds or RFC 3339), workload, container, replica, cpu (cores), memory (bytes
    or a quantity), and if known cpu_request (cores): a CPU sample weighs as much as the container requests, by default the target of the
    day.
    """
    policy = _policy(flags)
    found = list(_sources(files, flags))
    if not found:
        raise UsageError("nothing to replay: give CSV files, --synthetic or --prometheus")
    rows = [row for name, series in found for row in _rows(name, series, policy)]
    points = [row for name, series in found for row in _curve(name, series, policy)] if flags["curve"] else []
    if flags["output"] == "json":
        best = _best([*rows, *points])
        click.echo(json.dumps([_as_json(row) | {"pareto": id(row) in best} for row in (*rows, *points)], indent=2))
        return
    click.echo(_table(rows))
    if points:
        click.echo("\n" + _curve_table([*rows, *points]))


def _rows(name: str, series: list[Series], policy: Policy) -> Iterator[Row]:
    yield Row(name, "koord", "", replay(series, policy))
    yield Row(name, "koord in place", "", replay(series, policy, in_place=True))
    yield Row(name, "VPA defaults", "", replay(series, _with_floors(VPA_DEFAULTS, policy)))
    yield Row(name, "moving maximum", "", replay(series, _with_floors(MOVING_MAXIMUM, policy)))


def _with_floors(other: Policy, policy: Policy) -> Policy:
    """Least amounts are nobody's merit: the same for all."""
    return dataclasses.replace(other, min_cpu=policy.min_cpu, min_memory=policy.min_memory)


def _curve(name: str, series: list[Series], policy: Policy) -> Iterator[Row]:
    """The same policies set otherwise."""
    for price in (policy.kill_price / 10, policy.kill_price * 10):
        yield Row(name, "koord", f"a kill costs {price:g}", replay(series, dataclasses.replace(policy, kill_price=price)))
    for percentile in (0.9, 0.99):
        changed = dataclasses.replace(policy, resize_cpu_percentile=percentile)
        yield Row(name, "koord in place", f"p{percentile * 100:g} of CPU", replay(series, changed, in_place=True))
    for margin in (0.0, 0.6):
        changed = dataclasses.replace(_with_floors(VPA_DEFAULTS, policy), margin=margin)
        yield Row(name, "VPA defaults", f"margin {margin:.0%}", replay(series, changed))


def _best(rows: list[Row]) -> set[int]:
    """Those that no other of the same source is better than in one thing and as good in all others."""

    def bad(row: Row) -> tuple[float, ...]:
        out = row.outcome
        return (out.cpu_slack, out.starved_share, out.memory_slack, out.killed_days)

    def beaten(row: Row) -> bool:
        own = bad(row)
        others = (bad(other) for other in rows if other.source == row.source)
        return any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in others)

    return {id(row) for row in rows if row.outcome.days and not beaten(row)}


def _policy(flags: dict[str, Any]) -> Policy:
    try:
        return checked(Policy(**taken(Policy, flags)))
    except ConfigError as error:
        raise ConfigurationError(str(error)) from None


def _sources(files: Iterable[Path], flags: dict[str, Any]) -> Iterable[tuple[str, list[Series]]]:
    for path in files:
        yield path.name, read_csv(path)
    for shape in filter(None, (part.strip() for part in flags["synthetic"].split(","))):
        if shape not in fleets.SHAPES:
            raise UsageError(f"--synthetic: {shape!r} is not known; accepted: {', '.join(fleets.SHAPES)}")
        yield shape, fleets.fleet(shape, containers=flags["containers"], days=flags["days"], seed=flags["seed"])
    if flags["prometheus"]:
        if not flags["namespace"]:
            raise UsageError("--prometheus needs --namespace")
        try:
            points = commands.run(history.fetch(flags["prometheus"], flags["namespace"], flags["pods"], time.time()))
        except history.HistoryError as error:
            raise ConfigurationError(f"--prometheus {flags['prometheus']}: {error}") from None
        yield flags["namespace"], _of_points(points)


def _of_points(points: Iterable[history.Point]) -> list[Series]:
    """Each pod by itself: Prometheus does not tell which workload it belongs to."""
    found: dict[tuple[str, str], list[Usage]] = {}
    for point in points:
        found.setdefault((point.pod, point.container), []).append(Usage(point.time, point.cpu, point.memory))
    return [Series(pod, container, pod, usage) for (pod, container), usage in sorted(found.items())]


def read_csv(path: Path) -> list[Series]:
    """Usage out of a CSV file. Raises ConfigurationError naming the line and the column that is wrong."""
    found: dict[tuple[str, str, str], list[Usage]] = {}
    for line in usage.read(path):
        made = Usage(line.time, line.cpu, line.memory, line.cpu_request)
        found.setdefault((line.workload, line.container, line.replica), []).append(made)
    return [Series(*key, sorted(samples)) for key, samples in sorted(found.items())]


def _as_json(row: Row) -> dict[str, Any]:
    outcome = row.outcome
    return {
        "source": row.source,
        "policy": row.policy,
        "setting": row.setting,
        "containerDays": outcome.days,
        "cpuSlack": outcome.cpu_slack,
        "memorySlack": outcome.memory_slack,
        "samplesAboveCPU": outcome.starved_share,
        "oomFree": outcome.oom_free,
        "kills": [{"workload": w, "container": c, "time": t} for w, c, t in outcome.kills],
    }


def _numbers(outcome: Outcome) -> str:
    if not outcome.days:
        return "too short: a day teaches first"
    numbers = f"{outcome.cpu_slack:>10.1%} {outcome.memory_slack:>13.1%} {outcome.starved_share:>10.2%} {outcome.oom_free:>9.2%}"
    return f"{outcome.days:>7} {numbers}"


def _table(rows: list[Row]) -> str:
    head = f"{'source':16} {'policy':14} {'days':>7} {'CPU slack':>10} {'memory slack':>13} {'above CPU':>10} {'OOM-free':>9}"
    return "\n".join([head, *(f"{row.source[:16]:16} {row.policy:14} {_numbers(row.outcome)}" for row in rows)])


def _curve_table(rows: list[Row]) -> str:
    """Every setting of every source; the Pareto front is marked."""
    best = _best(rows)
    head = (
        f"  {'source':14} {'policy':14} {'setting':16} {'days':>7} {'CPU slack':>10} {'memory slack':>13} {'above CPU':>10} {'OOM-free':>9}"
    )
    lines = [f"the curve: * where no other setting is better in one column and as good in the others\n{head}"]
    for row in sorted(rows, key=lambda row: (row.source, row.policy)):
        mark = "*" if id(row) in best else " "
        lines.append(f"{mark} {row.source[:14]:14} {row.policy:14} {row.setting or 'as above':16} {_numbers(row.outcome)}")
    return "\n".join(lines)
