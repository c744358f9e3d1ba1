"""What is compared, continued: lists, watches and tables in their less usual forms."""

from __future__ import annotations

import base64
import json

from tests.support import patience

from .scenarios import DEPLOYMENTS, MAPS, PODS, config_map, pod
from .transcript import MERGE, Transcript, settle

TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
PARTIAL = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
PARTIALS = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


def list_options(t: Transcript) -> None:
    for name in ("a", "b", "c", "d"):
        t.raw("POST", MAPS, {**config_map(name), "metadata": {"name": name, "labels": {"n": name}}})
    settle()
    for query in (
        "limit=-1",
        "limit=x",
        "limit=0&labelSelector=n",
        "resourceVersionMatch=Nonsense",
        "resourceVersionMatch=NotOlderThan",
        "resourceVersion=0&resourceVersionMatch=NotOlderThan&labelSelector=n",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersion=-1",
        "resourceVersion=1x",
        "timeoutSeconds=x&labelSelector=n",
        "labelSelector=n=a,n=b",
        "labelSelector=n==a",
        "labelSelector=!n",
        "labelSelector=n%20notin%20(a,b)",
        "labelSelector=n%20in%20()",
        "labelSelector=n>1",
        "labelSelector=n>x",
        "labelSelector=,",
        "labelSelector=-bad-=x",
        "labelSelector=n=bad%20value",
        "fieldSelector=metadata.name!=a,metadata.namespace={ns}&labelSelector=n",
        "fieldSelector=metadata.name",
        "fieldSelector=metadata.labels.x=1",
        "fieldSelector=data=1",
        "fieldSelector=metadata.name%3Da%2Cmetadata.name%3Db",
        "allowWatchBookmarks=true&labelSelector=n%3Da",
        "sendInitialEvents=true",
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        "watch=0&labelSelector=n%3Da",
        "watch=False&labelSelector=n%3Da",
        "shardSelector=x&labelSelector=n%3Da",
    ):
        t.verdict("GET", f"{MAPS}?{query}")
    first = t.call("GET", f"{MAPS}?labelSelector=n&limit=1")
    token = first["metadata"]["continue"]
    version = first["metadata"]["resourceVersion"]
    second = t.call("GET", f"{MAPS}?labelSelector=n&limit=2&continue={token}")
    t.call("GET", f"{MAPS}?labelSelector=n&continue={second['metadata']['continue']}")
    t.verdict("GET", f"{MAPS}?labelSelector=n&limit=2&continue={token}&resourceVersion={version}")
    t.verdict("GET", f"{MAPS}?labelSelector=n&limit=2&continue={token}&resourceVersion=0")
    t.verdict("GET", f"{MAPS}?labelSelector=n&limit=2&continue={token}&resourceVersionMatch=Exact")
    t.verdict("GET", f"{MAPS}?labelSelector=n&limit=2&resourceVersion=0")
    t.verdict("GET", f"{MAPS}?labelSelector=n&limit=2&resourceVersion=0&resourceVersionMatch=NotOlderThan")
    t.verdict("GET", f"{PODS}?limit=2&continue={token}")
    t.verdict("GET", f"{MAPS}/a?resourceVersion={version}")
    t.verdict("GET", f"{MAPS}/a?watch=false")
    for kind, selectors in (
        (
            "pods",
            (
                "status.phase=Running",
                "spec.restartPolicy=Always",
                "spec.schedulerName=x",
                "status.podIP=1",
                "spec.hostNetwork=true",
                "spec.serviceAccountName=default",
                "status.nominatedNodeName=",
                "spec.nodeName=",
                "metadata.uid=x",
            ),
        ),
        ("events", ("involvedObject.name=x", "reason=y", "type=Normal", "source=z", "reportingComponent=k")),
        ("secrets", ("type=Opaque",)),
        ("replicationcontrollers", ("status.replicas=0",)),
        ("services", ("spec.clusterIP=None", "spec.type=ClusterIP")),
    ):
        for selector in selectors:
            t.verdict("GET", f"/api/v1/namespaces/{{ns}}/{kind}?fieldSelector={selector}")
    t.verdict("GET", "/api/v1/nodes?fieldSelector=spec.unschedulable%3Dtrue")
    t.verdict("GET", "/api/v1/nodes?fieldSelector=spec.podCIDR%3Dx")
    t.verdict("GET", "/api/v1/namespaces?fieldSelector=status.phase%3DNope")


