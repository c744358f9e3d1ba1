"""/mutate-pod through the HTTPS endpoint."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.objects import ClusterColocationProfile
from koord.api.objects_meta import ObjectMeta
from koord.api.priority import PriorityClass
from koord.api.quantity import Quantity, parse_milli
from roles.manager.webhooks.profiles import compile_profile, drawn
from roles.manager.webhooks.review import decode, encode
from roles.manager.webhooks.translate import translate
from tests.support.counting import counting

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
V1 = '{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1",'
SPEC = "node.koordinator.sh/extended-resource-spec"


def profile(name, **fields):
    meta = {"name": name, "annotations": fields.pop("annotations_", {}), "labels": fields.pop("labels_", {})}
    return {"apiVersion": "config.koordinator.sh/v1alpha1", "kind": "ClusterColocationProfile", "metadata": meta, "spec": fields}


def etl(labels=None, annotations=None, resources=None, **spec):
    container = {"name": "main", "image": "x", "resources": resources if resources is not None else {}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "w", "labels": {"app": "etl", **(labels or {})}, "annotations": annotations or {}},
        "spec": {"containers": [container], **spec},
    }


SAMPLE = {"requests": {"cpu": "750m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}}
BATCH = {"selector": {"matchLabels": {"app": "etl"}}, "qosClass": "BE", "priorityClassName": "koord-batch"}


@pytest.mark.feature("MGR-POD-M-01")
@pytest.mark.feature("MGR-POD-M-02")
@pytest.mark.feature("MGR-POD-M-03")
@pytest.mark.feature("MGR-WH-01")
def test_sample_profile_translates_and_writes_the_annotation(bed):
    async def test(bed):
        await bed.create(profile("p", **BATCH))
        manager = await bed.start()
        sidecar = {"name": "init", "image": "x", "resources": {"limits": {"cpu": "1500m"}}}
        answer = await manager.review(
            "/mutate-pod", etl(resources=SAMPLE, initContainers=[sidecar], overhead={"cpu": "1500u"}), namespace="default"
        )
        pod = answer["object"]
        assert pod["metadata"]["labels"]["koordinator.sh/qosClass"] == "BE"
        assert (pod["spec"]["priorityClassName"], pod["spec"]["priority"]) == ("koord-batch", 5000)
        assert pod["spec"]["containers"][0]["resources"] == {
            "requests": {BATCH_CPU: "750", BATCH_MEMORY: "512Mi"},
            "limits": {BATCH_MEMORY: "1Gi"},
        }
        assert pod["spec"]["initContainers"][0]["resources"] == {"requests": {BATCH_CPU: "1500"}, "limits": {BATCH_CPU: "1500"}}
        assert pod["spec"]["overhead"] == {BATCH_CPU: "2"}
        assert json.loads(pod["metadata"]["annotations"][SPEC]) == {
            "containers": {"main": {"limits": {BATCH_MEMORY: "1Gi"}, "requests": {BATCH_CPU: "750", BATCH_MEMORY: "512Mi"}}}
        }
        assert not [op for op in answer["operations"] if op["path"].startswith("/metadata/namespace")]
        _, text = await manager.get("/debug/decisions?kind=Pod&namespace=default&name=w")
        record = json.loads(text)[-1]
        assert (record["verdict"], record["rule"]) == ("Mutated", "/mutate-pod")
        assert record["message"] == "profile p applied; resources translated for class koord-batch"

    bed(test)


@pytest.mark.feature("MGR-POD-M-01")
def test_order_mappings_suffixes_and_selectors(bed):
    async def test(bed):
        await bed.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "colo", "labels": {"colo": "yes"}}},
            profile(
                "a", labels={"team": "1", "first": "1"}, labelKeysMapping={"app": "copied", "nothing": "empty"}, annotations={"n": "v"}
            ),
            profile(
                "b",
                namespaceSelector={"matchLabels": {"colo": "yes"}},
                labels={"team": "2"},
                labelSuffixes={"team": "-x", "none": "-y"},
                koordinatorPriority=7,
            ),
            profile("c", namespaceSelector={"matchLabels": {"colo": "no"}}, labels={"team": "3"}),
            profile("d", probability=0, labels={"team": "4"}),
            profile("e", probability="0%", labels={"team": "5"}),
            profile("f", selector={"matchLabels": {"app": "other"}}, labels={"team": "6"}),
            profile(
                "g",
                patch={"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}], "tolerations": [{"key": "k"}]}},
                schedulerName="koord-scheduler",
            ),
        )
        manager = await bed.start()
        answer = await manager.review("/mutate-pod", etl(), namespace="colo")
        pod = answer["object"]
        labels = pod["metadata"]["labels"]
        assert (labels["team"], labels["first"], labels["copied"], labels["empty"], labels["koordinator.sh/priority"]) == (
            "2-x",
            "1",
            "etl",
            "",
            "7",
        )
        assert "none" not in labels
        assert pod["metadata"]["annotations"] == {"n": "v"}
        assert pod["spec"]["schedulerName"] == "koord-scheduler"
        assert pod["spec"]["containers"][0]["env"] == [{"name": "A", "value": "1"}]
        assert pod["spec"]["containers"][0]["image"] == "x"

    bed(test)


@pytest.mark.feature("MGR-POD-M-01")
def test_probability_picks_a_pod_or_not_and_so_it_stays(bed):
    """A dry run, and another try, come to the same. Pods of a workload, which have no name yet, are picked one by one."""

    async def test(bed):
        await bed.create(profile("half", selector={"matchLabels": {"app": "etl"}}, probability="50%", labels={"picked": "yes"}))
        manager = await bed.start()

        async def picked(**metadata):
            pod = etl()
            del pod["metadata"]["name"]
            pod["metadata"] |= metadata
            answer = await manager.review("/mutate-pod", pod, namespace="default")
            return "picked" in answer["object"]["metadata"]["labels"]

        names = [f"w-{number}" for number in range(60)]
        first = [await picked(name=name) for name in names]
        assert [await picked(name=name) for name in names] == first
        assert 10 < sum(first) < 50
        assert 10 < sum([await picked(generateName="w-") for _ in names]) < 50

    bed(test)


@pytest.mark.feature("MGR-POD-M-01")
def test_draws_are_spread_evenly_and_each_profile_draws_anew():
    one, other = (compile_profile(ClusterColocationProfile(metadata=ObjectMeta(name=name))) for name in ("one", "other"))
    draws = [(drawn(one, "default", f"web-{number}"), drawn(other, "default", f"web-{number}")) for number in range(20_000)]
    for percent in (1, 10, 50, 90):
        share = sum(first < percent for first, _ in draws) / len(draws)
        both = sum(first < percent and second < percent for first, second in draws) / len(draws)
        assert share == pytest.approx(percent / 100, abs=0.015)
        assert both == pytest.approx((percent / 100) ** 2, abs=0.015)
    assert {first for first, _ in draws} == set(range(100))


@pytest.mark.feature("MGR-POD-M-01")
def test_a_profile_gives_the_same_answer_every_time(bed):
    async def test(bed):
        extra = {"name": "extra", "image": "y", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
        patch = {"spec": {"containers": [extra], "overhead": {"cpu": "100m"}, "affinity": {"nodeAffinity": {}}}}
        await bed.create(profile("p", **BATCH, patch=patch))
        manager = await bed.start()
        given = etl(resources=SAMPLE)
        before = json.dumps(given)
        first = await manager.review("/mutate-pod", given, namespace="default")
        second = await manager.review("/mutate-pod", given, namespace="default")
        assert first["operations"] == second["operations"]
        assert json.dumps(given) == before
        added = next(c for c in first["object"]["spec"]["containers"] if c["name"] == "extra")
        assert added["resources"]["requests"] == {BATCH_CPU: "1k", BATCH_MEMORY: "1Gi"}

    bed(test)


@pytest.mark.feature("MGR-POD-M-01")
@pytest.mark.feature("MGR-WH-01")
def test_a_review_is_little_work_however_many_profiles_there_are(bed):
    """Calls are counted, not seconds: thousands of reviews a second leave a few hundred for each."""

    async def work(server, path, pod):
        webhook = next(webhook for webhook in server.active if webhook.path == path)
        resource = {"group": "", "version": "v1", "resource": "pods"}
        request = {"uid": "u", "operation": "CREATE", "namespace": "default", "name": "w", "resource": resource, "object": pod}
        body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()
        for _ in range(2):  # the first one makes what is kept
            with counting() as calls:
                request = decode(body)
                answer = await server.answer(webhook, request)
                encode(answer, uid="u")
        assert answer.allowed
        return calls.number

    async def test(bed):
        await bed.create(profile("p", **BATCH))
        await bed.create(*(profile(f"q{n}", selector={"matchLabels": {"app": f"other-{n}"}}, labels={"x": "y"}) for n in range(50)))
        await bed.create(profile("z", selector={"matchLabels": {"app": "x"}}, namespaceSelector={"matchLabels": {"a": "b"}}))
        manager = await bed.start()
        asked, ask = [], manager.app.view.namespace_labels
        manager.app.view.namespace_labels = lambda name: (asked.append(name), ask(name))[1]
        pod = etl(resources=SAMPLE)
        pod["spec"]["containers"] *= 3
        assert await work(manager.app.server, "/mutate-pod", pod) < 900
        assert not asked  # no profile that takes the pod looks at namespaces
        changed = (await manager.review("/mutate-pod", pod, namespace="default"))["object"]
        assert await work(manager.app.server, "/validate-pod", changed) < 450

    bed(test)


@pytest.mark.feature("MGR-POD-M-01")
def test_failures_answer_500_with_the_profile_that_is_wrong(bed):
    async def test(bed):
        await bed.create(
            profile("half", selector={"matchLabels": {"app": "half"}}, probability="50"),
            profile("lost", selector={"matchLabels": {"app": "lost"}}, priorityClassName="nobody"),
            profile(
                "sel",
                selector={"matchExpressions": [{"key": "app", "operator": "Gone"}], "matchLabels": {"app": "sel"}},
                labels={"hit": "1"},
            ),
            profile("bad", selector={"matchLabels": {"app": "bad"}}, patch={"metadata": {"labels": {"n": 5}}}),
            profile("bare", selector={"matchLabels": {"app": "bare"}}, patch={"metadata": None, "spec": None}),
            profile("bare-too", selector={"matchLabels": {"app": "bare"}}, labels={"kept": "1"}, schedulerName="s"),
        )
        manager = await bed.start()
        answer = await manager.review("/mutate-pod", etl({"app": "bad"}), namespace="default")
        assert "ClusterColocationProfile bad: patch: metadata.labels must be an object of strings" in answer["status"]["message"]
        bare = (await manager.review("/mutate-pod", etl({"app": "bare"}), namespace="default"))["object"]
        assert (bare["metadata"]["labels"], bare["spec"]["schedulerName"]) == ({"kept": "1", "hit": "1"}, "s")
        for app, words in (("half", "half: probability '50'"), ("lost", "PriorityClass 'nobody' does not exist")):
            answer = await manager.review("/mutate-pod", etl({"app": app}), namespace="default")
            assert (answer["allowed"], answer["status"]["code"]) == (False, 500)
            assert words in answer["status"]["message"]
        # a selector that cannot be evaluated counts as matching
        assert (await manager.review("/mutate-pod", etl(), namespace="default"))["object"]["metadata"]["labels"]["hit"] == "1"

    bed(test)


@pytest.mark.feature("MGR-POD-M-02")
def test_what_is_not_translated(bed):
    async def test(bed):
        await bed.create(
            profile("free", selector={"matchLabels": {"app": "free"}}, priorityClassName="koord-free"),
            profile("prod", selector={"matchLabels": {"app": "prod"}}, qosClass="LS", priorityClassName="koord-prod"),
            profile("mid", selector={"matchLabels": {"app": "mid"}}, qosClass="LS", priorityClassName="koord-mid"),
            profile(
                "skip",
                selector={"matchLabels": {"app": "skip"}},
                qosClass="BE",
                priorityClassName="koord-batch",
                probability=0,
                annotations_={"config.koordinator.sh/skip-update-resources": ""},
            ),
            profile("skipped", selector={"matchLabels": {"app": "skip"}}, qosClass="BE", priorityClassName="koord-batch"),
            profile("never", selector={"matchLabels": {"app": "never"}}, probability=0, qosClass="LS"),
        )
        manager = await bed.start()
        for app, name in (("free", "cpu"), ("prod", "cpu"), ("mid", "kubernetes.io/mid-cpu"), ("skip", "cpu"), ("unmatched", "cpu")):
            answer = await manager.review("/mutate-pod", etl({"app": app}, resources=SAMPLE), namespace="default")
            assert name in answer["object"]["spec"]["containers"][0]["resources"]["requests"], app
            # a Free pod looks like the lowest class and still takes what Prod takes: say so
            assert ("koord-free" in "".join(answer.get("warnings", ()))) is (app == "free")
        # a match that probability skipped is still a match: translation goes by the class the pod has itself
        answer = await manager.review(
            "/mutate-pod", etl({"app": "never", "koordinator.sh/qosClass": "BE"}, resources=SAMPLE), namespace="default"
        )
        assert BATCH_CPU in answer["object"]["spec"]["containers"][0]["resources"]["requests"]
        assert "patch" not in await manager.review("/mutate-pod", etl({"app": "unmatched"}, resources=SAMPLE), namespace="default")
        assert "patch" not in await manager.review("/mutate-pod", etl(resources=SAMPLE), operation="UPDATE", old=etl(), namespace="default")
        assert "patch" not in await manager.review("/mutate-pod", etl({"app": "mid"}), sub_resource="status", namespace="default")

    bed(test)


@pytest.mark.feature("MGR-POD-M-03")
def test_forged_and_unreadable_annotations(bed):
    async def test(bed):
        manager = await bed.start()
        forged = etl(annotations={SPEC: '{"containers":{"main":{"limits":{"kubernetes.io/batch-cpu":"9k"}}}}'})
        assert (await manager.review("/mutate-pod", forged))["object"]["metadata"]["annotations"][SPEC] == "{}"
        same = etl(
            annotations={SPEC: json.dumps({"containers": {"main": {"requests": {BATCH_CPU: "1k"}}}})},
            resources={"requests": {BATCH_CPU: "1000"}},
        )
        assert "patch" not in await manager.review("/mutate-pod", same)
        for text in ("{", "[]", '{"containers":{"main":[]}}', '{"containers":{"main":{"limits":{"cpu":"x"}}}}'):
            answer = await manager.review("/mutate-pod", etl(annotations={SPEC: text}))
            assert (answer["allowed"], answer["status"]["code"]) == (False, 500)
            assert SPEC in answer["status"]["message"]

    bed(test)


@pytest.mark.feature("MGR-POD-M-05")
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"gpu": "50"}, {"gpu-core": "50", "gpu-memory-ratio": "50", "gpu.shared": "1"}),
        ({"gpu": "200"}, {"gpu-core": "200", "gpu-memory-ratio": "200", "gpu.shared": "2"}),
        ({"gpu-core": "300"}, {"gpu-core": "300", "gpu.shared": "3"}),
        ({"gpu-core": "300", "gpu-memory-ratio": "100"}, {"gpu-core": "300", "gpu-memory-ratio": "100", "gpu.shared": "1"}),
        ({"gpu-core": "200", "gpu.shared": "4"}, {"gpu-core": "200", "gpu.shared": "4"}),
        ({"gpu-memory": "8Gi"}, {"gpu-memory": "8Gi", "gpu.shared": "1"}),
    ],
)
def test_gpu_requests_have_one_form(bed, given, wanted):
    async def test(bed):
        manager = await bed.start()
        answer = await manager.review("/mutate-pod", etl(resources={"requests": {f"koordinator.sh/{k}": v for k, v in given.items()}}))
        resources = answer["object"]["spec"]["containers"][0]["resources"]
        assert resources["requests"] == {f"koordinator.sh/{k}": v for k, v in wanted.items()}
        if given == wanted:
            assert "limits" not in resources

    bed(test)


@pytest.mark.feature("MGR-POD-M-04")
def test_quota_tree_affinity(bed):
    async def test(bed):
        tree = {"quota.scheduling.koordinator.sh/tree-id": "t1"}
        quota = {
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
            "kind": "ElasticQuota",
            "metadata": {"name": "q", "namespace": "default", "labels": tree},
            "spec": {},
        }
        selector = {"matchLabels": {"pool": "a"}, "matchExpressions": [{"key": "z", "operator": "Exists"}]}
        trees = {
            "apiVersion": "quota.koordinator.sh/v1alpha1",
            "kind": "ElasticQuotaProfile",
            "metadata": {"name": "e", "namespace": "default", "labels": tree},
            "spec": {"quotaName": "q", "nodeSelector": selector},
        }
        await bed.create(quota, trees)
        manager = await bed.start(gates="MultiQuotaTree=true", controllers=("-quotaprofile", "*"))
        term = {"matchExpressions": [{"key": "x", "operator": "Exists"}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
        added = [{"key": "pool", "operator": "In", "values": ["a"]}, {"key": "z", "operator": "Exists"}]
        for spec, wanted in (
            ({"affinity": affinity}, [{"matchExpressions": [*term["matchExpressions"], *added]}]),
            ({}, [{"matchExpressions": added}]),
            ({"affinity": None}, [{"matchExpressions": added}]),
            ({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}}}, [{"matchExpressions": added}]),
        ):
            answer = await manager.review("/mutate-pod", etl({"quota.scheduling.koordinator.sh/name": "q"}, **spec), namespace="default")
            found = answer["object"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            assert found["nodeSelectorTerms"] == wanted

    bed(test)


@pytest.mark.feature("MGR-RSV-M-01")
def test_reservation_gets_the_profile_but_keeps_its_resources(bed):
    async def test(bed):
        await bed.create(
            profile(
                "p",
                **BATCH,
                namespaceSelector={"matchLabels": {"no": "match"}},
                schedulerName="koord-scheduler",
                koordinatorPriority=3,
                patch={"spec": {"ttl": "2h"}},
            )
        )
        manager = await bed.start(gates="ReservationMutatingWebhook=true")
        given = {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Reservation",
            "metadata": {"name": "r", "labels": {"app": "etl"}},
            "spec": {"template": {"spec": etl(resources=SAMPLE)["spec"]}},
        }
        empty = (await manager.review("/mutate-reservation", {**given, "spec": {"template": {"spec": None}}}))["object"]
        assert empty["spec"]["template"]["spec"]["schedulerName"] == "koord-scheduler", "the template has no schema: null comes through"
        found = (await manager.review("/mutate-reservation", given))["object"]
        assert found["metadata"]["labels"] == {"app": "etl", "koordinator.sh/qosClass": "BE", "koordinator.sh/priority": "3"}
        spec = found["spec"]["template"]["spec"]
        assert (spec["schedulerName"], spec["priority"], found["spec"]["ttl"]) == ("koord-scheduler", 5000, "2h")
        assert spec["containers"][0]["resources"] == SAMPLE

    bed(test)


@pytest.mark.feature("MGR-WH-01")
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("", 400, "empty"),
        ("{", 400, "not valid JSON"),
        ("[]", 400, "no AdmissionReview"),
        ('{"kind":"AdmissionReview","apiVersion":"v9","request":{}}', 400, "apiVersion"),
        ('{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}', 400, "request is missing"),
        (V1 + '"request":{"operation":"CREATE","object":7}}', 400, "object"),
        (V1 + '"request":{"operation":"CREATE","object":{"metadata":{"labels":{"a":1}}}}}', 400, "labels"),
        ("x" * (8 * 1024 * 1024), 413, "larger than"),
    ],
)  # fmt: skip
def test_bad_bodies_are_answered(bed, body, status, words):
    async def test(bed):
        manager = await bed.start()
        got, answer = await manager.post("/mutate-pod", body)
        assert got == status
        assert answer["response"]["allowed"] is False
        assert words in answer["response"]["status"]["message"]
        assert (await manager.review("/mutate-pod", etl()))["allowed"] is True

    bed(test)


@pytest.mark.feature("MGR-WH-01")
def test_malformed_pods_are_refused_not_crashed_on(bed):
    async def test(bed):
        await bed.create(profile("p", **BATCH))
        manager = await bed.start()
        for resources in ({"requests": {"cpu": "many"}}, {"requests": {"cpu": True}}, {"requests": [1]}, 7):
            for path in ("/mutate-pod", "/validate-pod"):
                answer = await manager.review(path, etl({"koordinator.sh/qosClass": "LSR"}, resources=resources), namespace="default")
                assert answer["allowed"] is False, (path, resources)
                assert answer["status"]["code"] in (400, 500)
        _, answer = await manager.post(
            "/mutate-pod",
            json.dumps(
                {
                    "kind": "AdmissionReview",
                    "apiVersion": "admission.k8s.io/v1beta1",
                    "request": {"uid": "b", "operation": "CREATE", "object": etl()},
                }
            ),
        )
        assert (answer["apiVersion"], answer["response"]["uid"]) == ("admission.k8s.io/v1beta1", "b")

    bed(test)


amounts = st.builds("{}{}".format, st.integers(0, 10**6), st.sampled_from(["", "m", "u", "k", "Mi"]))
lists = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu", BATCH_CPU]), amounts, max_size=4)


@pytest.mark.feature("MGR-POD-M-02")
@given(st.lists(st.fixed_dictionaries({}, optional={"requests": lists, "limits": lists}), max_size=3))
def test_translation_moves_amounts_and_loses_none(resources):
    spec = {"containers": [{"name": str(i), "resources": json.loads(json.dumps(item))} for i, item in enumerate(resources)]}
    translate(spec, PriorityClass.BATCH)
    for before, container in zip(resources, spec["containers"], strict=True):
        after = container["resources"]
        for field, given_ in before.items():
            assert not {"cpu", "memory"} & set(after[field])
            if "cpu" in given_:
                assert Quantity(after[field][BATCH_CPU]) == Quantity(parse_milli(given_["cpu"]))
            if "memory" in given_:
                assert after[field][BATCH_MEMORY] == given_["memory"]
            assert after[field].get("nvidia.com/gpu") == given_.get("nvidia.com/gpu")
        for name in set(after.get("limits") or {}) & {BATCH_CPU, BATCH_MEMORY}:
            assert name in after["requests"]
