"""KubeSchedulerConfiguration: accepted as upstream's, every mistake named with its path."""

import textwrap

import pytest

from koord.config import scheduler
from koord.config.errors import InvalidConfig
from roles.scheduler.config.args import LoadAwareSchedulingArgs

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def load(tmp_path, text):
    path = tmp_path / "scheduler.yaml"
    path.write_text(HEAD + textwrap.dedent(text))
    return scheduler.load(path)


def refused(tmp_path, text):
    with pytest.raises(InvalidConfig) as caught:
        load(tmp_path, text)
    return {error.path: error.message for error in caught.value.errors}


@pytest.mark.feature("SCH-FW-01")
def test_shipped_shape_is_read_whole(tmp_path):
    config = load(
        tmp_path,
        """
        leaderElection: {leaderElect: true, resourceName: koord-scheduler, resourceNamespace: koordinator-system, leaseDuration: 1m30s}
        clientConnection: {kubeconfig: /etc/k, qps: 100}
        percentageOfNodesToScore: 30
        profiles:
        - schedulerName: koord-scheduler
          pluginConfig:
          - name: LoadAwareScheduling
            args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: LoadAwareSchedulingArgs, filterExpiredNodeMetrics: false}
          plugins:
            queueSort: {disabled: [{name: "*"}], enabled: [{name: Coscheduling}]}
            score: {enabled: [{name: Reservation, weight: 5000}]}
            multiPoint: {enabled: [{name: MyPlugin}]}
        - schedulerName: second
          plugins: {queueSort: {enabled: [{name: Coscheduling}]}}
        """,
    )
    first = config.profiles[0]
    assert config.leader_election.lease_duration == 90.0
    assert (config.parallelism, config.client_connection.qps, config.client_connection.burst) == (16, 100, 100)
    assert first.plugins.score.enabled[0].weight == 5000
    assert first.plugins.queue_sort.disabled[0].name == "*"
    assert first.args_of("LoadAwareScheduling")["filterExpiredNodeMetrics"] is False
    assert first.args_of("Nothing") is None


@pytest.mark.feature("SCH-FW-01")
def test_empty_file_has_upstream_defaults(tmp_path):
    config = load(tmp_path, "")
    assert [p.scheduler_name for p in config.profiles] == ["default-scheduler"]
    assert (config.pod_initial_backoff_seconds, config.pod_max_backoff_seconds, config.percentage_of_nodes_to_score) == (1, 10, 0)
    assert (config.leader_election.lease_duration, config.leader_election.renew_deadline, config.leader_election.retry_period) == (
        15,
        10,
        2,
    )
    assert (config.leader_election.resource_name, config.leader_election.resource_namespace) == ("kube-scheduler", "kube-system")


