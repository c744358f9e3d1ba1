"""Wiring of the scheduler role: informers, engine, queue, binder, reporter, HTTP, leader election (SCH-FW-02, 03, 04)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from prometheus_client.core import Metric

from koord import seams
from koord.api.kinds import NODES, PODS
from koord.config.scheduler import LeaderElection
from koord.decisions.recorder import Recorder
from koord.kube.events import EventRecorder
from koord.kube.informers import DOUBTFUL_AGE, MAX_CACHE_AGE
from koord.kube.leases import LeaderElector, Leadership, Timing
from koord.kube.servertime import clock_of
from koord.process import tuning
from koord.process.errors import FatalError
from koord.process.http import OpsServer
from koord.process.life import Life, Phase
from koord.process.metrics import Collected, watch_events
from koord.process.reporters import ReportTimes
from roles.scheduler import diagnosis
from roles.scheduler.auditor import Audit, AuditWatch, Event
from roles.scheduler.binding.binder import Binder, Outcome, Task
from roles.scheduler.binding.preemption import Evictor
from roles.scheduler.binding.readback import ReadBack
from roles.scheduler.binding.reporter import Reporter
from roles.scheduler.binding.waiting import WaitingPods
from roles.scheduler.cluster.cache import Cache
from roles.scheduler.cluster.podinfo import PodInfo
from roles.scheduler.diagnosis import Dump
from roles.scheduler.engine import Engine, registry
from roles.scheduler.extenders.chain import Extenders
from roles.scheduler.flags import controller_wanted
from roles.scheduler.framework.status import Status
from roles.scheduler.framework.steps import Steps
from roles.scheduler.gate import Gate
from roles.scheduler.journal.head import beginning
from roles.scheduler.journal.journal import Journal
from roles.scheduler.journal.lines import Operation
from roles.scheduler.live import Scheduler
from roles.scheduler.metrics import SchedulerMetrics, standing
from roles.scheduler.monitor import Monitor
from roles.scheduler.observing.barrier import wait
from roles.scheduler.observing.observer import Observer
from roles.scheduler.options import Options
from roles.scheduler.parts import Parts
from roles.scheduler.queue.queue import SchedulingQueue
from roles.scheduler.resizing import GATE as RESIZE_GATE
from roles.scheduler.resizing import Resizes
from roles.scheduler.resource_metrics import resource_page
from roles.scheduler.services import install, settled

log = logging.getLogger(__name__)


class App:
    """The scheduler on a client and informers that it is handed."""

    def __init__(
        self, options: Options, *, client: Any, informers: Any, recorder: Recorder, ops: OpsServer, journal: Journal | None = None
    ) -> None:
        self.journal = journal or Journal()
        self.options = options
        self.informers = informers
        self.ops = ops
        config = options.config
        election = config.leader_election
        self._leadership = Leadership(election.renew_deadline) if election.leader_elect else None
        self._unfenced = reporting = client
        if self._leadership is not None:
            client, reporting = client.fenced(self._leadership), client.fenced(self._leadership.reports)
        self.client = client
        gate = self.gate = Gate()
        self._last_sizes: dict[str, int] = {}
        self._clock: Callable[[], float] = clock_of(client)  # a pod that rests must not rest longer because the machine's clock was set
        self.waiting = WaitingPods()
        self.engine = Engine(
            config,
            registry(options.plugin_paths),
            client=client,
            waiting=self.waiting,
            gates=options.gates,
            seed=options.seed,
            source=options.source,
            verify=options.verify,
        )
        engine = self.engine
        self.cache = Cache(engine.cluster, engine.parser)
        self.queue = SchedulingQueue(
            sort_key=next(iter(engine.frameworks.values())).queue_sort.sort_key,
            pre_enqueue=engine.pre_enqueue,
            subscriptions={name: framework.subscriptions for name, framework in engine.frameworks.items()},
            initial_backoff=config.pod_initial_backoff_seconds,
            max_backoff=config.pod_max_backoff_seconds,
            max_unschedulable=options.max_unschedulable,
            job_of=engine.job_of,
            pop_from_backoff=options.gates.get("SchedulerPopFromBackoffQ", False),
        )
        metrics = SchedulerMetrics(ops.registry)
        for framework in engine.frameworks.values():
            framework.trust.told = metrics.differed
        self.queue.incoming = metrics.incoming
        self.monitor = Monitor(options.scheduling_timeout, metrics.timed_out)
        self.dump = Dump(size=options.diagnosis_queue, workers=options.diagnosis_workers)
        self.dump.blocking = options.diagnosis_blocking
        self.events = {name: EventRecorder(reporting, name) for name in engine.frameworks}
        self.reporter = Reporter(client, self.events, may_write=self.may_write, reservation=self._failure_status)
        audit = Audit(options.audit, engine.frameworks, ops.registry)
        watch = AuditWatch(audit, lambda pod: str(engine.job_of(pod) or pod.key), self._clock)
        if audit.enabled:
            self.queue.admission = watch.admission
        self.resizes = Resizes(
            engine.state, engine.frameworks, evict=self._make_room,
            record=recorder.record, may_act=lambda: self.may_write() and not self._outdated(),
            looks=lambda: self.journal.happened(Operation.RESIZES, self._clock()),
        )  # fmt: skip
        watching = ((watch,) if audit.enabled else ()) + ((self.resizes,) if options.gates.get(RESIZE_GATE) else ())
        self.observer = Observer(
            engine.state, self.cache, self.queue, engine.frameworks,
            clock=self._clock, changed=self._wake, gone=self.reporter.forget,
            foreign_nominations=options.gates.get("CrossSchedulerNomination", False), watching=watching, gate=gate,
            journal=self.journal, report_times=ReportTimes(self._clock) if client is not None else None,
        )  # fmt: skip
        self.extenders = Extenders(config.extenders) if config.extenders else None
        self.binder = Binder(
            workers=options.binders,
            finished=self._finished,
            may_write=self.may_write,
            reread=self.observer.reread,
            check=options.gates.get("DynamicSchedulerCheck", True),
            extenders=self.extenders,
            measure=metrics.point,
            quiet=self.reporter.quiet,
            gate=gate,
        )
        readback = ReadBack(client, self.observer.reread)
        parts = Parts(
            state=engine.state, cache=self.cache, queue=self.queue, waiting=self.waiting, cycle=engine.cycle,
            frameworks=engine.frameworks, reporter=self.reporter, recorder=recorder, metrics=metrics, clock=self._clock,
            debug=options.debug, dump=self.dump, audit=audit, monitor=self.monitor, binder=self.binder, extenders=self.extenders,
            leading=self.may_write, readback=readback, gate=gate, journal=self.journal, evictor=Evictor(
                client, engine.state.evictions, self.reporter, self.waiting,
                may_write=self._may_evict, clock=self._clock, readback=readback, gate=gate, journal=self.journal,
            ),
        )  # fmt: skip
        self.scheduler = Scheduler(parts)
        self.observer.acting = self.scheduler
        self.queue.broken = lambda pod, message, now: self.reporter.failed(pod, message, error=True, nominate=None, now=now)
        self.scheduler.outdated = self._outdated
        for handle in engine.handles.values():
            handle.activate, handle.gate = self._activate, gate
            handle.metrics, handle.may_write, handle.may_evict = ops.registry, self.may_write, self._may_evict
            handle.pods, handle.released = self.observer, self.scheduler.released
            handle.wake = lambda test, by_template: self.queue.wake(test, by_template, self._clock())
            handle.network_topology = options.network_topology
            handle.report = lambda pod, message: self.reporter.waits(pod, message, self._clock())
            handle.record = recorder.record
            handle.audit = lambda job, event: audit.record(job, Event(event), self._clock())
            handle.event = self.events[handle.profile].event
        ops.registry.register(Collected(self._standing))  # type: ignore[arg-type]
        watch_events(ops.registry, self.events.values)
        ops.health.register("caches", gate=True)
        ops.health.register("placements", gate=True, live=True, probe=self.scheduler.health)
        self.install(ops)

    def _make_room(self, pod: PodInfo, victims: Iterable[PodInfo], node: str) -> None:
        """Pods leave a node for one that is there already and grows."""
        self.scheduler.evictor.evict(pod, victims, node)

    def _outdated(self) -> str:
        """Why nothing may be decided on what the informers have; "" when it may."""
        age = self._age()
        return f"nothing was heard of pods or nodes for {age:.0f} s" if age > MAX_CACHE_AGE else ""

    def _may_evict(self) -> bool:
        """Whether pods may be asked to leave now: perhaps there is room by now, and a watch that is silent has not told of it."""
        age = self._age()
        if age > DOUBTFUL_AGE:
            log.warning("no pod is asked to leave: nothing was heard of pods or nodes for %.0f s", age)
        return age <= DOUBTFUL_AGE and self.may_write()

    def _age(self) -> float:
        return float(getattr(self.informers, "age", lambda *kinds: 0.0)(PODS, NODES))

    def _differences(self) -> Steps[dict[str, Any]]:
        return {"differences": (yield from self.observer.auditing())}

    def _activate(self, pods: Iterable[PodInfo]) -> None:
        self.queue.activate(pods, self._clock())
        self._wake()

    def _sizes(self) -> dict[str, int]:
        cluster = self.engine.cluster
        if self.gate.closed:
            return self._last_sizes  # what counts now may be a what-if
        self._last_sizes = {"nodes": cluster.live, "pods": cluster.pod_count, "assumed_pods": self.cache.assumed_count}
        return self._last_sizes

    def _standing(self) -> Iterator[Metric]:
        lease = self.options.config.leader_election.resource_name
        backlog = self.binder.backlog
        return standing(self.queue.counts(), self._sizes(), backlog, self.queue.refused(), leads=self.may_write(), lease=lease)

    def _wake(self) -> None:
        self.scheduler.wake()

    def _finished(self, task: Task, outcome: Outcome, status: Status) -> None:
        self.scheduler.carrier.finished(task, outcome, status)

    def _failure_status(self, pod: PodInfo, message: str, now: float) -> dict[str, Any] | None:
        """What the Reservation of a reserve pod is to show of a failed attempt."""
        framework = self.engine.frameworks[pod.shape.scheduler_name]
        plugin = framework.reserve_failure
        return plugin.failure_status(pod, message, now) if plugin is not None else None

    def may_write(self) -> bool:
        """Whether this process may write to the API server now: always without leader election, else while the lease is held."""
        return self._leadership is None or self._leadership.held

    def install(self, ops: OpsServer) -> None:
        """The pages of the scheduler on an HTTP server that is not started yet; health and metrics are shared by all of them."""
        from koord.config.model import wire

        ops.json("/configz", lambda: {"kubescheduler.config.k8s.io": wire(self.options.config)})
        ops.route("GET", "/metrics/resources", resource_page(lambda: self.observer.running() if self.may_write() else ()))
        ops.route("GET", "/debug/cache", settled(self._differences, self.scheduler.turns))
        ops.json("/debug/loop", lambda: {"scheduler": self.scheduler.loop()})
        diagnosis.install(ops, self.options.debug, self.dump)
        install(ops, self.engine.cluster, self.engine.frameworks, self.may_write, self.gate)

    async def run(self, life: Life) -> None:
        """Sync, lead, schedule, until the process is to end. Raises FatalError when the lease is lost."""
        if not self.options.config.delay_cache_until_active:
            await self._sync()
        election = self.options.config.leader_election
        if not election.leader_elect:
            await self._sync()
            await self._lead(life)
            return
        elector = self._elector(election)
        life.on_stop(elector.release, "lease", phase=Phase.LEASE)
        self.ops.health.register("leaderElection", gate=True, live=True, probe=elector.healthy)
        if self.options.config.delay_cache_until_active:
            self.ops.health.set("caches", True, "waiting for leadership")
        ended = await elector.run(lambda leadership: self._led(life))
        if not ended and not life.stopping.is_set():
            raise FatalError("the lease was lost")

    def _elector(self, election: LeaderElection) -> LeaderElector:
        timing = Timing(election.lease_duration, election.renew_deadline, election.retry_period)
        return LeaderElector(
            self._unfenced, election.resource_namespace, election.resource_name, timing=timing, leadership=self._leadership,
            events=next(iter(self.events.values())),
        )  # fmt: skip

    async def _sync(self) -> None:
        """Fill the caches. No pod is scheduled before every handler has seen the first list (SCH-FW-04)."""
        if self.observer.attached:
            return
        self.journal.begins(
            lambda: beginning(self.options, self.engine.state, self.cache, self.observer, settled=self._settled()), self._settled
        )
        self.observer.attach(self.informers)
        if self.extenders is not None:
            self.extenders.attach(self.informers)
        self.informers.start()
        await self.informers.wait_synced()
        tuning.freeze()
        self.ops.health.set("caches", True, f"{self.engine.cluster.live} nodes, {self.engine.cluster.pod_count} assigned pods")
        log.info(
            "caches are synced: %d nodes, %d assigned pods, %d pending pods",
            self.engine.cluster.live, self.engine.cluster.pod_count, len(self.queue),
        )  # fmt: skip

    def _settled(self) -> bool:
        """Whether nothing is under way, so that objects tell all."""
        state = self.engine.state
        return not (
            len(self.scheduler.placements)
            or len(self.waiting)
            or self.cache.assumed_count
            or len(state.nominations)
            or state.evictions.victim_count
        )

    async def _led(self, life: Life) -> None:
        await self._sync()
        await self.informers.verify()
        await self._lead(life)

    async def _lead(self, life: Life) -> None:
        """Schedule for as long as we may."""
        if self.options.gates.get("SyncBarrier"):
            await wait(self.options.barrier, self.client, self.observer.pods, self.options.config.leader_election.resource_name)
        for recorder in self.events.values():
            recorder.start()
        self.reporter.start()
        self.dump.start()
        self.binder.start()
        task = life.spawn(self.scheduler.run(), "scheduling")
        controllers = [life.spawn(run, name, restart=True) for name, run in self.controllers().items()]
        controllers.append(life.spawn(self._watch_time, "monitor", restart=True))
        if self.options.gates.get(RESIZE_GATE):
            controllers.append(life.spawn(lambda: self.gate.drive(self.resizes.run), "resizes", restart=True))
        try:
            await life.stopping.wait()
        finally:
            for running in (task, *controllers):
                running.cancel()
            await self.binder.stop()
            await self.scheduler.carrier.stop()
            await self.scheduler.evictor.stop()
            if self.extenders is not None:
                await self.extenders.close()
            await self.reporter.stop()
            await self.dump.stop()
            for recorder in self.events.values():
                await recorder.stop()

    def controllers(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """The background work of plugins, each once however many profiles have the plugin, as --controller-plugins wants it."""
        found: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        for framework in self.engine.frameworks.values():
            for plugin, name, run in framework.controllers(lambda plugin: controller_wanted(plugin, self.options.controller_plugins)):
                found.setdefault(f"{plugin}/{name}", lambda run=run: self.gate.drive(run))  # type: ignore[misc]
        return found

    async def _watch_time(self) -> None:
        """Report pods that take too long, every period."""
        while self.options.monitor_period > 0:
            await seams.sleep(self.options.monitor_period)
            self.monitor.check(self._clock())
