"""/validate-pod, /validate-pod-binding through the HTTPS endpoint."""

import asyncio
import json

import pytest

from koord import seams
from koord.api.kinds import PODS, VALIDATINGWEBHOOKCONFIGURATIONS
from koord.api.objects import ElasticQuota, convert
from koord.api.quantity import QuantityError
from koord.kube import errors
from roles.manager.options import Options
from roles.manager.webhooks import enhanced, quota_admission
from roles.manager.webhooks.review import Refusal
from tests.support import patience

QOS, PRIORITY = "koordinator.sh/qosClass", "koordinator.sh/priority-class"
QUOTA = "quota.scheduling.koordinator.sh/"
BATCH_CPU = "kubernetes.io/batch-cpu"


def pod(labels=None, requests=None, annotations=None, **spec):
    container = {"name": "main", "image": "x", "resources": {"requests": requests if requests is not None else {"cpu": "1"}}}
    meta = {"name": "w", "labels": labels or {}, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container], **spec}}


def named(body, name):
    return {**body, "metadata": {**body["metadata"], "name": name, "namespace": "default"}}


def quota(name, namespace="lab", minimum=None, maximum=None, labels=None, annotations=None):
    labels = {f"{QUOTA}{key}": value for key, value in (labels or {}).items()}
    annotations = {f"{QUOTA}{key}": value for key, value in (annotations or {}).items()}
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations},
        "spec": {"min": minimum or {}, "max": maximum if maximum is not None else {"cpu": "10"}},
    }


LAB = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}}


@pytest.mark.feature("API-PRIO-01")
@pytest.mark.feature("MGR-POD-V-01")
def test_sub_priorities_that_are_hardly_meant_are_warned_of(bed):
    async def test(bed):
        manager = await bed.start()
        for text, words in (
            ("010", "010 is read as 8"),
            ("0x1f", "is read as 31"),
            ("ten", "is not an integer; it counts as 0"),
            ("10", ""),
        ):
            answer = await manager.review("/validate-pod", pod({"koordinator.sh/priority": text}))
            assert answer["allowed"]
            assert words in "".join(answer.get("warnings", ()))
            assert bool(words) is bool(answer.get("warnings"))

    bed(test)


@pytest.mark.feature("MGR-POD-V-01")
def test_rules_of_qos_priority_and_resources(bed):
    refused = [
        (pod(annotations={"scheduling.koordinator.sh/reserve-pod": "false"}), "reserve-pod"),
        (pod({QOS: "BE"}), QOS),
        (pod({QOS: "BE"}, priority=9500), "koord-prod"),
        (pod({QOS: "LSR"}, priority=7500), "koord-mid"),
        (pod({QOS: "LSR", PRIORITY: "koord-free"}, priority=9500), "koord-free"),
        (pod({QOS: "LSR"}), "'none'"),
        (pod({QOS: "LSR"}, {"cpu": "1500m"}, priority=9500), "whole cores, got 1500m"),
        (pod({QOS: "LSE"}, {"memory": "1Gi"}), "must request cpu"),
        (pod({QOS: "LS"}, {BATCH_CPU: "100"}, priority=5500), "must be BE"),
        (pod({}, {"kubernetes.io/batch-memory": "1Gi"}), "must be BE"),
    ]
    admitted = [
        pod(),
        pod({QOS: "unknown"}),
        pod({QOS: "BE"}, priority=5500),
        pod({QOS: "BE"}, priority=3500),
        pod({QOS: "BE"}, priority=7500),
        pod({QOS: "BE"}, {BATCH_CPU: "0"}, priority=5500),
        pod({QOS: "LSR"}, {"cpu": "500m"}, priority=9500, overhead={"cpu": "500m"}),
        pod({QOS: "LSE"}, {"cpu": "2"}),
        pod({QOS: "LS"}, priority=3500),
    ]

    async def test(bed):
        manager = await bed.start()
        for given, words in refused:
            answer = await manager.review("/validate-pod", given, namespace="lab")
            assert (answer["allowed"], answer["status"]["code"]) == (False, 400), given
            assert words in answer["status"]["message"], answer
        for given in admitted:
            assert (await manager.review("/validate-pod", given, namespace="lab"))["allowed"], given
        both = await manager.review("/validate-pod", pod({QOS: "LSR"}, {"cpu": "1500m", BATCH_CPU: "1"}, priority=5500), namespace="lab")
        for words in ("cannot be combined", "must be BE", "whole cores"):
            assert words in both["status"]["message"]
        assert (await manager.review("/validate-pod", refused[1][0], sub_resource="status"))["allowed"]

    bed(test)