def watch_options(t: Transcript) -> None:
    start = t.raw("GET", MAPS)[1]["metadata"]["resourceVersion"]
    t.raw("POST", MAPS, config_map("a"))
    settle()
    only = "fieldSelector=metadata.name%3Da"
    for query in (
        "resourceVersionMatch=Exact",
        "resourceVersionMatch=NotOlderThan",
        "sendInitialEvents=true",
        "sendInitialEvents=false",
        "sendInitialEvents=x",
        "sendInitialEvents=true&resourceVersionMatch=Exact",
        "timeoutSeconds=x",
        "limit=1&" + only,
        "labelSelector=n%20in",
        "fieldSelector=nope=1",
        "resourceVersion=99999999",
        "continue=x",
    ):
        joint = f"{MAPS}?watch=1&timeoutSeconds=1&{query}" if "timeoutSeconds" not in query else f"{MAPS}?watch=1&{query}"
        answer = t.target.session.get(t.target.url + joint.replace("{ns}", t.ns), timeout=patience.seconds(30))
        events = [json.loads(line) for line in answer.text.splitlines() if line.startswith("{")]
        found = [
            [e.get("type"), (e.get("object") or {}).get("code") or (e.get("object") or {}).get("metadata", {}).get("name")] for e in events
        ]
        t.note(
            watch=query,
            status=answer.status_code,
            events=found if answer.status_code == 200 else [events[0].get("reason")] if events else "text",
        )
    t.raw("DELETE", MAPS + "/a")
    events = t.watch(f"{MAPS}?resourceVersion={start}&{only}")
    t.note(newer=int(events[-1]["object"]["metadata"]["resourceVersion"]) > int(events[0]["object"]["metadata"]["resourceVersion"]))


