"""What the server serves: one row a built-in resource, and the run-time table that custom resources join.

A `Resource` is one resource in one version. Versions of the same thing share a storage bucket.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from koord.apiserver.store import Entry, Obj

if TYPE_CHECKING:
    from koord.apiserver.cel.rules import RuleNode
    from koord.apiserver.schema.builtin import TypeNode
    from koord.apiserver.schema.structural import Structural

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
CREATE_ONLY = ("create",)
_PLACED = frozenset({"kind", "apiVersion", "metadata", "spec", "status"})
ONE_BY_ONE = tuple(verb for verb in ALL_VERBS if verb != "deletecollection")


# groups of built-in kinds whose finalizers are any qualified name
_ANY_FINALIZER = frozenset({"admissionregistration.k8s.io", "apiextensions.k8s.io", "coordination.k8s.io", "node.k8s.io", "policy"})
_VERSION = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")


def api_version(group: str, version: str) -> str:
    """As objects spell it: `apps/v1`, or `v1` in the core group."""
    return f"{group}/{version}" if group else version


def version_order(version: str) -> tuple[int, int, int, str]:
    """Kubernetes' order of versions: v2, v1, v1beta2, v1beta1, v1alpha1, then the others by name."""
    found = _VERSION.fullmatch(version)
    if found is None:
        return (1, 0, 0, version)
    stage = {"alpha": 2, "beta": 1, None: 0}[found.group(2)]
    return (0, stage * 10_000 - int(found.group(1)), -int(found.group(3) or 0), "")


@dataclass(slots=True, eq=False, weakref_slot=True)
class Resource:
    """One resource of one group and version."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    # letters: see _FLAGS
    flags: str = ""
    bucket: str = ""
    # the apiVersion of stored objects; default: its own
    stored_as: str = ""
    singular: str = ""
    list_kind: str = ""
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    # preference between versions of a group, lower first
    rank: int = 0
    # conversion from and to the stored form, where versions differ in shape
    to_wire: Callable[[Obj], Obj] | None = None
    from_wire: Callable[[Obj], Obj] | None = None
    # one of the two: the schema of a built-in type, or that of a custom resource
    type: TypeNode | None = None
    structural: Structural | None = None
    # the CEL rules of the schema, where it has any
    rules: RuleNode | None = None
    crd: Obj | None = None
    crd_version: Obj | None = None
    api_version: str = field(init=False, default="")
    head: bytes = field(init=False, default=b"")

    def __post_init__(self) -> None:
        self.api_version = api_version(self.group, self.version)
        self.stored_as = self.stored_as or self.api_version
        self.singular = self.singular or self.kind.lower()
        self.list_kind = self.list_kind or self.kind + "List"
        self.bucket = self.bucket or f"{self.group}/{self.plural}"
        # every stored object starts with these bytes
        self.head = f'{{"kind":"{self.kind}","apiVersion":"{self.api_version}",'.encode()

    @property
    def custom(self) -> bool:
        return self.crd is not None

    @property
    def status_subresource(self) -> bool:
        return "status" in self.subresources

    @property
    def has_generation(self) -> bool:
        """metadata.generation is set to 1 on create and counts changes of the specification."""
        return self.custom or "g" in self.flags

    @property
    def bare_status(self) -> bool:
        """Writing the status leaves the metadata alone."""
        return self.custom or "m" in self.flags

    @property
    def any_finalizer(self) -> bool:
        """Finalizers need no path."""
        return self.custom or self.group in _ANY_FINALIZER

    @property
    def unconditional_update(self) -> bool:
        """A PUT without resourceVersion overwrites; otherwise it is refused."""
        return not self.custom and "c" not in self.flags

    @property
    def create_on_update(self) -> bool:
        """A PUT to a name that does not exist creates it."""
        return "u" in self.flags

    @property
    def returns_deleted(self) -> bool:
        """DELETE answers with the object rather than with a Status."""
        return "d" in self.flags

    @property
    def deprecation(self) -> str:
        """What users of a version that goes are told, "" for others."""
        if self.crd is None or self.crd_version is None or not self.crd_version.get("deprecated"):
            return ""
        if text := self.crd_version.get("deprecationWarning"):
            return str(text)
        better = [v["name"] for v in self.crd["spec"]["versions"] if v.get("served") and not v.get("deprecated")]
        better = [name for name in better if version_order(name) < version_order(self.version)]
        use = f"; use {self.group}/{min(better, key=version_order)} {self.kind}" if better else ""
        return f"{self.api_version} {self.kind} is deprecated{use}"

    @property
    def path(self) -> str:
        """Where its objects are, of all or of `{namespace}`."""
        base = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        return f"{base}/namespaces/{{namespace}}/{self.plural}" if self.namespaced else f"{base}/{self.plural}"

    # -- from and to bytes: the stored ones serve every reader, with the head cut or exchanged ---------------------------------------

    def canonical(self, obj: Obj) -> Obj:
        """The object with its keys in the stored order: kind, apiVersion, metadata, spec, the rest, status."""
        out: Obj = {"kind": self.kind, "apiVersion": self.stored_as, "metadata": obj["metadata"]}
        for key in ("spec", *(key for key in obj if key not in _PLACED), "status"):
            if key in obj:
                out[key] = obj[key]
        return out

    def raw(self, entry: Entry) -> bytes:
        """The object as this version shows it."""
        if self.to_wire is not None:
            return orjson.dumps(self.to_wire(entry.copy()))
        if entry.raw.startswith(self.head):
            return entry.raw
        return self.head + entry.raw[entry.raw.index(b',"metadata":') + 1 :]

    def obj(self, entry: Entry) -> Obj:
        """A copy of the object in this version."""
        obj = entry.copy()
        return self.to_wire(obj) if self.to_wire is not None else {**obj, "apiVersion": self.api_version}

    def listed(self, items: Iterable[bytes], meta: Obj) -> bytes:
        """A `…List` of objects. Those of built-in lists carry neither kind nor apiVersion, as kube-apiserver's do."""
        bare = items if self.custom else (b"{" + raw[len(self.head) :] for raw in items)
        head = f'{{"kind":"{self.list_kind}","apiVersion":"{self.api_version}","metadata":'.encode()
        return b"".join((head, orjson.dumps(meta), b',"items":[', b",".join(bare), b"]}"))


