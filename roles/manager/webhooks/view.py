"""What the webhook handlers see of the cluster: informer caches behind plain questions, with a live read where a cache may lag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from cachetools import TTLCache

from koord import seams
from koord.accounting.resources import ResourceVector
from koord.api import trust
from koord.api.kinds import NAMESPACES, PRIORITYCLASSES
from koord.api.objects import (
    ClusterColocationProfile,
    ElasticQuota,
    ElasticQuotaProfile,
    Namespace,
    Node,
    Pod,
    PriorityClassObject,
    convert,
)
from koord.config.gates import FeatureGates
from koord.config.slo_validate import NodeEntries, entries_in
from koord.kube.client import Client
from koord.kube.errors import ApiError
from koord.kube.informers import Informer
from roles.manager.clients import Clients
from roles.manager.options import Options
from roles.manager.recommender.apply import Following
from roles.manager.webhooks.enhanced import EnhancedValidator
from roles.manager.webhooks.live import LiveReads
from roles.manager.webhooks.profiles import Profile, compile_profile
from roles.manager.webhooks.quota_admission import QuotaAdmission
from roles.manager.webhooks.quota_pods import QuotaPods
from roles.manager.webhooks.quota_topology import ASSUMED_SECONDS, QuotaTopology

BY_NAME = "name"


class Store(Protocol):
    """The part of an informer that stands for it where there is no cluster."""

    def get(self, key: str) -> Any: ...
    def list(self) -> Any: ...


class View:
    """The state of the webhooks. Everything that an informer tells arrives by the `on_…` methods."""

    def __init__(self, options: Options, gates: FeatureGates, clients: Client | Clients, draw: Callable[[], int] | None = None) -> None:
        self.options = options
        self.gates = gates
        clients = clients if isinstance(clients, Clients) else Clients.one(clients)
        self.live = LiveReads(clients.reviews)
        self.allocation_writers = options.allocation_writers or trust.default_writers(options.webhook.namespace)
        self.quota_client = clients.quotas
        self.draw = draw or (lambda: seams.rng().randrange(100))
        self.profiles: dict[str, Profile] = {}
        self.quota_pods = QuotaPods()
        self._quotas = QuotaTopology(guarantee_usage=gates.enabled("ElasticQuotaGuaranteeUsage"))
        self.admission = QuotaAdmission(clients.quotas, options, lambda key: self.quota_objects.get(key) if self.quota_objects else None)
        self.enhanced = EnhancedValidator(clients.reviews, options)
        self.quota_objects: Informer[ElasticQuota] | None = None
        self.namespaces: Store | None = None
        self.priority_classes: Store | None = None
        self.nodes: Informer[Node] | None = None
        self.pods: Informer[Pod] | None = None
        self.quota_profiles: Informer[ElasticQuotaProfile] | None = None
        self._recommendations: Store | None = None
        self.following: Following | None = None
        self.slo_data: Mapping[str, str] | None = None
        self._compiled: list[NodeEntries] = []
        self._compiled_of: Mapping[str, str] | None = None
        self.on_binding_decision: Callable[[str], None] | None = None
        self.on_shared_weight: Callable[[str, str, int], None] | None = None
        # By key, the defaults of quotas that are being made, which may still be refused.
        self.weights: TTLCache[str, ResourceVector] = TTLCache(1000, ASSUMED_SECONDS, timer=seams.monotonic)

    @property
    def quotas(self) -> QuotaTopology:
        """The quota tree, without admitted changes that did not come to be."""
        self._quotas.expire(seams.monotonic())
        return self._quotas

    @property
    def recommendations(self) -> Store | None:
        """The Recommendations, if the recommender is on."""
        return self._recommendations

    @recommendations.setter
    def recommendations(self, store: Store) -> None:
        self._recommendations, self.following = store, Following()
        if isinstance(store, Informer):
            following = self.following
            store.add_handler(following.put, lambda old, new: following.put(new), following.drop)
        else:
            for recommendation in store.list():
                self.following.put(recommendation)

    def on_new_quota(self, quota: ElasticQuota) -> None:
        """A quota has come to be."""
        for resource, amount in self.weights.pop(quota.key, {}).items():
            if self.on_shared_weight is not None:
                self.on_shared_weight(quota.metadata.name, resource, amount)

    def on_profile(self, profile: ClusterColocationProfile) -> None:
        """A profile was added or changed."""
        self.profiles[profile.metadata.name] = compile_profile(profile)

    def on_profile_gone(self, profile: ClusterColocationProfile) -> None:
        """A profile was deleted."""
        self.profiles.pop(profile.metadata.name, None)

    async def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        """Labels of a namespace, None if it cannot be read."""
        namespace: Namespace | None = self.namespaces.get(name) if self.namespaces and name else None
        if namespace is not None:
            return namespace.metadata.labels
        try:
            found = await self.live.get(NAMESPACES, name) if name else None
            return convert(found, Namespace).metadata.labels if found is not None else None
        except (ApiError, ValueError):
            return None

    async def priority_class(self, name: str) -> PriorityClassObject | None:
        """A PriorityClass, None if there is none. Raises ApiError when the API server cannot tell."""
        known: PriorityClassObject | None = self.priority_classes.get(name) if self.priority_classes else None
        if known is not None:
            return known
        found = await self.live.get(PRIORITYCLASSES, name)
        return convert(found, PriorityClassObject) if found is not None else None

    def quotas_named(self, name: str) -> list[ElasticQuota]:
        """ElasticQuotas with a name, of all namespaces."""
        return self.quota_objects.by_index(BY_NAME, name) if self.quota_objects else []

    def node_entries(self) -> list[NodeEntries]:
        """The node entries of slo-controller-config, compiled when it changes."""
        if self.slo_data is not self._compiled_of:
            self._compiled, self._compiled_of = entries_in(self.slo_data or {}), self.slo_data
        return self._compiled

    def node_objects(self) -> Iterable[Any]:
        """All nodes."""
        return self.nodes.list() if self.nodes else ()