@pytest.mark.feature("MGR-POD-V-01")
def test_what_may_not_change(bed):
    async def test(bed):
        manager = await bed.start()
        old = pod({QOS: "LS", "koordinator.sh/priority": "1"}, priority=9500)
        for labels, allowed in (
            ({QOS: "LSE"}, False),
            ({QOS: "LS", PRIORITY: "koord-batch"}, False),
            ({QOS: "LS", "koordinator.sh/priority": "2"}, False),
            ({QOS: "LS", PRIORITY: "koord-prod", "koordinator.sh/priority": "1"}, True),
            ({QOS: "LS", "koordinator.sh/priority": "1", f"{QUOTA}preemptible": "false"}, False),
        ):
            answer = await manager.review("/validate-pod", pod(labels, priority=9500), operation="UPDATE", old=old, namespace="lab")
            assert answer["allowed"] is allowed, labels
        other = await bed.start(gates="ColocationProfileSkipValidatingPriority=true")
        assert (await other.review("/validate-pod", pod({QOS: "LS"}, priority=9500), operation="UPDATE", old=old, namespace="lab"))[
            "allowed"
        ]

    bed(test)


@pytest.mark.feature("MGR-POD-V-01")
def test_a_running_pod_is_resized_by_the_rules_only(bed):
    async def resized(bed, name, cpu):
        containers = [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]
        return await bed.client.patch(PODS, name, {"spec": {"containers": containers}}, "default", type="strategic", subresource="resize")

    exclusive = {QOS: "LSR", PRIORITY: "koord-prod"}

    async def test(bed):
        await bed.client.create(PODS, named(pod({QOS: "LSR"}, {"cpu": "2"}), "without-priority"))
        await bed.client.create(PODS, named(pod(exclusive, {"cpu": "1500m"}), "earlier"))
        manager = await bed.start(host="127.0.0.1")

        async def registered():
            found = await bed.client.get(VALIDATINGWEBHOOKCONFIGURATIONS, "koordinator-validating-webhook-configuration")
            return bool(found["webhooks"]) and (await manager.get("/readyz"))[0] == 200

        await bed.until(registered)
        await bed.client.create(PODS, named(pod(exclusive, {"cpu": "2"}), "exclusive"))
        await bed.client.create(PODS, named(pod({QOS: "LS"}, {"cpu": "2"}), "shared"))
        await resized(bed, "shared", "1500m")
        await resized(bed, "exclusive", "1")
        for name in ("exclusive", "earlier"):
            with pytest.raises(errors.ApiError, match="whole cores, got 1200m"):
                await resized(bed, name, "1200m")
        await resized(bed, "earlier", "2")
        await resized(bed, "without-priority", "3")  # a resize has nothing to do with it

    bed(test)


@pytest.mark.feature("MGR-CP-01")
@pytest.mark.feature("MGR-POD-V-01")
def test_the_profile_controller_may_give_a_class_to_a_pod_that_waits(bed):
    """It sets the QoS class of profiles on pending pods, and our own webhook refused that as a change of what is immutable."""
    controller = "system:serviceaccount:koordinator-system:koord-manager"
    on, waiting, bound = "ColocationProfileController=true", pod(priority=9500), pod(priority=9500, nodeName="n1")
    cases = [
        (on, controller, waiting, QOS, "LS", True),
        (on, controller, waiting, "koordinator.sh/priority", "5", True),
        (on, controller, waiting, QOS, "BE", False),  # what no pod may be, none can become
        (on, controller, bound, QOS, "LS", False),
        (on, "somebody", waiting, QOS, "LS", False),
        ("", controller, waiting, QOS, "LS", False),
    ]

    async def test(bed):
        for gates, user, old, label, value, allowed in cases:
            manager = await bed.start(gates=gates)
            new = old | {"metadata": old["metadata"] | {"labels": {label: value}}}
            answer = await manager.review("/validate-pod", new, operation="UPDATE", old=old, namespace="lab", userInfo={"username": user})
            assert answer["allowed"] is allowed, (gates, user, label, value, answer)

    bed(test)


