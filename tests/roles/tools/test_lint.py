"""`koord lint`: good files pass, every mistake is told with its line and column (BEY-LINT-01)."""

from __future__ import annotations

import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.config.errors import InvalidConfig
from koord.config.positions import Inner, Positions, parse_path
from koord.config.scheduler import load
from roles.tools.lint.cli import command

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.feature("BEY-LINT-01")


def lint(tmp_path: Path, *texts: str, options: tuple[str, ...] = ()) -> tuple[int, list[dict[str, Any]]]:
    """(status, findings) of texts as files."""
    files = []
    for number, text in enumerate(texts):
        file = tmp_path / f"{number}.yaml"
        file.write_text(textwrap.dedent(text))
        files.append(str(file))
    done = CliRunner().invoke(command, [*files, "--output=json", *options])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, orjson.loads(done.output)["findings"]


def text_at(one: dict[str, Any]) -> str:
    """What stands at the place that a finding names, up to the end of the line."""
    return str(Path(one["file"]).read_text().splitlines()[one["line"] - 1][one["column"] - 1 :])


def check_places(found: list[dict[str, Any]], wanted: dict[str, str]) -> None:
    """Findings are about these paths, and each points at this text."""
    told = {one["path"]: text_at(one) for one in found}
    assert told.keys() == wanted.keys()
    for path, text in wanted.items():
        assert told[path].startswith(text), (path, told[path])


def test_everything_we_ship_is_clean() -> None:
    done = CliRunner().invoke(command, [str(ROOT / "configs")])
    assert done.exit_code == 0, done.output
    last = done.output.splitlines()[-1]
    assert "0 errors, 0 warnings" in last, done.output
    assert int(last.split()[0]) > 50


def test_examples_of_the_documentation_are_clean(tmp_path: Path) -> None:
    blocks = [
        block.split("```")[0]
        for page in sorted((ROOT / "docs").glob("*.md"))
        for block in page.read_text().split("```yaml\n")[1:]
        if "apiVersion:" in block.split("```")[0]
        and "kind:" in block.split("```")[0]
        and not {"QuietHours", "OldImages"}
        & set(re.findall(r"\w+", block.split("```")[0]))  # plugins of the docs, tried by their own tests
    ]
    assert len(blocks) >= 5
    for block in blocks:
        status, found = lint(tmp_path, block)
        assert status == 0, (found, block)


def test_component_config_names_every_mistake_with_its_line(tmp_path: Path) -> None:
    status, found = lint(
        tmp_path,
        """\
        apiVersion: kubescheduler.config.k8s.io/v1
        kind: KubeSchedulerConfiguration
        profiles:
        - schedulerName: koord-scheduler
          pluginConfig:
          - name: LoadAwareScheduling
            args:
              usageTreshold: {cpu: 65}
              usageThresholds: {cpu: 165}
          - name: NodeAffinity
            args: {addedAfinity: {}}
        """,
    )
    base = "profiles[schedulerName=koord-scheduler].pluginConfig"
    assert status == 1
    check_places(
        found,
        {
            f"{base}[0].args.usageTreshold": "usageTreshold",
            f"{base}[0].args.usageThresholds.cpu": "165",
            f"{base}[1].args.addedAfinity": "addedAfinity",
        },
    )
    assert "did you mean 'usageThresholds'?" in found[0]["message"]


def test_component_config_inside_a_configmap_has_lines_of_the_outer_file(tmp_path: Path) -> None:
    status, found = lint(
        tmp_path,
        """\
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: koord-descheduler-config, namespace: koordinator-system}
        data:
          koord-descheduler-config: |
            apiVersion: descheduler/v1alpha2
            kind: DeschedulerConfiguration
            profiles:
            - name: a
              plugins:
                balance: {enabled: [{name: LowNodeLoat}]}
            - name: b
              pluginConfig:
              - name: LowNodeLoad
                args: {lowTreshold: {cpu: 40}}
        """,
    )
    assert status == 1
    check_places(
        found,
        {
            'data["koord-descheduler-config"].profiles[0].plugins.balance.enabled': "[{name: LowNodeLoat",
            'data["koord-descheduler-config"].profiles[1].pluginConfig[0].args.lowTreshold': "lowTreshold",
        },
    )


