"""The demo's phases on the local node: put the pods there, let the load run, collect, and take the pods away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from koord.api.kinds import PODS
from koord.kube.errors import ApiError, NotFound
from roles.sandbox import bootstrap, measure, objects
from roles.sandbox.compose import free_port
from roles.sandbox.logtail import JsonTail
from roles.sandbox.measure import PhaseResult, load_lines
from roles.sandbox.polling import POLL, until
from roles.sandbox.process_kubelet.worker import PodWorker
from roles.sandbox.report.text import TITLES
from roles.sandbox.sampler import BEST_EFFORT, Sampler
from roles.sandbox.scenario import PhaseKind, Scenario
from roles.sandbox.sizing import request_of_each
from roles.sandbox.view.frame import Frame
from roles.sandbox.workload.work import calibrate

if TYPE_CHECKING:
    from roles.sandbox.compose import Sandbox

log = logging.getLogger(__name__)

# What ends a wait is that the thing happens; these only bound how long a slow machine may take.
READY_SECONDS = 60.0
OFFER_SECONDS = 90.0
PLACE_SECONDS = 20.0
SETTLE_SECONDS = 4.0
GONE_SECONDS = 60.0
LATE_SECONDS = 30.0
REPEAT_SECONDS = 180.0
"""Later than so long after the start of the phases none is measured again: a demo is watched."""


class DemoError(Exception):
    """The demo cannot go on; the text says what did not happen."""


class Phases:
    """Runs the phases of a scenario. `notes` gathers what a reader of the report must know."""

    def __init__(self, sandbox: Sandbox, scenario: Scenario, quiet_cores: float = 0.0) -> None:
        assert sandbox.kubelet is not None
        self.sandbox = sandbox
        self.kubelet = sandbox.kubelet
        self.scenario = scenario
        self.results: list[PhaseResult] = []
        self.notes: list[str] = []
        self.doing = "setting up"
        self.until: float | None = None
        self.port = 0
        self.iterations = 0
        self.quiet_cores = quiet_cores
        self.each: int | None = None
        self._attempt = 0
        self._began = time.monotonic()
        self.sampler = Sampler(
            sandbox.kubelet.groups,
            self._service_directory,
            self._batch_directories,
            sandbox.batch_cpu,
            lambda: [child.pid for child in sandbox.children],
        )
        self._load: JsonTail | None = None
        self._placed_now: list[str] = []

    @property
    def current(self) -> PhaseResult | None:
        """The phase whose load is running."""
        return self.results[-1] if self.results and not self.results[-1].end else None

    # --- the whole ------------------------------------------------------------------------------------------------------

    async def run(self) -> list[PhaseResult]:
        """All phases in their order. Raises DemoError or ApiError."""
        sampling = asyncio.create_task(self.sampler.run(), name="sampler")
        try:
            await self._start_service()
            for phase in self.scenario.phases:
                await self._measure(phase.kind)
            if measure.contradiction(self.results) and self._may_repeat(1):
                self.notes.append("The service alone was slower than under koord: that phase was measured again.")
                await self._again("alone")
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
        return self.results

    async def _start_service(self) -> None:
        self.doing = "starting the service"
        self.iterations = calibrate(self.scenario.service.cpu_milliseconds_per_request)
        self.port = free_port()
        pod = objects.service_pod(self.scenario, self.port, self.iterations)
        await bootstrap.ensure(self.sandbox.client, PODS, pod, self.scenario.service.namespace)
        await self._wait(lambda: self._ready(self.scenario.service.namespace, "shop"), READY_SECONDS, "the service did not become ready")

    async def _measure(self, kind: PhaseKind) -> None:
        """A phase, again as long as others disturb it, and of all tries the quietest."""
        await self._phase(kind)
        while self.results[-1].disturbed() and self._may_repeat(self.results[-1].attempts):
            await self._again(kind)

    def _may_repeat(self, attempts: int) -> bool:
        return attempts <= self.scenario.repeats and time.monotonic() - self._began < REPEAT_SECONDS

    async def _again(self, kind: PhaseKind) -> None:
        """Measure a phase once more; the quieter result takes its place. A try that fails leaves what was measured before."""
        before = next(result for result in self.results if result.kind == kind)
        known = list(self.results)
        self.results.clear()
        try:
            await self._phase(kind)
        except DemoError as error:
            self.notes.append(f"Phase {kind} could not be measured again: {error}.")
        finally:
            best = measure.quieter(before, self.results[0]) if self.results else before
            best.attempts = before.attempts + 1
            self.results[:] = [best if result is before else result for result in known]

    async def _phase(self, kind: PhaseKind) -> None:
        self._attempt += 1
        pods: list[dict[str, Any]] = []
        if kind == "koord":
            await self._switch(True)
            self.doing = "waiting for batch-cpu"
            await self._wait(lambda: (self.sandbox.batch_cpu() or 0) > 0, OFFER_SECONDS, self._no_offer)
            pods = await self._create_batch(kind)
        elif kind != "alone":
            await self._switch(False)
            pods = await self._create_batch(kind)
        placed = await self._placed(pods) if pods else []
        result = PhaseResult(kind, begin=time.monotonic(), batch_pods=len(placed), quiet_cores=self.quiet_cores)
        result.request_milli = 0 if kind in ("alone", "shares") else self.each or 0
        try:
            await self._run_load(result, placed)
        finally:
            result.end = result.end or time.monotonic()
            await self._remove_batch(pods)

    def _no_offer(self) -> str:
        """The node offers nothing; with the terms of the manager's decision, which say who has the CPUs."""
        terms = self.sandbox.offer_terms(self.kubelet.name)
        return f"the node offers no batch-cpu ({terms})" if terms else "the node offers no batch-cpu"

    async def _switch(self, strategies: bool) -> None:
        """Turn koord's strategies on or off, and wait until the best-effort tier has no limit of a former phase."""
        self.doing = f"switching koord's strategies {'on' if strategies else 'off'}"
        await bootstrap.configure(self.sandbox.client, self.scenario, strategies=strategies)
        if not strategies:
            groups = self.kubelet.groups
            await self._wait(
                lambda: (groups.cfs_quota_us(BEST_EFFORT) or -1) < 0, READY_SECONDS, "the quota of the best-effort tier was not taken back"
            )

    def frame(self, base: Frame) -> Frame:
        """`base` with what is measured now."""
        current = self.current
        tick = current.ticks[-1] if current is not None and current.ticks else None
        return replace(
            self.sampler.frame(base),
            phase_left=None if self.until is None else max(0.0, self.until - time.monotonic()),
            load_rate=current.step_times[-1][2] if current is not None and current.step_times else None,
            p50=tick.p50 if tick is not None else None,
            p99=tick.p99 if tick is not None else None,
            phases=tuple((TITLES[phase.kind], self._p99(phase.kind)) for phase in self.scenario.phases),
            evictions=sum(r.evictions for r in self.results) + self._evicted(),
        )

    def _p99(self, kind: PhaseKind) -> float | None:
        """The p99 of a phase that is over."""
        peak = next((result.peak() for result in self.results if result.kind == kind), None)
        return peak.p99 if peak is not None else None

    # --- the load ---------------------------------------------------------------------------------------------------------

    async def _run_load(self, result: PhaseResult, placed: list[str]) -> None:
        self.doing = f"{result.kind}: starting the load"
        name, where = f"load-{result.kind}-{self._attempt}", self.scenario.service.namespace
        await self.sandbox.client.create(PODS, objects.load_pod(self.scenario, name, self.port, self.kubelet.name), where)
        worker = await self._worker(where, name)
        self._load = JsonTail(worker.log_path("load"))
        work = [JsonTail(w.log_path("burner")) for w in self.kubelet.workers.values() if w.name in placed and "/cpu-" in w.name]
        self._placed_now = placed
        deadline = time.monotonic() + self.scenario.phase_seconds() + LATE_SECONDS
        begun, units = False, 0
        try:
            while True:
                ended = load_lines(self._load.read(), result)
                if not begun and result.step_times:
                    begun = True
                    units = _units(work, 0)
                    result.begin = result.step_times[0][0]
                    self.sampler.keep = result.samples
                    self.results.append(result)
                    self.doing, self.until = result.kind, result.begin + self.scenario.phase_seconds()
                if ended:
                    break
                if time.monotonic() > deadline:
                    raise DemoError(f"the load generator of phase {result.kind} did not end in time")
                await asyncio.sleep(POLL)
        finally:
            self.sampler.keep = None
            self.until = None
        result.end = time.monotonic()
        result.work_units = max(0, _units(work, units) - units)
        result.evictions = self._evicted()
        self._placed_now = []
        await self._delete(where, name)

    def _evicted(self) -> int:
        """Batch pods of this phase that somebody else has taken away: the demo removes them only after the load."""
        alive = {w.name for w in self.kubelet.workers.values() if not w.pod["metadata"].get("deletionTimestamp")}
        return sum(name not in alive for name in self._placed_now)

    # --- pods -------------------------------------------------------------------------------------------------------------

    async def _create_batch(self, kind: PhaseKind) -> list[dict[str, Any]]:
        self.doing = "creating batch pods"
        if self.each is None:
            self.each = request_of_each(self.scenario.batch, self.sandbox.batch_cpu() if kind == "koord" else None)
        pods = objects.batch_pods(self.scenario, kind, self.kubelet.name, self.each)
        for pod in pods:
            await self.sandbox.client.create(PODS, pod, pod["metadata"]["namespace"])
        return pods

    async def _placed(self, pods: list[dict[str, Any]]) -> list[str]:
        """Names of the batch pods that run; those that do not are told in the notes with the scheduler's reason."""
        self.doing = "waiting for the batch pods"
        names = [(p["metadata"]["namespace"], p["metadata"]["name"]) for p in pods]
        await until(lambda: all(self._ready(*n) for n in names), PLACE_SECONDS)
        placed = [n for n in names if self._ready(*n)]
        for name in sorted(set(names) - set(placed)):
            self.notes.append(f"batch pod {'/'.join(name)} did not run: {self._reason(*name)}")
        if not placed:
            raise DemoError("no batch pod runs: " + "; ".join(self.notes[-len(names) :]))
        self.doing = "letting the batch pods settle"
        await asyncio.sleep(SETTLE_SECONDS)
        return ["/".join(n) for n in placed]

    async def _remove_batch(self, pods: list[dict[str, Any]]) -> None:
        if not pods:
            return
        self.doing = "removing the batch pods"
        for pod in pods:
            await self._delete(pod["metadata"]["namespace"], pod["metadata"]["name"])
        names = [f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in pods]
        await self._wait(lambda: not any(n in self.sandbox.pods for n in names), GONE_SECONDS, "the batch pods do not end")

    async def _delete(self, namespace: str, name: str) -> None:
        try:
            await self.sandbox.client.delete(PODS, name, namespace)
        except NotFound:
            return
        except ApiError as error:
            log.warning("pod %s/%s: %s", namespace, name, error)

    async def _worker(self, namespace: str, name: str) -> PodWorker:
        found: list[PodWorker] = []

        def look() -> bool:
            found[:] = [w for w in self.kubelet.workers.values() if w.name == f"{namespace}/{name}"]
            return bool(found)

        await self._wait(look, READY_SECONDS, f"pod {namespace}/{name} did not start")
        return found[0]

    def _service_directory(self) -> str | None:
        for worker in self.kubelet.workers.values():
            if worker.name == f"{self.scenario.service.namespace}/shop":
                return worker.directory
        return None

    def _batch_directories(self) -> list[str]:
        spaces = (self.scenario.batch.namespace, self.scenario.batch.unmanaged_namespace)
        return [w.directory for w in self.kubelet.workers.values() if w.pod["metadata"]["namespace"] in spaces]

    def _condition(self, namespace: str, name: str, kind: str) -> dict[str, Any]:
        pod = self.sandbox.pods.get(f"{namespace}/{name}") or {}
        conditions = (pod.get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c.get("type") == kind), {})

    def _ready(self, namespace: str, name: str) -> bool:
        return self._condition(namespace, name, "Ready").get("status") == "True"

    def _reason(self, namespace: str, name: str) -> str:
        pod = self.sandbox.pods.get(f"{namespace}/{name}")
        if pod is None:
            return "it does not exist"
        status = pod.get("status") or {}
        return str(
            status.get("message") or self._condition(namespace, name, "PodScheduled").get("message") or status.get("phase") or "pending"
        )

    async def _wait(self, condition: Callable[[], bool], seconds: float, complaint: str | Callable[[], str]) -> None:
        if not await until(condition, seconds):
            text = complaint if isinstance(complaint, str) else complaint()
            raise DemoError(f"{text} within {seconds:.0f} s")


def _units(tails: list[JsonTail], known: int) -> int:
    """Work units told so far by all burners together: what was known, plus what each log added since."""
    total = known
    for tail in tails:
        for line in tail.read():
            if line.get("event") == "work":
                # Units count up inside one life of the process; a restart begins at zero again.
                units = int(line["units"])
                total += units - tail.last if units >= tail.last else units
                tail.last = units
    return total
