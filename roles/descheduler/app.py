"""Wiring of the descheduler: informers in, rounds at an interval and controllers beside them, on the leader only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from koord import seams
from koord.config.gates import DESCHEDULER, FeatureGates
from koord.config.model import wire
from koord.decisions.recorder import Recorder
from koord.kube.client import Client
from koord.kube.events import EventRecorder
from koord.kube.informers import InformerFactory
from koord.kube.leases import LeaderElector, Leadership, Timing
from koord.kube.servertime import clock_of
from koord.process import tuning
from koord.process.errors import FatalError
from koord.process.http import OpsServer
from koord.process.life import Life, Phase
from koord.process.metrics import watch_events
from roles.descheduler import build
from roles.descheduler.acting import SHARE, ClusterActing
from roles.descheduler.build import Options
from roles.descheduler.cluster import ClusterState
from roles.descheduler.framework.effects import Outcome
from roles.descheduler.framework.evicting import Setup
from roles.descheduler.journal import DeschedulerFile, Heard, HeardActing, Round, seen
from roles.descheduler.metrics import Metrics
from roles.descheduler.observing import Observer
from roles.descheduler.placement import Placements, Simulations
from roles.descheduler.reading import EXPIRES, KUBERNETES_METRICS, Reading
from roles.descheduler.snapshot import NodeView
from roles.descheduler.successors import Successors
from roles.descheduler.workloads import Workloads

__all__ = ["App", "Options"]

log = logging.getLogger(__name__)

COMPONENT = "koord-descheduler"
_SOON = 1.0  # seconds until the only round is tried again
_AT_ONCE = 200  # records that are written before others get their turn


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
        clock: Callable[[], float] | None = None,
        replay_log: DeschedulerFile | None = None,
    ) -> None:
        self._config = options.config
        self._replay_log = replay_log
        if replay_log is not None:
            replay_log.options = options
        self._recorder = recorder
        election = options.config.leader_election
        self._leadership = Leadership(election.renew_deadline) if election.leader_elect else None
        self._unfenced = self._reporting = client
        if self._leadership is not None:
            client, self._reporting = client.fenced(self._leadership), client.fenced(self._leadership.reports)
        self._client = client
        self._ops = ops
        # how old a report is, or how long a job waits, must not change because the machine's clock was set
        self._clock = clock = clock or clock_of(client)
        self._informers = informers
        self.metrics = Metrics(ops.registry if ops is not None else None)
        self._cluster = ClusterState(informers, clock)
        self._workloads = Workloads(client, informers, self._cluster)
        self._gates = FeatureGates(DESCHEDULER)
        for name, value in options.gates.items():
            self._gates.set(name, value)
        self._shared: dict[str, Any] = {}
        self._events: dict[str, EventRecorder] = {}
        self._simulations = Simulations(informers, self._cluster, client, options.scheduler) if build.asks_scheduler(options) else None
        self._successors = Successors(self._simulations, self._cluster, clock) if self._simulations is not None else None
        self._rounds = build.rounds(options, self._setup)
        self._sources = build.sources(options.config, self._rounds.reads(), client)
        self._controllers = build.controllers(self._rounds.profiles)
        self._observer = Observer(self._cluster, self._rounds.profiles)
        self._placements = asked = Placements(self._simulations, clock)
        self._acting = ClusterActing(client, self.may_write, asked.where, asked.makes_room, options.config.descheduling_interval * SHARE)
        if ops is not None:
            ops.health.register("caches", gate=True)
            watch_events(ops.registry, self._events.values)
            self.install(ops)

    def _setup(self, profile: str) -> Setup:
        events = self._events[profile] = EventRecorder(self._reporting, profile)
        return Setup(
            profile=profile,
            dry_run=self._config.dry_run,
            client=self._client,
            informers=self._informers,
            cluster=self._cluster,
            workloads=self._workloads,
            recorder=self._recorder,
            events=events,
            metrics=self.metrics,
            gates=self._gates,
            clock=self._clock,
            shared=self._shared,
            successors=self._successors,
        )

    def install(self, server: OpsServer) -> None:
        """Routes of the role on one more HTTP port."""
        server.json("/configz", lambda: {"componentconfig": wire(self._config)})
        if self._config.enable_profiling:
            server.enable_profiling()

    def may_write(self) -> bool:
        """Whether this process still leads (or needs not)."""
        return self._leadership is None or self._leadership.held

    async def run(self, life: Life) -> None:
        """Lead, then rounds and controllers until told to stop. Raises FatalError when the lease is lost."""
        self._informers.start()
        await self._cluster.wait_synced()
        await self._workloads.wait_synced()
        if self._ops is not None:
            self._ops.health.set("caches", True, "informer caches are synced")
        try:
            await self._compete(life)
        finally:
            for events in self._events.values():
                await events.stop()

    async def _compete(self, life: Life) -> None:
        election = self._config.leader_election
        if not election.leader_elect:
            await self._lead(life, None)
            return
        timing = Timing(election.lease_duration, election.renew_deadline, election.retry_period)
        events = self._events.setdefault(COMPONENT, EventRecorder(self._reporting, COMPONENT))
        where = (election.resource_namespace, election.resource_name)
        elector = LeaderElector(self._unfenced, *where, timing=timing, leadership=self._leadership, events=events)
        life.on_stop(elector.release, "lease", phase=Phase.LEASE)
        if self._ops is not None:
            self._ops.health.register("leader-election", live=True, probe=elector.healthy)
        competing = asyncio.ensure_future(elector.run(lambda leadership: self._lead(life, leadership)))
        stopping = asyncio.ensure_future(life.stopping.wait())
        await asyncio.wait({competing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not competing.done():
            competing.cancel()
            await asyncio.wait({competing}, timeout=2.0)
        elif not competing.result() and not life.stopping.is_set():
            raise FatalError("lost lease")

    async def _lead(self, life: Life, leadership: Leadership | None) -> None:
        """Rounds and controllers, until the process stops; a controller that fails ends all."""
        if leadership is not None:
            await self._informers.verify()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(controller.run(leadership), name=controller.name) for controller in self._controllers]
                tasks.append(group.create_task(self._rounds_until(life), name="rounds"))
                await life.stopping.wait()
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _rounds_until(self, life: Life) -> None:
        """Rounds, start to start at the interval; an interval of 0 is exactly one round, after which only controllers work."""
        interval = self._config.descheduling_interval
        loop = asyncio.get_running_loop()
        while not life.stopping.is_set() and self.may_write():
            started = loop.time()
            young, why = self._informers.fresh()
            if young:
                await self.round()
            else:
                log.error("round skipped: %s", why)
            if interval <= 0 and young:
                log.info("deschedulingInterval is 0: this was the only round")
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(life.stopping.wait(), max(0.0, started + (interval or _SOON) - loop.time()))

    async def round(self) -> Outcome:
        """One round on what the caches hold now."""
        now, began = self._clock(), seams.monotonic()
        self._placements.forget()
        with self.metrics.time_round(), tuning.collecting_in_small_steps():
            views = await self._observer.views(now)
            mute = any(view.usage is None or view.metric_age >= EXPIRES for view in views)
            readings = await self._sources.readings(now, wanted=lambda key: mute or key != KUBERNETES_METRICS)
            await self._rounds.prepare(views)
            if self._acting.too_long(seams.monotonic() - began):  # whoever was asked took long to answer
                now = self._clock()
                views = await self._observer.views(now)
            self._acting.begin()
            outcome = await self._run(views, now, readings)
        for number, record in enumerate(outcome.records, 1):
            self._recorder.record(record)
            if number % _AT_ONCE == 0:
                await seams.sleep(0)
        self.metrics.round_done(outcome)
        for error in outcome.errors:
            log.error("the round ended early: %s", error)
        if outcome.skipped:
            log.error("round skipped: %s", outcome.skipped)
        else:
            log.info(
                "round over %d nodes: %d pods %s", outcome.nodes, outcome.evicted, "listed" if self._config.dry_run else "told to leave"
            )
        return outcome

    async def _run(self, views: list[NodeView], now: float, readings: dict[str, Reading]) -> Outcome:
        waiting = self._cluster.waiting()
        if self._replay_log is None:
            return await self._rounds.run(views, now, self._acting, readings, waiting, prepared=True)
        heard, snapshot = Heard(), await seen(views)
        outcome = await self._rounds.run(views, now, HeardActing(self._acting, heard), readings, waiting, heard, prepared=True)
        self._replay_log.put(Round(now, snapshot, waiting, readings, heard.answers, outcome.records))
        return outcome
