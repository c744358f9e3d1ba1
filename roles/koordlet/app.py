"""Wires the node agent: machine → sensing → store → states → strategies and reports. Holds no logic of its own."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from koord import seams
from koord.config.gates import KOORDLET, FeatureGates
from koord.process.errors import ConfigurationError, UsageError
from koord.process.flags import HostPort, parse_host_port
from koord.process.notify import notify, stay_watched
from roles.koordlet import owned, restoring
from roles.koordlet.acting import Acting
from roles.koordlet.audit.log import FLUSH_AFTER, AuditLog
from roles.koordlet.audit.reader import EventsHandler, Readers
from roles.koordlet.claims import plugin as claims
from roles.koordlet.extensions import load as load_extensions
from roles.koordlet.host.cgroup import Cgroups, Layout, detect_layout
from roles.koordlet.host.errors import HostError
from roles.koordlet.host.files import HostFiles, raise_descriptor_limit
from roles.koordlet.host.root import PATH_FLAGS
from roles.koordlet.lock import NodeLock
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.observing import Parts, make_kubelet, make_sensing, spawn_reports
from roles.koordlet.options import Options, host_root, settled
from roles.koordlet.permissions import unreadable
from roles.koordlet.qos import carryover
from roles.koordlet.qos.urgency import RISEN
from roles.koordlet.report.contention import CONDITIONS, FINDINGS
from roles.koordlet.selftest import blocked
from roles.koordlet.sensing.base import Round
from roles.koordlet.sensing.nodeinfo import CPU_INFO
from roles.koordlet.sensing.pressure import PressureWatch
from roles.koordlet.sensing.storage import STORAGE
from roles.koordlet.states.callbacks import Callbacks, StateKind
from roles.koordlet.states.driver import kubelet_layout
from roles.koordlet.states.model import HostState, Snapshot
from roles.koordlet.states.nodestate import NodeState
from roles.koordlet.states.pleg import Pleg
from roles.koordlet.states.podinformer import PodInformer, export_container_resources
from roles.koordlet.states.pods import PodCache
from roles.koordlet.states.volumes import ClaimVolumes
from roles.koordlet.store import persist
from roles.koordlet.store.store import MetricStore
from roles.koordlet.store.view import MetricsView
from roles.koordlet.unavailable import condition, unavailable
from roles.koordlet.waiting import pause

if TYPE_CHECKING:
    from koord.decisions.recorder import Recorder
    from koord.kube.client import Client
    from koord.kube.informers import InformerFactory
    from koord.process.http import OpsServer
    from koord.process.life import Life

log = logging.getLogger(__name__)

#: The collectors whose first successful round prediction waits for.
_NEEDED_FOR_TRAINING = frozenset({"node", "pods", "system"})
_STALE_TICK = 60.0
#: How often the lock file is looked for (seconds).
LOCK_LOOK = 10.0
#: How often, and how far apart (seconds), the cgroup driver is looked for.
_DRIVER_ATTEMPTS, _DRIVER_PAUSE = 6, 10.0


def parse_address(flag: str, text: str) -> HostPort:
    """A listen address. Raises UsageError."""
    try:
        return parse_host_port(text)
    except ValueError as error:
        raise UsageError(f"--{flag}: {error}") from None


class App:
    """The node agent. Builds no client of its own when handed one."""

    def __init__(self, options: Options, *, client: Client, informers: InformerFactory, recorder: Recorder, ops: OpsServer) -> None:
        self.options = options = settled(options)
        self.client = client
        self.informers = informers
        self.recorder = recorder
        self.ops = ops
        self.gates = FeatureGates(KOORDLET)
        self.gates.set_from_flag(options.feature_gates)
        self.extensions = load_extensions(filter(None, options.plugin_path.split(",")), options.qos_extension_plugins)
        self.root = host_root(options)
        self.metrics = Metrics(options.node_name)
        self.store = MetricStore(retention=options.tsdb_retention_duration, max_bytes=options.tsdb_max_bytes)
        self.files = HostFiles()
        self.callbacks = Callbacks()
        self.audit = AuditLog(
            options.audit_log_dir,
            verbosity=options.audit_verbose,
            max_megabytes=options.audit_max_disk_space_mb,
            enabled=self.gates.enabled("AuditEvents") and not options.observe_only,
        )
        publishes = self.gates.enabled("NodeTopologyReport")
        self.state = NodeState(
            options.node_name,
            informers,
            self.metrics,
            self.callbacks,
            publishes=publishes,
            slo_extensions=self.extensions.slo_defaults,
        )
        self.volumes = ClaimVolumes(informers) if self.gates.enabled("BlkIOReconcile") else None
        self.parts = Parts(options, client, informers, self.gates.enabled, self.state, self.store, self.metrics)
        self._lock = NodeLock(options.lock_file or os.path.join(self.root.var_run, "koordlet", "koordlet.lock"))
        self._synced = asyncio.Event()
        self._reportable = asyncio.Event()
        self._trainable = asyncio.Event()
        self._ticked = 0.0
        self._pressed = ""
        self._pressure: PressureWatch | None = None

    # -- life ----------------------------------------------------------------------------------------------------------------

    async def run(self, life: Life) -> None:
        """Serve HTTP at once, then observe, then report and act once everything is synced. Returns when asked to stop."""
        if not self.options.observe_only:  # one that writes nothing is in nobody's way
            self._lock.acquire()
        try:
            self._routes()
            await self.ops.start()
            notify("READY=1")
            life.spawn(stay_watched(life.stopping, lambda: self.ops.health.report("livez")[0]), "signs of life")
            self.metrics.start(seams.now())
            profiling = await self._profiling()
            try:
                await self._live(life)
            finally:
                notify("STOPPING=1")
                if profiling is not None:
                    await profiling.stop()
                await self.ops.stop()
        finally:
            self.audit.close()
            self.files.close_all()
            self._lock.release()

    async def _live(self, life: Life) -> None:
        try:
            cgroups = Cgroups.detect(self.root)
        except HostError as error:
            raise ConfigurationError(str(error)) from None
        self._self_test()
        for text in unreadable(self.root, self.gates.enabled):
            log.warning("no permission: %s", text)
        limit = raise_descriptor_limit()
        self.files = HostFiles(max_open=max(limit - 512, 256))
        self.host = HostState(self.root, cgroups, self.files)
        self.pod_cache = PodCache(cgroups, self.extensions.with_policies)
        options = self.options
        if options.tsdb_path:
            persist.load(self.store, options.tsdb_path, seams.now())
        self.informers.start()
        kubelet = make_kubelet(self.parts, self.root)
        pods = self.pods = PodInformer(
            self.pod_cache,
            kubelet,
            lambda: self.state.node,
            options.kubelet_sync_interval,
            self._on_pods,
            options.collect_res_used_interval,
        )
        self.sensing = make_sensing(self.parts, self.host, self.pod_cache, self._on_tick, self._change)
        stopping = life.stopping
        life.spawn(lambda: pods.run(stopping), "pods", restart=True)
        pleg = self.pleg = Pleg(cgroups, pods.trigger)
        pleg.start(asyncio.get_running_loop())
        life.spawn(self._watch_sync(stopping), "sync")
        if detect_layout(self.root, cgroups.version) is None:
            life.spawn(self._find_driver(stopping), "cgroup driver")
        for kind in StateKind:
            life.spawn(self._callbacks_of(kind), f"callbacks of {kind}")
        self.acting = Acting(
            options,
            host=self.host,
            client=self.client,
            recorder=self.recorder,
            metrics=self.metrics,
            audit=self.audit,
            gate=self.gates.enabled,
            snapshot=lambda: self.snapshot(seams.now()),
            callbacks=self.callbacks,
            extensions=self.extensions,
            publish=lambda findings: self.store.put_snapshot(FINDINGS, findings),
            fetch=pods.fetch,
        )
        self.acting.start()
        if options.tsdb_path:
            carryover.load(self.acting.manager, options.tsdb_path)
        life.spawn(self.acting.unshape(), "NICs that are shaped no more")
        life.spawn(self._flush_audit(stopping), "audit log")
        life.spawn(self._keep_lock(stopping), "node lock")
        life.spawn(lambda: self.acting.hooks.run(stopping, self._synced), "runtime hooks", restart=True)
        life.on_stop(self.acting.stop, "acting half")
        spawn_reports(
            life,
            self.parts,
            root=self.root,
            pods=self.pod_cache,
            kubelet=kubelet,
            reportable=self._reportable,
            trainable=self._trainable,
        )
        if self.gates.enabled(claims.GATE) and not options.observe_only:
            plugin = claims.make_plugin(self.parts, self.root, self.acting.executor)
            life.spawn(lambda: plugin.run(stopping), "claims", restart=True)
        elif not options.observe_only:
            claims.withdraw(self.root)
        self._pressure = self._watch_pressure()
        try:
            if options.collect_res_used_interval >= 1.0:
                await self.sensing.run(stopping)
            else:
                log.error("--collect-res-used-interval is below 1s: metrics are not collected")
                await stopping.wait()
        finally:
            pleg.stop(asyncio.get_running_loop())
            if self._pressure is not None:
                self._pressure.close()
            await kubelet.close()
            if options.tsdb_path:
                persist.save(self.store, options.tsdb_path, seams.now())
                carryover.save(self.acting.manager, options.tsdb_path)

    def _self_test(self) -> None:
        """Say which of the gates cannot work on this machine: in the log, in a metric, and of what was asked for in the NodeMetric."""
        for text in unavailable(self.options, self.gates.asked, self.root):
            log.warning("%s", text)
        lacks = blocked(self.gates.enabled, self.root)
        for name, why in lacks.items():
            self.metrics.unavailable.set(1, name)
            if not self.gates.asked(name):
                log.info("feature gate %s, which is on by default, is not available on this machine: %s", name, why)
        asked = {name: why for name, why in lacks.items() if self.gates.asked(name)}
        if asked:
            self.store.put_snapshot(CONDITIONS, [condition(asked, seams.now())])

    async def _find_driver(self, stopping: asyncio.Event) -> None:
        """Find out the cgroup driver while no kubepods directory tells it: by the kubelet's configuration, systemd after a minute.

        The directories have the last word, whenever they are made: a kubelet may start late, and may follow its runtime instead of its own
        configuration.
        """
        told = False
        for attempt in itertools.count():
            if stopping.is_set():
                return
            found = detect_layout(self.root, self.host.cgroups.version)
            if found is not None:
                self._use_layout(found)
                return
            node = self.state.node
            port = node.status.daemon_endpoints.kubelet_endpoint.port if node is not None else 0
            if not told and attempt <= _DRIVER_ATTEMPTS and port and (said := kubelet_layout(self.root, port)) is not None:
                self._use_layout(said)
                told = True
            if not told and attempt == _DRIVER_ATTEMPTS:
                log.warning("the cgroup driver is not known: neither kubepods directories nor the kubelet tell it; systemd is taken")
            await seams.sleep(_DRIVER_PAUSE)

    def _use_layout(self, layout: Layout) -> None:
        cgroups = self.host.cgroups
        if layout == cgroups.layout:
            return
        cgroups.use(layout)
        log.info("the cgroup driver is %s, kubepods is %s", layout.driver, cgroups.kubepods)
        self.pleg.relocate()
        self.pod_cache.relocate()
        self._on_pods()

    async def _flush_audit(self, stopping: asyncio.Event) -> None:
        """The last events of a quiet node reach the disk, too."""
        while not stopping.is_set():
            self.audit.flush()
            await seams.sleep(FLUSH_AFTER)

    async def _keep_lock(self, stopping: asyncio.Event) -> None:
        """Without its file another koordlet would start, and a guard take this one for gone."""
        complaint = ""
        while not await pause(stopping, LOCK_LOOK):
            problem = self._lock.stay()
            if problem and problem != complaint:
                log.error("the lock file was removed, and cannot be had again: %s", problem)
            complaint = problem

    async def _callbacks_of(self, kind: StateKind) -> None:
        await self._synced.wait()
        await self.callbacks.run(kind)

    async def _watch_sync(self, stopping: asyncio.Event) -> None:
        """Set the events that later stages wait for, and say in the log what is still missing."""
        complaint = ""
        while not stopping.is_set() and not (self._reportable.is_set() and self._trainable.is_set()):
            missing = self._missing()
            if not missing:
                self._synced.set()
                if self.pod_cache.confirmed:
                    self._reportable.set()
            waiting = set(self.sensing.waiting_for) & _NEEDED_FOR_TRAINING
            if self._synced.is_set() and not waiting:
                self._trainable.set()
            text = ", ".join(missing)
            if text != complaint:
                log.info("waiting for %s", text) if text else log.info("all states are synced")
            complaint = text
            self.ops.health.set("states", not missing, f"waiting for {text}" if text else "")
            await seams.sleep(0.2)

    def _missing(self) -> list[str]:
        rows = (
            (self.state.lists_synced, "the API server's first lists"),
            (self.state.node is not None, f"Node {self.options.node_name}"),
            (self.pod_cache.synced, "the kubelet's pods"),
            (self.volumes is None or self.volumes.synced, "the list of claims"),
        )
        return [name for ok, name in rows if not ok]

    # -- ticks ---------------------------------------------------------------------------------------------------------------

    def snapshot(self, now: float) -> Snapshot:
        """The snapshot of this moment, for strategies and hooks."""
        options = self.options
        return Snapshot(
            time=now,
            node_name=options.node_name,
            host=self.host,
            node=self.state.node,
            slo=self.state.slo,
            pods=self.pod_cache.pods,
            topology=self.store.snapshot(CPU_INFO),
            nrt=self.state.topology,
            metrics=MetricsView(self.store, now, options.collect_res_used_interval),
            collect_interval=options.collect_res_used_interval,
            pods_synced=self.pod_cache.synced and self.pods.current(seams.boot_time()),
            storage=self.store.snapshot(STORAGE),
            volume_of_claim=self.volumes.volume_name if self.volumes is not None else lambda namespace, claim: "",
            holder=self.acting.executor.holds.holder,
            changed=self.acting.executor.changed,
            holds_ours=self.acting.executor.holds_ours,
            leaving=self.pod_cache.leaving(),
        )

    def _watch_pressure(self) -> PressureWatch | None:
        """Let kernel pressure of CPU and memory start a tick at once."""
        if not self.options.pressure_triggers:
            return None
        watch = PressureWatch(self.host, lambda: self.pod_cache.pods, os.cpu_count() or 1, self._on_pressure)
        return watch if watch.start(asyncio.get_running_loop()) else None

    def _on_pressure(self, reason: str) -> None:
        if self._pressed != RISEN:
            self._pressed = reason
        self.metrics.pressure_wakeups.inc(reason)
        self.sensing.wake()

    def _on_tick(self, at: Round) -> None:
        self._ticked = at.mono
        if self._pressure is not None:
            self._pressure.ticked(at.mono)
        if self._synced.is_set():
            pressed, self._pressed = self._pressed, ""
            snapshot = self.snapshot(at.now)
            if pressed == RISEN and self._pressure is not None:
                snapshot = replace(snapshot, others_cpu=self._pressure.others_cpu)
            if pressed:
                self.acting.pressure(snapshot, at.mono)
            else:
                self.acting.tick(snapshot, at.mono)
        if self.state.lists_synced:  # till then nobody knows for how long; series of an earlier run would be cut
            policy, slo = self.state.policy, self.state.slo
            window = max(policy.aggregate, self.options.prediction_training_interval)
            evict = (slo.threshold.cpu_evict_time_window_seconds if slo is not None else None) or 0
            self.store.want(node_window=max(*policy.durations, window, evict), window=window)

    def _change(self, name: str, path: str, value: str) -> str:
        return self.acting.change(name, path, value)

    def _on_pods(self) -> None:
        export_container_resources(self.metrics, self.pod_cache.pods)
        self.callbacks.emit(StateKind.ALL_PODS)

    # -- HTTP ----------------------------------------------------------------------------------------------------------------

    def _routes(self) -> None:
        from koord.process.metrics import watch_recorder

        health = self.ops.health
        health.register("caches", gate=True, probe=lambda: (self.state.lists_synced, "first lists of the API server"))
        health.register("sensing", live=True, probe=self._sensing_alive)
        self.metrics.attach(self.metrics.families(), self.ops.registry)
        watch_recorder(self.ops.registry, self.recorder)

        self.ops.expose("/internal-metrics", self.metrics.internal)
        self.ops.expose("/external-metrics", self.metrics.external, self._measure_store)
        if self.gates.enabled("AuditEventsHTTPHandler"):
            options = self.options
            readers = Readers(
                options.audit_log_dir, max_readers=options.audit_max_concurrent_readers, max_events=options.audit_max_events_limit
            )
            self.ops.route("GET", "/events", EventsHandler(readers if self.audit.enabled else None))

    def _measure_store(self) -> None:
        if self.options.tsdb_enable_prometheus_metric:
            self.metrics.store_bytes.set(self.store.size_bytes)
            self.metrics.store_series.set(self.store.series_count)

    async def _profiling(self) -> OpsServer | None:
        """The profiling listener, when it is asked for."""
        if not self.options.enable_pprof:
            return None
        from koord.process.http import OpsServer

        shared = {"health": self.ops.health, "tls": self.ops.tls, "gate": self.ops.gate}
        server = OpsServer.at(parse_address("pprof-addr", self.options.pprof_addr), role="koordlet profiling", **shared)
        server.enable_profiling()
        await server.start()
        return server

    def _sensing_alive(self) -> tuple[bool, str]:
        if not self._ticked:
            return True, "not started yet"
        age = seams.monotonic() - self._ticked
        return age < max(_STALE_TICK, 5 * self.options.collect_res_used_interval), f"last tick {age:.1f} s ago"


def restore(options: Options) -> int:
    """Put back what koordlet changed on this machine, from its journal; the exit status."""
    asked = bool(options.host_root or "agent_mode" in os.environ or any(getattr(options, f.replace("-", "_")) for f, *_ in PATH_FLAGS))
    clean = partial(owned.remove, options) if options.clean or os.environ.get(owned.CLEAN) else None
    return restoring.run(host_root(options), asked=asked, lock_file=options.lock_file, clean=clean)
