"""The manager wired together: informers, controllers on the leader, webhooks on every replica. Holds no logic."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from koord import seams
from koord.api import kinds
from koord.api.objects import (
    ClusterColocationProfile,
    ConfigMap,
    ElasticQuota,
    ElasticQuotaProfile,
    Namespace,
    Object,
    PriorityClassObject,
    Recommendation,
)
from koord.config import slo_schema
from koord.config.errors import ConfigError
from koord.config.slo import ParseResult
from koord.decisions.record import Number, Record, Subject
from koord.decisions.recorder import Recorder
from koord.kube.client import Client
from koord.kube.events import EventRecorder
from koord.kube.informers import InformerFactory
from koord.kube.leases import LeaderElector, Leadership, Timing
from koord.kube.references import ObjectRef, reference
from koord.process.http import OpsServer
from koord.process.life import Life, Phase
from koord.process.metrics import watch_events
from roles.manager.clients import Clients
from roles.manager.controllers.base import ROLE
from roles.manager.controllers.registry import Parts, build
from roles.manager.controllers.state import ClusterState
from roles.manager.controllers.webhookremoval import WebhookRemoval
from roles.manager.controllers.writer import Writer
from roles.manager.journal import ManagerFile
from roles.manager.metrics import Metrics
from roles.manager.options import Options
from roles.manager.webhooks.callers import Callers
from roles.manager.webhooks.lifecycle import WebhookLifecycle
from roles.manager.webhooks.registry import Webhook
from roles.manager.webhooks.review import Answer, Request
from roles.manager.webhooks.server import CLOSING, WebhookServer
from roles.manager.webhooks.view import BY_NAME, View

log = logging.getLogger("koord.manager")

LEASE = "koordinator-manager"
CACHES = "caches-synced"
_SLO_REASONS = {
    slo_schema.THRESHOLD: "getResourceThresholdSpec",
    slo_schema.QOS: "getResourceQOSSpec",
    slo_schema.BURST: "getCPUBurstConfigSpec",
    slo_schema.SYS: "getSystemConfigSpec",
    slo_schema.HOSTS: "getHostApplicationConfig",
}
_EVENT_REASONS = {
    slo_schema.COLOCATION: "ColocationCfgUnmarshalFailed",
    slo_schema.NORMALIZATION: "CPUNormalizationCfgUnmarshalFailed",
    slo_schema.AMPLIFICATION: "ResourceAmplificationCfgUnmarshalFailed",
    **dict.fromkeys(_SLO_REASONS, "SLOCfgUnmarshalFailed"),
}


class App:
    """One manager. Uses the clients and the informer factory that it is handed; `ops` is started by the caller."""

    def __init__(
        self,
        options: Options,
        *,
        client: Client | Clients,
        informers: InformerFactory,
        recorder: Recorder,
        ops: OpsServer,
        replay_log: ManagerFile | None = None,
    ) -> None:
        self.options, self.informers, self.recorder, self.ops = options, informers, recorder, ops
        self.clients = client if isinstance(client, Clients) else Clients.one(client)
        self.metrics = Metrics(ops.registry)
        self._parsed: ParseResult | None = None
        try:
            self._timing = Timing(options.lease_duration, options.renew_deadline, options.retry_period)
        except ValueError as error:
            raise ConfigError("--leader-elect-*", str(error)) from None
        # Webhooks answer on every replica; what the leader alone does passes its fence.
        self.leadership = Leadership(self._timing.renew_deadline) if options.enable_leader_election else None
        leading = reports = self.clients.bulk
        if self.leadership is not None:
            leading, reports = leading.fenced(self.leadership), leading.fenced(self.leadership.reports)
        self.events = EventRecorder(reports, "koordinator-manager")
        watch_events(ops.registry, lambda: (self.events,))
        self.state = ClusterState(informers, options)
        self.writer = Writer(leading, self._may_write)
        self.view = View(options, options.gates, self.clients)
        self.view.on_binding_decision = self.metrics.binding_decisions.inc
        self.view.on_shared_weight = self.metrics.shared_weight
        self._wire_view()
        parts = Parts(options, self.state, informers, self.writer, self.metrics, recorder, self.events, replay_log)
        self.controllers = build(parts)
        if not options.gates.enabled("WebhookFramework"):
            removal = WebhookRemoval(self.writer, options.webhook)
            removal.attach()
            self.controllers.append(removal)
        if self.leadership is not None:
            for controller in self.controllers:
                controller.stand_by()
        self.state.on_parsed(self._on_parsed)
        self.webhooks: WebhookLifecycle | None = None
        ops.health.register(CACHES, gate=True)
        if options.gates.enabled("WebhookFramework"):
            callers = Callers(options.webhook_client_ca_file, options.webhook_client_allowed_names)
            self.server = WebhookServer(self.view, observe=self._observe, on_answer=self._on_answer, gate=ops.gate, callers=callers)
            self.webhooks = WebhookLifecycle(self.clients.reviews, self.server, options.webhook, ops.health, self._tell_template)
            self._wire_pokes(self.webhooks)
        self.metrics.queues.watch(queue for controller in self.controllers for queue in controller.queues)

    async def run(self, life: Life) -> None:
        """Live until `life.stopping`."""
        self.events.start()
        life.on_stop(self.events.stop, "events", phase=Phase.EVENTS)
        self.informers.start()
        await self._until_stopping(life, self.informers.wait_synced())
        if life.stopping.is_set():
            return
        self.state.config_synced()
        self.ops.health.set(CACHES, True)
        if self.webhooks is not None:
            delay = self.options.shutdown_delay
            life.on_stop(partial(self.webhooks.drain, delay), "webhooks", phase=Phase.LAME_DUCK, seconds=delay + CLOSING + 0.5)
            life.spawn(self.webhooks.run(), "webhooks")
            life.spawn(self.webhooks.probe, "webhook-probe", restart=True)
        if self.options.enable_leader_election:
            life.spawn(self._elect(life), "leader-election")
        else:
            self.metrics.is_leader.set(1)
            await self._until_stopping(life, self._prepare())
            self._start_controllers(life)
        await life.stopping.wait()

    async def _until_stopping(self, life: Life, work: Any) -> None:
        stopping, task = asyncio.ensure_future(life.stopping.wait()), asyncio.ensure_future(work)
        await asyncio.wait({stopping, task}, return_when=asyncio.FIRST_COMPLETED)
        for one in (stopping, task):
            one.cancel()

    def _may_write(self) -> bool:
        return self.leadership is None or self.leadership.held

    async def _prepare(self) -> None:
        for controller in self.controllers:
            await controller.prepare()

    def _start_controllers(self, life: Life) -> list[asyncio.Task[Any]]:
        return [life.spawn(controller.run(), f"controller {controller.name}") for controller in self.controllers]

    async def _elect(self, life: Life) -> None:
        elector = LeaderElector(
            self.clients.reviews,
            self.options.leader_election_namespace,
            LEASE,
            timing=self._timing,
            leadership=self.leadership,
            events=self.events,
        )
        life.on_stop(elector.release, "lease", phase=Phase.LEASE)
        self.ops.health.register("leader-election", live=True, probe=elector.healthy)

        async def lead(leadership: Leadership) -> None:
            self.metrics.is_leader.set(1)
            await self.informers.verify()
            self._tell_mistakes()  # what was read before leading
            log.info("this replica leads; controllers start: %s", ", ".join(c.name for c in self.controllers))
            for controller in self.controllers:
                controller.take_over()
            await self._prepare()
            controllers = self._start_controllers(life)
            try:
                await asyncio.Event().wait()  # until cancelled: the lease is released after this
            finally:
                for task in controllers:
                    task.cancel()
                await asyncio.wait(controllers)

        await elector.run(lead)
        self.metrics.is_leader.set(0)
        if not life.stopping.is_set():
            life.fail("the lease was lost")

    def _wire_view(self) -> None:
        informers, view = self.informers, self.view
        view.namespaces = informers.informer(kinds.NAMESPACES, Namespace)
        view.priority_classes = informers.informer(kinds.PRIORITYCLASSES, PriorityClassObject)
        view.nodes, view.pods = self.state.nodes, self.state.pods
        view.quota_profiles = informers.informer(kinds.ELASTICQUOTAPROFILES, ElasticQuotaProfile, optional=True)
        profiles = informers.informer(kinds.CLUSTERCOLOCATIONPROFILES, ClusterColocationProfile, optional=True)
        profiles.add_handler(view.on_profile, lambda old, new: view.on_profile(new), view.on_profile_gone)
        quotas = informers.informer(kinds.ELASTICQUOTAS, ElasticQuota, optional=True)
        view.quota_objects = quotas
        quotas.index(BY_NAME, lambda quota: quota.metadata.name)
        pods = view.quota_pods
        self.state.pods.add_handler(pods.on_pod, lambda old, new: pods.on_pod(new), pods.on_pod_gone)
        quotas.add_handler(view.quotas.on_quota, lambda old, new: view.quotas.on_quota(new), view.quotas.on_quota_gone)
        quotas.add_handler(self._tell_cycle, lambda old, new: self._tell_cycle(new))
        quotas.add_handler(on_add=view.on_new_quota, on_delete=lambda quota: self.metrics.forget_shared_weights(quota.metadata.name))
        if self.options.gates.enabled("Recommender"):
            view.recommendations = informers.informer(kinds.RECOMMENDATIONS, Recommendation, optional=True)
        self.state.config_maps.add_handler(self._on_config_map, lambda old, new: self._on_config_map(new), self._on_config_map_gone)

    def _on_config_map(self, config_map: ConfigMap) -> None:
        self.view.slo_data = config_map.data

    def _on_config_map_gone(self, config_map: ConfigMap) -> None:
        self.view.slo_data = None

    def _wire_pokes(self, webhooks: WebhookLifecycle) -> None:
        """A change of what the webhook loop keeps makes it look at once."""
        options = self.options.webhook
        for kind, name, namespace in (
            (kinds.SECRETS, options.secret, options.namespace),
            (kinds.MUTATINGWEBHOOKCONFIGURATIONS, options.mutating_name, None),
            (kinds.VALIDATINGWEBHOOKCONFIGURATIONS, options.validating_name, None),
        ):
            if kind is kinds.SECRETS and options.uses_files:
                continue
            informer = self.informers.informer(kind, Object, namespace=namespace, field_selector=f"metadata.name={name}")
            informer.add_handler(lambda obj: webhooks.poke(), lambda old, new: webhooks.poke())

    def _tell_template(self, about: ObjectRef, mistake: str) -> None:
        """An event on a webhook configuration whose template cannot be used; only the leader tells."""
        if self._may_write():
            self.events.event(about, "Warning", "InvalidWebhookTemplate", f"{mistake}; what is registered stays")

    def _tell_mistakes(self) -> None:
        """Events on the ConfigMap for what is wrong in it; only the leader tells."""
        about = self.state.config_maps.get(self.state.config_key)
        if about is None or self._parsed is None or not self._may_write():
            return
        for error in self._parsed.errors:
            reason = _EVENT_REASONS[next((key for key in _EVENT_REASONS if error.path.startswith(key)), slo_schema.COLOCATION)]
            self.events.event(reference(about, kinds.CONFIGMAPS), "Warning", reason, str(error))

    def _on_parsed(self, result: ParseResult) -> None:
        bad = {error.path.split(".")[0].split("[")[0] for error in result.errors}
        self.metrics.config_errors.set(len(result.errors))
        self._parsed = result
        self._tell_mistakes()
        parts = {reason: key not in bad for key, reason in _SLO_REASONS.items()}
        parts["getNodeSLOExtension"] = True  # extensions of others are kept as they are: nothing in them can be wrong
        self.metrics.spec_parsed(slo_schema.COLOCATION not in bad, parts)

    def _tell_cycle(self, quota: ElasticQuota) -> None:
        """A cycle that was made past the webhooks: each member is told, for the scheduler leaves them out."""
        cycle = self.view.quotas.cycle_of(quota.metadata.name)
        if not cycle or not self._may_write():
            return
        for member in cycle:
            for known in self.view.quotas_named(member):
                about = reference(known, kinds.ELASTICQUOTAS)
                self.events.event(about, "Warning", "QuotaCycle", f"is its own ancestor: {' -> '.join([*cycle, cycle[0]])}")

    def _on_answer(self, webhook: Webhook, request: Request, answer: Answer) -> None:
        """Explain what was changed or refused; a request that passed untouched is no news."""
        if answer.allowed and not answer.patch and not request.notes:
            return
        kind = kinds.BY_PLURAL[request.resource].kind if request.resource in kinds.BY_PLURAL else webhook.object_type
        name = request.name or ((request.object or {}).get("metadata") or {}).get("generateName") or ""
        verdict = "Refused" if not answer.allowed else "Mutated" if answer.patch else "Admitted"
        told = "; ".join([*request.notes, answer.message] if answer.message else request.notes)
        numbers: dict[str, Number] = {"operations": len(answer.patch), "code": answer.code}
        self.recorder.record(Record(ROLE, Subject(kind, request.namespace, name), seams.now(), verdict, webhook.path, told, numbers))

    def _observe(self, webhook: Webhook, operation: str, plugin: str, allowed: bool, milliseconds: float) -> None:
        kind = "mutate" if webhook.mutating else "validate"
        status = "allowed" if allowed else "rejected"
        self.metrics.webhook_duration.labels(kind, webhook.object_type, operation, plugin, status).observe(milliseconds)
