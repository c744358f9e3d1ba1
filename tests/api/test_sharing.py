"""Pods that share their parts are the same pods."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koord.api.objects import Pod, convert
from koord.api.sharing import PodSharer

LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"), max_size=3)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    container = {"name": "main", "resources": {"requests": {"cpu": draw(st.sampled_from(("1", "2")))}}}
    body: dict[str, Any] = {
        "metadata": {"name": draw(st.text("pq", min_size=1, max_size=3)), "labels": draw(LABELS), "annotations": draw(LABELS)},
        "spec": {"nodeName": draw(st.sampled_from(("", "n1"))), "containers": [container], "nodeSelector": draw(LABELS)},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": draw(st.sampled_from(("True", "False")))}]},
    }
    return convert(body, Pod)


@given(st.lists(pods(), max_size=20))
def test_property_sharing_changes_nothing(found: list[Pod]) -> None:
    sharer = PodSharer()
    assert [sharer(pod) for pod in found] == found


def test_pods_of_a_template_hold_one_copy() -> None:
    def pod(name: str) -> Pod:
        spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}], "tolerations": [{"operator": "Exists"}]}
        return convert({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": spec}, Pod)

    sharer = PodSharer()
    one, two = sharer(pod("a")), sharer(pod("b"))
    assert one.metadata.name != two.metadata.name
    assert one.metadata.labels is two.metadata.labels
    assert one.spec.containers is two.spec.containers
    assert one.spec.tolerations is two.spec.tolerations
