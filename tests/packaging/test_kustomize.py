"""configs/ for kustomize: complete lists, overlays that say what they do, and our own rendering of them equal to kubectl's."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.process.errors import ConfigurationError
from roles.scheduler.whatif import configured
from roles.tools import kustomize, manifests
from roles.tools.doctor.powers import covers
from roles.tools.doctor.rights import ACCOUNTS, Question, questions

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
KUSTOMIZATIONS = (".", *(f"overlays/{name}" for name in manifests.OVERLAYS))
Obj = dict[str, Any]


def keyed(objects: list[Obj]) -> dict[tuple[str, str, str], Obj]:
    found = {(d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"]): d for d in objects}
    assert len(found) == len(objects), "an object is there twice"
    return found


def workloads(overlay: str) -> dict[str, Obj]:
    objects = kustomize.build(CONFIGS / "overlays" / overlay)
    return {d["metadata"]["name"]: d for d in objects if d["kind"] in ("Deployment", "DaemonSet")}


def test_every_manifest_is_listed() -> None:
    for folder in ("crds", "install"):
        listed = yaml.safe_load((CONFIGS / folder / "Kustomization").read_text())["resources"]
        assert listed == sorted(file.name for file in (CONFIGS / folder).glob("*.yaml"))
    assert {folder.name for folder in (CONFIGS / "components").iterdir()} == set(manifests.OVERLAYS)
    assert {folder.name for folder in (CONFIGS / "optional").iterdir()} == set(manifests.OPTIONAL)
    for name in manifests.OVERLAYS:
        overlay = yaml.safe_load((CONFIGS / "overlays" / name / "kustomization.yaml").read_text())
        assert overlay["resources"] == ["../../crds", "../../install"]
        assert overlay["components"] == [f"../../components/{name}"]


@pytest.mark.kubectl
@pytest.mark.parametrize("folder", KUSTOMIZATIONS)
def test_our_rendering_is_kubectls(folder: str) -> None:
    done = subprocess.run(["kubectl", "kustomize", str(CONFIGS / folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert keyed(list(yaml.load_all(done.stdout, Loader=yaml.CSafeLoader))) == keyed(kustomize.build(CONFIGS / folder))


def test_koord_install_prints_the_kustomization() -> None:
    assert keyed(manifests.rendered()) == keyed(kustomize.build(CONFIGS))


def test_single_is_one_replica_without_budgets() -> None:
    found = workloads("single")
    for name in ("koord-manager", "koord-scheduler", "koord-descheduler"):
        assert found[name]["spec"]["replicas"] == 1
        assert "affinity" not in found[name]["spec"]["template"]["spec"]
    assert not [d for d in kustomize.build(CONFIGS / "overlays/single") if d["kind"] == "PodDisruptionBudget"]


def test_ha_keeps_replicas_of_one_role_apart() -> None:
    for name, document in workloads("ha").items():
        if document["kind"] == "Deployment":
            apart = document["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
            [term] = apart["requiredDuringSchedulingIgnoredDuringExecution"]
            assert term == {"labelSelector": {"matchLabels": {"koord-app": name}}, "topologyKey": "kubernetes.io/hostname"}
            [wish] = apart["preferredDuringSchedulingIgnoredDuringExecution"]
            assert wish["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"
            assert document["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}, "two nodes must do"
            assert document["spec"]["replicas"] == 2
    budgets = [d for d in kustomize.build(CONFIGS / "overlays/ha") if d["kind"] == "PodDisruptionBudget"]
    assert {d["metadata"]["name"] for d in budgets} == {"koord-manager", "koord-scheduler", "koord-descheduler"}


def test_observe_switches_every_acting_role() -> None:
    arguments = {name: d["spec"]["template"]["spec"]["containers"][0]["args"] for name, d in workloads("observe").items()}
    assert "--mode=observe" in arguments["koordlet"]
    assert "--dry-run" in arguments["koord-descheduler"]
    assert "--binding-admission-dry-run" in arguments["koord-manager"]


def test_components_combine_in_any_order_of_the_command_line() -> None:
    found = keyed(manifests.rendered(crds=False, overlays=("ha", "observe", "koordlet-observe", "monitoring")))
    agent = found["DaemonSet", "koordinator-system", "koordlet"]["spec"]["template"]["spec"]
    assert agent["containers"][0]["args"].count("--observe-only") == 1
    assert ("PrometheusRule", "koordinator-system", "koord") in found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: Component\nimages: []", "images is not supported"),
        ("kind: Component\npatches: [{target: {kind: A, labelSelector: x}, patch: '[]'}]", "takes target"),
        ("kind: Component\npatches: [{target: {kind: Deployment}, patch: 'spec: {}'}]", "list of JSON patch operations"),
        ("kind: Component\npatches: [{target: {kind: Deployment}, patch: '[{op: remove, path: /no}]'}]", "Deployment x"),
        ("kind: Component\nconfigMapGenerator: [{name: x, files: []}]", "disableNameSuffixHash"),
        ("kind: List", "Kustomization or Component"),
        ("[", "while parsing"),
    ],
)
def test_what_is_not_supported_is_an_error_with_its_file(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=told) as raised:
        kustomize.apply(tmp_path, [{"kind": "Deployment", "metadata": {"name": "x"}}])
    assert str(tmp_path) in str(raised.value)


@pytest.mark.feature("DS-FW-03")
@pytest.mark.feature("DS-MC-03")
@pytest.mark.parametrize("overlays", [(), ("observe",)])
def test_the_descheduler_asks_the_scheduler_that_is_installed(overlays: tuple[str, ...], tmp_path: Path) -> None:
    """Its file is mounted where the flag says, and everything that this scheduler's plugins look at may be listed."""
    documents = manifests.rendered(crds=False, overlays=overlays)
    found = keyed(documents)
    pod = found["Deployment", "koordinator-system", "koord-descheduler"]["spec"]["template"]["spec"]
    (flag,) = [each for each in pod["containers"][0]["args"] if each.startswith("--scheduler-config=")]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if flag.partition("=")[2].startswith(each["mountPath"] + "/")]
    (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    key = flag.rpartition("/")[2]
    text = found["ConfigMap", "koordinator-system", volume["configMap"]["name"]]["data"][key]
    file = tmp_path / key
    file.write_text(text)
    held = questions(documents, ACCOUNTS["descheduler"])
    for feed in configured(str(file)).kinds().values():
        wanted = Question("list", feed.kind.group, feed.kind.plural, namespace=feed.namespace or "")
        assert any(covers(each, wanted) for each in held), wanted
