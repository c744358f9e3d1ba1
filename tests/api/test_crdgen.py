"""The CRDs as generated: catalogue, structure, agreement of schema, models and projections."""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from koord.api import crdgen, kinds, objects
from koord.api.objects import Projection
from koord.api.v1alpha1.common import camel

CRDS = Path(__file__).resolve().parents[2] / "configs" / "crds"
DEFINITIONS = {definition["metadata"]["name"]: definition for definition in crdgen.all_crds()}


def schemas() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{name}/{version['name']}", version["schema"]["openAPIV3Schema"])
        for name, definition in DEFINITIONS.items()
        for version in definition["spec"]["versions"]
    ]


def test_the_files_are_what_the_models_say(tmp_path: Path) -> None:
    """Run `make crds` when this fails."""
    (tmp_path / "old.group_things.yaml").write_text("")
    written = {path.name: path.read_text(encoding="utf-8") for path in crdgen.write(tmp_path)}
    assert {path.name: path.read_text(encoding="utf-8") for path in CRDS.glob("*.yaml")} == written
    assert {path.name for path in tmp_path.iterdir()} == set(written)
    for name, text in written.items():
        spec = yaml.safe_load(text)["spec"]
        assert name == f"{spec['group']}_{spec['names']['plural']}.yaml"


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crdgen.main([]) == crdgen.main(["--help"]) == 2
    assert "usage" in capsys.readouterr().err
    assert crdgen.main([str(tmp_path / "deep" / "er")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 13


@pytest.mark.feature("API-CRD-01")
@pytest.mark.parametrize(
    ("name", "kind", "scope", "short", "status", "columns"),
    [
        ("clustercolocationprofiles.config.koordinator.sh", "ClusterColocationProfile", "Cluster", None, True,
         ["QoS", "Priority Class", "Probability", "Age"]),
        ("nodemetrics.slo.koordinator.sh", "NodeMetric", "Cluster", None, True, ["CPU", "Memory", "Updated", "Age"]),
        ("nodeslos.slo.koordinator.sh", "NodeSLO", "Cluster", None, True, ["Suppression", "Threshold", "Policy", "Age"]),
        ("reservations.scheduling.koordinator.sh", "Reservation", "Cluster", None, True, ["Phase", "Age", "Node", "TTL", "Expires"]),
        ("devices.scheduling.koordinator.sh", "Device", "Cluster", None, False, []),
        ("podmigrationjobs.scheduling.koordinator.sh", "PodMigrationJob", "Cluster", "pmj", True,
         ["Phase", "Status", "Age", "Node", "Reservation", "PodNamespace", "Pod", "NewPod", "TTL"]),
        ("clusternetworktopologies.scheduling.koordinator.sh", "ClusterNetworkTopology", "Cluster", None, True, []),
        ("scheduleexplanations.scheduling.koordinator.sh", "ScheduleExplanation", "Namespaced", "sched-exp", True,
         ["Schedulable", "Message", "Updated", "Age"]),
        ("elasticquotas.scheduling.sigs.k8s.io", "ElasticQuota", "Namespaced", None, False,
         ["Parent", "Min CPU", "Max CPU", "Used CPU", "Used Memory", "Age"]),
        ("podgroups.scheduling.sigs.k8s.io", "PodGroup", "Namespaced", None, False, ["Phase", "MinMember", "Scheduled", "Running", "Age"]),
        ("elasticquotaprofiles.quota.koordinator.sh", "ElasticQuotaProfile", "Namespaced", "eqp", False, ["Quota", "Ratio", "Age"]),
        ("recommendations.analysis.koordinator.sh", "Recommendation", "Namespaced", "recom", True,
         ["Age", "Type", "Kind", "Name", "LastUpdateTime"]),
        ("noderesourcetopologies.topology.node.k8s.io", "NodeResourceTopology", "Cluster", "node-res-topo", False, ["Policies", "Age"]),
    ],
)  # fmt: skip
def test_catalogue(name: str, kind: str, scope: str, short: str | None, status: bool, columns: list[str]) -> None:
    definition = DEFINITIONS[name]
    spec = definition["spec"]
    assert (spec["names"]["kind"], spec["scope"]) == (kind, scope)
    assert spec["names"].get("shortNames") == ([short] if short else None)
    for version in spec["versions"]:
        assert ("status" in version.get("subresources", {})) == status
        assert [column["name"] for column in version.get("additionalPrinterColumns", [])] == columns
    assert [version["name"] for version in spec["versions"] if version["storage"]] == [spec["versions"][-1]["name"]]
    if spec["group"].endswith(".k8s.io"):
        assert definition["metadata"]["annotations"]["api-approved.kubernetes.io"].startswith("https://github.com/kubernetes")


def test_the_catalogue_is_complete_and_agrees_with_kinds() -> None:
    assert set(DEFINITIONS) == {kind.crd_name for kind in kinds.CUSTOM}
    topology = DEFINITIONS["noderesourcetopologies.topology.node.k8s.io"]["spec"]
    assert [(v["name"], v["served"], v["storage"]) for v in topology["versions"]] == [("v1alpha1", True, False), ("v1alpha2", True, True)]
    assert topology["conversion"] == {"strategy": "None"}


def walk(schema: dict[str, Any], path: str) -> None:
    """Fail for what makes a schema non-structural, and for fields that nobody described."""
    free = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-int-or-string")
    assert "type" in schema or free, f"{path}: no type"
    if schema.get("type") == "object":
        assert not ("properties" in schema and "additionalProperties" in schema), path
        assert set(schema.get("required", [])) <= set(schema.get("properties", {})), path
    if schema.get("type") == "array":
        walk(schema["items"], f"{path}[]")
    for name, member in schema.get("properties", {}).items():
        assert member.get("description") or name == "metadata", f"{path}.{name}: no description"
        walk(member, f"{path}.{name}")
    if isinstance(schema.get("additionalProperties"), dict):
        walk(schema["additionalProperties"], f"{path}{{}}")


@pytest.mark.feature("API-CRD-02")
@pytest.mark.parametrize(("name", "schema"), schemas(), ids=[name for name, _ in schemas()])
def test_schemas_are_structural_and_described(name: str, schema: dict[str, Any]) -> None:
    walk(schema, name)


def members(target: Any) -> list[Any]:
    """The projections inside a type."""
    if isinstance(target, type) and issubclass(target, Projection):
        return [target]
    return [inner for argument in typing.get_args(target) for inner in members(argument)]


def unknown(target: type[Projection], schema: dict[str, Any], path: str) -> list[str]:
    """Fields that a projection reads and the schema lacks (they would be pruned)."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return []
    missing = []
    hints = typing.get_type_hints(target)
    for field in msgspec.structs.fields(target):
        inner = schema.get("properties", {}).get(field.encode_name)
        where = f"{path}.{field.encode_name}"
        if inner is None:
            missing.append(where)
            continue
        while "items" in inner or isinstance(inner.get("additionalProperties"), dict):
            inner = inner.get("items") or inner["additionalProperties"]
        for member in members(hints[field.name]):
            missing += unknown(member, inner, where)
    return missing


@pytest.mark.parametrize("kind", kinds.CUSTOM, ids=[kind.kind for kind in kinds.CUSTOM])
def test_projections_read_only_what_the_schema_keeps(kind: kinds.Kind) -> None:
    version = DEFINITIONS[kind.crd_name]["spec"]["versions"][-1]
    schema = version["schema"]["openAPIV3Schema"]
    projection = getattr(objects, kind.kind)
    # shared shapes have more than each schema uses
    shared = ("lastHeartbeatTime", "lastUpdateTime", "observedGeneration", "lastProbeTime")
    found = [path for path in unknown(projection, schema, kind.kind) if ".metadata" not in path and not path.endswith(shared)]
    assert found == []


def test_only_known_types_have_schemas() -> None:
    with pytest.raises(crdgen.SchemaError, match="complex"):
        crdgen.schema_of(complex)
    with pytest.raises(crdgen.SchemaError):
        crdgen.schema_of(types.SimpleNamespace)


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("numa_node_id", "numaNodeID"), ("cpu_evict_be_usage_threshold_percent", "cpuEvictBEUsageThresholdPercent"),
        ("qos_class", "qosClass"), ("be_class", "beClass"), ("net_qos_policy", "netQOSPolicy"),
        ("model_read_seq_iops", "modelReadSeqIOPS"), ("api_version", "apiVersion"), ("ttl", "ttl"),
    ],
)  # fmt: skip
def test_wire_names(name: str, wire: str) -> None:
    assert camel(name) == wire