def test_slo_controller_config_is_read_by_the_managers_own_reader(tmp_path: Path) -> None:
    status, found = lint(
        tmp_path,
        """\
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: slo-controller-config, namespace: koordinator-system}
        data:
          colocation-config: |
            {
              "enable": true,
              "cpuReclaimTresholdPercent": 60,
              "nodeConfigs": [{"name": "a", "nodeSelector": {"matchLabels": {"p": "x"}}, "degradeTimeMinutes": "15"}]
            }
          resource-treshold-config: '{}'
          resource-qos-config: '{"clusterStrategy": {"beClass": {"cpuQOS": {"groupIdentity": 7}}}}'
          cpu-burst-config: |
            {"clusterStrategy": {"policy": "auto",}}
          system-config: |
            {"nodeStrategies": [{"name": "a", "nodeSelector": {}}]}
        """,
    )
    assert status == 1
    check_places(
        found,
        {
            'data["colocation-config"].cpuReclaimTresholdPercent': '"cpuReclaimTresholdPercent',
            'data["colocation-config"].nodeConfigs[0].degradeTimeMinutes': '"15"',
            'data["resource-treshold-config"]': "resource-treshold-config",
            'data["resource-qos-config"].clusterStrategy.beClass.cpuQOS.groupIdentity': "7}",
            'data["cpu-burst-config"]': ",}}",
            'data["system-config"].nodeStrategies[0].nodeSelector': "{}",
        },
    )
    told = {one["path"]: one["message"] for one in found}
    assert told['data["resource-treshold-config"]'].endswith("did you mean 'resource-threshold-config'?")
    assert "trailing comma" in told['data["cpu-burst-config"]']


POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: web
  labels: {labels}
  annotations: {annotations}
spec:
  containers:
  - name: main
    image: example.com/web
    resources:
      requests: {requests}
"""


def pod(labels: str = "{}", annotations: str = "{}", requests: str = "{cpu: 1}") -> str:
    return POD.replace("{labels}", labels).replace("{annotations}", annotations).replace("{requests}", requests)


@pytest.mark.parametrize(
    ("labels", "annotations", "there", "message"),
    [
        ("{koordinator.sh/qosClass: LSX}", "{}", "LSX", "'LSX' is not known; accepted: LSE, LSR, LS, BE, SYSTEM"),
        ("{koordinator.sh/qosclass: LS}", "{}", "koordinator.sh/qosclass", "did you mean 'koordinator.sh/qosClass'?"),
        ("{koordinater.sh/qosClass: LS}", "{}", "koordinater.sh/qosClass", "did you mean 'koordinator.sh/qosClass'?"),
        ("{}", "{koordinator.sh/qosClass: LS}", "koordinator.sh/qosClass", "is read from labels, not from annotations"),
        ("{koordinator.sh/qosClass: BE, koordinator.sh/priority-class: koord-prod}", "{}", "BE", "BE cannot be combined"),
        ("{}", "{koordinator.sh/oom-score-adj: '4000'}", "'4000'", "4000 is not in -1000..1000"),
        ("{}", "{gang.scheduling.koordinator.sh/mode: Stric}", "Stric", "accepted: Strict, NonStrict"),
        ("{}", """{koordinator.sh/memoryQOS: '{"wmarkRatio": 950}'}""", "950", "must be between 0 and 100, got 950"),
        ("{}", """{koordinator.sh/cpuBurst: '{"polici": "auto"}'}""", '"polici', "unknown field; did you mean 'policy'?"),
        (
            "{}",
            """{scheduling.koordinator.sh/resource-spec: '{"requiredCPUBindPolcy": "FullPCPUs"}'}""",
            '"requiredCPUBindPolcy',
            "unknown field; did you mean 'requiredCPUBindPolicy'?",
        ),
        (
            "{}",
            "{scheduling.koordinator.sh/reserve-pod: 'true'}",
            "'true'",
            "is reserved for the scheduler and may not be set",
        ),
    ],
)
def test_labels_and_annotations_of_pods(tmp_path: Path, labels: str, annotations: str, there: str, message: str) -> None:
    status, found = lint(tmp_path, pod(labels, annotations))
    assert status == 1
    assert len(found) == 1, found
    assert text_at(found[0]).startswith(there), text_at(found[0])
    assert message in found[0]["message"]


def test_good_pods_pass(tmp_path: Path) -> None:
    batch = pod(
        "{koordinator.sh/qosClass: BE, koordinator.sh/priority-class: koord-batch, app: web, example.com/name: x}",
        """{koordinator.sh/cpuBurst: '{"policy": "auto"}', gang.scheduling.koordinator.sh/min-available: "2"}""",
        "{kubernetes.io/batch-cpu: 1000, kubernetes.io/batch-memory: 1Gi}",
    )
    guaranteed = pod("{koordinator.sh/qosClass: LSR, koordinator.sh/priority-class: koord-prod}").replace("web", "db")
    assert lint(tmp_path, batch, guaranteed) == (0, [])


def test_fields_of_pods_and_templates(tmp_path: Path) -> None:
    status, found = lint(
        tmp_path,
        pod().replace("resources:", "resurces:"),
        """\
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: d}
        spec:
          selector: {matchLabels: {a: b}}
          template:
            metadata:
              labels: {a: b, koordinator.sh/qosClass: LSR}
            spec:
              containers: [{name: a, image: b, resources: {requests: {cpu: 1500m}}}]
              priorityClassName: koord-prod
        """,
        """\
        apiVersion: scheduling.koordinator.sh/v1alpha1
        kind: Reservation
        metadata: {name: r}
        spec:
          owners: [{labelSelector: {matchLabels: {a: b}}}]
          template: {spec: {containers: [{nam: x}]}}
        """,
    )
    assert status == 1
    check_places(
        found,
        {
            "spec.containers[0].resurces": "resurces",
            "spec.template.spec.containers[*].resources.requests.cpu": "1500m",
            "spec.template.spec.containers[0].nam": "nam",
        },
    )
    assert "whole cores" in found[1]["message"]
    assert found[1]["object"] == "Deployment d"


def test_custom_resources_are_held_to_the_definitions(tmp_path: Path) -> None:
    status, found = lint(
        tmp_path,
        """\
        apiVersion: config.koordinator.sh/v1alpha1
        kind: ClusterColocationProfile
        metadata: {name: p}
        spec:
          selector: {matchLabels: {x: y}}
          qosClass: BEST
          priorityClasName: koord-batch
        ---
        apiVersion: slo.koordinator.sh/v1
        kind: NodeSLO
        metadata: {name: x}
        ---
        apiVersion: slo.koordinator.sh/v1alpha1
        kind: NodeSLOs
        metadata: {name: x}
        ---
        apiVersion: slo.kordinator.sh/v1alpha1
        kind: NodeSLO
        metadata: {name: x}
        """,
    )
    assert status == 1
    told = {f"{one['line']}:{one['column']}": one["message"] for one in found}
    assert "did you mean 'priorityClassName'?" in told["7:3"]
    assert "supported values" in told["6:13"]
    assert told["9:13"].endswith("accepted: slo.koordinator.sh/v1alpha1")
    assert "did you mean 'NodeSLO'?" in told["14:7"]
    assert "did you mean 'slo.koordinator.sh'?" in told["17:13"]


def test_a_profile_is_tried_on_a_pod(tmp_path: Path) -> None:
    status, found = lint(
        tmp_path,
        """\
        apiVersion: config.koordinator.sh/v1alpha1
        kind: ClusterColocationProfile
        metadata: {name: p}
        spec:
          selector: {matchExpressions: [{key: a, operator: Inn, values: [b]}]}
          probability: 200%
        ---
        apiVersion: config.koordinator.sh/v1alpha1
        kind: ClusterColocationProfile
        metadata: {name: q}
        spec:
          selector: {matchLabels: {x: y}}
          qosClass: BE
          priorityClassName: koord-prod
        """,
    )
    assert status == 1
    assert [text_at(one)[:10] for one in found] == ["{matchExpr", "200%", "selector: "]
    assert "BE cannot be combined with priority class 'koord-prod'" in found[-1]["message"]


def test_pods_are_admitted_by_the_profiles_among_the_files(tmp_path: Path) -> None:
    profile = """\
        apiVersion: config.koordinator.sh/v1alpha1
        kind: ClusterColocationProfile
        metadata: {name: batch}
        spec:
          selector: {matchLabels: {app: web}}
          qosClass: BE
          priorityClassName: koord-batch
        """
    alone = pod("{app: web, koordinator.sh/qosClass: BE}")
    assert lint(tmp_path, alone)[0] == 1, "best effort without a class is refused"
    assert lint(tmp_path, profile, alone) == (0, []), "the profile gives it one"


QUOTA = """\
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: ElasticQuota
metadata:
  name: NAME
  namespace: default
  labels: {quota.scheduling.koordinator.sh/parent: PARENT, quota.scheduling.koordinator.sh/is-parent: "IS"}