@pytest.mark.feature("MGR-POD-V-01")
def test_a_pod_that_has_ended_loses_its_finalizers_whatever_it_was_before(bed):
    """Admitted before the rules were there: who may not write to it can never let it go."""

    def ended(status, **meta):
        whole = pod({QOS: "LSR", "app": "a"}, {"cpu": "1500m"}, priority=9500)
        return whole | {"metadata": whole["metadata"] | meta, "status": status}

    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    cases = [
        (ended({"phase": "Running"}, **deleted), True),
        (ended({"phase": "Succeeded"}), True),
        (ended({"phase": "Failed"}), True),
        (ended({"phase": "Running"}), False),
    ]

    async def test(bed):
        manager = await bed.start()
        for after, allowed in cases:
            before = after | {"metadata": after["metadata"] | {"finalizers": ["batch.kubernetes.io/job-tracking"]}}
            answer = await manager.review("/validate-pod", after, operation="UPDATE", old=before, namespace="lab")
            assert answer["allowed"] is allowed, after
            assert ("whole cores" in "".join(answer.get("warnings", ()))) is allowed
            worse = after | {"metadata": after["metadata"] | {"labels": {QOS: "LS"}}}
            assert not (await manager.review("/validate-pod", worse, operation="UPDATE", old=before, namespace="lab"))["allowed"]

    bed(test)


@pytest.mark.feature("MGR-POD-V-02")
def test_parent_quotas_take_no_pods(bed):
    async def test(bed):
        await bed.create(
            LAB,
            quota("lab", labels={"is-parent": "true"}),
            quota("bound", namespace="default", labels={"is-parent": "true"}, annotations={"namespaces": '["other"]'}),
            quota("leaf"),
        )
        manager = await bed.start()
        for labels, namespace, words in (({}, "lab", "lab"), ({}, "other", "bound"), ({f"{QUOTA}name": "bound"}, "default", "bound")):
            answer = await manager.review("/validate-pod", pod(labels), namespace=namespace)
            assert answer["allowed"] is False
            assert f"quota {words} is a parent" in answer["status"]["message"]
        for labels, namespace in (({f"{QUOTA}name": "leaf"}, "lab"), ({f"{QUOTA}name": "nobody"}, "lab"), ({}, "default")):
            assert (await manager.review("/validate-pod", pod(labels), namespace=namespace))["allowed"]
        tolerant = await bed.start(gates="SupportParentQuotaSubmitPod=true")
        assert (await tolerant.review("/validate-pod", pod(), namespace="lab"))["allowed"]

    bed(test)


@pytest.mark.feature("MGR-POD-V-03")
def test_two_replicas_never_admit_more_than_the_quota(bed):
    async def test(bed):
        await bed.create(
            LAB, quota("team", maximum={"cpu": "10", "memory": "20Gi"}, annotations={"child-request": '{"cpu":"2","pods":"1"}'})
        )
        replicas = [await bed.start(gates="EnableQuotaAdmission=true", quota_update_max_retries=10) for _ in range(2)]
        given = pod({f"{QUOTA}name": "team"}, {"cpu": "1", "nvidia.com/gpu": "1"})
        answers = await asyncio.gather(*(replicas[number % 2].review("/validate-pod", given, namespace="lab") for number in range(14)))
        assert sum(answer["allowed"] for answer in answers) == 8
        message = next(answer["status"]["message"] for answer in answers if not answer["allowed"])
        assert message == "exceeded quota: lab/team, requested: cpu=1, used: cpu=10, limited: cpu=10"
        used = (await bed.get("ElasticQuota", "team", "lab"))["metadata"]["annotations"][f"{QUOTA}child-request"]
        assert json.loads(used) == {"cpu": "10", "pods": "1"}

    bed(test)


