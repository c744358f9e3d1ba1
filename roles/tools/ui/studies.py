"""What the page is asked for now and then: costs of an hour, decisions made again, policies, what would help. Work beside the loop."""

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
    """`prices`, `log` and `policies` as `koord cost`, `koord replay` and `koord test` take them; without them the page has no such part."""

    def __init__(self, watching: Watching, prices: Prices | None = None, log: Path | None = None, policies: Path | None = None) -> None:
        self._watching, self._prices, self._log, self._policies = watching, prices, log, policies
        self._replayed: dict[str, Any] | None = None

    def offered(self) -> dict[str, bool]:
        """What the page may ask for."""
        return {"cost": self._prices is not None, "replay": self._log is not None, "test": self._policies is not None}

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

    async def test(self) -> dict[str, Any]:
        """Whether the cases hold, as their files are now. Raises ConfigurationError."""
        if self._policies is None:
            raise ConfigurationError("give --policies to have cases run")
        return await seams.to_thread(_test, self._policies)

    async def helps(self, namespace: str, name: str) -> list[str]:
        """What would give a pending pod a node, as `koord simulate` tells it. Raises ApiError, ConfigurationError."""
        from roles.tools.simulate.changes import Changes, apply
        from roles.tools.simulate.cluster import live
        from roles.tools.simulate.setup import scheduler_of

        watching = self._watching
        if len(watching.pods) > HELP_FOR:
            return [f"The cluster has {len(watching.pods)} pods: ask koord simulate --kubeconfig …"]
        scheduler = scheduler_of("", "", ())
        cluster = await live(watching.client, [feed.kind for feed in scheduler.kinds().values()], watching.system)
        changed = apply(cluster, Changes(), "")
        return await seams.to_thread(_help, scheduler, changed, f"{namespace}/{name}")


def _replay(log: Path) -> dict[str, Any]:
    """Of every role that left a log there."""
    from roles.tools.replay import deschedulers, managers, render
    from roles.tools.replay.files import files_of, roles_of
    from roles.tools.replay.running import Run

    make = {"scheduler": lambda files: Run().run(files), "manager": managers.run, "descheduler": deschedulers.run}
    found = [make[role](files_of(log, role)) for role in roles_of(log)]
    return {"headline": render.headline(found[0]), "text": render.tables(found, every=False)}


def _test(policies: Path) -> dict[str, Any]:
    from roles.tools.policytest import cases, report
    from roles.tools.policytest.running import Runner

    runner = Runner()
    results = [result for path in cases.find((str(policies),)) for result in runner.run(cases.load(path))]
    lines = [line for result in results if result.failures for line in report.lines(result)]
    return {"headline": report.summary(results), "text": "\n".join([report.summary(results), *lines])}


def _help(scheduler: Any, changed: Any, pod: str) -> list[str]:
    from roles.tools.simulate.answer import Simulator

    return Simulator(scheduler, now=seams.now()).help_for(changed, pod)