def tables(t: Transcript) -> None:
    t.raw("POST", MAPS, config_map("a", x="1", y="2"))
    t.raw(
        "POST",
        PODS,
        pod(
            "p",
            nodeName="n1",
            containers=[{"name": "c", "image": "i:1"}, {"name": "d", "image": "i:2"}],
            initContainers=[{"name": "s", "image": "i:3"}],
        ),
    )
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    t.raw(
        "POST",
        DEPLOYMENTS,
        {"metadata": {"name": "d"}, "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}},
    )
    node = f"n-{t.ns}"
    t.raw(
        "POST",
        "/api/v1/nodes",
        {"metadata": {"name": node, "labels": {"node-role.kubernetes.io/worker": ""}}, "spec": {"unschedulable": True}},
    )
    t.raw(
        "PATCH",
        f"/api/v1/nodes/{node}/status",
        {
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {"kubeletVersion": "v1.36.0", "osImage": "x", "kernelVersion": "k", "containerRuntimeVersion": "c"},
                "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}],
            }
        },
        MERGE,
    )
    t.raw(
        "POST",
        "/api/v1/namespaces/{ns}/services",
        {
            "metadata": {"name": "s"},
            "spec": {"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"port": 80}, {"port": 81, "name": "n", "protocol": "UDP"}]},
        },
    )
    t.raw("POST", "/api/v1/namespaces/{ns}/secrets", {"metadata": {"name": "s"}, "data": {"a": "eA=="}})
    settle()

    def shown(path: str, accept: str = TABLE) -> None:
        status, out = t.raw("GET", path, accept=accept)
        if not isinstance(out, dict):
            t.note(path=path, status=status, text=True)
            return
        columns = [[c["name"], c["type"], c["format"], c["priority"]] for c in out.get("columnDefinitions") or ()]
        ages = {i for i, c in enumerate(columns) if c[0] in ("Age", "Created At", "Last Seen")}
        rows = [["*" if i in ages else cell for i, cell in enumerate(row["cells"])] for row in out.get("rows") or ()]
        held = [sorted((row.get("object") or {}).keys()) for row in out.get("rows") or ()]
        t.note(
            path=path.rsplit("?", maxsplit=1)[-1] if "?" in path else path.rsplit("/", 1)[-1].replace(node, "node"),
            status=status,
            kind=out.get("kind"),
            version=out.get("apiVersion"),
            columns=columns,
            held=held,
            rows=json.loads(json.dumps(rows).replace(node, "node")),
        )

    one = "?fieldSelector=metadata.name%3D"
    for path in (
        MAPS + one + "a",
        MAPS + "/a",
        PODS,
        PODS + "/p",
        DEPLOYMENTS,
        f"/api/v1/nodes/{node}",
        "/api/v1/namespaces/{ns}/services",
        "/api/v1/namespaces/{ns}/secrets",
        "/api/v1/namespaces/{ns}/serviceaccounts",
        MAPS + "/none",
        MAPS + "?includeObject=Nonsense",
        MAPS + one + "a&includeObject=None",
        MAPS + one + "a&includeObject=Object",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
    ):
        shown(path)
    shown(PODS, "application/json;as=Table;g=meta.k8s.io;v=v1beta1,application/json")
    shown(PODS, "application/json;as=Table;g=meta.k8s.io;v=v2,application/json")
    shown(PODS, "application/json;as=Table;g=meta.k8s.io;v=v2")
    t.call("GET", MAPS + "/a", accept=PARTIAL)
    t.call("GET", MAPS + one + "a", accept=PARTIALS)
    for path, accept in ((MAPS + one + "a", PARTIAL), (MAPS + "/a", PARTIALS)):
        t.note(accept=accept, status=t.raw("GET", path, accept=accept)[0])
    t.call("GET", MAPS + "/none", accept=PARTIAL)
    t.raw("DELETE", f"/api/v1/nodes/{node}")


def continue_tokens(t: Transcript) -> None:
    """Pages by what a token says; others are refused."""
    for name in "abcde":
        t.raw("POST", MAPS, {**config_map(name), "metadata": {"name": name, "labels": {"n": name}}})
    settle()
    first = t.raw("GET", f"{MAPS}?limit=2")[1]
    t.note(left=first["metadata"]["remainingItemCount"], items=[item["metadata"]["name"] for item in first["items"]])
    token = first["metadata"]["continue"]
    said = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    t.raw("POST", MAPS, {**config_map("bb"), "metadata": {"name": "bb", "labels": {"n": "bb"}}})
    for change in ({}, {"v": "other"}, {"v": None}, {"start": ""}, {"start": "/../x"}, {"rv": -1}, {"rv": 0}, {"rv": None}):
        told = {key: value for key, value in {**said, **change}.items() if value is not None}
        text = base64.urlsafe_b64encode(json.dumps(told).encode()).decode().rstrip("=")
        status, out = t.raw("GET", f"{MAPS}?limit=2&continue={text}")
        t.note(change=change, status=status, message=out.get("message"), items=[item["metadata"]["name"] for item in out.get("items", ())])


def older_watches(t: Transcript) -> None:
    """Watches by their former paths."""
    t.raw("POST", MAPS, {**config_map("a"), "metadata": {"name": "a", "labels": {"n": "a"}}})
    t.raw("POST", MAPS, config_map("b"))
    settle()
    watched = "/api/v1/watch/namespaces/{ns}/configmaps"
    for path in (f"{watched}?labelSelector=n", f"{watched}/b?x=y", f"/api/v1/watch/namespaces/{t.ns}?x=y"):
        t.watch(f"{path}&resourceVersion=0")


SCENARIOS = (list_options, watch_options, tables, continue_tokens, older_watches)