spec:
  min: {cpu: MIN}
  max: {cpu: 40}
"""


def quota(name: str, parent: str, least: int, *, is_parent: bool = False) -> str:
    text = QUOTA.replace("NAME", name).replace("PARENT", parent).replace("MIN", str(least))
    return text.replace("IS", str(is_parent).lower())


def test_quota_trees_across_files(tmp_path: Path) -> None:
    top = quota("top", "koordinator-root-quota", 20, is_parent=True)
    good = (quota("a", "top", 10), quota("b", "top", 10), top)
    assert lint(tmp_path, *good) == (0, []), "children may stand before their parent"
    status, found = lint(tmp_path, quota("a", "top", 10), quota("b", "top", 11), top)
    assert (status, len(found)) == (1, 1)
    assert (found[0]["file"][-6:], text_at(found[0])) == ("1.yaml", "11}")
    assert "the sum of spec.min[cpu] of all children of parent top" in found[0]["message"]
    status, found = lint(tmp_path, quota("a", "top", 50), top)
    assert "is greater than spec.max[cpu]" in found[0]["message"]
    status, found = lint(tmp_path, quota("a", "elsewhere", 10))
    assert (status, found[0]["level"]) == (0, "warning"), "its parent may be in the cluster"
    status, found = lint(tmp_path, quota("a", "b", 1, is_parent=True), quota("b", "a", 1, is_parent=True))
    assert status == 1
    assert {"parents stand in a circle" in one["message"] for one in found} == {True}


def asking(name: str, resources: str) -> str:
    return f"""\
        apiVersion: v1
        kind: Pod
        metadata: {{name: {name}, namespace: default}}
        spec: {{containers: [{{name: main, image: any, resources: {{requests: {resources}, limits: {resources}}}}}]}}
        """


def test_requests_that_no_node_can_meet(tmp_path: Path) -> None:
    node = """\
        apiVersion: v1
        kind: Node
        metadata: {name: n}
        status: {allocatable: {cpu: "4", koordinator.sh/gpu-core: "100", koordinator.sh/gpu-memory-ratio: "100", example.com/card: "1"}}
        """
    misspelt = asking("misspelt", '{koordinator.sh/gpuu: "1"}')
    alone = asking("alone", '{koordinator.sh/gpu-core: "50"}')
    other = asking("other", '{example.com/cart: "1", example.com/none: "0"}')
    good = asking("good", '{kubernetes.io/gpu-core: "50", koordinator.sh/gpu-memory-ratio: "50", koordinator.sh/gpu.shared: "1"}')
    status, found = lint(tmp_path, misspelt, alone, other, good)
    assert (status, [(one["level"], one["path"]) for one in found]) == (
        1,
        [("warning", 'spec.containers[0].resources.requests["koordinator.sh/gpuu"]'), ("error", "spec.containers")],
    )
    assert found[0]["message"] == "no node offers koordinator.sh/gpuu; did you mean 'koordinator.sh/gpu'?"
    assert found[1]["message"] == "invalid resource device requests: [koordinator.sh/gpu-core]"
    status, found = lint(tmp_path, node, other, good)
    assert (status, [one["message"] for one in found]) == (0, ["none of the nodes among the files offers example.com/cart"])


def test_pod_groups_and_hook_registrations(tmp_path: Path) -> None:
    status, found = lint(
        tmp_path,
        """\
        apiVersion: scheduling.sigs.k8s.io/v1alpha1
        kind: PodGroup
        metadata: {name: g, annotations: {gang.scheduling.koordinator.sh/total-number: "1"}}
        spec: {minMember: 4, scheduleTimeoutSeconds: -3}
        """,
        """\
        {
        \t"remote-endpoint": "/run/hooks.sock",
        \t"runtime-hooks": ["PreRunPodSandbo"],
        \t"failure-polic": "Fail"
        }
        """,
    )
    assert status == 1
    check_places(
        found,
        {
            'metadata.annotations["gang.scheduling.koordinator.sh/total-number"]': '"1"',
            "spec.scheduleTimeoutSeconds": "-3",
            "runtime-hooks[0]": '"PreRunPodSandbo"',
            "failure-polic": '"failure-polic"',
        },
    )


def test_objects_that_a_schema_lets_through_are_read_by_the_scheduler(tmp_path: Path) -> None:
    good = """\
        apiVersion: scheduling.koordinator.sh/v1alpha1
        kind: Reservation
        metadata: {name: r}
        spec:
          owners: [{labelSelector: {matchLabels: {a: b}}}]
          ttl: 1h
          template: {spec: {containers: [{name: x, resources: {requests: {cpu: 1}}}]}}
        ---
        apiVersion: scheduling.koordinator.sh/v1alpha1
        kind: ClusterNetworkTopology
        metadata: {name: default}
        spec:
          networkTopologySpec:
          - {topologyLayer: NodeTopologyLayer, parentTopologyLayer: Rack}
          - {topologyLayer: Rack, labelKey: [example.com/rack]}
        ---
        apiVersion: analysis.koordinator.sh/v1alpha1
        kind: Recommendation
        metadata: {name: x, namespace: default, annotations: {analysis.koordinator.sh/mode: off!}}
        spec: {target: {type: workload, workload: {apiVersion: apps/v1, kind: Deployment, name: web}}}
        """
    status, found = lint(tmp_path, good)
    assert status == 1
    check_places(found, {'metadata.annotations["analysis.koordinator.sh/mode"]': "off!"})
    broken = good.replace("1h", "1x").replace("cpu: 1}", "cpu: 1z}").replace("parentTopologyLayer: Rack", "parentTopologyLayer: Rak")
    _, found = lint(tmp_path, broken.replace("off!", "apply-on-create"))
    check_places(
        found,
        {
            "spec.ttl": "1x",
            "spec.template": "{spec",
            "spec.networkTopologySpec": "- {topologyLayer",
        },
    )


def test_parts_that_a_schema_does_not_look_into(tmp_path: Path) -> None:
    status, found = lint(
        tmp_path,
        """\
        apiVersion: scheduling.koordinator.sh/v1alpha1
        kind: PodMigrationJob
        metadata: {name: j}
        spec:
          podRef: {namespace: shop, name: web}
          mode: ReservationFirst
          reservationOptions:
            template:
              specs: {}
              spec: {allocateOnec: true, template: {spec: {containers: [{nam: x}]}}}
        """,
        """\
        apiVersion: sandbox.koordinator.sh/v1alpha1
        kind: Scenario
        sloControllerConfig:
          colocation-config: {enabled: true}
        """,
    )
    base = "spec.reservationOptions.template"
    assert status == 1
    check_places(
        found,
        {
            f"{base}.specs": "specs",
            f"{base}.spec.allocateOnec": "allocateOnec",
            f"{base}.spec.template.spec.containers[0].nam": "nam",
            "sloControllerConfig.colocation-config.enabled": "enabled",
        },
    )


MUTATIONS = st.sampled_from([None, 1, -1, 2.5, True, "", "x", [], {}, [1], ["a"], {"a": 1}, [None], '{"a": 1}', "[", [[]]])


@settings(max_examples=12)
@given(st.data())
def test_wrong_types_anywhere_are_findings(data: st.DataObject) -> None:
    """Whatever value stands wherever, there is an answer."""
    import yaml

    from roles.tools.lint.run import lint as check
    from roles.tools.lint.sources import Source

    good = list(yaml.safe_load_all((ROOT / "tests/api/objects.yaml").read_text()))
    good += list(yaml.safe_load_all((ROOT / "configs/install/30-config.yaml").read_text()))
    broken = []
    for whole in good:
        paths = [path for path in _paths(whole) if path]
        *above, last = data.draw(st.sampled_from(paths))
        place = whole
        for key in above:
            place = place[key]
        place[last] = data.draw(MUTATIONS)
        broken.append(whole)
    report = asyncio.run(check([Source("x", yaml.safe_dump_all(broken))]))
    assert report.lines()


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(below for key, item in items for below in _paths(item, (*path, key)))]


def test_syntax_lists_duplicates_and_what_is_no_object(tmp_path: Path) -> None:
    status, found = lint(
        tmp_path,
        "a: b\n  c: d\n",
        "apiVersion: v1\nkind: Pod\nkind: Pod\n",
        "a: 1\n",
        "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: a}\n  specs: {}\n",
        "&a [*a]\n",
    )
    assert status == 1
    told = [(one["file"][-6:], one["line"], one["column"], one["message"].split(";")[0]) for one in found]
    assert ("0.yaml", 2, 4, "not valid YAML: mapping values are not allowed here") in told
    assert ("1.yaml", 3, 1, "the key 'kind' is already set in this mapping") in told
    assert ("2.yaml", 1, 1, "apiVersion is required: it says what this is") in told
    assert ("3.yaml", 7, 3, "unknown field") in told
    assert any(one[0] == "4.yaml" for one in told)
    assert next(one for one in found if one["file"].endswith("3.yaml"))["path"].startswith("items[0].")


def test_the_place_of_a_text_is_looked_for_only_where_something_is_wrong_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the whole file: in one with many objects they would all be paid for by each."""

    def looked_for(*args: Any) -> None:
        raise AssertionError("nothing is wrong")

    monkeypatch.setattr(Inner, "__init__", looked_for)
    good = pod(annotations="""{scheduling.koordinator.sh/resource-spec: '{"preferredCPUBindPolicy": "FullPCPUs"}'}""")
    assert lint(tmp_path, good) == (0, [])


