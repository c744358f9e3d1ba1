"""Wiring of the descheduler: informers in, rounds at an interval, records out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from koord.api import kinds, objects
from koord.api.quantity import QuantityError
from koord.config.errors import ConfigError, InvalidConfig
from koord.decisions.recorder import Recorder
from koord.kube.client import Client
from koord.kube.informers import InformerFactory
from koord.kube.leases import LeaderElector, Leadership, Timing
from koord.process.errors import FatalError
from koord.process.http import OpsServer
from koord.process.life import Life
from roles.descheduler import registry
from roles.descheduler.config import DeschedulerConfiguration, ResolvedProfile, check_plugins
from roles.descheduler.framework.round import Outcome, Rounds
from roles.descheduler.metrics import Metrics
from roles.descheduler.picture import NodeView, node_view

log = logging.getLogger(__name__)


class Options:
    """A checked configuration. Raises InvalidConfig when a plugin does not exist, or when the file asks for real evictions."""

    def __init__(self, config: DeschedulerConfiguration, profiles: list[ResolvedProfile], source: str) -> None:
        check_plugins(profiles, registry.POINTS, source)
        if not config.dry_run:
            message = "must be true: this version lists what it would evict and evicts nothing"
            raise InvalidConfig(source, [ConfigError("dryRun", message)])
        self.config = config
        self.profiles = profiles


class App:
    """The descheduler on one informer factory."""

    def __init__(
        self,
        options: Options,
        *,
        client: Client,
        informers: InformerFactory,
        recorder: Recorder,
        ops: OpsServer | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = options.config
        self._rounds = Rounds(options.config, options.profiles)
        self._recorder = recorder
        self._client = client
        self._ops = ops
        if ops is not None:
            ops.health.register("caches", gate=True)
        self._clock = clock
        self.metrics = Metrics(ops.registry if ops is not None else None)
        self._informers = informers
        self._nodes = informers.informer(kinds.NODES, objects.Node)
        self._pods = informers.informer(kinds.PODS, objects.Pod)
        self._metrics = informers.informer(kinds.NODEMETRICS, objects.NodeMetric)
        self._classes = informers.informer(kinds.PRIORITYCLASSES, objects.PriorityClassObject)
        self._pods.index("node", lambda pod: [pod.spec.node_name] if pod.spec.node_name else [])

    async def run(self, life: Life) -> None:
        """Rounds, start to start at the interval; an interval of 0 is exactly one round. Raises FatalError when the lease is lost."""
        self._informers.start()
        for informer in (self._nodes, self._pods, self._metrics, self._classes):
            await informer.wait_synced()
        if self._ops is not None:
            self._ops.health.set("caches", True, "informer caches are synced")
        election = self._config.leader_election
        if not election.leader_elect:
            await self._rounds_until(life, None)
            return
        timing = Timing(election.lease_duration, election.renew_deadline, election.retry_period)
        elector = LeaderElector(self._client, election.resource_namespace, election.resource_name, timing=timing)
        if self._ops is not None:
            self._ops.health.register("leader-election", live=True, probe=elector.healthy)
        competing = asyncio.ensure_future(elector.run(lambda leadership: self._rounds_until(life, leadership)))
        stopping = asyncio.ensure_future(life.stopping.wait())
        await asyncio.wait({competing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not competing.done():
            competing.cancel()
            await asyncio.wait({competing}, timeout=2.0)
        elif not competing.result() and not life.stopping.is_set():
            raise FatalError("lost lease")

    async def _rounds_until(self, life: Life, leadership: Leadership | None) -> None:
        interval = self._config.descheduling_interval
        loop = asyncio.get_running_loop()
        while not life.stopping.is_set() and (leadership is None or leadership.held):
            started = loop.time()
            self.round()
            if interval <= 0:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(life.stopping.wait(), max(0.0, started + interval - loop.time()))

    def round(self) -> Outcome:
        """One round on what the caches hold now."""
        now = self._clock()
        with self.metrics.time_round():
            outcome = self._rounds.run(self._views(now), now, self._priority_of)
        for record in outcome.records:
            self._recorder.record(record)
        self.metrics.round_done(outcome)
        if outcome.skipped:
            log.error("round skipped: %s", outcome.skipped)
        else:
            log.info("round over %d nodes: %d pods would be evicted", outcome.nodes, outcome.would_evict)
        return outcome

    def _views(self, now: float) -> list[NodeView]:
        views = []
        for node in sorted(self._nodes.list(), key=lambda node: node.metadata.name):
            name = node.metadata.name
            try:
                views.append(node_view(node, self._pods.by_index("node", name), self._metrics.get(name), now=now))
            except (QuantityError, ValueError) as error:
                log.error("node %s is left out of this round, a value cannot be read: %s", name, error)
        return views

    def _priority_of(self, name: str) -> int | None:
        found = self._classes.get(name)
        return None if found is None else found.value
