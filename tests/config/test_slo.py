"""slo-controller-config: merging, defaults and the error policy."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.config import slo, slo_schema
from koord.config.schema import merge


def node(labels=None, annotations=None):
    return SimpleNamespace(metadata=SimpleNamespace(labels=labels or {}, annotations=annotations or {}))


def data(**keys):
    return {key.replace("_", "-"): value if isinstance(value, str) else json.dumps(value) for key, value in keys.items()}


def pool(name, **fields):
    return {"name": name, "nodeSelector": {"matchLabels": {"pool": name}}, **fields}


@pytest.mark.feature("MGR-CFG-01")
def test_defaults_of_every_key():
    config = slo.parse({}, previous=None).config
    strategy = config.colocation_for(node())
    assert (strategy.enable, strategy.cpu_reclaim_percent, strategy.memory_reclaim_percent) == (False, 60, 65)
    assert strategy.metric_aggregate_durations == ("5m0s", "10m0s", "30m0s")
    assert (strategy.degrade_time_minutes, strategy.update_time_threshold_seconds, strategy.resource_diff_threshold) == (15, 300, 0.1)
    assert config.threshold_for(node()) == {
        "enable": False,
        "cpuSuppressThresholdPercent": 65,
        "cpuSuppressPolicy": "cpuset",
        "memoryEvictThresholdPercent": 70,
        "cpuEvictPolicy": "evictByRealLimit",
    }
    assert config.qos_for(node()) == {}
    assert config.cpu_burst_for(node())["cfsQuotaBurstPeriodSeconds"] == -1
    assert config.system_for(node()) == {"totalNetworkBandwidth": "0"}
    assert config.host_applications_for(node()) == []
    assert config.cpu_normalization_for(node()) == {}


@pytest.mark.feature("MGR-CFG-01")
def test_first_matching_entry_then_annotation_then_labels():
    text = data(
        colocation_config={
            "enable": True,
            "cpuReclaimThresholdPercent": 70,
            "memoryReclaimThresholdPercent": 0,
            "nodeConfigs": [
                {"name": "never", "cpuReclaimThresholdPercent": 1},
                pool("b", cpuReclaimThresholdPercent=50, degradeTimeMinutes=5),
                {"name": "all", "nodeSelector": {}, "cpuReclaimThresholdPercent": 10},
            ],
        }
    )
    config = slo.parse(text, previous=None).config
    assert config.colocation_for(node()).cpu_reclaim_percent == 10
    b = config.colocation_for(node({"pool": "b"}))
    assert (b.cpu_reclaim_percent, b.degrade_time_minutes, b.memory_reclaim_percent, b.enable) == (50, 5, 0, True)
    own = {"node.koordinator.sh/colocation-strategy": json.dumps({"cpuReclaimThresholdPercent": 33, "enable": False})}
    annotated = config.colocation_for(node({"pool": "b"}, own))
    assert (annotated.cpu_reclaim_percent, annotated.enable, annotated.degrade_time_minutes) == (33, False, 5)
    labelled = config.colocation_for(node({"pool": "b", "node.koordinator.sh/cpu-reclaim-ratio": "0.29"}, own))
    assert labelled.cpu_reclaim_percent == int(0.29 * 100) == 28


@pytest.mark.feature("MGR-CFG-01")
@pytest.mark.parametrize("bad", ["-0.1", "abc", "nan", "inf", "1e308", "", "1_0", " 0.5", "१"])
def test_bad_ratio_label_is_ignored_and_named(bad):
    config = slo.parse({}, previous=None).config
    strategy = config.colocation_for(node({"node.koordinator.sh/memory-reclaim-ratio": bad}))
    assert strategy.memory_reclaim_percent == 65
    assert "memory-reclaim-ratio" in strategy.ignored[0].path


@pytest.mark.feature("MGR-CFG-01")
@pytest.mark.parametrize("bad", ["{", '{"cpuReclaimThresholdPercent":"x"}', '{"degradeTimeMinutes":0}', "[]"])
def test_bad_node_annotation_is_ignored_and_named(bad):
    config = slo.parse(data(colocation_config={"cpuReclaimThresholdPercent": 42}), previous=None).config
    strategy = config.colocation_for(node(annotations={"node.koordinator.sh/colocation-strategy": bad}))
    assert (strategy.cpu_reclaim_percent, strategy.degrade_time_minutes) == (42, 15)
    assert strategy.ignored


@pytest.mark.feature("MGR-CFG-01")
def test_half_valid_configmap_keeps_the_last_good_part():
    good = slo.parse(data(colocation_config={"enable": True}, cpu_burst_config={"clusterStrategy": {"policy": "auto"}}), previous=None)
    half = slo.parse(
        data(colocation_config="{broken", cpu_burst_config={"clusterStrategy": {"policy": "cpuBurstOnly"}}, system_config="{"),
        previous=good.config,
    )
    assert half.config.cluster_enabled
    assert half.config.stale(slo_schema.COLOCATION)
    assert half.config.cpu_burst_for(node())["policy"] == "cpuBurstOnly"
    assert half.config.system_for(node()) == {"totalNetworkBandwidth": "0"}
    assert {e.path for e in half.errors} == {"colocation-config", "system-config"}
    assert half.changed == {"cpu-burst-config"}
    mended = slo.parse(data(colocation_config={"enable": False}), previous=half.config)
    assert not mended.config.stale(slo_schema.COLOCATION)
    assert mended.changed == {"colocation-config", "cpu-burst-config", "system-config"}
    broken = slo.parse(data(colocation_config="{"), previous=mended.config)
    assert broken.changed == frozenset()
    assert slo.parse(data(colocation_config={"enable": False}), previous=broken.config).changed == {"colocation-config"}


@pytest.mark.feature("MGR-CFG-01")
@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        ("colocation_config", {"degradeTimeMinutes": "5"}, "colocation-config.degradeTimeMinutes"),
        ("colocation_config", {"degradeTimeMinutes": 0}, "colocation-config.degradeTimeMinutes"),
        ("colocation_config", {"midUnallocatedPercent": 101}, "colocation-config.midUnallocatedPercent"),
        ("colocation_config", {"nodeConfigs": [{"enable": 1}]}, "colocation-config.nodeConfigs[0].enable"),
        ("colocation_config", {"metricAggregatePolicy": {"durations": ["5x"]}}, "colocation-config.metricAggregatePolicy.durations[0]"),
        ("colocation_config", [], "colocation-config"),
        ("resource_threshold_config", {"clusterStrategy": {"enable": "yes"}}, "resource-threshold-config.clusterStrategy.enable"),
        (
            "resource_threshold_config",
            {"clusterStrategy": {"cpuSuppressThresholdPercent": 130}},
            "resource-threshold-config.clusterStrategy.cpuSuppressThresholdPercent",
        ),
        ("system_config", {"clusterStrategy": {"totalNetworkBandwidth": "10 M"}}, "system-config.clusterStrategy.totalNetworkBandwidth"),
        (
            "cpu_normalization_config",
            {"ratioModel": {"Xeon 8": {"baseRatio": "1"}}},
            'cpu-normalization-config.ratioModel["Xeon 8"].baseRatio',
        ),
        ("host_application_config", {"applications": [{"name": 3}]}, "host-application-config.applications[0].name"),
        ("colocation_config", {"metricMemoryCollectPolicy": "usage"}, "colocation-config.metricMemoryCollectPolicy"),
        (
            "resource_threshold_config",
            {"nodeStrategies": [pool("b", evictEnabledPriorityThreshold=1 << 31)]},
            "resource-threshold-config.nodeStrategies[0].evictEnabledPriorityThreshold",
        ),
        (
            "resource_threshold_config",
            {"clusterStrategy": {"allocatableEvictPriorityThreshold": -(1 << 31) - 1}},
            "resource-threshold-config.clusterStrategy.allocatableEvictPriorityThreshold",
        ),
        ("colocation_config", {"metricReportIntervalSeconds": 1 << 63}, "colocation-config.metricReportIntervalSeconds"),
        (
            "resource_qos_config",
            {"clusterStrategy": {"lsClass": {"networkQOS": {"ingressLimit": 1 << 31}}}},
            "resource-qos-config.clusterStrategy.lsClass.networkQOS.ingressLimit",
        ),
    ],
)
def test_refused_with_the_exact_path(key, value, path):
    result = slo.parse(data(**{key: value}), previous=None)
    assert [e.path for e in result.errors] == [path]


@pytest.mark.feature("MGR-CFG-01")
def test_the_largest_numbers_that_a_go_program_can_decode_are_taken():
    text = data(
        resource_threshold_config={"clusterStrategy": {"evictEnabledPriorityThreshold": (1 << 31) - 1}},
        colocation_config={"metricReportIntervalSeconds": (1 << 63) - 1},
    )
    assert not slo.parse(text, previous=None).errors


@pytest.mark.feature("MGR-CFG-01")
@pytest.mark.parametrize("empty", ["", " \n"])
@pytest.mark.parametrize("key", sorted(slo_schema.KEYS))
def test_an_emptied_key_is_not_set(key, empty):
    text = {"enable": True} if key in slo_schema.FLAT else {"clusterStrategy": {"enable": True}}
    before = slo.parse({key: json.dumps(text)}, previous=None)
    after = slo.parse({key: empty}, previous=before.config)
    assert after.errors == []
    assert after.config.keys[key].cluster == slo_schema.DEFAULTS[key]
    assert not after.config.stale(key)


@pytest.mark.feature("MGR-CFG-01")
def test_never_a_good_colocation_config_means_unavailable():
    first = slo.parse({"colocation-config": "{"}, previous=None)
    assert not first.config.available
    second = slo.parse({"colocation-config": "[1]"}, previous=first.config)
    assert not second.config.available
    assert slo.parse({"colocation-config": ""}, previous=second.config).config.available


@pytest.mark.feature("MGR-CFG-01")
def test_absent_configmap_at_first_then_ignored():
    absent = slo.parse(None, previous=None)
    assert absent.config.available
    assert absent.config.stale(slo_schema.COLOCATION)
    assert absent.errors
    good = slo.parse(data(colocation_config={"enable": True}), previous=absent.config)
    assert slo.parse(None, previous=good.config).config is good.config


@pytest.mark.feature("MGR-CFG-01")
def test_invalid_entry_acts_as_the_cluster_strategy():
    result = slo.parse(
        data(
            colocation_config={
                "enable": True,
                "cpuReclaimThresholdPercent": 70,
                "nodeConfigs": [
                    pool("a", cpuReclaimThresholdPercent=-1),
                    pool("a", cpuReclaimThresholdPercent=9),
                    {"nodeSelector": {"matchExpressions": [{"key": "pool", "operator": "Is"}]}, "cpuReclaimThresholdPercent": 8},
                ],
            }
        ),
        previous=None,
    )
    assert result.config.colocation_for(node({"pool": "a"})).cpu_reclaim_percent == 70
    assert [e.path for e in result.errors] == [
        "colocation-config.nodeConfigs[0].cpuReclaimThresholdPercent",
        "colocation-config.nodeConfigs[2].nodeSelector.matchExpressions[0].operator",
    ]


@pytest.mark.feature("MGR-CFG-01")
def test_nested_merge_unknown_fields_and_host_lists():
    result = slo.parse(
        data(
            resource_qos_config={
                "clusterStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}, "memoryQOS": {"wmarkRatio": 90}}},
                "nodeStrategies": [pool("a", beClass={"cpuQOS": {"groupIdentity": 0}, "memoryQos": {}})],
            },
            host_application_config={
                "applications": [{"name": "x"}],
                "nodeConfigs": [pool("a", applications=[{"name": "y", "qos": "BE"}]), pool("b", applications=[]), pool("c")],
            },
            extra_config="{}",
        ),
        previous=None,
    )
    assert result.config.qos_for(node({"pool": "a"})) == {
        "beClass": {"cpuQOS": {"enable": True, "groupIdentity": 0}, "memoryQOS": {"wmarkRatio": 90}}
    }
    assert result.config.host_applications_for(node({"pool": "a"})) == [{"name": "y", "qos": "BE"}]
    assert result.config.host_applications_for(node({"pool": "b"})) == result.config.host_applications_for(node({"pool": "c"})) == []
    assert result.config.host_applications_for(node()) == [{"name": "x"}]
    assert not result.errors
    notes = {w.path: w.message for w in result.warnings}
    assert "did you mean 'memoryQOS'" in notes["resource-qos-config.nodeStrategies[0].beClass.memoryQos"]
    assert "known keys" in notes["extra-config"]


@pytest.mark.feature("MGR-CFG-01")
def test_entry_without_bandwidth_is_an_explicit_zero():
    config = slo.parse(
        data(
            system_config={
                "clusterStrategy": {"totalNetworkBandwidth": "10G", "watermarkScaleFactor": 20},
                "nodeStrategies": [pool("a", minFreeKbytesFactor=5)],
            }
        ),
        previous=None,
    ).config
    assert config.system_for(node()) == {"totalNetworkBandwidth": "10G", "watermarkScaleFactor": 20}
    assert config.system_for(node({"pool": "a"})) == {"totalNetworkBandwidth": "0", "watermarkScaleFactor": 20, "minFreeKbytesFactor": 5}


def test_store_reports_only_real_changes():
    store = slo.SLOConfigStore()
    assert not store.config.available
    assert len(store.update(data(colocation_config={"enable": True})).changed) == len(slo_schema.KEYS)
    assert store.update(data(colocation_config='{ "enable": true }')).changed == frozenset()
    assert store.update(None).changed == frozenset()
    assert store.config.cluster_enabled


_FIELDS = ["enable", "clusterStrategy", "nodeConfigs", "nodeStrategies", "applications", "nodeSelector", "x"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.feature("MGR-CFG-01")
@given(st.dictionaries(st.sampled_from(sorted(slo_schema.KEYS)), json_values | st.text(max_size=12), max_size=8))
def test_no_input_crashes_or_loses_the_good_state(raw):
    good = slo.parse(data(colocation_config={"enable": True, "cpuReclaimThresholdPercent": 55}), previous=None).config
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in raw.items()}
    result = slo.parse(texts, previous=good)
    strategy = result.config.colocation_for(node({"x": "y"}, {"node.koordinator.sh/colocation-strategy": json.dumps(raw)}))
    assert result.config.available
    if result.config.stale(slo_schema.COLOCATION):
        assert strategy.cpu_reclaim_percent == 55


@given(json_values, json_values)
def test_merge_keeps_what_is_not_overridden(base, over):
    merged = merge(base, over)
    if isinstance(base, dict) and isinstance(over, dict):
        assert set(merged) >= set(base)
        assert all(merged[k] == base[k] for k in base if over.get(k) in (None, "", []))