# events.k8s.io/v1 -> v1
_NAMES = {
    "note": "message",
    "regarding": "involvedObject",
    "deprecatedCount": "count",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedSource": "source",
    "reportingController": "reportingComponent",
}
_BACK = {v: k for k, v in _NAMES.items()}


def _from_event(obj: Obj) -> Obj:
    """events.k8s.io/v1 to the stored form."""
    out = {_NAMES.get(key, key): value for key, value in obj.items()}
    out["kind"], out["apiVersion"] = "Event", "v1"
    return out


def _to_event(obj: Obj) -> Obj:
    """The stored form to events.k8s.io/v1."""
    out: Obj = {"kind": "Event", "apiVersion": "events.k8s.io/v1"}
    for key, value in obj.items():
        if key not in out:
            out[_BACK.get(key, key)] = value
    return out


# flags: g = generation counts spec changes, c = update needs a resourceVersion, u = PUT may create, d = DELETE answers with the object,
#        n = name is a path segment name (no DNS rule), l = DNS label name (63 octets), 5 = name is a DNS-1035 label,
#        a = in kubectl's category "all", x = can only be created, o = deleted one by one only, k = stored but without a schema of its own,
#        m = a status changes no metadata, z = generation counts from nothing, i = generation stays 1
_Row = tuple[str, str, str, str, bool, tuple[str, ...], tuple[str, ...], str]
N, C = True, False
_STATUS = ("status",)
_SCALED = ("status", "scale")

