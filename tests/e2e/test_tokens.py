"""The tokens of all roles on a real kube-apiserver (Node,RBAC), each tried against everything that it should not do (BEY-SEC-01).

Two tables of requests, one for every role and one a role; what the server answers is asked, not what the manifests say. In the end the
server's own list of each token's rules is compared with the manifests: a right that no row thought of is found there.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from koord.apiserver import kubeconfig
from roles.tools import manifests
from roles.tools.doctor.rights import ACCOUNTS
from tests.support import patience, real_apiserver
from tests.support.processes import free_port, process

pytestmark = [pytest.mark.realapi, pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.feature("BEY-SEC-01")]
Obj = dict[str, Any]
NS = manifests.NAMESPACE
CORE, APPS, RBAC = "/api/v1", "/apis/apps/v1", "/apis/rbac.authorization.k8s.io/v1"
ADMISSION, CRDS = "/apis/admissionregistration.k8s.io/v1", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SLO, SCHED = "/apis/slo.koordinator.sh/v1alpha1", "/apis/scheduling.koordinator.sh/v1alpha1"
TOPOLOGY = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
COORDINATION = "/apis/coordination.k8s.io/v1"
VICTIM = f"{CORE}/namespaces/default/pods/victim"
MERGE = "application/merge-patch+json"
PLACES = ("default", "kube-system", NS)
#: What the kubelet asks about for its own port; the API server serves nothing of the name.
OF_THE_KUBELET = {"nodes/pods", "nodes/stats", "nodes/metrics", "nodes/log", "nodes/configz"}
#: What every authenticated user may do (system:basic-user); all else that the server grants has to be in the manifests.
EVERYBODY = {("create", "authorization.k8s.io", name) for name in ("selfsubjectaccessreviews", "selfsubjectrulesreviews")} | {
    ("create", "authentication.k8s.io", "selfsubjectreviews")
}


def meta(name: str, **more: Any) -> Obj:
    return {"metadata": {"name": name}, **more}


POD = {"containers": [{"name": "c", "image": "i"}]}
TEMPLATE = {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": POD}}
ADMIN_BINDING = meta(
    "mine",
    roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    subjects=[{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:serviceaccounts"}],
)
EVERYTHING = meta("all", rules=[{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])
LABEL = {"metadata": {"labels": {"stolen": "yes"}}}
TOKEN = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
HOOK = {"webhooks": []}


@dataclass(frozen=True)
class Row:
    """One request that has to be refused."""

    method: str
    path: str
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return " ".join([self.method, self.path, *(f"({name}: {value})" for name, value in self.headers)])


def _as(user: str, *groups: str) -> tuple[tuple[str, str], ...]:
    return (("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups))


def _kinds(group: str, kinds: str, namespace: str = "default") -> Iterator[str]:
    return (f"{group}/namespaces/{namespace}/{kind}" for kind in kinds.split())


NOBODY: tuple[Row, ...] = (
    # secrets
    *(Row("GET", f"{CORE}{place}/secrets") for place in ("", *(f"/namespaces/{name}" for name in PLACES))),
    *(Row("GET", f"{CORE}{place}/secrets?watch=1") for place in ("", *(f"/namespaces/{name}" for name in PLACES))),
    *(Row("GET", f"{CORE}/namespaces/{name}/secrets/other") for name in PLACES),
    *(Row("PATCH", f"{CORE}/namespaces/{name}/secrets/other", {"stringData": {"a": "b"}}) for name in PLACES),
    *(Row("DELETE", f"{CORE}/namespaces/{name}/secrets/other") for name in PLACES),
    # commands in containers, and ways into pods
    *(Row(method, f"{CORE}/nodes/n1/proxy/{path}") for method in ("GET", "POST") for path in ("pods", "exec/default/victim/c?command=id")),
    *(Row(method, f"{VICTIM}/{way}?command=id&stdout=true&ports=80&container=c")
      for method in ("GET", "POST") for way in ("exec", "attach", "portforward")),
    *(Row(method, f"{VICTIM}/proxy/") for method in ("GET", "POST", "PUT", "DELETE")),
    Row("GET", f"{CORE}/namespaces/default/services/victim/proxy/"),
    Row("GET", f"{VICTIM}/log"),
    Row("PATCH", f"{VICTIM}/ephemeralcontainers", LABEL),
    # programs of one's own
    *(Row("POST", f"{CORE}/namespaces/{name}/pods", meta("mine", spec=POD)) for name in PLACES),
    *(Row("POST", f"{APPS}/namespaces/{name}/{kind}", meta("mine", spec=TEMPLATE))
      for name in PLACES for kind in ("deployments", "daemonsets", "statefulsets", "replicasets")),
    *(Row("PATCH", f"{APPS}/namespaces/{NS}/deployments/{name}", LABEL) for name in ("koord-manager", "koord-scheduler")),
    Row("PATCH", f"{APPS}/namespaces/{NS}/daemonsets/koordlet", LABEL),
    *(Row("POST", f"/apis/batch/v1/namespaces/{name}/jobs", meta("mine", spec={"template": {"spec": POD}})) for name in PLACES),
    Row("PUT", VICTIM, meta("victim", spec=POD)),
    # becoming somebody else
    *(Row("POST", f"{CORE}/namespaces/kube-system/serviceaccounts/{name}/token", TOKEN) for name in ("default", "other")),
    *(Row("POST", f"{CORE}/namespaces/{NS}/serviceaccounts/{name}/token", TOKEN) for name in (*ACCOUNTS.values(), "koord-diagnostics")),
    *(Row("GET", f"{CORE}/nodes", headers=headers) for headers in (
        _as("admin"), _as("admin", "system:masters"), _as("system:serviceaccount:kube-system:default"),
        _as("system:node:n2", "system:nodes"), _as(f"system:serviceaccount:{NS}:koord-manager"))),
    Row("PUT", "/apis/certificates.k8s.io/v1/certificatesigningrequests/csr/approval", meta("csr")),
    Row("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", meta("mine", spec={
        "request": "", "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]})),
    # rights
    Row("POST", f"{RBAC}/clusterroles", EVERYTHING),
    Row("POST", f"{RBAC}/clusterrolebindings", ADMIN_BINDING),
    *(Row("POST", f"{RBAC}/namespaces/{name}/roles", EVERYTHING) for name in PLACES),
    *(Row("POST", f"{RBAC}/namespaces/{name}/rolebindings", ADMIN_BINDING) for name in PLACES),
    *(Row("PATCH", f"{RBAC}/clusterroles/{name}", EVERYTHING) for name in (*ACCOUNTS.values(), "system:basic-user")),
    *(Row("PATCH", f"{RBAC}/clusterrolebindings/{name}", ADMIN_BINDING) for name in ACCOUNTS.values()),
    *(Row("DELETE", f"{RBAC}/clusterroles/{name}") for name in ACCOUNTS.values()),
    # what is installed
    *(Row(method, f"{CRDS}/nodemetrics.slo.koordinator.sh", LABEL) for method in ("PATCH", "DELETE")),
    Row("POST", CRDS, meta("mine.example.com", spec={})),
    *(Row("POST", f"{ADMISSION}/{kind}", meta("mine")) for kind in ("validatingadmissionpolicies", "validatingadmissionpolicybindings")),
    *(Row("DELETE", f"{ADMISSION}/validatingadmissionpolicies/{name}") for name in ("koordlet-own-node", "koord-trusted-allocations")),
    *(Row("DELETE", f"{ADMISSION}/{kind}/other") for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")),
    *(Row("PATCH", f"{ADMISSION}/{kind}/other", HOOK) for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")),
    Row("PATCH", "/apis/apiregistration.k8s.io/v1/apiservices/v1.apps", LABEL),
    Row("PATCH", "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical", {"value": 1}),
    *(Row("PATCH", f"{CORE}/namespaces/{NS}/configmaps/{name}", {"data": {"a": "b"}}) for name in (
        "slo-controller-config", "koord-scheduler-config", "koord-descheduler-config")),
    *(Row("PATCH", f"{CORE}/namespaces/kube-system/configmaps/{name}", {"data": {"a": "b"}}) for name in (
        "extension-apiserver-authentication", "other")),
    # the cluster's foundations
    Row("POST", f"{CORE}/nodes", meta("mine")),
    *(Row("DELETE", f"{CORE}/{path}") for path in (
        "nodes/n1", "nodes", "namespaces/default", "namespaces/kube-system", "persistentvolumes/pv")),
    Row("POST", f"{CORE}/namespaces", meta("mine")),
    *(Row("DELETE", path) for path in (*_kinds(CORE, "pods services configmaps"), *_kinds(APPS, "deployments replicasets"))),
    *(Row("DELETE", f"{COORDINATION}/namespaces/{name}/leases/{lease}") for name, lease in (
        (NS, "koord-scheduler"), (NS, "koordinator-manager"), (NS, "koord-descheduler"), ("kube-system", "kube-scheduler"),
        ("kube-node-lease", "n1"))),
    *(Row("PATCH", f"{COORDINATION}/namespaces/{name}/leases/{lease}", LABEL) for name, lease in (
        ("kube-system", "kube-scheduler"), ("kube-node-lease", "n1"))),
)  # fmt: skip

#: What the role itself may not, although others of the four may.
BIND = Row("POST", f"{VICTIM}/binding", meta("victim", target={"kind": "Node", "name": "n2"}))
EVICT = Row("POST", f"{VICTIM}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "victim"}})
DELETE_POD, PATCH_POD, POD_STATUS = Row("DELETE", VICTIM), Row("PATCH", VICTIM, LABEL), Row("PATCH", f"{VICTIM}/status", LABEL)
PATCH_NODE, NODE_STATUS = Row("PATCH", f"{CORE}/nodes/n1", LABEL), Row("PATCH", f"{CORE}/nodes/n1/status", LABEL)
METRIC_STATUS, SLO_PATCH = Row("PATCH", f"{SLO}/nodemetrics/n1/status", {}), Row("PATCH", f"{SLO}/nodeslos/n1", {"spec": {}})
SLO_READ, KUBELET_READ = Row("GET", f"{SLO}/nodeslos"), Row("GET", f"{CORE}/nodes/n1/pods")
CERTS = Row("GET", f"{CORE}/namespaces/{NS}/secrets/koordinator-webhook-certs")
HOOKS = Row("POST", f"{ADMISSION}/mutatingwebhookconfigurations", meta("mine"))
OWN_HOOKS = Row("PATCH", f"{ADMISSION}/validatingwebhookconfigurations/koordinator-validating-webhook-configuration", HOOK)
CONFIG_READ = Row("GET", f"{CORE}/namespaces/{NS}/configmaps")
KUBE_CONFIG_READ = Row("GET", f"{CORE}/namespaces/default/configmaps")
MIGRATE = Row("POST", f"{SCHED}/podmigrationjobs", meta("mine"))
RESERVE = Row("POST", f"{SCHED}/reservations", meta("mine"))
DEVICES = Row("PATCH", f"{SCHED}/devices/n1", {"spec": {}})
ZONES = Row("PATCH", f"{TOPOLOGY}/n1", {"zones": []})
VOLUMES = Row("PATCH", f"{CORE}/persistentvolumes/pv", LABEL)
QUOTA = Row("POST", "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas", meta("mine"))
ALL_PODS, ONE_POD, NAMESPACES = Row("GET", f"{CORE}/pods"), Row("GET", VICTIM), Row("GET", f"{CORE}/namespaces")
MAPS = Row("POST", f"{CORE}/namespaces/{NS}/configmaps", meta("mine"))
LEASES = {name: Row("PUT", f"{COORDINATION}/namespaces/{NS}/leases/{name}", meta(name)) for name in (
    "koord-scheduler", "koordinator-manager", "koord-descheduler")}  # fmt: skip


def _foreign(own: str = "") -> tuple[Row, ...]:
    return tuple(row for name, row in LEASES.items() if name != own)


ROLES: dict[str, tuple[Row, ...]] = {
    "manager": (BIND, EVICT, DELETE_POD, PATCH_POD, POD_STATUS, KUBELET_READ, MIGRATE, RESERVE, DEVICES, VOLUMES, MAPS, KUBE_CONFIG_READ,
                *_foreign("koordinator-manager")),
    "scheduler": (PATCH_NODE, NODE_STATUS, METRIC_STATUS, SLO_PATCH, SLO_READ, KUBELET_READ, CERTS, HOOKS, OWN_HOOKS, MIGRATE, RESERVE,
                  DEVICES, ZONES, MAPS, KUBE_CONFIG_READ, *_foreign("koord-scheduler")),
    "descheduler": (BIND, PATCH_NODE, NODE_STATUS, POD_STATUS, METRIC_STATUS, SLO_PATCH, SLO_READ, KUBELET_READ, CERTS, HOOKS, OWN_HOOKS,
                    DEVICES, ZONES, VOLUMES, QUOTA, MAPS, CONFIG_READ, KUBE_CONFIG_READ, *_foreign("koord-descheduler")),
    "koordlet": (BIND, DELETE_POD, PATCH_POD, POD_STATUS, PATCH_NODE, NODE_STATUS, SLO_PATCH, CERTS, HOOKS, OWN_HOOKS, MIGRATE, RESERVE,
                 VOLUMES, QUOTA, MAPS, CONFIG_READ, KUBE_CONFIG_READ, ALL_PODS, ONE_POD, NAMESPACES,
                 Row("GET", f"{CORE}/nodes/n1/stats"), Row("GET", f"{CORE}/nodes/n1/metrics"), Row("GET", f"{CORE}/nodes/n1/log"),
                 Row("DELETE", f"{SLO}/nodemetrics/n1"), Row("PATCH", f"{SLO}/nodemetrics/n1", {"spec": {}}), *_foreign()),
}  # fmt: skip

#: Something of each role's own work: a token that is refused everything would prove nothing.
WORK = {
    "manager": Row("GET", f"{SLO}/nodeslos"),
    "scheduler": Row("GET", f"{CORE}/pods"),
    "descheduler": Row("GET", f"{SCHED}/podmigrationjobs"),
    "koordlet": Row("GET", f"{CORE}/nodes/n1"),
}


class Caller:
    """One user of the server."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.verify = False
        self._session.trust_env = False  # a CA bundle of the environment would be asked all the same
        self._session.headers["Authorization"] = f"Bearer {token}"

    def __call__(self, row: Row) -> requests.Response:
        headers = {"Content-Type": MERGE if row.method == "PATCH" else "application/json"}
        for name, value in row.headers:
            headers[name] = value
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the certificate is of the server's own making
            return self._session.request(row.method, self._url + row.path, json=row.body, headers=headers, timeout=patience.seconds(20))

    def close(self) -> None:
        self._session.close()


