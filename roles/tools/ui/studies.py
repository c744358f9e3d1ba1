"""What the page is asked for now and then: costs of an hour, decisions made again, what would help a pod. Work beside the loop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from koord import seams
from koord.api.objects import NodeMetric
from koord.api.objects import Pod as PodObject
from koord.process.errors import ConfigurationError

if TYPE_CHECKING:
    from roles.tools.cost.prices import Prices
    from roles.tools.ui.watching import Watching

HELP_FOR = 20_000
"""Pods of a cluster up to which the page asks what would help one of them; reading more takes too long to wait for."""


class Studies:
    """`prices` and `log` as `koord cost` and `koord replay` take them; without them the page has no such part."""

    def __init__(self, watching: Watching, prices: Prices | None = None, log: Path | None = None) -> None:
        self._watching, self._prices, self._log = watching, prices, log
        self._replayed: dict[str, Any] | None = None

    def offered(self) -> dict[str, bool]:
        """What the page may ask for."""
        return {"cost": self._prices is not None, "replay": self._log is not None}

    def cost(self) -> dict[str, Any]:
        """What the nodes cost in an hour, as the cluster is now, by owner. Raises ConfigurationError without prices."""
        from roles.tools.cost import recorded, report
        from roles.tools.cost.ledger import Ledger, Pod

        if self._prices is None:
            raise ConfigurationError("give --prices to see costs")
        from koord.accounting.pods import pod_requests

        watching, ledger = self._watching, Ledger(self._prices)
        for node in watching.nodes.list():
            name = node.metadata.name
            metric: NodeMetric | None = watching.metrics.get(name)
            known = recorded.Reported.of(metric, 0.0).pods if metric is not None else None
            there: list[PodObject] = watching.pods.by_index("node", name)
            pods = [
                Pod(recorded.owner_of(pod), pod_requests(pod), known.get((pod.metadata.namespace, pod.metadata.name)) if known else None)
                for pod in there
            ]
            ledger.spend(3600.0, name, recorded.node_of(node, self._prices), pods)
        now = seams.now()
        made = report.as_json(report.Report(ledger, self._prices.currency, now, now + 3600))
        return {key: made[key] for key in ("currency", "nodesCost", "idle", "by")}

    async def replay(self) -> dict[str, Any]:
        """Whether the decisions of the log are made again; once, and kept. Raises ConfigurationError."""
        if self._log is None:
            raise ConfigurationError("give --decision-log to have its decisions made again")
        if self._replayed is None:
            self._replayed = await seams.to_thread(_replay, self._log)
        return self._replayed

    async def helps(self, namespace: str, name: str) -> list[str]:
        """What would give a pending pod a node, as `koord simulate` tells it. Raises ApiError, ConfigurationError."""
        from roles.tools.simulate.changes import Changes, apply
        from roles.tools.simulate.picture import live
        from roles.tools.simulate.setup import scheduler_of

        watching = self._watching
        if len(watching.pods) > HELP_FOR:
            return [f"The cluster has {len(watching.pods)} pods: ask koord simulate --kubeconfig …"]
        scheduler = scheduler_of("", "", ())
        picture = await live(watching.client, [feed.kind for feed in scheduler.kinds().values()], "koordinator-system")
        changed = apply(picture, Changes(), "")
        return await seams.to_thread(_help, scheduler, picture, changed, f"{namespace}/{name}")


def _replay(log: Path) -> dict[str, Any]:
    from roles.tools.replay import render
    from roles.tools.replay.running import Run, files_of

    found = Run().run(files_of(log))
    return {"headline": render.headline(found), "text": render.table(found, every=False)}


def _help(scheduler: Any, picture: Any, changed: Any, pod: str) -> list[str]:
    from roles.tools.simulate.answer import Simulator

    return Simulator(scheduler, now=seams.now()).help_for(picture, changed, pod)