BUILTIN: tuple[_Row, ...] = (
    ("", "v1", "Binding", "bindings", N, (), (), "x"),
    ("", "v1", "ConfigMap", "configmaps", N, ("cm",), (), ""),
    ("", "v1", "Endpoints", "endpoints", N, ("ep",), (), "u"),
    ("", "v1", "Event", "events", N, ("ev",), (), "un"),
    ("", "v1", "LimitRange", "limitranges", N, ("limits",), (), "u"),
    ("", "v1", "Namespace", "namespaces", C, ("ns",), ("status", "finalize"), "lo"),
    ("", "v1", "Node", "nodes", C, ("no",), _STATUS, ""),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", N, ("pvc",), _STATUS, "d"),
    ("", "v1", "PersistentVolume", "persistentvolumes", C, ("pv",), _STATUS, "d"),
    ("", "v1", "Pod", "pods", N, ("po",), ("status", "binding", "eviction", "log", "resize", "ephemeralcontainers"), "dga"),
    ("", "v1", "PodTemplate", "podtemplates", N, (), (), "dg"),
    ("", "v1", "ReplicationController", "replicationcontrollers", N, ("rc",), _SCALED, "ga"),
    ("", "v1", "ResourceQuota", "resourcequotas", N, ("quota",), _STATUS, "d"),
    ("", "v1", "Secret", "secrets", N, (), (), ""),
    ("", "v1", "ServiceAccount", "serviceaccounts", N, ("sa",), ("token",), "d"),
    ("", "v1", "Service", "services", N, ("svc",), _STATUS, "a5du"),
    ("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", C, (), (), "gc"),
    ("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", C, (), (), "gc"),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", C, (), _STATUS, "gcm"),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", C, (), (), "gc"),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", C, ("crd", "crds"), _STATUS, "gc"),
    ("apps", "v1", "ControllerRevision", "controllerrevisions", N, (), (), ""),
    ("apps", "v1", "DaemonSet", "daemonsets", N, ("ds",), _STATUS, "ga"),
    ("apps", "v1", "Deployment", "deployments", N, ("deploy",), _SCALED, "ga"),
    ("apps", "v1", "ReplicaSet", "replicasets", N, ("rs",), _SCALED, "ga"),
    ("apps", "v1", "StatefulSet", "statefulsets", N, ("sts",), _SCALED, "ga"),
    ("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", C, (), (), "x"),
    ("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", C, (), (), "x"),
    ("authorization.k8s.io", "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews", N, (), (), "x"),
    ("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", C, (), (), "x"),
    ("authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", C, (), (), "x"),
    ("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", C, (), (), "x"),
    ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", N, ("hpa",), _STATUS, "a"),
    ("batch", "v1", "CronJob", "cronjobs", N, ("cj",), _STATUS, "ga"),
    ("batch", "v1", "Job", "jobs", N, (), _STATUS, "ga"),
    ("coordination.k8s.io", "v1", "Lease", "leases", N, (), (), "uc"),
    ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", N, (), (), "g"),
    ("events.k8s.io", "v1", "Event", "events", N, ("ev",), (), "u"),
    ("networking.k8s.io", "v1", "Ingress", "ingresses", N, ("ing",), _STATUS, "g"),
    ("networking.k8s.io", "v1", "IngressClass", "ingressclasses", C, (), (), "g"),
    ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", N, ("netpol",), (), "g"),
    ("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", C, (), (), "uc"),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", N, ("pdb",), _STATUS, "gc"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", C, (), (), "un"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", C, (), (), "un"),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", N, (), (), "un"),
    ("rbac.authorization.k8s.io", "v1", "Role", "roles", N, (), (), "un"),
    ("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", C, (), (), "gd"),
    ("resource.k8s.io", "v1", "DeviceTaintRule", "devicetaintrules", C, (), _STATUS, "gdm"),
    ("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", N, (), _STATUS, "dm"),
    ("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates", N, (), (), "d"),
    ("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", C, (), (), "gd"),
    ("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", C, ("pc",), (), "gi"),
    ("scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups", N, (), _STATUS, "gm"),
    ("scheduling.k8s.io", "v1beta1", "Workload", "workloads", N, (), (), "g"),
    ("storage.k8s.io", "v1", "CSIDriver", "csidrivers", C, (), (), "gzdc"),
    ("storage.k8s.io", "v1", "CSINode", "csinodes", C, (), (), "dc"),
    ("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", N, (), (), "c"),
    ("storage.k8s.io", "v1", "StorageClass", "storageclasses", C, ("sc",), (), "d"),
    ("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", C, (), _STATUS, "dcm"),
)