def made(caller: Caller, path: str, body: Obj) -> Obj:
    answer = caller(Row("POST", path, body))
    assert answer.status_code in (201, 409), (path, answer.text)
    found: Obj = answer.json()
    return found


@dataclass
class Cluster:
    """A server with the manifests' accounts, rights, definitions and policies, and a caller for each role's token."""

    admin: Caller
    roles: dict[str, Caller]
    other: Caller
    """A koordlet of another node."""
    policies: bool
    documents: list[Obj]
    url: str
    tokens: dict[str, str]

    def kubeconfig(self, role: str, directory: Path) -> Path:
        """A file with a role's token."""
        found = kubeconfig.build(self.url, self.tokens[role])
        found["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True  # the certificate is of the server's own making
        path = directory / f"{role}.kubeconfig"
        kubeconfig.write(path, found)
        return path


PLURALS = {
    "Namespace": "namespaces", "ServiceAccount": "serviceaccounts", "CustomResourceDefinition": "customresourcedefinitions",
    "ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings", "Role": "roles", "RoleBinding": "rolebindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies", "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}  # fmt: skip


def install(admin: Caller, documents: list[Obj], policies: bool) -> None:
    for document in documents:
        plural = PLURALS.get(document["kind"])
        if plural is None or (document["kind"].startswith("ValidatingAdmission") and not policies):
            continue
        group, namespace = document["apiVersion"], document["metadata"].get("namespace")
        root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
        made(admin, f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}", document)


def token_of(admin: Caller, account: str, pod: Obj | None = None) -> str:
    spec: Obj = {"expirationSeconds": 3600}
    if pod is not None:
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    path = f"{CORE}/namespaces/{NS}/serviceaccounts/{account}/token"
    return str(made(admin, path, {**TOKEN, "spec": spec})["status"]["token"])


def until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + patience.seconds(seconds)
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    program = real_apiserver.binary()
    if program is None or shutil.which("etcd") is None:
        pytest.skip("needs kube-apiserver (KOORD_REAL_APISERVER or PATH) and etcd on PATH")
    directory: Path = tmp_path_factory.mktemp("tokens")
    with real_apiserver.real_api_server(directory, program, authorization="Node,RBAC") as server:
        admin = Caller(server.url, server.token)
        policies = admin(Row("GET", f"{ADMISSION}/validatingadmissionpolicies")).status_code == 200
        documents = manifests.rendered()
        install(admin, documents, policies)
        agents = []
        for node in ("n1", "n2"):
            made(admin, f"{CORE}/nodes", meta(node))
            spec = {**POD, "nodeName": node, "serviceAccountName": "koordlet"}
            agents.append(made(admin, f"{CORE}/namespaces/{NS}/pods", meta(f"koordlet-{node}", spec=spec)))
        made(admin, f"{CORE}/namespaces/default/pods", meta("victim", spec={**POD, "nodeName": "n2"}))
        for name in ("nodemetrics", "nodeslos"):
            until(lambda name=name: admin(Row("GET", f"{SLO}/{name}")).status_code == 200, f"{name} are served")
        for node in ("n1", "n2"):
            made(admin, f"{SLO}/nodemetrics", {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", **meta(node)})
        tokens = {role: token_of(admin, account, agents[0] if role == "koordlet" else None) for role, account in ACCOUNTS.items()}
        callers = {role: Caller(server.url, token) for role, token in tokens.items()}
        other = Caller(server.url, token_of(admin, "koordlet", agents[1]))
        try:
            for role, row in WORK.items():
                until(lambda role=role, row=row: callers[role](row).status_code == 200, f"the {role}'s rights are in force")
            yield Cluster(admin, callers, other, policies, documents, server.url, tokens)
        finally:
            for caller in (admin, other, *callers.values()):
                caller.close()


@pytest.mark.parametrize("role", ACCOUNTS)
def test_what_no_role_may_do(cluster: Cluster, role: str) -> None:
    """Refused by the authorizer, not for another reason: an administrator gets further with each of them."""
    granted = []
    for row in (*NOBODY, *ROLES[role]):
        answer = cluster.roles[role](row)
        refused = answer.status_code == 403 and answer.json().get("reason") == "Forbidden" and "cannot" in answer.json()["message"]
        if not refused:
            granted.append(f"{row}: {answer.status_code} {answer.text[:200]}")
    assert not granted, "\n".join(granted)
    assert cluster.roles[role](WORK[role]).status_code == 200


def test_the_rows_name_what_is_served(cluster: Cluster) -> None:
    """A row with a path that nobody serves would be refused whatever the rights are."""
    known: dict[str, set[str]] = {}
    for row in (*NOBODY, *(row for rows in ROLES.values() for row in rows)):
        parts = row.path.partition("?")[0].strip("/").split("/")
        root, rest = "/" + "/".join(parts[: 2 if parts[0] == "api" else 3]), parts[2 if parts[0] == "api" else 3 :]
        if rest[0] == "namespaces" and len(rest) > 2:
            rest = rest[2:]
        name = "/".join([rest[0], *rest[2:3]])
        if name in OF_THE_KUBELET or (not cluster.policies and name.startswith("validatingadmission")):
            continue
        if root not in known:
            answer = cluster.admin(Row("GET", root))
            assert answer.status_code == 200, root
            known[root] = {resource["name"] for resource in answer.json()["resources"]}
        assert name in known[root], str(row)


@pytest.mark.parametrize("role", ACCOUNTS)
def test_the_server_grants_what_the_manifests_say_and_nothing_else(cluster: Cluster, role: str) -> None:
    """SelfSubjectRulesReview in each namespace: verbs, groups, resources and names against the rules of the manifests."""
    for namespace in PLACES:
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}
        answer = cluster.roles[role](Row("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body))
        assert answer.status_code == 201, answer.text
        told = {line for rule in answer.json()["status"]["resourceRules"] for line in _lines(rule)}
        said = {line for rule in _granted(cluster.documents, ACCOUNTS[role], namespace) for line in _lines(rule)}
        extra = {line for line in told - said if line[:3] not in EVERYBODY}
        assert not extra, f"{role} in {namespace}: {sorted(extra)}"
        assert not said - told, f"{role} in {namespace}: {sorted(said - told)}"


def _lines(rule: Obj) -> Iterator[tuple[str, str, str, str]]:
    for verb in rule["verbs"]:
        for group in rule.get("apiGroups") or [""]:
            for resource in rule.get("resources") or ():
                for name in rule.get("resourceNames") or [""]:
                    yield verb, group, resource, name


_DELEGATOR = [
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
]
_READER = [
    {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": ["extension-apiserver-authentication"],
        "verbs": ["get", "list", "watch"],
    }
]
_OF_KUBERNETES = {"system:auth-delegator": _DELEGATOR, "extension-apiserver-authentication-reader": _READER}


def _granted(documents: list[Obj], account: str, namespace: str) -> Iterator[Obj]:
    """Rules that the manifests bind to an account in a namespace."""
    for binding in documents:
        if binding["kind"] not in ("ClusterRoleBinding", "RoleBinding"):
            continue
        place = binding["metadata"].get("namespace", "")
        if place not in ("", namespace) or not any(subject.get("name") == account for subject in binding["subjects"]):
            continue
        name, kind = binding["roleRef"]["name"], binding["roleRef"]["kind"]
        if name in _OF_KUBERNETES:
            yield from _OF_KUBERNETES[name]
            continue
        role = next(
            d for d in documents if d["kind"] == kind and d["metadata"]["name"] == name and d["metadata"].get("namespace", place) == place
        )
        yield from role["rules"]


def test_a_koordlet_writes_for_its_own_node_only(cluster: Cluster) -> None:
    if not cluster.policies:
        pytest.skip("this kube-apiserver has no ValidatingAdmissionPolicy (Kubernetes 1.30 and later)")
    own, other = cluster.roles["koordlet"], cluster.other
    status = {"status": {"nodeMetric": {"nodeUsage": {"resources": {"cpu": "1"}}}}}
    until(lambda: other(Row("PATCH", f"{SLO}/nodemetrics/n1/status", status)).status_code == 422, "the policy is in force")
    assert own(Row("PATCH", f"{SLO}/nodemetrics/n1/status", status)).status_code == 200
    assert other(Row("PATCH", f"{SLO}/nodemetrics/n2/status", status)).status_code == 200
    device = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device"}
    zones = {"apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology", "topologyPolicies": ["None"], "zones": []}
    for row in (
        Row("PATCH", f"{SLO}/nodemetrics/n2/status", status),
        Row("POST", f"{SCHED}/devices", {**device, **meta("n2"), "spec": {}}),
        Row("POST", TOPOLOGY, {**zones, **meta("n2")}),
    ):
        answer = own(row)
        assert (answer.status_code, "the koordlet of node n1 may not write n2" in answer.text) == (422, True), f"{row}: {answer.text}"
    assert own(Row("POST", f"{SCHED}/devices", {**device, **meta("n1"), "spec": {}})).status_code == 201
    assert own(Row("POST", TOPOLOGY, {**zones, **meta("n1")})).status_code == 201


def test_allocations_are_the_schedulers_by_policy_alone(cluster: Cluster) -> None:
    """Without a webhook: a user who may write pods is told who writes such an annotation; who may bind is let through."""
    if not cluster.policies:
        pytest.skip("this kube-apiserver has no ValidatingAdmissionPolicy (Kubernetes 1.30 and later)")
    made(cluster.admin, f"{CORE}/namespaces/default/serviceaccounts", meta("tenant"))
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "patch"]}
    made(cluster.admin, f"{RBAC}/namespaces/default/roles", meta("tenant", rules=[rule]))
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"}
    subjects = [{"kind": "ServiceAccount", "name": "tenant", "namespace": "default"}]
    made(cluster.admin, f"{RBAC}/namespaces/default/rolebindings", meta("tenant", roleRef=reference, subjects=subjects))
    tenant = _as("system:serviceaccount:default:tenant", "system:serviceaccounts", "system:authenticated")
    pods = f"{CORE}/namespaces/default/pods"

    def create(name: str, annotations: dict[str, str], headers: tuple[tuple[str, str], ...] = tenant) -> requests.Response:
        return cluster.admin(
            Row("POST", f"{pods}?dryRun=All", {"metadata": {"name": name, "annotations": annotations}, "spec": POD}, headers)
        )

    forged = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"0-127"}'}
    until(lambda: create("w", {}).status_code == 201, "the tenant's rights are in force")
    until(lambda: create("w", forged).status_code != 201, "the policy is in force")
    answer = create("w", forged)
    assert (answer.status_code, "written by the scheduler only" in answer.text) == (403, True), answer.text
    assert create("w", {"koordinator.sh/cpuBurst": '{"cfsQuotaBurstPercent": 1000000}'}).status_code == 422
    assert create("w", {"koordinator.sh/cpuBurst": '{"cfsQuotaBurstPercent": 300}'}).status_code == 201
    assert create("w", {}).status_code == 201
    patch = {"metadata": {"annotations": forged}}
    assert cluster.admin(Row("PATCH", f"{VICTIM}?dryRun=All", patch, tenant)).status_code == 403
    assert cluster.roles["scheduler"](Row("PATCH", f"{VICTIM}?dryRun=All", patch)).status_code == 200


def test_a_koordlet_evicts_pods_of_its_own_node_only(cluster: Cluster, tmp_path: Path) -> None:
    """By the webhook of a manager with its own token, on a server that knows conditions of webhooks and names nodes in tokens."""
    if not cluster.policies:
        pytest.skip("this kube-apiserver has no conditions of webhooks (Kubernetes 1.30 and later)")
    config = cluster.kubeconfig("manager", tmp_path)
    environment = {
        "WEBHOOK_HOST": "127.0.0.1", "WEBHOOK_PORT": str(free_port()), "WEBHOOK_CERT_DIR": str(tmp_path / "certs"), "POD_NAMESPACE": NS,
    }  # fmt: skip
    arguments = ["manager", f"--kubeconfig={config}", "--metrics-addr=0", f"--health-probe-addr=127.0.0.1:{free_port()}"]
    for name, node in (("mine", "n1"), ("theirs", "n2")):
        made(cluster.admin, f"{CORE}/namespaces/default/pods", meta(name, spec={**POD, "nodeName": node}))
    hooks = f"{ADMISSION}/validatingwebhookconfigurations/koordinator-validating-webhook-configuration"

    def evict(name: str, caller: Caller) -> requests.Response:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        return caller(Row("POST", f"{CORE}/namespaces/default/pods/{name}/eviction", body))

    own = cluster.roles["koordlet"]
    with process(*arguments, **environment):
        until(lambda: cluster.admin(Row("GET", hooks)).status_code == 200, "the webhooks are registered")
        # only the webhook refuses a pod that is not there; nobody else is tried before it does
        until(lambda: evict("absent", own).status_code == 403, "the webhook is asked")
        refused = evict("theirs", own)
        assert (refused.status_code, "n1" in refused.text) == (403, True), refused.text
        assert cluster.admin(Row("GET", f"{CORE}/namespaces/default/pods/theirs")).status_code == 200
        assert evict("mine", own).status_code == 201
        assert evict("theirs", cluster.other).status_code == 201
    cluster.admin(Row("DELETE", hooks))
    cluster.admin(Row("DELETE", hooks.replace("validating", "mutating")))
