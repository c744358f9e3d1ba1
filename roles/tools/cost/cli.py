"""`koord cost`: who pays what of the nodes' cost, what runs on reclaimed resources, and what that does to services (BEY-COST-01)."""

from __future__ import annotations

import re
from pathlib import Path

import click
import orjson

from koord import seams
from koord.api.times import parse_duration
from koord.process.errors import ConfigurationError, UsageError
from koord.process.flags import GoCommand
from roles.tools.cost import prices, prometheus, report
from roles.tools.cost.recorded import Recorded
from roles.tools.replay.files import files_of
from roles.tools.replay.running import items_of

_EXAMPLES = """
\b
Examples:
  koord cost --prices prices.yaml --prometheus http://prometheus:9090             the last week, by namespace
  koord cost --prices prices.yaml --prometheus http://prometheus:9090 --by quota --since 30d
  koord cost --prices prices.yaml --decision-log /var/log/koord --by qos          from the scheduler's log
  koord cost --prices prices.yaml --decision-log /var/log/koord -o opencost       as OpenCost's /allocation
"""


@click.command("cost", cls=GoCommand, epilog=_EXAMPLES)
@click.option(
    "--prices", "price_file", required=True, metavar="FILE", help="What cores, gibibytes and nodes cost in an hour (docs/cost.md)."
)
@click.option("--prometheus", "address", default="", metavar="URL", help="Take requests and use from this Prometheus.")
@click.option("--decision-log", "log", type=click.Path(path_type=Path), help="Take them from the scheduler's log: its directory or a file.")
@click.option("--since", default="7d", show_default=True, metavar="DURATION", help="How far back from now, or from the end of the log.")
@click.option("--step", type=click.IntRange(60, 3600), default=300, show_default=True, help="Seconds between two samples of Prometheus.")
@click.option("--p99", default="", metavar="QUERY", help="A query that gives a latency by namespace, shown beside the costs.")
@click.option("--by", type=click.Choice(report.FIELDS), default="namespace", show_default=True, help="Whose costs are one row.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "opencost"]), default="table", show_default=True, help="Output format.")
def command(price_file: str, address: str, log: Path | None, since: str, step: int, p99: str, by: str, output: str) -> None:
    """Divide the cost of nodes by namespace, quota or QoS class.

    Pods pay for what they request, batch and mid pods at rates of their own; what these pay is credited to those whose resources they run
    on. The rows and what is idle are together what the nodes cost. Ends with 0, and with 1 for what cannot be read.
    """
    if bool(address) == (log is not None):
        raise UsageError("give either --prometheus or --decision-log")
    if p99 and not address:
        raise UsageError("--p99 needs --prometheus")
    given, length = prices.load(price_file), _seconds(since)
    made = _recorded(given, log, length) if log is not None else _asked(given, address, length, step, p99)
    if output == "table":
        click.echo(report.table(made, by))
    else:
        found = report.opencost(made, by) if output == "opencost" else report.as_json(made)
        click.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())


def _seconds(text: str) -> float:
    days = re.fullmatch(r"(\d+)d", text)
    try:
        found = int(days[1]) * 86400.0 if days else parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--since {text!r} must be a duration, such as 7d or 12h") from error
    if found <= 0:
        raise UsageError(f"--since {text!r} must be more than 0")
    return found


def _recorded(given: prices.Prices, log: Path, length: float) -> report.Report:
    files = files_of(log)
    end = 0.0
    for item in items_of(files[-1:]):
        end = max(end, getattr(item, "now", 0.0), item.get("time", 0.0) if isinstance(item, dict) else 0.0)
    recorded = Recorded(given, end - length, end)
    ledger = recorded.read(items_of(files))
    if not ledger.nodes:
        raise ConfigurationError(f"{log}: no node in it for any time")
    return report.Report(ledger, given.currency, recorded.first, end, missing=recorded.gaps)


def _asked(given: prices.Prices, address: str, length: float, step: int, p99: str) -> report.Report:
    until = seams.now() // step * step
    begin = until - length // step * step
    if begin >= until:
        raise UsageError(f"--since is shorter than --step ({step} s)")
    ledger, penalties, missing = prometheus.read(address, given, begin, until, step=step, p99=p99)
    return report.Report(ledger, given.currency, begin, until, penalties, missing)