@pytest.mark.feature("MGR-POD-V-03")
def test_limits_dry_runs_and_what_counts_nothing(bed):
    async def test(bed):
        await bed.create(
            LAB,
            quota(
                "limited", maximum={"cpu": "20", "memory": "64Gi"}, annotations={"admission": '{"cpu":"3"}', "child-request": '{"cpu":"1"}'}
            ),
            quota("other", maximum={"example.com/x": "1"}),
            quota("twice"),
            quota("twice", namespace="default"),
            quota("broken", annotations={"child-request": "{"}),
        )
        manager = await bed.start(gates="EnableQuotaAdmission=true")

        async def ask(name, cpu="2", **extra):
            requests = {"cpu": cpu, "memory": "9Gi", "example.com/x": "5"}
            return await manager.review("/validate-pod", pod({f"{QUOTA}name": name}, requests), namespace="lab", **extra)

        answer = await ask("limited", "2500m")
        assert "requested: cpu=2500m, used: cpu=1, limited: cpu=3" in answer["status"]["message"]
        assert "memory" not in answer["status"]["message"]
        assert (await ask("limited", dryRun=True))["allowed"]
        assert (await ask("limited", dryRun=True))["allowed"]
        assert (await ask("limited"))["allowed"]
        assert not (await ask("limited"))["allowed"]
        assert (await ask("other"))["allowed"]
        assert (await ask("koordinator-default-quota"))["allowed"]
        assert "not found" in (await ask("nobody"))["status"]["message"]
        assert "more than one namespace" in (await ask("twice"))["status"]["message"]
        broken = await ask("broken")
        assert (broken["allowed"], broken["status"]["code"]) == (False, 500)

    bed(test)


@pytest.mark.feature("MGR-POD-V-03")
@pytest.mark.parametrize("why", [QuantityError("lots"), TypeError("a defect")])
def test_who_waits_for_a_quota_is_told_at_once_whatever_is_wrong(monkeypatch, why):
    def fails(*args):
        raise why

    async def main():
        found = convert(quota("team", maximum={"cpu": "10"}), ElasticQuota)
        admission = quota_admission.QuotaAdmission(None, Options(), lambda key: found)
        monkeypatch.setattr(quota_admission, "evaluate", fails)
        with pytest.raises(Refusal, match="quota lab/team: ") as refused:
            await asyncio.wait_for(admission.admit(found, {"cpu": 1000}, dry_run=False), 5)
        assert (refused.value.code, str(why) in refused.value.message) == (500, True)

    asyncio.run(main())


@pytest.mark.feature("MGR-POD-V-04")
def test_device_requests(bed):
    gpu = "koordinator.sh/"

    async def test(bed):
        manager = await bed.start(gates="ValidatePodDeviceResource=true")
        for requests, words in (
            ({"gpu": "50", "gpu.shared": "1"}, "together"),
            ({"gpu": "0"}, "multiple of 100"),
            ({"gpu": "150"}, "multiple of 100"),
            ({"gpu.shared": "0", "gpu-memory": "1Gi"}, "must not be 0"),
            ({"gpu.shared": "1"}, "exactly one"),
            ({"gpu.shared": "1", "gpu-memory": "1Gi", "gpu-memory-ratio": "50"}, "exactly one"),
            ({"gpu.shared": "2", "gpu-memory-ratio": "101"}, "multiple of"),
            ({"gpu": "200"}, ""),
            ({"gpu.shared": "2", "gpu-memory-ratio": "100", "gpu-core": "50"}, ""),
        ):
            answer = await manager.review("/validate-pod", pod(requests={f"{gpu}{key}": value for key, value in requests.items()}))
            assert answer["allowed"] is not bool(words), requests
            assert words in answer.get("status", {}).get("message", "")
        npu = {f"{gpu}gpu.shared": "1", "huawei.com/npu-core": "4"}
        assert (await manager.review("/validate-pod", pod(requests=npu)))["allowed"]

    bed(test)


@pytest.mark.feature("MGR-POD-V-05")
@pytest.mark.parametrize("silent", [True, False])
def test_an_api_server_that_does_not_give_the_rules_holds_no_review_up(monkeypatch, silent):
    """One look for all reviews, for a moment; until the next one nobody waits, and the rules stay."""
    monkeypatch.setattr(enhanced, "PATIENCE", 0.05)
    asked = []

    class Api:
        async def get(self, *place):
            asked.append(place)
            if len(asked) == 1:
                return {"data": {"enable": "true", "rules": '[{"name": "r", "requiredLabels": ["team"]}]'}}
            if silent:
                await asyncio.Event().wait()
            raise errors.ServerError(503)

    async def main():
        validator = enhanced.EnhancedValidator(Api(), Options(enhanced_validator_interval=60.0))
        rules = [await validator.current(now)]
        for clock, looks in ((now + 61.0, 2), (now + 65.0, 2), (now + 61.0 + enhanced.AGAIN, 3)):
            monkeypatch.setattr(seams, "monotonic", lambda clock=clock: clock)
            async with asyncio.timeout(patience.seconds(5)):
                rules += await asyncio.gather(*(validator.current(clock) for _ in range(50)))
            assert len(asked) == looks
        assert rules == [rules[0]] * 151
        assert rules[0].enabled

    now = 1000.0
    monkeypatch.setattr(seams, "monotonic", lambda: now)
    asyncio.run(main())