# kind of the body of a subresource, where it is not that of the resource: (group, version, kind)
SUBRESOURCE_KINDS: dict[str, tuple[str, str, str]] = {
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
    "scale": ("autoscaling", "v1", "Scale"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}
SUBRESOURCE_VERBS: dict[str, tuple[str, ...]] = {
    "status": ("get", "patch", "update"),
    "scale": ("get", "patch", "update"),
    "resize": ("get", "patch", "update"),
    "ephemeralcontainers": ("get", "patch", "update"),
    "binding": ("create",),
    "eviction": ("create",),
    "token": ("create",),
    "finalize": ("update",),
    "log": ("get",),
}
# the same objects as those of the core group, in another shape
_EVENTS: Obj = {"bucket": "/events", "stored_as": "v1", "rank": 1, "to_wire": _to_event, "from_wire": _from_event}


class ResourceTable:
    """All resources that are served now, by path and by kind."""

    def __init__(self) -> None:
        self._by_path: dict[tuple[str, str, str], Resource] = {}
        self._by_kind: dict[tuple[str, str, str], Resource] = {}
        self._groups: dict[str, list[Resource]] = {}  # as far as they were asked for
        # changes with every custom resource that comes or goes: caches of discovery documents compare it
        self.revision = 0

    def add(self, resource: Resource) -> None:
        """Serve a resource. What is built in is in nobody's place."""
        for table, name in self._places(resource):
            if not resource.custom or table.get(name, resource).custom:
                table[name] = resource
        self._groups.clear()
        self.revision += 1

    def remove(self, resource: Resource) -> None:
        for table, name in self._places(resource):
            if table.get(name) is resource:
                del table[name]
        self._groups.clear()
        self.revision += 1

    def _places(self, resource: Resource) -> tuple[tuple[dict[tuple[str, str, str], Resource], tuple[str, str, str]], ...]:
        group, version = resource.group, resource.version
        return (self._by_path, (group, version, resource.plural)), (self._by_kind, (group, version, resource.kind))

    def built_in(self, group: str) -> list[Resource]:
        """What no definition makes, of a group."""
        return [resource for resource in self.of_group(group) if not resource.custom]

    def by_path(self, group: str, version: str, plural: str) -> Resource | None:
        return self._by_path.get((group, version, plural))

    def builtin(self, group: str, plural: str) -> Resource:
        """A resource that is always there, in version v1."""
        return self._by_path[(group, "v1", plural)]

    def by_api_version(self, api_version: str, kind: str) -> Resource | None:
        group, _, version = api_version.rpartition("/")
        return self._by_kind.get((group, version, kind))

    def of_group(self, group: str) -> list[Resource]:
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = [r for r in self._by_path.values() if r.group == group]
        return found

    def serving_bucket(self, bucket: str) -> Resource | None:
        """One resource whose objects live in this bucket; the preferred version of them."""
        found = [r for r in self._by_path.values() if r.bucket == bucket]
        return min(found, key=lambda r: r.rank) if found else None

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._by_path.values())


def builtin_resources() -> Iterator[Resource]:
    """The rows above as `Resource`s, with schemas attached later."""
    for row in BUILTIN:
        verbs = CREATE_ONLY if "x" in row[-1] else ONE_BY_ONE if "o" in row[-1] else ALL_VERBS
        yield Resource(*row, categories=("all",) if "a" in row[-1] else (), verbs=verbs, **_EVENTS if row[0] == "events.k8s.io" else {})
