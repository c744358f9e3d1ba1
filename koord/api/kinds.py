"""The kinds that koord talks about: where each is served and how it is spelled (API-CRD-01)."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote

_STATUS = frozenset({"status"})
GROUP_KUBE_SCHEDULING = "scheduling.k8s.io"


@dataclass(frozen=True, slots=True)
class Kind:
    """One served kind: group ("" is the core group), version, names and sub-resources."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    subresources: frozenset[str] = field(default_factory=frozenset)

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``, as in an object's ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """Path of the group version: ``/api/v1`` or ``/apis/group/version``."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    @property
    def crd_name(self) -> str:
        """``plural.group``, the name of its CustomResourceDefinition."""
        return f"{self.plural}.{self.group}"

    @property
    def key(self) -> str:
        """Its name among kinds of all groups and versions."""
        return key_of(self.api_version, self.kind)

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Request path. Without a namespace a namespaced kind's path is the one that lists all namespaces.

        A namespace given for a cluster-scoped kind is ignored. Raises ValueError for a sub-resource without a name.
        """
        if subresource and not name:
            raise ValueError(f"{self.plural}: a sub-resource ({subresource}) needs an object name")
        parts = [self.root]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=":"))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


def _core(kind: str, plural: str, namespaced: bool, short: tuple[str, ...] = (), subresources: frozenset[str] = frozenset()) -> Kind:
    return Kind("", "v1", kind, plural, namespaced, short, subresources)


def key_of(api_version: str, kind: str) -> str:
    """The name of a kind where kinds of all groups and versions are held together: that of the kind, but with group and version for
    PodGroups of scheduling.k8s.io, beside which there are those of scheduling.sigs.k8s.io, and for DeviceTaintRules in another version
    than v1."""
    told = (kind == "PodGroup" and api_version.startswith(f"{GROUP_KUBE_SCHEDULING}/")) or (
        kind == "DeviceTaintRule" and api_version != "resource.k8s.io/v1"
    )
    return f"{api_version}/{kind}" if told else kind


# Kubernetes' own
PODS = _core("Pod", "pods", True, ("po",), frozenset({"status", "binding", "eviction", "log", "exec", "ephemeralcontainers", "resize"}))
NODES = _core("Node", "nodes", False, ("no",), frozenset({"status", "proxy"}))
NAMESPACES = _core("Namespace", "namespaces", False, ("ns",), frozenset({"status", "finalize"}))
CONFIGMAPS = _core("ConfigMap", "configmaps", True, ("cm",))
SECRETS = _core("Secret", "secrets", True)
SERVICES = _core("Service", "services", True, ("svc",), _STATUS)
SERVICEACCOUNTS = _core("ServiceAccount", "serviceaccounts", True, ("sa",), frozenset({"token"}))
ENDPOINTS = _core("Endpoints", "endpoints", True, ("ep",))
PERSISTENTVOLUMES = _core("PersistentVolume", "persistentvolumes", False, ("pv",), _STATUS)
PERSISTENTVOLUMECLAIMS = _core("PersistentVolumeClaim", "persistentvolumeclaims", True, ("pvc",), _STATUS)
REPLICATIONCONTROLLERS = _core("ReplicationController", "replicationcontrollers", True, ("rc",), frozenset({"status", "scale"}))
RESOURCEQUOTAS = _core("ResourceQuota", "resourcequotas", True, ("quota",), _STATUS)
LIMITRANGES = _core("LimitRange", "limitranges", True, ("limits",))
CORE_EVENTS = _core("Event", "events", True, ("ev",))
EVENTS = Kind("events.k8s.io", "v1", "Event", "events", True, ("ev",))
LEASES = Kind("coordination.k8s.io", "v1", "Lease", "leases", True)
PRIORITYCLASSES = Kind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", False, ("pc",))
# Pod groups of Kubernetes' own: 1.35 has v1alpha1, 1.36 v1alpha2, 1.37 v1beta1; a server has what was switched on.
SCHEDULING_WORKLOADS_V1ALPHA1 = Kind(GROUP_KUBE_SCHEDULING, "v1alpha1", "Workload", "workloads", True)
SCHEDULING_PODGROUPS_V1ALPHA2 = Kind(GROUP_KUBE_SCHEDULING, "v1alpha2", "PodGroup", "podgroups", True, (), _STATUS)
SCHEDULING_PODGROUPS = Kind(GROUP_KUBE_SCHEDULING, "v1beta1", "PodGroup", "podgroups", True, (), _STATUS)
PODDISRUPTIONBUDGETS = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", True, ("pdb",), _STATUS)
_SCALED = frozenset({"status", "scale"})
REPLICASETS = Kind("apps", "v1", "ReplicaSet", "replicasets", True, ("rs",), _SCALED)
STATEFULSETS = Kind("apps", "v1", "StatefulSet", "statefulsets", True, ("sts",), _SCALED)
DEPLOYMENTS = Kind("apps", "v1", "Deployment", "deployments", True, ("deploy",), _SCALED)
DAEMONSETS = Kind("apps", "v1", "DaemonSet", "daemonsets", True, ("ds",), _STATUS)
JOBS = Kind("batch", "v1", "Job", "jobs", True, (), _STATUS)
CRONJOBS = Kind("batch", "v1", "CronJob", "cronjobs", True, ("cj",), _STATUS)
STORAGECLASSES = Kind("storage.k8s.io", "v1", "StorageClass", "storageclasses", False, ("sc",))
CSINODES = Kind("storage.k8s.io", "v1", "CSINode", "csinodes", False)
CSIDRIVERS = Kind("storage.k8s.io", "v1", "CSIDriver", "csidrivers", False)
CSISTORAGECAPACITIES = Kind("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", True)
VOLUMEATTACHMENTS = Kind("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", False, (), _STATUS)
_RESOURCE = "resource.k8s.io"
RESOURCECLAIMS = Kind(_RESOURCE, "v1", "ResourceClaim", "resourceclaims", True, (), _STATUS)
RESOURCECLAIMTEMPLATES = Kind(_RESOURCE, "v1", "ResourceClaimTemplate", "resourceclaimtemplates", True)
DEVICECLASSES = Kind(_RESOURCE, "v1", "DeviceClass", "deviceclasses", False)
RESOURCESLICES = Kind(_RESOURCE, "v1", "ResourceSlice", "resourceslices", False)
# 1.37 has them in v1, 1.36 in v1beta2 where that was switched on
DEVICETAINTRULES = Kind(_RESOURCE, "v1", "DeviceTaintRule", "devicetaintrules", False, (), _STATUS)
DEVICETAINTRULES_V1BETA2 = Kind(_RESOURCE, "v1beta2", "DeviceTaintRule", "devicetaintrules", False, (), _STATUS)
CUSTOMRESOURCEDEFINITIONS = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", False, ("crd", "crds"), _STATUS
)
_ADMISSION = "admissionregistration.k8s.io"
MUTATINGWEBHOOKCONFIGURATIONS = Kind(_ADMISSION, "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", False)
VALIDATINGWEBHOOKCONFIGURATIONS = Kind(_ADMISSION, "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False)
_RBAC = "rbac.authorization.k8s.io"
ROLES = Kind(_RBAC, "v1", "Role", "roles", True)
ROLEBINDINGS = Kind(_RBAC, "v1", "RoleBinding", "rolebindings", True)
CLUSTERROLES = Kind(_RBAC, "v1", "ClusterRole", "clusterroles", False)
CLUSTERROLEBINDINGS = Kind(_RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", False)
SUBJECTACCESSREVIEWS = Kind("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", False)
TOKENREVIEWS = Kind("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", False)
PODMETRICS = Kind("metrics.k8s.io", "v1beta1", "PodMetrics", "pods", True)
NODEMETRICS_RESOURCE = Kind("metrics.k8s.io", "v1beta1", "NodeMetrics", "nodes", False)

BUILTIN = (
    PODS, NODES, NAMESPACES, CONFIGMAPS, SECRETS, SERVICES, SERVICEACCOUNTS, ENDPOINTS, PERSISTENTVOLUMES, PERSISTENTVOLUMECLAIMS,
    REPLICATIONCONTROLLERS, RESOURCEQUOTAS, LIMITRANGES, EVENTS, LEASES, PRIORITYCLASSES, PODDISRUPTIONBUDGETS, REPLICASETS,
    STATEFULSETS, DEPLOYMENTS, DAEMONSETS, JOBS, CRONJOBS, STORAGECLASSES, CSINODES, CSIDRIVERS, CSISTORAGECAPACITIES,
    VOLUMEATTACHMENTS, RESOURCECLAIMS, RESOURCECLAIMTEMPLATES, DEVICECLASSES, RESOURCESLICES, DEVICETAINTRULES,
    CUSTOMRESOURCEDEFINITIONS, MUTATINGWEBHOOKCONFIGURATIONS, VALIDATINGWEBHOOKCONFIGURATIONS, ROLES,
    ROLEBINDINGS, CLUSTERROLES, CLUSTERROLEBINDINGS,
)  # fmt: skip

# Koordinator's and the third-party ones that it installs
GROUP_SLO = "slo.koordinator.sh"
GROUP_CONFIG = "config.koordinator.sh"
GROUP_SCHEDULING = "scheduling.koordinator.sh"
GROUP_QUOTA = "quota.koordinator.sh"
GROUP_ANALYSIS = "analysis.koordinator.sh"
GROUP_SIGS = "scheduling.sigs.k8s.io"
GROUP_TOPOLOGY = "topology.node.k8s.io"

CLUSTERCOLOCATIONPROFILES = Kind(GROUP_CONFIG, "v1alpha1", "ClusterColocationProfile", "clustercolocationprofiles", False, (), _STATUS)
NODEMETRICS = Kind(GROUP_SLO, "v1alpha1", "NodeMetric", "nodemetrics", False, (), _STATUS)
NODESLOS = Kind(GROUP_SLO, "v1alpha1", "NodeSLO", "nodeslos", False, (), _STATUS)
RESERVATIONS = Kind(GROUP_SCHEDULING, "v1alpha1", "Reservation", "reservations", False, (), _STATUS)
DEVICES = Kind(GROUP_SCHEDULING, "v1alpha1", "Device", "devices", False)
PODMIGRATIONJOBS = Kind(GROUP_SCHEDULING, "v1alpha1", "PodMigrationJob", "podmigrationjobs", False, ("pmj",), _STATUS)
CLUSTERNETWORKTOPOLOGIES = Kind(GROUP_SCHEDULING, "v1alpha1", "ClusterNetworkTopology", "clusternetworktopologies", False, (), _STATUS)
SCHEDULEEXPLANATIONS = Kind(GROUP_SCHEDULING, "v1alpha1", "ScheduleExplanation", "scheduleexplanations", True, ("sched-exp",), _STATUS)
ELASTICQUOTAS = Kind(GROUP_SIGS, "v1alpha1", "ElasticQuota", "elasticquotas", True)
PODGROUPS = Kind(GROUP_SIGS, "v1alpha1", "PodGroup", "podgroups", True)
ELASTICQUOTAPROFILES = Kind(GROUP_QUOTA, "v1alpha1", "ElasticQuotaProfile", "elasticquotaprofiles", True, ("eqp",))
RECOMMENDATIONS = Kind(GROUP_ANALYSIS, "v1alpha1", "Recommendation", "recommendations", True, ("recom",), _STATUS)
NODERESOURCETOPOLOGIES = Kind(GROUP_TOPOLOGY, "v1alpha1", "NodeResourceTopology", "noderesourcetopologies", False, ("node-res-topo",))

CUSTOM = (
    CLUSTERCOLOCATIONPROFILES, NODEMETRICS, NODESLOS, RESERVATIONS, DEVICES, PODMIGRATIONJOBS, CLUSTERNETWORKTOPOLOGIES,
    SCHEDULEEXPLANATIONS, ELASTICQUOTAS, PODGROUPS, ELASTICQUOTAPROFILES, RECOMMENDATIONS, NODERESOURCETOPOLOGIES,
)  # fmt: skip

ALL = BUILTIN + CUSTOM

# By plural and by kind name. Every name is unique among the kinds above; `events` means events.k8s.io.
BY_PLURAL: dict[str, Kind] = {kind.plural: kind for kind in ALL}
BY_KIND: dict[str, Kind] = {kind.kind: kind for kind in ALL}
BY_GVK: dict[tuple[str, str], Kind] = {(kind.api_version, kind.kind): kind for kind in (*ALL, CORE_EVENTS)}