@pytest.mark.feature("MGR-POD-V-05")
def test_enhanced_rules_follow_the_configmap(bed):
    from koord.api.kinds import CONFIGMAPS

    async def test(bed):
        rules = [{"name": "owner", "requiredLabels": ["team", "cost"], "namespaceWhitelist": ["sys"]}]
        await bed.create(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "pod-enhanced-validator-config", "namespace": "koordinator-system"},
                "data": {"enable": " True ", "rules": json.dumps(rules)},
            }
        )
        manager = await bed.start(gates="EnablePodEnhancedValidator=true", enhanced_validator_interval=0.0)
        answer = await manager.review("/validate-pod", pod({"team": "a"}), namespace="lab")
        assert "'owner' requires labels that the pod does not have: cost" in answer["status"]["message"]
        assert (await manager.review("/validate-pod", pod(), namespace="sys"))["allowed"]
        assert (await manager.review("/validate-pod", pod({"pod.koordinator.sh/skip-enhanced-validation": "true"}), namespace="lab"))[
            "allowed"
        ]
        await bed.client.patch(CONFIGMAPS, "pod-enhanced-validator-config", {"data": {"rules": "{"}}, "koordinator-system")
        assert not (await manager.review("/validate-pod", pod(), namespace="lab"))["allowed"]
        deep = '[{"x":' + "[" * 3000 + "]" * 3000 + "}]"
        await bed.client.patch(CONFIGMAPS, "pod-enhanced-validator-config", {"data": {"rules": deep}}, "koordinator-system")
        answers = [await manager.review("/validate-pod", pod(labels), namespace="lab") for labels in ({}, {"team": "a", "cost": "b"})]
        assert [answer["allowed"] for answer in answers] == [False, True]
        # Go writes an empty list as null
        absent = [{"name": "team", "requiredLabels": ["team"], "namespaceWhitelist": None}, {"name": "none", "requiredLabels": None}]
        for rules, allowed in ((absent, False), (None, True)):
            edit = {"data": {"rules": json.dumps(rules)}}
            await bed.client.patch(CONFIGMAPS, "pod-enhanced-validator-config", edit, "koordinator-system")
            answers = [await manager.review("/validate-pod", pod(labels), namespace="lab") for labels in ({"team": "a"}, {})]
            assert [answer["allowed"] for answer in answers] == [True, allowed]
        await bed.client.delete(CONFIGMAPS, "pod-enhanced-validator-config", "koordinator-system")
        assert (await manager.review("/validate-pod", pod(), namespace="lab"))["allowed"]

    bed(test)


@pytest.mark.feature("MGR-POD-V-06")
def test_who_may_bind(bed, make):
    async def test(bed):
        await bed.create(
            LAB, make.pod("w", namespace="lab"), make.pod("free", namespace="lab", labels={"koordinator.sh/binding-admission-bypass": ""})
        )
        options = {"binding_user_name": ("koord-scheduler",), "binding_namespaces": ("lab",)}
        manager = await bed.start(gates="BindingAdmissionWebhook=true", **options)
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "w", "namespace": "lab"}, "target": {"name": "n"}}

        async def ask(name="w", namespace="lab", user="mallory", who=manager):
            return await who.review("/validate-pod-binding", binding, namespace=namespace, name=name, userInfo={"username": user})

        denied = await ask()
        assert (denied["allowed"], denied["status"]["code"], denied["status"]["reason"]) == (False, 403, "Denied")
        assert (await ask(user="system:serviceaccount:x:koord-scheduler"))["allowed"]
        for name, namespace in (("free", "lab"), ("w", "kube-system"), ("w", "default"), ("unknown", "lab")):
            assert (await ask(name, namespace))["allowed"], (name, namespace)
        dry = await bed.start(gates="BindingAdmissionWebhook=true", binding_dry_run=True, **options)
        assert (await ask(who=dry))["allowed"]
        _, text = await manager.get("/metrics")
        assert 'koord_manager_webhook_binding_admission_decisions_total{decision="denied"} 1' in text

    bed(test)
