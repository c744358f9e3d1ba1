"""A koordlet evicts pods of its own node only (BEY-SEC-01)."""

import pytest

from koord.api.kinds import VALIDATINGWEBHOOKCONFIGURATIONS
from roles.manager.options import WebhookOptions
from roles.manager.webhooks import registration
from roles.manager.webhooks.registry import EVICTION_PATH, WEBHOOKS

pytestmark = pytest.mark.feature("BEY-SEC-01")
KOORDLET = "system:serviceaccount:koordinator-system:koordlet"
CLAIM = "authentication.kubernetes.io/node-name"
NAME = "vpodeviction.koordinator.sh"
VALIDATING = "koordinator-validating-webhook-configuration"


def user(node="n1", name=KOORDLET):
    return {"username": name, "extra": {} if node is None else {CLAIM: [node]}}


def test_two_nodes_tokens(bed, make):
    async def test(bed):
        manager = await bed.start()
        await bed.create(make.pod("a", "n1"), make.pod("b", "n2"), make.pod("c"))

        async def seen():
            return all(manager.app.view.pods.get(f"default/{name}") for name in "abc")

        await bed.until(seen)

        async def evict(pod, who):
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "default"}}
            answer = await manager.review(EVICTION_PATH, eviction, namespace="default", name=pod, sub_resource="eviction", userInfo=who)
            return "" if answer["allowed"] else answer["status"]["message"]

        assert await evict("a", user("n1")) == ""
        assert await evict("b", user("n2")) == ""
        assert await evict("b", user("n1")) == "Denied: the koordlet of node n1 may not evict a pod of node n2"
        assert await evict("c", user("n1")) == "Denied: the koordlet of node n1 may not evict a pod of no node"
        assert await evict("c", user("")) == "Denied: the token of this koordlet names no node"
        assert await evict("a", user(None)) == "Denied: the token of this koordlet names no node"
        assert await evict("nobody", user("n1")) == "pod default/nobody is not known"
        for other in ("system:serviceaccount:kube-system:node-controller", "system:serviceaccount:elsewhere:koordlet", "admin"):
            assert await evict("b", user("n1", other)) == ""

    bed(test)


def test_only_koordlets_requests_come_and_they_wait_for_an_answer(bed):
    async def test(bed):
        kept = registration.default_entries(False)
        older = [entry for entry in kept if entry["name"] != NAME]
        body = {"apiVersion": VALIDATINGWEBHOOKCONFIGURATIONS.api_version, "kind": VALIDATINGWEBHOOKCONFIGURATIONS.kind}
        # as an installation from before has it: without the entry, in the list and in the template
        annotations = {registration.TEMPLATE: registration.orjson.dumps(older).decode()}
        await bed.client.create(
            VALIDATINGWEBHOOKCONFIGURATIONS, {**body, "metadata": {"name": VALIDATING, "annotations": annotations}, "webhooks": []}
        )
        await bed.start()

        async def registered():
            found = await bed.client.get(VALIDATINGWEBHOOKCONFIGURATIONS, VALIDATING)
            return next(entry for entry in found["webhooks"] if entry["name"] == NAME)

        entry = await bed.until(registered)
        assert entry["failurePolicy"] == "Fail"
        assert entry["rules"][0]["resources"] == ["pods/eviction"]
        assert any(KOORDLET in condition["expression"] for condition in entry["matchConditions"])

    bed(test)


def test_a_server_that_knows_no_conditions_does_not_make_everybody_wait():
    options = WebhookOptions(namespace="colocation")
    template = [entry for entry in registration.default_entries(False) if entry["name"] == NAME]

    def render(*current):
        return registration.render(template, WEBHOOKS, options, 9876, b"ca", current)[0]

    first = render()
    assert first["matchConditions"][0]["expression"] == "request.userInfo.username == 'system:serviceaccount:colocation:koordlet'"
    assert first["failurePolicy"] == "Fail"
    assert render(first) == first
    dropped = {key: value for key, value in first.items() if key != "matchConditions"}
    later = render(dropped)
    assert later["failurePolicy"] == "Ignore"
    assert later["matchConditions"] == first["matchConditions"], "they are asked for again, for a newer server keeps them"
    assert render({**dropped, "failurePolicy": "Ignore"}) == later, "and an older one has nothing new to store"


@pytest.mark.feature("MGR-WH-03")
@pytest.mark.parametrize("template", [True, False], ids=["template", "list alone"])
def test_conditions_that_somebody_removes_come_back(bed, template):
    """Also when the template is made of a list without them, as an API server before 1.28 had it."""

    async def test(bed):
        manager = await bed.start()

        async def entry():
            found = await bed.client.get(VALIDATINGWEBHOOKCONFIGURATIONS, VALIDATING)
            return found, next(entry for entry in found["webhooks"] if entry["name"] == NAME)

        async def whole():
            _, now = await entry()
            return "matchConditions" in now and now["failurePolicy"] == "Fail"

        await bed.until(whole)
        found, now = await entry()
        del now["matchConditions"]
        now["failurePolicy"] = "Ignore"
        if not template:
            del found["metadata"]["annotations"][registration.TEMPLATE]
            now["failurePolicy"] = "Fail"
        await bed.client.replace(VALIDATINGWEBHOOKCONFIGURATIONS, found)
        await bed.until(whole)
        assert manager

    bed(test)


@pytest.mark.feature("MGR-WH-03")
@pytest.mark.parametrize("kept", [True, False], ids=["template", "first sync"])
def test_who_does_not_want_it_does_not_get_it_back(kept):
    """Nor is it added to a list of upstream's, which did not have it."""
    options, active = WebhookOptions(), [webhook for webhook in WEBHOOKS if not webhook.mutating]
    older = [entry for entry in registration.default_entries(False) if entry["name"] != NAME]

    def names(**annotations):
        annotations |= {registration.TEMPLATE: registration.orjson.dumps(older).decode()} if kept else {}
        current = {"metadata": {"name": "v", "annotations": annotations}, "webhooks": older}
        first = registration.desired(current, False, active, options, 9876, b"ca")
        assert registration.desired(first, False, active, options, 9876, b"ca") == first
        return {entry["name"] for entry in first["webhooks"]}

    assert names() - names(**{registration.REMOVED: f"x, {NAME}"}) == {NAME}
