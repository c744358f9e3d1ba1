"""What koordlet may do on its node, and what the roles' tokens may not do in the cluster: a table each, and the manifests after it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.version import VERSION
from roles.koordlet import rights
from roles.manager.recommender import resolve
from roles.tools import manifests
from roles.tools import rights as rendering
from roles.tools.doctor.powers import POWERS, covers, judge_powers, judge_workloads
from roles.tools.doctor.rights import ACCOUNTS, Question, questions
from tests.support.processes import ROOT

pytestmark = pytest.mark.feature("BEY-SEC-01")
Obj = dict[str, Any]


def agent(*overlays: str) -> tuple[Obj, Obj]:
    found = next(d for d in manifests.rendered(crds=False, overlays=overlays) if d["kind"] == "DaemonSet")
    pod = found["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


def test_the_daemonset_has_what_the_table_says_and_no_more() -> None:
    pod, container = agent()
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": list(rights.capabilities())}
    assert (security["allowPrivilegeEscalation"], security.get("privileged", False)) == (False, False)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    paths = {volume["name"]: volume["hostPath"] for volume in pod["volumes"] if "hostPath" in volume}
    assert paths == {m.name: {"path": m.path, **({"type": "DirectoryOrCreate"} if m.made else {})} for m in rights.mounts()}
    assert "/" not in {path["path"] for path in paths.values()}
    mounted = {mount["name"]: mount for mount in container["volumeMounts"] if mount["name"] in paths}
    for mount in rights.mounts():
        found = mounted[mount.name]
        assert found["mountPath"] == f"/host{mount.path}"
        assert (found.get("readOnly", False), found.get("mountPropagation")) == (
            not mount.writable,
            "HostToContainer" if mount.follows else None,
        ), mount.name


def test_every_file_that_a_flag_names_lies_on_a_mount() -> None:
    _, container = agent()
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    for argument in container["args"]:
        flag, _, value = argument.partition("=")
        if flag in ("--audit-log-dir", "--tsdb-path", "--prediction-checkpoint-filepath"):
            assert any(value == path or value.startswith(f"{path}/") for path in writable), argument


def test_the_unit_has_the_same_capabilities() -> None:
    unit = (ROOT / "packaging/systemd/koordlet.service").read_text()
    [line] = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    assert set(line.split()) == {f"CAP_{name}" for name in rights.capabilities()}


@pytest.mark.parametrize("file", rendering.outputs(), ids=lambda file: str(file.relative_to(ROOT)))
def test_what_is_generated_is_current(file: Path) -> None:
    assert file.read_text(encoding="utf-8") == rendering.outputs()[file], "run `make rights`"


def test_a_row_more_is_in_all_that_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of the table is a capability, a mount and a port in the DaemonSet, the unit, the page and the NetworkPolicy."""
    mount, port = rights.Mount("extra", "/var/lib/extra", writable=True), rights.Port("more", 9999)
    row = rights.Right("`Extra`", "much", "nothing", ("SYSLOG",), (mount,), (port,))
    monkeypatch.setattr(rights, "RIGHTS", (*rights.RIGHTS, row))
    monkeypatch.setattr(rendering, "RIGHTS", rights.RIGHTS)
    found = rendering.outputs()
    assert "NET_ADMIN, SYSLOG]" in found[rendering.DAEMONSET]
    [agent_] = [d for d in yaml.safe_load_all(found[rendering.DAEMONSET]) if d["kind"] == "DaemonSet"]
    container = agent_["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "extra", "mountPath": "/host/var/lib/extra"} in container["volumeMounts"]
    assert {"name": "more", "containerPort": 9999} in container["ports"]
    assert "CAP_NET_ADMIN CAP_SYSLOG\n" in found[rendering.UNIT]
    assert "| `Extra` | much | nothing | as installed |" in found[rendering.PAGE]
    assert "{port: more, protocol: TCP}" in found[rendering.POLICIES]


def test_marks_that_are_gone_are_named() -> None:
    with pytest.raises(ValueError, match="make rights"):
        rendering.replaced("a: b\n", 0, [])


@pytest.mark.parametrize("component", rights.COMPONENTS)
def test_an_overlay_gives_what_its_rows_say_and_never_everything(component: str) -> None:
    (pod, container), (plain, bare) = agent(component), agent()
    security = container["securityContext"]
    assert (security.get("privileged", False), security["allowPrivilegeEscalation"]) == (False, False)
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"]["add"] == [*bare["securityContext"]["capabilities"]["add"], *rights.capabilities(component)]
    paths = [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume]
    assert "/" not in paths
    assert set(paths) - {v["hostPath"]["path"] for v in plain["volumes"] if "hostPath" in v} == {m.path for m in rights.mounts(component)}
    if component == "koordlet-gpu":
        assert pod["runtimeClassName"] == "nvidia"
        assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"} in container["env"]


def test_without_any_right_it_observes() -> None:
    _, observing = agent("koordlet-observe")
    assert observing["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_network_policies_let_in_what_the_containers_serve() -> None:
    found = manifests.rendered(crds=False)
    for document in found:
        if document["kind"] in ("Deployment", "DaemonSet"):
            name = document["metadata"]["name"]
            [policy] = [d for d in found if d["kind"] == "NetworkPolicy" and d["metadata"]["name"] == name]
            allowed = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
            served = document["spec"]["template"]["spec"]["containers"][0]["ports"]
            assert allowed == [port["name"] for port in served]
            assert policy["spec"]["podSelector"]["matchLabels"] == document["spec"]["selector"]["matchLabels"]


def test_images_are_of_this_release_and_pulled_once() -> None:
    for overlay in ((), *((name,) for name in manifests.OVERLAYS)):
        for document in manifests.rendered(crds=False, overlays=overlay):
            if document["kind"] in ("Deployment", "DaemonSet"):
                [container] = document["spec"]["template"]["spec"]["containers"]
                assert container["image"].endswith(f":v{VERSION}")
                assert container["imagePullPolicy"] == "IfNotPresent"
    pinned = "registry.example.com/koord@sha256:" + "0" * 64
    found = [d for d in manifests.rendered(image=pinned, crds=False) if d["kind"] == "Deployment"]
    assert {d["spec"]["template"]["spec"]["containers"][0]["image"] for d in found} == {pinned}


# -- tokens --------------------------------------------------------------------------------------------------------------------

#: What a role holds of that all the same, each with its bound.
ALLOWED = {
    ("manager", "get", "secrets"): "koordinator-webhook-certs",
    ("manager", "list", "secrets"): "koordinator-webhook-certs",
    ("manager", "watch", "secrets"): "koordinator-webhook-certs",
}


@pytest.mark.parametrize("role", ACCOUNTS)
@pytest.mark.parametrize("overlay", ["", *manifests.OVERLAYS])
def test_what_a_stolen_token_may_not_do(role: str, overlay: str) -> None:
    documents = manifests.rendered(crds=False, overlays=tuple(filter(None, [overlay])))
    held = questions(documents, ACCOUNTS[role])
    assert held
    for danger, rules in POWERS.items():
        for wanted in rules:
            for question in held:
                if covers(question, wanted):
                    bound = ALLOWED.get((role, question.verb, question.resource))
                    assert bound is not None, f"{role} could {danger}: {question}"
                    assert (question.name, question.namespace) == (bound, manifests.NAMESPACE), f"{role}: {question}"


def test_rights_for_what_is_off_are_not_bound() -> None:
    patching = {
        role
        for role in ACCOUNTS
        if any(covers(q, Question("patch", "", "nodes")) for q in questions(manifests.rendered(crds=False), ACCOUNTS[role]))
    }
    assert patching == {"manager"}
    names = {d["metadata"]["name"] for d in manifests.rendered(crds=False) if d["kind"] == "ClusterRole"}
    assert {"koord-scheduler-device-plugins", "koord-descheduler-cordon", "koord-descheduler-metrics-server"} <= names
    everything = questions(manifests.rendered(crds=False), ACCOUNTS["descheduler"])
    assert not any(covers(q, Question("get", "", "secrets")) or q.group == "metrics.k8s.io" for q in everything)


def test_the_recommender_may_read_every_workload_that_it_knows() -> None:
    """And the scale of any other: where it may not look, it says that such a target is not supported."""
    [rules] = [
        d["rules"]
        for d in manifests.rendered(crds=False)
        if d["metadata"]["name"] == "koord-manager-recommender" and d["kind"] == "ClusterRole"
    ]
    held = {(group, name) for rule in rules if "get" in rule["verbs"] for group in rule["apiGroups"] for name in rule["resources"]}
    wanted = {(version.rpartition("/")[0], plural) for (version, _), plural in resolve.WORKLOADS.items()} | {("*", "*/scale")}
    assert wanted <= held


def test_wildcards_stand_for_one_thing_only() -> None:
    for document in manifests.rendered(crds=False):
        for rule in document.get("rules") or ():
            assert "*" not in rule["verbs"]
            assert "*" not in rule.get("resources", ())
            assert "*" not in rule.get("apiGroups", ()) or rule == {"apiGroups": ["*"], "resources": ["*/scale"], "verbs": ["get"]}


@pytest.mark.feature("BEY-DOC-01")
def test_doctor_says_what_a_token_could_do_and_how_roles_run() -> None:
    [fine] = judge_powers("koordlet", ())
    assert fine.level == "ok"
    [bad] = judge_powers("koordlet", [Question("get", "", "nodes", "proxy")])
    assert (bad.level, "run commands in containers (get nodes/proxy)" in bad.message) == ("fail", True)
    assert [f.level for f in judge_powers("koordlet", (), "forbidden")] == ["warn"]

    def installed(*overlays: str) -> dict[str, str]:
        objects = manifests.rendered(crds=False, overlays=overlays)
        fenced = [d["metadata"]["name"] for d in objects if d["kind"] == "NetworkPolicy"]
        workloads = [d for d in objects if d["kind"] in ("Deployment", "DaemonSet")]
        return {f.area: f"{f.level} {f.message}" for f in judge_workloads(workloads, fenced, registered=True)}

    assert all(text.startswith("ok") for text in installed().values())
    assert "opens paths to everybody" in installed("open-ports")["koord-manager as installed"]
    assert installed("koordlet-kernel")["koordlet as installed"].startswith("ok")
    everything = {"metadata": {"name": "koordlet"}, "spec": {"template": {"spec": {
        "hostNetwork": True,
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        "containers": [{"image": "r/koord:v1", "securityContext": {"privileged": True}}],
    }}}}  # fmt: skip
    [loose] = judge_workloads([everything], [], registered=None)
    assert "privileged; all of / is mounted; no seccomp profile" in loose.message
    [*_, unregistered] = judge_workloads([], [], registered=False)
    assert unregistered.level == "fail"
    moving = {
        "metadata": {"name": "koord-x"},
        "spec": {"template": {"spec": {"containers": [{"image": "r/koord:latest", "args": ["--profiling"]}]}}},
    }
    [loose] = judge_workloads([moving], [], registered=None)
    for told in ("a tag that moves", "serves profiling", "no NetworkPolicy", "no seccomp profile"):
        assert told in loose.message