@pytest.mark.feature("SCH-FW-01")
@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("paralelism: 3", "paralelism", "did you mean 'parallelism'"),
        ("profiles: [{pluginConfg: []}]", "profiles[0].pluginConfg", "did you mean 'pluginConfig'"),
        ("profiles: [{scheduler_name: a}]", "profiles[0].scheduler_name", "did you mean 'schedulerName'"),
        ("leader_election: {leaderElect: false}", "leader_election", "did you mean 'leaderElection'"),
        ("profiles: [{plugins: {filters: {}}}]", "profiles[0].plugins.filters", "did you mean 'filter'"),
        ("parallelism: many", "parallelism", "must be a whole number, got 'many'"),
        ("parallelism: 0", "parallelism", "greater than 0"),
        ("percentageOfNodesToScore: 101", "percentageOfNodesToScore", "100"),
        ("extenders: [{urlPrefix: x}]", "extenders[0].urlPrefix", "is no URL"),
        ("extenders: [{urlPrefix: 'http://x:abc'}]", "extenders[0].urlPrefix", "is no URL"),
        ("extenders: [{urlPrefix: 'http://[::1'}]", "extenders[0].urlPrefix", "is no URL"),
        ("extenders: [{urlPrefix: http://x, prioritizeVerb: p}]", "extenders[0].weight", "above zero"),
        ("extenders: [{urlPrefix: http://x, bindVerb: b}, {urlPrefix: http://y, bindVerb: b}]", "extenders[1].bindVerb", "only one"),
        ("extenders: [{urlPrefix: http://x, managedResources: [{name: cpu}]}]", "extenders[0].managedResources[0].name", "no extended"),
        ("extenders: [{urlPrefix: https://x, tlsConfig: {caData: '*'}}]", "extenders[0].tlsConfig.caData", "base64"),
        ("extenders: [{urlPrefix: https://x, tlsConfig: {certFile: a}}]", "extenders[0].tlsConfig.certFile", "together"),
        ("leaderElection: {leaseDuration: 15}", "leaderElection.leaseDuration", "15s"),
        ("leaderElection: {leaseDuration: 5s}", "leaderElection.leaseDuration", "longer than renewDeadline"),
        ("profiles: [{schedulerName: a}, {schedulerName: a}]", "profiles[1].schedulerName", "another profile"),
        ("profiles: [{plugins: {bind: {enabled: [{name: X}, {name: X}]}}}]", "profiles[0].plugins.bind.enabled[1].name", "already enabled"),
        ("profiles: [{pluginConfig: [{name: A}, {name: A}]}]", "profiles[0].pluginConfig[1].name", "already given"),
        (
            "profiles: [{schedulerName: a, plugins: {queueSort: {enabled: [{name: Q}]}}}, {schedulerName: b}]",
            "profiles[1].plugins.queueSort",
            "alike",
        ),
        ("podInitialBackoffSeconds: 20", "podMaxBackoffSeconds", "less than"),
        ("parallelism: 3\nparallelism: 4", "line 4", "already set"),
        ("profiles: [", "line 3, column 12", "not valid YAML"),
    ],
)
def test_mistakes_are_named(tmp_path, text, path, words):
    found = refused(tmp_path, text)
    assert words in found[path]


def test_all_mistakes_in_one_message(tmp_path):
    with pytest.raises(InvalidConfig) as caught:
        load(tmp_path, "parallelism: x\nenableProfiling: 3\n")
    assert len(caught.value.errors) == 2
    assert "scheduler.yaml: 2 errors" in str(caught.value)


def test_other_kinds_and_unreadable_files(tmp_path):
    with pytest.raises(InvalidConfig, match=r"kubescheduler.config.k8s.io/v1 KubeSchedulerConfiguration"):
        scheduler.parse({"apiVersion": "kubescheduler.config.k8s.io/v1beta2", "kind": "KubeSchedulerConfiguration"})
    with pytest.raises(InvalidConfig, match="cannot be read"):
        scheduler.load(tmp_path / "missing.yaml")
    with pytest.raises(InvalidConfig, match="must be a mapping"):
        scheduler.parse(["a"])
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match="UTF-8"):
        scheduler.load(binary)


def test_written_form_reads_back(tmp_path):
    from koord.config.model import wire

    config = load(
        tmp_path, "leaderElection: {leaseDuration: 90s}\nprofiles: [{schedulerName: a, plugins: {filter: {enabled: [{name: X}]}}}]"
    )
    assert scheduler.parse(wire(config)) == config
    assert wire(config)["leaderElection"]["leaseDuration"] == "1m30s"


@pytest.mark.feature("SCH-FW-01")
@pytest.mark.feature("SCH-CFG-01")
def test_null_leaves_a_field_unset(tmp_path):
    config = load(
        tmp_path,
        """
        clientConnection:
        leaderElection: {leaseDuration: null, resourceName: null}
        profiles:
        - schedulerName:
          pluginConfig: [{name: LoadAwareScheduling, args: null}]
          plugins: {score: null, filter: {enabled:}}
        """,
    )
    assert config == load(tmp_path, "profiles: [{plugins: {}, pluginConfig: [{name: LoadAwareScheduling}]}]\n")
    args = LoadAwareSchedulingArgs.model_validate(
        {"nodeMetricExpirationSeconds": None, "usageThresholds": None, "aggregated": {"usageAggregatedDuration": None}}
    )
    assert (args.node_metric_expiration_seconds, args.usage_thresholds) == (180, {"cpu": 65, "memory": 95})
    assert "bogus" in refused(tmp_path, "bogus: null\n")
