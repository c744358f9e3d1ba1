"""What pods of one shape share follows from each of them alone, in whatever order they are seen (SCH-KS-01)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.names import ANNOTATION_REPLACE_RESOURCES
from koord.api.objects import Pod
from roles.scheduler import testing
from roles.scheduler.cluster.podinfo import PodParser
from roles.scheduler.cluster.transform import replace_resources
from roles.scheduler.cluster.vocabulary import Vocabulary

AMOUNTS = st.sampled_from(["500m", "1", "2", "4"])
RESOURCES = st.fixed_dictionaries({}, optional={"cpu": AMOUNTS, "memory": st.sampled_from(["1Gi", "2Gi"])})
HELD = st.fixed_dictionaries({}, optional={"allocatedResources": RESOURCES, "resources": st.fixed_dictionaries({"requests": RESOURCES})})
STATUS = st.fixed_dictionaries(
    {"main": HELD, "side": HELD, "reason": st.sampled_from(["", "Deferred", "Infeasible"]), "resize": st.sampled_from(["", "Infeasible"])}
)


def pod(status: dict[str, Any]) -> Pod:
    """A pod with a sidecar and this status; the second container asks for no memory."""
    made = msgspec.to_builtins(testing.pod("p", uid="u", cpu="2"))
    made["spec"]["initContainers"] = [{"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}]
    made["status"] = {
        "containerStatuses": [{"name": "main", **status["main"]}], "initContainerStatuses": [{"name": "side", **status["side"]}],
        "resize": status["resize"],
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": status["reason"]}] if status["reason"] else [],
    }  # fmt: skip
    return msgspec.convert(made, Pod)


@pytest.mark.feature("SCH-KS-01")
@given(st.lists(STATUS, min_size=2, max_size=6))
def test_property_a_resized_pod_counts_for_what_its_own_status_says(statuses: list[dict[str, Any]]) -> None:
    shared = PodParser(Vocabulary())
    kept = []
    for status in statuses:
        found = shared.parse(pod(status)).shape
        afresh = PodParser(Vocabulary()).parse(pod(status)).shape
        kept.append(found)  # shapes live as long as somebody has them
        assert found.amounts == afresh.amounts
        assert found.non_zero == afresh.non_zero
        # What filters and what scores count differ by the defaults for containers without requests only.
        assert found.non_zero[0] >= found.amounts["cpu"]


@pytest.mark.feature("SCH-KS-01")
def test_a_status_that_says_what_the_spec_says_makes_no_shape_of_its_own() -> None:
    parser = PodParser(Vocabulary())
    plain = testing.pod("a", cpu="2")
    made = msgspec.to_builtins(plain)
    requests = made["spec"]["containers"][0]["resources"]["requests"]
    made["status"] = {"containerStatuses": [{"name": "main", "allocatedResources": requests, "resources": {"requests": requests}}]}
    first = parser.parse(plain)
    assert parser.parse(msgspec.convert(made, Pod)).shape is first.shape


WIDGET, BOX = "example.com/widget", "example.com/box"


@pytest.mark.feature("SCH-NRV-02")
@pytest.mark.feature("SCH-RSZ-01")
@pytest.mark.parametrize(
    ("asked", "notes", "counts"),
    [
        ({"koordinator.sh/batch-cpu": 1000}, {}, "kubernetes.io/batch-cpu"),
        ({"kubernetes.io/gpu-core": 50}, {}, "koordinator.sh/gpu-core"),
        ({WIDGET: 2}, {WIDGET: BOX}, BOX),
        ({"cpu": 1}, {"cpu": "kubernetes.io/batch-cpu"}, "kubernetes.io/batch-cpu"),
        ({WIDGET: 2}, {WIDGET: ""}, ""),
    ],
)
def test_what_is_held_counts_under_the_names_that_the_scheduler_uses(asked: dict[str, int], notes: dict[str, str], counts: str) -> None:
    """An old name, or one that an annotation replaces, in the status is no further resource."""

    def parsed(spec: dict[str, int], held: dict[str, int]) -> Any:
        made = msgspec.to_builtins(testing.pod("p", uid="u", cpu=None, memory=None, annotations=annotations))
        amounts = [{name: str(amount) for name, amount in side.items()} for side in (spec, held)]
        made["spec"]["containers"][0]["resources"] = {"requests": amounts[0]}
        status = {"name": "main", "allocatedResources": amounts[1], "resources": {"requests": amounts[1]}}
        made["status"] = {"containerStatuses": [status]}
        return parser.parse(msgspec.convert(made, Pod)).shape

    annotations = {ANNOTATION_REPLACE_RESOURCES: ",".join(f"{old}:{new}" for old, new in notes.items())}
    parser = PodParser(Vocabulary(), transforms=(replace_resources,))
    same = parsed(asked, asked)
    grown = parsed(asked, {name: 3 * amount for name, amount in asked.items()})
    assert {name for name, amount in same.amounts.items() if amount} == ({counts} if counts else set())
    assert {name: 3 * amount for name, amount in same.amounts.items()} == grown.amounts


@pytest.mark.feature("SCH-KS-01")
def test_the_class_of_service_is_each_pod_s_own() -> None:
    parser = PodParser(Vocabulary())
    besteffort, burstable = (parser.parse(testing.pod("a", cpu="1", status={"qosClass": name})) for name in ("BestEffort", "Burstable"))
    assert besteffort.shape.qos is not burstable.shape.qos


@pytest.mark.feature("SCH-WL-02")
def test_pods_of_other_pod_groups_share_a_shape_and_keep_their_group() -> None:
    parser = PodParser(Vocabulary())
    pods = [parser.parse(testing.pod(name, cpu="2", schedulingGroup={"podGroupName": name})) for name in "ab"]
    assert pods[0].shape is pods[1].shape
    assert [pod.pod.spec.scheduling_group.pod_group_name for pod in pods if pod.pod.spec.scheduling_group is not None] == ["a", "b"]