def test_a_mistake_in_a_list_inside_an_annotation_has_its_path(tmp_path: Path) -> None:
    key = "scheduling.koordinator.sh/reservation-owners"
    pod = f"""\
        apiVersion: v1
        kind: Pod
        metadata:
          name: a
          annotations:
            {key}: '[{{"objectt": {{"name": "x"}}}}]'
        spec: {{containers: [{{name: main, image: any}}]}}
        """
    status, found = lint(tmp_path, pod)
    assert status == 1
    check_places(found, {f'metadata.annotations["{key}"][0].objectt': '"objectt"'})


def test_keys_that_are_numbers_or_truth_values_are_read_as_texts(tmp_path: Path) -> None:
    text = """\
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: ports}
        data: {8080: web, true: "yes", 1.5: half}
        ---
        apiVersion: v1
        kind: Pod
        metadata: {name: a, labels: {1: x, koordinator.sh/qosClass: LSX}}
        spec: {containers: [{name: main, image: any}]}
        """
    status, found = lint(tmp_path, text, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {~: x}\n")
    assert status == 1
    assert [one["path"] for one in found] == ['metadata.labels["koordinator.sh/qosClass"]', ""], found
    assert "cannot be taken as JSON" in found[1]["message"], "null is no key of anything"


def test_a_component_config_takes_texts_as_keys_only(tmp_path: Path) -> None:
    """As the roles' strict reader says, which is asked here by its own door, too."""
    text = """\
        apiVersion: kubescheduler.config.k8s.io/v1
        kind: KubeSchedulerConfiguration
        profiles:
        - schedulerName: koord-scheduler
          pluginConfig:
          - name: LoadAwareScheduling
            args: {usageThresholds: {8080: 65}}
        """
    status, found = lint(tmp_path, text)
    assert status == 1
    assert [(one["message"], text_at(one)[:4]) for one in found] == [("the key 8080 must be a string", "8080")]
    with pytest.raises(InvalidConfig, match="the key 8080 must be a string"):
        load(tmp_path / "0.yaml")


def test_items_of_a_typed_list_are_of_its_kind(tmp_path: Path) -> None:
    """As an API server gives them: the list says what its items are."""
    text = """\
        apiVersion: v1
        kind: PodList
        metadata: {resourceVersion: "7"}
        items:
        - metadata: {name: a, labels: {koordinator.sh/qosClass: LSX}}
          spec: {containers: [{name: main, image: any}]}
        - metadata: {name: b}
          specs: {}
          spec: {containers: [{name: main, image: any}]}
        """
    status, found = lint(tmp_path, text)
    assert status == 1
    check_places(found, {'items[0].metadata.labels["koordinator.sh/qosClass"]': "LSX", "items[1].specs": "specs"})
    assert {one["object"] for one in found} == {"Pod a", "Pod b"}


def test_plain_scalars_mean_what_they_mean_to_kubernetes_and_to_the_roles(tmp_path: Path) -> None:
    scheduler = (
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\npodMaxBackoffSeconds: 1e2\nparallelism: 16.0\n"
    )
    status, found = lint(
        tmp_path,
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, annotations: {sign: =}}\ndata: {at: 22:30, day: 2026-01-01}\n",
        scheduler,
        f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: b}}\ndata:\n  config: |\n{textwrap.indent(scheduler, '    ')}",
    )
    assert (status, found) == (0, [])
    _, found = lint(tmp_path, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {at: 1e3}\n", "a: .inf\n")
    assert [one["message"] for one in found] == [
        "json: cannot unmarshal number into field data.at of type string",
        "cannot be taken as JSON: JSON has no number .inf",
    ]


def test_standard_input_folders_and_what_is_passed_over(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["-"], input=pod("{koordinator.sh/qosClass: LSX}"))
    assert done.exit_code == 1
    assert done.output.startswith("<stdin>:5:37: error: ")
    (tmp_path / "chart" / "templates").mkdir(parents=True)
    (tmp_path / "chart" / "Chart.yaml").write_text("apiVersion: v2\nname: x\n")
    (tmp_path / "chart" / "templates" / "a.yaml").write_text("{{ if }}")
    (tmp_path / "foreign.yaml").write_text("apiVersion: cert-manager.io/v1\nkind: Issuer\n")
    done = CliRunner().invoke(command, [str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "0 checked" in done.output
    assert "Helm template" in done.output
    assert "Issuer (cert-manager.io/v1)" in done.output
    missing = CliRunner().invoke(command, [str(tmp_path / "none.yaml")])
    assert missing.exit_code == 1
    assert "cannot be read: No such file" in missing.output
    assert CliRunner().invoke(command, []).exit_code == 2


def test_what_cannot_be_read_is_one_finding_among_the_others(tmp_path: Path) -> None:
    kind = "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\n"
    wrong = kind + "metadata: {name: n}\nspec: {resourceUsedThresholdWithBE: {enabel: true}}\n"
    (tmp_path / "b.yaml").write_text(wrong)
    (tmp_path / "c.yaml").write_bytes(b"kind: \xff\n")
    (tmp_path / "d.yaml").symlink_to("d.yaml")
    (tmp_path / "e.yaml").symlink_to("nowhere.yaml")
    (tmp_path / "f.yaml").write_bytes(b" " * ((32 << 20) + 1))
    told = {
        "a.yaml": "cannot be read: No such file",
        "b.yaml": "unknown field",
        "c.yaml": "is not UTF-8 text: byte 7 is 0xff",
        "d.yaml": "cannot be read: Too many levels of symbolic links",
        "e.yaml": "cannot be read: No such file",
        "f.yaml": "is larger than 32 MiB",
        "/dev/zero": "is larger than 32 MiB",
    }
    named = [str(tmp_path / name) for name in told]  # /dev/zero stays what it is
    for arguments, wanted in (named, list(told)), ([str(tmp_path)], list(told)[1:-1]):
        done = CliRunner().invoke(command, [*arguments, "--output=json"])
        assert done.exit_code == 1, done.output
        found = orjson.loads(done.output)["findings"]
        assert [one["file"] for one in found] == [str(tmp_path / name) for name in wanted]
        for one, name in zip(found, wanted, strict=True):
            assert told[name] in one["message"]
    text = CliRunner().invoke(command, named).output.splitlines()
    assert text[0].startswith(f"{named[0]}:1:1: error: cannot be read")
    assert text[-1] == "1 checked, 7 errors, 0 warnings"
    done = CliRunner().invoke(command, [str(tmp_path / "b.yaml"), "-"], input=b"\xff")
    assert done.exit_code == 1
    assert "enabel" in done.output
    assert "<stdin>:1:1: error: is not UTF-8 text" in done.output


@pytest.mark.parametrize(
    ("role", "arguments", "environ", "wrong", "told"),
    [
        ("manager", (), {}, "--controllers=nodsel", "did you mean 'nodeslo'?"),
        ("koordlet", (), {"NODE_NAME": "n"}, "--feature-gates=CPUBrst=true", "CPUBrst"),
        ("runtime-proxy", (), {}, "--backend-runtime-mode=Dock", "accepted: Containerd, Docker"),
    ],
)
def test_roles_without_a_file_check_their_flags(
    role: str, arguments: tuple[str, ...], environ: dict[str, str], wrong: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from koord.cli import main

    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    good = CliRunner().invoke(main, [role, "--validate-config"])
    assert good.exit_code == 0, good.output
    assert "valid" in good.output
    bad = CliRunner().invoke(main, [role, "--validate-config", wrong])
    assert bad.exit_code == 2
    assert told in bad.output


def test_validate_config_of_a_role_names_lines(tmp_path: Path) -> None:
    from koord.cli import main

    file = tmp_path / "c.yaml"
    file.write_text("apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\ndryRunn: true\n")
    done = CliRunner().invoke(main, ["descheduler", f"--config={file}", "--validate-config"])
    assert done.exit_code == 1
    assert f"{file}:3:1: dryRunn: unknown field; did you mean 'dryRun'?" in done.output
    file.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerNam: x\n")
    done = CliRunner().invoke(main, ["scheduler", f"--config={file}", "--validate-config"])
    assert done.exit_code == 1
    assert f"{file}:4:3: profiles[0].schedulerNam: unknown field" in done.output


KEYS = st.text("ab.-/_ [\"'", min_size=1, max_size=6)
TREES = st.recursive(
    st.integers(0, 10**9), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


@given(TREES)
def test_every_path_leads_to_its_value(tree: Any) -> None:
    """A path made by `join` is found again, in JSON text, whatever its keys look like."""
    import yaml

    from koord.config.errors import join

    text = orjson.dumps(tree, option=orjson.OPT_INDENT_2).decode()
    positions = Positions(yaml.compose(text), text)
    lines = text.splitlines()

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                if not any(sign in key for sign in "\"'[ "):
                    assert parse_path(join("", key)) == [key]
                    walk(item, join(path, key))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                walk(item, join(path, index))
        elif path:
            place = positions.of(path)
            assert lines[place.line - 1][place.column - 1 :].startswith(str(value))

    walk(tree, "")


@given(st.text("{}[]:,-\"' \n\tabkindPodapiVersionv1|>&*!", max_size=60))
def test_no_text_is_too_broken(text: str) -> None:
    """Whatever a file holds, the answer is findings."""
    from roles.tools.lint.sources import Document, Source, documents

    for item in documents(Source("x", text)):
        assert isinstance(item, Document) or item.line.startswith("x:")


@pytest.mark.feature("BEY-SEC-03")
def test_who_may_write_what_on_pods(tmp_path: Path) -> None:
    annotations = {
        "scheduling.koordinator.sh/resource-status": '{"cpuset":"0-3"}',
        "koordinator.sh/cpuBurst": '{"cfsQuotaBurstPercent":90000}',
    }
    spec = {"containers": [{"name": "c", "image": "x"}]}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w", "annotations": annotations}, "spec": spec}
    template = {"metadata": {"labels": {"a": "b"}, "annotations": annotations}, "spec": spec}
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w"}}
    workload["spec"] = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    for manifest in (made, workload):
        status, found = lint(tmp_path, orjson.dumps(manifest).decode())
        assert status == 1
        assert any("resource-status" in one["path"] and "written by the scheduler only" in one["message"] for one in found), found
    del annotations["scheduling.koordinator.sh/resource-status"]
    status, found = lint(tmp_path, orjson.dumps(made).decode())
    assert [one["message"] for one in found] == ["cfsQuotaBurstPercent: 90000 is not in 100..10000"]
    bound = {**made, "spec": {**spec, "nodeName": "n1"}}
    bound["metadata"] = {"name": "w", "annotations": {"scheduling.koordinator.sh/resource-status": '{"cpuset":"0-3"}'}}
    assert lint(tmp_path, orjson.dumps(bound).decode()) == (0, []), "of a cluster, where the scheduler wrote it"


# ---------------------------------------------------------------- GPUs


def gpu_cluster(cards: str) -> str:
    """Six nodes of eight cards, and what asks for them: so many cards each."""
    eight = "{cpu: 96, memory: 768Gi, pods: 110, nvidia.com/gpu: 8, koordinator.sh/gpu-core: 800, koordinator.sh/gpu-memory-ratio: 800}"
    nodes = [f"apiVersion: v1\nkind: Node\nmetadata: {{name: n{n}}}\nstatus: {{allocatable: {eight}}}\n" for n in range(6)]
    pods = [
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p{n}}}\nspec:\n  schedulerName: koord-scheduler\n  containers:\n"
        f"  - name: main\n    image: i\n    resources:\n      requests: {{cpu: {2 * int(each)}, nvidia.com/gpu: {each}}}\n"
        f"      limits: {{nvidia.com/gpu: {each}}}\n"
        for n, each in enumerate(cards)
    ]
    return "---\n".join([*nodes, *pods])


def gpu_scheduler(strategy: str) -> str:
    points = "".join(f"    {point}: {{enabled: [{{name: DeviceShare}}]}}\n" for point in ("preFilter", "filter", "reserve", "preBind"))
    return (
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: koord-scheduler\n"
        f"  plugins:\n{points}    score: {{enabled: [{{name: DeviceShare, weight: 20}}]}}\n"
        f"  pluginConfig:\n  - {{name: DeviceShare, args: {{scoringStrategy: {{type: {strategy}}}}}}}\n"
    )


@pytest.mark.feature("BEY-LINT-02")
def test_a_scheduler_that_spreads_single_cards_is_behind_chance_where_many_are_asked_for(tmp_path: Path) -> None:
    status, found = lint(tmp_path, gpu_scheduler("LeastAllocated"), gpu_cluster("1118"))
    assert status == 0
    assert [(one["level"], one["path"]) for one in found] == [("warning", "profiles")]
    ours, chance = map(float, re.findall(r"([\d.]+) %", found[0]["message"]))
    assert ours < chance - 1
    assert f"allocates {ours} % of the GPUs where random allocates {chance} %" in found[0]["message"]
    assert lint(tmp_path, gpu_scheduler("LeastAllocated"), gpu_cluster("1118"))[1] == found


@pytest.mark.feature("BEY-LINT-02")
def test_nothing_is_said_of_a_scheduler_that_strands_no_cards_or_of_pods_that_cannot_be_stranded(tmp_path: Path) -> None:
    assert lint(tmp_path, gpu_scheduler("LeastStranded"), gpu_cluster("1118")) == (0, [])
    assert lint(tmp_path, gpu_scheduler("LeastAllocated"), gpu_cluster("1")) == (0, [])


@pytest.mark.feature("BEY-LINT-02")
def test_a_configmap_is_tried_too_and_only_where_there_are_nodes_and_pods(tmp_path: Path) -> None:
    inner = textwrap.indent(gpu_scheduler("LeastAllocated"), "    ")
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata:\n  scheduler: |\n{inner}"
    assert [one["path"] for one in lint(tmp_path, text, gpu_cluster("1118"))[1]] == ['data["scheduler"].profiles']
    assert lint(tmp_path, text) == (0, [])


def test_aliases_that_stand_for_more_than_anybody_can_read_are_one_finding(tmp_path: Path) -> None:
    """Nine lines of nine aliases each are a thousand million values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    code, found = lint(tmp_path, "\n".join(lines), "a: &a [*a]", "x: &x {a: 1}\ny: [*x, *x]\nkind: Unrelated\napiVersion: v1\n")
    assert code == 1
    assert [one["message"].split(" ")[0] for one in found] == ["its", "cannot", "kind"]  # the third is read: aliases as such are fine
    assert "10,000,000 values" in found[0]["message"]


def test_standard_input_named_twice_is_read_once() -> None:
    done = CliRunner().invoke(command, ["-", "-"], input=pod("{koordinator.sh/qosClass: LSX}"))
    assert done.exit_code == 1
    assert done.output.endswith("1 checked, 1 error, 0 warnings\n")


def test_plugins_of_ones_own_are_known_to_a_configuration(tmp_path: Path) -> None:
    """The example of docs/scheduler.md, beside its file; and a file that cannot be loaded says where and why."""
    guide = (ROOT / "docs/scheduler.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "class QuietHours(" in block)
    text = next(block for block in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL) if "name: QuietHours" in block)
    (tmp_path / "quiet_hours.py").write_text(code)
    assert lint(tmp_path, text)[0] == 1
    assert lint(tmp_path, text, options=("--plugin-path", str(tmp_path / "quiet_hours.py"))) == (0, [])
    wrong = text.replace("{label: maintenance}", "{labl: maintenance}")
    assert wrong != text
    code_of, found = lint(tmp_path, wrong, options=("--plugin-path", str(tmp_path / "quiet_hours.py")))
    assert (code_of, len(found)) == (1, 1)
    assert "label" in found[0]["message"]
    (tmp_path / "broken.py").write_text("\nimport no_such_module\n")
    done = CliRunner().invoke(command, [str(tmp_path), "--plugin-path", str(tmp_path / "broken.py")])
    assert (done.exit_code, len(done.output.splitlines())) == (1, 1)
    assert f"{tmp_path}/broken.py:2: ModuleNotFoundError: No module named 'no_such_module'" in done.output
