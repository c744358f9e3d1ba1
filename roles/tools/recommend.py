"""`koord recommend backtest`: what the recommender would have done with usage that is known already (BEY-REC-01)."""

from __future__ import annotations

import asyncio
import csv
import json
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from koord.api.quantity import QuantityError, parse_value
from koord.config.errors import ConfigError
from koord.process.errors import ConfigurationError
from koord.process.flags import GoCommand, duration_option
from roles.manager.recommender import fleets, history
from roles.manager.recommender.backtest import VPA_DEFAULTS, Outcome, Series, Usage, replay
from roles.manager.recommender.policy import Policy, checked

_COLUMNS = ("timestamp", "workload", "container", "replica", "cpu", "memory")
_REQUEST = "cpu_request"


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
@click.option(
    "--recommender-cpu-percentile", type=float, default=0.9, show_default=True, help="Share of CPU samples that the target covers."
)
@click.option("--recommender-memory-percentile", type=float, default=0.9, show_default=True, help="Share of daily memory peaks it covers.")
@click.option("--recommendation-margin-fraction", type=float, default=0.15, show_default=True, help="What is put on top, as a share.")
@duration_option("--recommender-half-life", default=86400.0, help="After how long a sample counts half.")
@click.option("--recommender-min-cpu-millicores", type=int, default=25, show_default=True, help="Least CPU of a pod.")
@click.option("--recommender-min-memory-mb", type=int, default=250, show_default=True, help="Least memory of a pod, MiB.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format.")
def backtest(files: tuple[Path, ...], **flags: Any) -> None:
    """Replay usage day by day; slack and OOM-free share, beside the Vertical Pod Autoscaler's defaults.

    FILES are CSV with the columns timestamp (seconds or RFC 3339), workload, container, replica, cpu (cores), memory (bytes or a quantity),
    and if known cpu_request (cores): a CPU sample weighs as much as the container requests, by default the target of its day.
    """
    policy = _policy(flags)
    found = list(_sources(files, flags))
    if not found:
        raise ConfigurationError("nothing to replay: give CSV files, --synthetic or --prometheus")
    rows = [
        (name, who, replay(series, with_)) for name, series in found for who, with_ in (("koord", policy), ("VPA defaults", VPA_DEFAULTS))
    ]
    click.echo(json.dumps([_as_json(*row) for row in rows], indent=2) if flags["output"] == "json" else _table(rows))


def _policy(flags: dict[str, Any]) -> Policy:
    try:
        return checked(
            Policy(
                cpu_percentile=flags["recommender_cpu_percentile"],
                memory_percentile=flags["recommender_memory_percentile"],
                margin=flags["recommendation_margin_fraction"],
                half_life=flags["recommender_half_life"],
                min_cpu=flags["recommender_min_cpu_millicores"],
                min_memory=flags["recommender_min_memory_mb"] << 20,
            )
        )
    except ConfigError as error:
        raise ConfigurationError(str(error)) from None


def _sources(files: Iterable[Path], flags: dict[str, Any]) -> Iterable[tuple[str, list[Series]]]:
    for path in files:
        yield path.name, read_csv(path)
    for shape in filter(None, (part.strip() for part in flags["synthetic"].split(","))):
        if shape not in fleets.SHAPES:
            raise ConfigurationError(f"--synthetic: {shape!r} is not known; accepted: {', '.join(fleets.SHAPES)}")
        yield shape, fleets.fleet(shape, containers=flags["containers"], days=flags["days"], seed=flags["seed"])
    if flags["prometheus"]:
        if not flags["namespace"]:
            raise ConfigurationError("--prometheus needs --namespace")
        try:
            points = asyncio.run(history.fetch(flags["prometheus"], flags["namespace"], flags["pods"], time.time()))
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
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        missing = [column for column in _COLUMNS if column not in (rows.fieldnames or ())]
        if missing:
            raise ConfigurationError(f"{path}: no column {', '.join(missing)}; wanted: {', '.join(_COLUMNS)}")
        for row in rows:
            where = f"{path}:{rows.line_num}"
            usage = Usage(
                _time(row["timestamp"], where),
                _amount(row["cpu"], where, "cpu"),
                _amount(row["memory"], where, "memory"),
                _amount(row[_REQUEST], where, _REQUEST) if row.get(_REQUEST) else 0.0,
            )
            found.setdefault((row["workload"], row["container"], row["replica"]), []).append(usage)
    return [Series(*key, sorted(usage)) for key, usage in sorted(found.items())]


def _time(text: str, where: str) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        raise ConfigurationError(f"{where}: timestamp: {text!r} is neither seconds nor RFC 3339") from None


def _amount(text: str, where: str, column: str) -> float:
    try:
        value = float(text) if column in ("cpu", _REQUEST) or not (text or "")[-1:].isalpha() else float(parse_value(text))
    except (TypeError, ValueError, QuantityError):
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigurationError(f"{where}: {column}: {text!r} is no amount of at least 0")
    return value


def _as_json(source: str, policy: str, outcome: Outcome) -> dict[str, Any]:
    return {
        "source": source,
        "policy": policy,
        "containerDays": outcome.days,
        "cpuSlack": outcome.cpu_slack,
        "memorySlack": outcome.memory_slack,
        "samplesAboveCPU": outcome.starved_share,
        "oomFree": outcome.oom_free,
        "kills": [{"workload": w, "container": c, "time": t} for w, c, t in outcome.kills],
    }


def _table(rows: list[tuple[str, str, Outcome]]) -> str:
    head = f"{'source':16} {'policy':14} {'days':>7} {'CPU slack':>10} {'memory slack':>13} {'above CPU':>10} {'OOM-free':>9}"
    lines = [head]
    for source, policy, outcome in rows:
        numbers = f"{outcome.cpu_slack:>10.1%} {outcome.memory_slack:>13.1%} {outcome.starved_share:>10.2%} {outcome.oom_free:>9.2%}"
        lines.append(
            f"{source[:16]:16} {policy:14} {outcome.days:>7} {numbers}"
            if outcome.days
            else f"{source[:16]:16} {policy:14} too short: a day teaches first"
        )
    return "\n".join(lines)
