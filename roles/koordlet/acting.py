"""Wires the acting half: executor with its journal, evictions, strategies, runtime hooks. Holds no logic of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from koord import seams
from koord.api.kinds import NODES, PODS
from koord.kube.events import EventRecorder
from koord.kube.references import ObjectRef
from roles.koordlet import undoing
from roles.koordlet.actuation.executor import Executor, Mode
from roles.koordlet.actuation.holds import Holds
from roles.koordlet.actuation.journal import Journal, JournalError
from roles.koordlet.actuation.restore import QUOTA, abandoned, give_back_unwanted, holds_path, journal_path
from roles.koordlet.actuation.threeway import Undo
from roles.koordlet.actuation.writes import Kind, Write, sequence
from roles.koordlet.claims.plugin import GATE as CLAIMS
from roles.koordlet.eviction.evictor import Evictor, PodEvictor
from roles.koordlet.eviction.kill import ContainerKiller
from roles.koordlet.eviction.runner import EvictionRunner
from roles.koordlet.extensions import Extensions
from roles.koordlet.guard import NAME as GUARD
from roles.koordlet.hooks.cpusetallocator import CPUSetAllocator
from roles.koordlet.hooks.delivery import OWNER as REQUESTS
from roles.koordlet.hooks.delivery import Fetch, never
from roles.koordlet.hooks.manager import HooksManager
from roles.koordlet.options import Options, parse_modes
from roles.koordlet.qos.manager import Findings, QOSManager
from roles.koordlet.qos.outcome import Notice
from roles.koordlet.qos.registry import OBSERVING, make_strategies
from roles.koordlet.qos.suppress import BECPUSuppress
from roles.koordlet.states.callbacks import Callbacks
from roles.koordlet.states.model import HostState, PodState, Snapshot

if TYPE_CHECKING:
    from koord.decisions.recorder import Recorder
    from koord.kube.client import Client
    from roles.koordlet.audit.log import AuditLog
    from roles.koordlet.metrics.registry import Metrics

log = logging.getLogger(__name__)

_ABANDONED = "what wrote it is off, only observes or is gone"

COMPONENT = "koordlet-qosManager"
AGAIN = 10.0  # seconds until what the start could not give back is tried again
#: The one gate whose collector sets files of the node, and whose they are in the journal.
_COLD_PAGES, _COLLECTORS = "ColdPageCollector", "collectors"


def modes(options: Options) -> Callable[[str], Mode]:
    """Mode of a strategy or of a gate by ``--strategy-modes``, else ``--mode``; some only observe unless they are named."""
    single = parse_modes(options.strategy_modes)
    return lambda name: Mode(single.get(name, "observe" if name in OBSERVING else options.mode))


class Acting:
    """Everything that changes the node or evicts pods."""

    def __init__(
        self,
        options: Options,
        *,
        host: HostState,
        client: Client,
        recorder: Recorder,
        metrics: Metrics,
        audit: AuditLog,
        gate: Callable[[str], bool],
        snapshot: Callable[[], Snapshot],
        callbacks: Callbacks,
        extensions: Extensions,
        publish: Callable[[Findings], None],
        fetch: Fetch = never,
    ) -> None:
        self._node_name = options.node_name
        self._observe_only = options.observe_only
        self._quotas_stay = options.disable_unset_cpu_quota
        self._events = EventRecorder(client, COMPONENT, options.node_name)
        self._root = host.root
        self._overdue: float | None = None  # when to give back what the start could not
        self.journal = Journal(journal_path(host.root), host.root)
        self.executor = Executor(
            host=host,
            journal=self.journal,
            audit=audit,
            metrics=metrics,
            recorder=recorder,
            force_after=float(options.resource_force_update_seconds),
            observe_only=options.observe_only,
            holds=Holds(Journal(holds_path(host.root), host.root)),
        )
        evictor: Evictor = PodEvictor(
            client,
            only_api=options.only_evict_by_api,
            stop_containers=None if options.only_evict_by_api else ContainerKiller(host.root, options),
            tell=self._tell,
            metrics=metrics,
            recorder=recorder,
            audit=audit,
        )
        if extensions.evictor is not None:
            evictor = extensions.evictor(client, evictor)
        mode_of = self._mode_of = modes(options)
        self._evictions = EvictionRunner(evictor, recorder, mode_of, metrics=metrics)
        strategies = [*make_strategies(options, gate), *extensions.make_strategies(options, gate)]
        self.manager = QOSManager(
            strategies,
            executor=self.executor,
            evicting=self._evictions,
            recorder=recorder,
            metrics=metrics,
            modes=mode_of,
            notify=self._notify,
            publish=publish,
        )

        self.hooks = HooksManager(options, self.executor, metrics, gate, mode_of, snapshot, self._notify, fetch)
        self.hooks.register(callbacks)
        # what only observes by now would never take back what it wrote before, either
        hooks = {name for name in self.hooks.names if mode_of(name) is Mode.ENFORCE}
        keepers = {name for name in self.manager.names if mode_of(name) is Mode.ENFORCE} | hooks
        if hooks:
            keepers.add(REQUESTS)
        if BECPUSuppress.name in keepers:
            keepers.add(GUARD)  # nothing else takes over what the guard held
        if gate(_COLD_PAGES) and mode_of(_COLD_PAGES) is Mode.ENFORCE:
            keepers.add(_COLLECTORS)
        # containers of claims that the kubelet has prepared cannot be started again without the file that describes their devices
        keepers.add(CLAIMS)
        self._keepers = frozenset(keepers)

    def start(self) -> None:
        """Open the journal. One that cannot be used keeps the executor from touching files; the strategies then only observe."""
        if not self._observe_only and not self._take_over(log.error):
            self._overdue = seams.monotonic() + AGAIN
        self._events.start()
        log.info("strategies: %s", ", ".join(self.manager.names) or "none")

    def _take_over(self, complain: Callable[..., None]) -> bool:
        """Give back what earlier runs left and nobody would take back. False: the disk does not allow all of it, to be tried again."""
        opened = True
        try:
            self.journal.compact()
        except JournalError as error:
            opened = False
            complain("%s: nothing is changed on this node until it can be written", error)
        given = self._give_back(complain)
        if opened:
            self._give_back_what_is_off()
        return opened and given

    def _give_back(self, complain: Callable[..., None]) -> bool:
        """What an earlier run held when it was killed."""
        try:
            left = self.executor.holds.recover(self._root.machine_directories)
        except JournalError as error:
            complain("%s: nothing is taken over on this node until it can be written", error)
            return False
        if left.restored:
            log.info("given back after a run that did not end in order: %s", ", ".join(left.restored))
        for failed in (*left.failed, *left.lost):
            log.error("cannot be given back: %s", failed)
        return True

    def _give_back_what_is_off(self) -> None:
        """What an earlier run wrote for those that are off in this one, or only observe, or are gone: nobody would take it back."""
        files = [entry for entry in abandoned(self.journal, self._keepers) if entry.undo is not Undo.NETWORK]
        if self._quotas_stay and CPUSetAllocator.name in self._keepers:
            files += [entry for entry in self.journal if (entry.owner, entry.resource) == (CPUSetAllocator.name, QUOTA)]
        give_back_unwanted(self.journal, files, self._root, _ABANDONED, cookies=partial(undoing.cookies, self._root))

    async def unshape(self) -> None:
        """The same for NICs, which takes programs of the machine; as soon as it can be put on record."""
        if self._observe_only:
            return
        while self._overdue is not None:
            await seams.sleep(AGAIN)
        shaped = [entry for entry in abandoned(self.journal, self._keepers) if entry.undo is Undo.NETWORK]
        said: dict[str, str] = {}
        for each in filter(self.journal.found, shaped):
            device = os.path.basename(each.path)
            said[device] = await undoing.network(self._root, device, each.value)
        give_back_unwanted(
            self.journal, shaped, self._root, _ABANDONED, network=lambda device, _: said.get(device, "it was not there a moment ago")
        )

    def tick(self, snapshot: Snapshot, mono: float) -> None:
        """Run the strategies that are due."""
        if self._overdue is not None and mono >= self._overdue:
            self._overdue = None if self._take_over(log.debug) else mono + AGAIN
        self.manager.tick(snapshot, mono)

    def pressure(self, snapshot: Snapshot, mono: float) -> None:
        """The kernel reports a stall: run all strategies out of turn."""
        for name in self.manager.names:
            self.manager.run_now(name, snapshot, mono)

    def change(self, name: str, path: str, value: str) -> str:
        """Set a file of the node that a collector needs; why that cannot be, "" when it says so."""
        write = Write(name, path, value, kind=Kind.FILE, cached=False, reason="UpdateSystemConfig")
        mode = self._mode_of(_COLD_PAGES)
        applied = self.executor.apply([sequence(write)], rule=_COLLECTORS, now=seams.now(), mode=mode)
        if applied.would:
            return "koordlet only observes"
        return str(applied.failed[0]) if applied.failed else ""

    async def stop(self) -> None:
        await self._evictions.stop()
        await self._events.stop()
        await self.executor.triggers.stop()
        self.executor.holds.close()
        self.journal.close()

    def _tell(self, pod: PodState, reason: str, message: str) -> None:
        self._events.event(ObjectRef(PODS.kind, pod.name, pod.namespace, pod.uid), "Warning", reason, message)

    def _notify(self, notice: Notice) -> None:
        about = ObjectRef(PODS.kind, notice.name, notice.namespace, notice.uid) if notice.name else ObjectRef(NODES.kind, self._node_name)
        self._events.event(about, notice.type, notice.reason, notice.message)
