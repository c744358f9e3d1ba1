"""The quota tree stays a tree, through several replicas too; profiles make their quotas without a false alarm."""

import asyncio
import json

import pytest

from koord.api.kinds import ELASTICQUOTAPROFILES, ELASTICQUOTAS, EVENTS, NODES
from koord.api.objects import ElasticQuota, Node, Pod, convert
from koord.api.selectors import from_label_selector
from koord.kube.errors import AlreadyExists, ApiError
from roles.manager.controllers.quotaprofile import Totals
from roles.manager.webhooks import ancestry, quota_topology
from roles.manager.webhooks.quota_pods import QuotaPods
from roles.manager.webhooks.quota_topology import ASSUMED_SECONDS, QuotaTopology, read_quota

QUOTA = "quota.scheduling.koordinator.sh/"
ROOT = "koordinator-root-quota"


def quota(name, parent=ROOT, **labels):
    labels = {f"{QUOTA}parent": parent, f"{QUOTA}is-parent": "true", **labels}
    metadata = {"name": name, "namespace": "default", "labels": labels}
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": metadata,
        "spec": {"min": {"cpu": "0"}, "max": {"cpu": "20"}},
    }


def moved_to(parent):
    return {"metadata": {"labels": {f"{QUOTA}parent": parent}}}


async def parents(bed):
    found = (await bed.client.list(ELASTICQUOTAS, "default")).items
    return {one["metadata"]["name"]: one["metadata"]["labels"].get(f"{QUOTA}parent") for one in found}


def has_cycle(tree):
    for name in tree:
        above, seen = tree[name], set()
        while above in tree and above not in seen:
            seen.add(above)
            above = tree[above]
        if name in seen:
            return True
    return False


async def registered(bed, *replicas):
    async def ready():
        return all([(await replica.get("/readyz"))[0] == 200 for replica in replicas])

    await bed.until(ready)


@pytest.mark.feature("MGR-EQ-V-01")
def test_a_quota_never_becomes_its_own_ancestor(bed):
    async def test(bed):
        manager = await bed.start(host="127.0.0.1")
        await registered(bed, manager)
        for name, parent in (("a", ROOT), ("b", "a"), ("c", "b"), ("d", ROOT)):
            await bed.client.create(ELASTICQUOTAS, quota(name, parent), "default")
        for parent in ("a", "b", "c"):
            with pytest.raises(ApiError, match="cannot be its own ancestor"):
                await bed.client.patch(ELASTICQUOTAS, "a", moved_to(parent), "default")
        await bed.client.patch(ELASTICQUOTAS, "b", moved_to("d"), "default")
        await bed.client.patch(ELASTICQUOTAS, "a", moved_to("c"), "default")  # a is no ancestor of c any more
        with pytest.raises(ApiError, match="cannot be its own ancestor"):
            await bed.client.patch(ELASTICQUOTAS, "d", moved_to("a"), "default")
        with pytest.raises(AlreadyExists):
            await bed.client.create(ELASTICQUOTAS, quota("a"), "default")

    bed(test)


@pytest.mark.feature("MGR-EQ-V-01")
def test_moves_through_two_replicas_whose_caches_lag_make_no_cycle(bed, monkeypatch):
    async def test(bed):
        first, second = await bed.start(host="127.0.0.1"), await bed.start(host="127.0.0.1")
        await registered(bed, first, second)
        for name in ("a", "b", "c"):
            await bed.client.create(ELASTICQUOTAS, quota(name), "default")
        for replica in (first, second):
            known = replica.app.view.quotas

            async def seen(known=known):
                return all(known.get(name) for name in ("a", "b", "c"))

            await bed.until(seen)
            # From here on this replica learns nothing, neither from the watch nor from what it admits.
            known.on_quota = known._put = lambda *_: None
            for handler in replica.app.view.quota_objects._handlers:
                if handler.on_update is not None:
                    object.__setattr__(handler, "on_update", None)

        async def move(name, parent):
            try:
                await bed.client.patch(ELASTICQUOTAS, name, moved_to(parent), "default")
            except ApiError as error:
                return str(error)
            return ""

        pairs = [("a", "b"), ("b", "c"), ("c", "a"), ("b", "a"), ("a", "c"), ("c", "b")]
        said = await asyncio.gather(*(move(*pair) for pair in pairs * 3))
        tree = await parents(bed)
        assert not has_cycle(tree), tree
        assert any("ancestor" in text for text in said)
        assert not all(said), "moves that are sound are let in"

    bed(test)


@pytest.mark.feature("MGR-EQ-V-01")
def test_a_move_counts_while_its_ancestors_are_asked_and_no_longer_once_it_is_refused(bed):
    """Two moves below one parent, each of which has room alone."""
    path = "/validate-scheduling-sigs-k8s-io-v1alpha1-elasticquota"

    def sized(name, cpu, parent=ROOT):
        return {**quota(name, parent), "spec": {"min": {"cpu": cpu}, "max": {"cpu": "100"}}}

    class Slow:
        """The first who asks waits for `go`, which may be an error."""

        def __init__(self, client):
            self.client, self.asked, self.go = client, asyncio.Event(), asyncio.get_running_loop().create_future()

        async def get(self, *args):
            if not self.asked.is_set():
                self.asked.set()
                await self.go
            return await self.client.get(*args)

        async def patch(self, *args, **kwargs):
            return await self.client.patch(*args, **kwargs)

    async def test(bed):
        manager = await bed.start()
        for made in (sized("large", "40"), sized("small", "10"), sized("a", "6", "large"), sized("b", "6", "large")):
            await bed.client.create(ELASTICQUOTAS, made, "default")
        view = manager.app.view
        client = view.quota_client

        async def seen():
            return all(view.quotas.get(name) for name in ("large", "small", "a", "b"))

        await bed.until(seen)

        def move(name, **extra):
            old, new = sized(name, "6", "large"), sized(name, "6", "small")
            return manager.review(path, new, operation="UPDATE", old=old, namespace="default", **extra)

        def while_it_asks():
            slow = view.quota_client = Slow(client)
            return slow, asyncio.create_task(move("a"))

        assert (await move("a", dryRun=True))["allowed"]
        assert view.quotas.get("a").parent == "large"
        slow, first = while_it_asks()
        await slow.asked.wait()
        assert "sum of spec.min[cpu]" in (await move("b"))["status"]["message"]
        slow.go.set_exception(ApiError(503, "ServiceUnavailable", "no"))
        assert not (await first)["allowed"]
        assert [one.name for one in view.quotas.children("small")] == []
        slow, first = while_it_asks()
        await slow.asked.wait()
        # meanwhile a change of something else shows the quota where it still is
        view.quotas.on_quota(convert(sized("a", "6", "large"), ElasticQuota))
        slow.go.set_result(None)
        assert (await first)["allowed"]
        assert not (await move("b"))["allowed"]

    bed(test)


@pytest.mark.feature("MGR-EQ-V-01")
def test_an_admission_that_is_withdrawn_leaves_what_is_known_from_elsewhere():
    def read(made):
        return read_quota(convert(made, ElasticQuota))

    tree = QuotaTopology()
    tree.on_quota(convert(quota("c", "a"), ElasticQuota))
    mine, other = read(quota("c", "b")), read(quota("c", "d"))
    tree.assume(mine, 0.0)
    tree.assume(other, 0.0)
    tree.withdraw(mine)
    assert tree.get("c").parent == "d", "a later admission"
    tree.withdraw(other)
    assert tree.get("c").parent == "a"
    tree.withdraw(other)
    tree.assume(mine, 0.0)
    tree.on_quota(convert(quota("c", "e"), ElasticQuota))
    tree.withdraw(mine)
    assert tree.get("c").parent == "e", "the informer has shown it"
    new = read(quota("n"))
    tree.assume(new, 0.0)
    tree.withdraw(new)
    assert tree.get("n") is None


def test_a_move_that_is_overtaken_reads_its_ancestors_anew(make):
    class Server:
        """The parent is moved below the quota between the read and the touch."""

        def __init__(self):
            self.found = {"p": quota("p"), "q": quota("q")}
            self.version = 1

        async def get(self, kind, name, namespace):
            found = json.loads(json.dumps(self.found[name]))
            found["metadata"]["resourceVersion"] = str(self.version)
            return found

        async def patch(self, kind, name, body, namespace, type):
            from koord.kube.errors import Conflict

            if body["metadata"]["resourceVersion"] == "1":
                self.version, self.found["p"] = 2, quota("p", "q")
                raise Conflict(409, "Conflict", "changed")
            return {}

    class View:
        quotas = QuotaTopology()
        quota_client = Server()

    async def main():
        for name in ("p", "q"):
            View.quotas.on_quota(convert(quota(name), ElasticQuota))
        new, old = (read_quota(convert(quota("q", parent), ElasticQuota)) for parent in ("p", ROOT))
        with pytest.raises(Exception, match="q -> p -> q"):
            await ancestry.confirm(new, old, View)

    asyncio.run(main())


def test_a_cycle_that_is_there_is_told_of_on_each_member(bed):
    async def test(bed):
        for name, parent in (("a", "b"), ("b", "c"), ("c", "a"), ("hangs-on", "a"), ("fine", ROOT)):
            await bed.create(quota(name, parent))
        await bed.start()

        async def told():
            events = (await bed.client.list(EVENTS, "default")).items
            return {event["regarding"]["name"] for event in events if event["reason"] == "QuotaCycle"}

        async def all_told():
            return await told() >= {"a", "b", "c"}

        await bed.until(all_told)
        assert await told() == {"a", "b", "c"}

    bed(test)


@pytest.mark.feature("MGR-QP-01")
def test_a_profile_follows_its_nodes_by_events_and_never_warns_of_itself(bed, make):
    def profile(name):
        spec = {"quotaName": f"root-{name}", "quotaLabels": {f"{QUOTA}is-parent": "true"}, "nodeSelector": {"matchLabels": {"pool": name}}}
        return {"apiVersion": "quota.koordinator.sh/v1alpha1", "kind": "ElasticQuotaProfile",
                "metadata": {"name": name, "namespace": "default"}, "spec": spec}  # fmt: skip

    async def test(bed):
        await bed.create(make.node("n1", cpu="4", labels={"pool": "a"}))
        manager = await bed.start(host="127.0.0.1")
        await registered(bed, manager)
        for name in ("a", "b"):
            await bed.client.create(ELASTICQUOTAPROFILES, profile(name), "default")

        async def cpu(name):
            return (await bed.get("ElasticQuota", f"root-{name}", "default"))["spec"]["min"]["cpu"]

        async def is_cpu(name, wanted):
            async def look():
                return await cpu(name) == wanted

            await bed.until(look)

        await is_cpu("a", "4")
        await is_cpu("b", "0")
        await bed.create(make.node("n2", cpu="8", labels={"pool": "a"}))
        await is_cpu("a", "12")
        await bed.client.patch(NODES, "n1", {"metadata": {"labels": {"pool": "b"}}})
        await is_cpu("a", "8")
        await is_cpu("b", "4")
        await bed.client.delete(NODES, "n2")
        await is_cpu("a", "0")
        await bed.client.patch(ELASTICQUOTAS, "root-b", {"spec": {"min": {"cpu": "1"}}}, "default")  # by hand
        await is_cpu("b", "4")
        events = (await bed.client.list(EVENTS, "default")).items
        assert [event["message"] for event in events if event["type"] == "Warning"] == []

    bed(test)


@pytest.mark.feature("MGR-QP-01")
def test_totals_are_those_of_the_nodes_that_are_there(make):
    def node(name, cpu, *, pool="a", ready="True", cordoned=False, **extra):
        made = make.node(name, cpu=cpu, labels={"pool": pool}, extra=extra)
        made["status"]["conditions"] = [{"type": "Ready", "status": ready}]
        made["spec"]["unschedulable"] = cordoned
        return convert(made, Node)

    totals = Totals(from_label_selector({"matchLabels": {"pool": "a"}}))
    assert totals.put(node("n1", "4", **{"x.io/card": "2"}))
    assert totals.put(node("n2", "3", cordoned=True))
    assert not totals.put(node("n2", "3", ready="False"))  # it counted as unusable already
    assert not totals.put(node("n3", "100", pool="b"))
    everything, unusable = totals.scaled(0.5)
    assert (everything["cpu"], everything["x.io/card"], unusable["cpu"]) == (3500, 1, 1500)
    assert totals.put(node("n1", "4", pool="b"))
    everything, unusable = totals.scaled(1.0)
    assert everything == unusable
    assert "x.io/card" not in everything
    assert totals.drop("n2")
    assert not totals.drop("n2")
    assert totals.scaled(1.0) == ({}, {})


@pytest.mark.feature("MGR-EQ-V-01")
def test_pods_of_a_quota_are_known_without_walking_all_pods(make):
    tree, pods = QuotaTopology(), QuotaPods()
    tree.on_quota(
        convert({**quota("q"), "metadata": {**quota("q")["metadata"], "annotations": {f"{QUOTA}namespaces": '["bound"]'}}}, ElasticQuota)
    )
    q = tree.get("q")

    def pod(name, namespace="default", label=""):
        return convert(make.pod(name, namespace=namespace, labels={f"{QUOTA}name": label} if label else {}), Pod)

    assert not pods.any_of(q)
    pods.on_pod(pod("free"))
    assert not pods.any_of(q)
    pods.on_pod(pod("labelled", label="q"))
    pods.on_pod(pod("bound", "bound"))
    pods.on_pod(pod("other", "bound", "other"))
    assert sorted(pods.of("q", tree, False)) == ["bound/bound", "default/labelled"]
    pods.on_pod(pod("labelled", label="other"))
    assert sorted(pods.of("q", tree, False)) == ["bound/bound"]
    pods.on_pod_gone(pod("bound", "bound"))
    assert list(pods.of("q", tree, False)) == []
    assert pods.any_of(q), "another pod lives in the namespace"
    pods.on_pod_gone(pod("other", "bound"))
    assert not pods.any_of(q)


@pytest.mark.feature("MGR-EQ-V-01")
def test_an_admitted_change_that_never_came_to_be_is_taken_back():
    def read(made):
        return read_quota(convert(made, ElasticQuota))

    tree = QuotaTopology()
    for name, parent in (("a", ROOT), ("b", ROOT), ("c", "a")):
        tree.on_quota(convert(quota(name, parent), ElasticQuota))
    tree.assume(read(quota("c", "b")), 100.0)
    tree.assume(read(quota("c")), 110.0)  # and once more: what counts is what the informer has shown
    assert tree.get("c").parent == ROOT
    tree.expire(125.0)
    assert tree.get("c").parent == ROOT
    tree.expire(100.0 + 2 * ASSUMED_SECONDS)
    assert tree.get("c").parent == "a"
    assert [child.name for child in tree.children("a")] == ["c"]
    assert tree.children("b") == []

    tree.assume(read(quota("c", "b")), 200.0)
    tree.on_quota(convert(quota("c", "b"), ElasticQuota))
    tree.expire(300.0)
    assert tree.get("c").parent == "b", "the informer has shown it"
    tree.assume(read(quota("c", "a")), 300.0)
    tree.on_quota_gone(convert(quota("c", "b"), ElasticQuota))
    tree.expire(400.0)
    assert tree.get("c") is None


@pytest.mark.feature("MGR-POD-V-02")
def test_pods_go_by_the_quotas_that_are_there_not_by_a_change_that_was_refused_elsewhere(bed, monkeypatch):
    """An update that this webhook admits may still fail, by another webhook or a conflict; no event of the quota tells of that."""
    monkeypatch.setattr(quota_topology, "ASSUMED_SECONDS", 0.3)

    async def test(bed):
        leaf = quota("leaf", **{f"{QUOTA}is-parent": "false"})
        await bed.client.create(ELASTICQUOTAS, leaf, "default")
        manager = await bed.start()
        old = await bed.client.get(ELASTICQUOTAS, "leaf", "default")
        path = "/validate-scheduling-sigs-k8s-io-v1alpha1-elasticquota"
        made = json.loads(json.dumps(old))
        made["metadata"]["labels"][f"{QUOTA}is-parent"] = "true"
        assert (await manager.review(path, made, operation="UPDATE", old=old, namespace="default"))["allowed"]

        waiting = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "labels": {f"{QUOTA}name": "leaf"}},
            "spec": {"containers": []},
        }

        async def admitted():
            return (await manager.review("/validate-pod", waiting, namespace="default"))["allowed"]

        assert not await admitted()
        await bed.until(admitted, 5)

    bed(test)


@pytest.mark.feature("MGR-EQ-V-01")
def test_a_namespace_that_moves_to_another_quota_stays_bound_whichever_event_comes_first():
    def listing(name, *namespaces):
        made = quota(name)
        made["metadata"]["annotations"] = {f"{QUOTA}namespaces": json.dumps(namespaces)}
        return convert(made, ElasticQuota)

    tree = QuotaTopology()
    tree.on_quota(listing("a", "moves", "stays"))
    tree.on_quota(listing("b", "moves"))  # a list after a gap in the watch tells in any order
    assert tree.of_namespace("moves").name == "a"
    tree.on_quota(listing("a", "stays"))
    assert tree.of_namespace("moves").name == "b"
    assert tree.of_namespace("stays").name == "a"
    tree.on_quota(listing("c", "stays"))
    tree.on_quota_gone(listing("a", "stays"))
    assert tree.of_namespace("stays").name == "c"
    tree.on_quota_gone(listing("c", "stays"))
    assert tree.of_namespace("stays") is None


@pytest.mark.feature("MGR-QP-01")
def test_other_resource_keys_of_a_profile_take_effect_at_once(bed, make):
    keys = f"{QUOTA}resource-keys"
    profile = {
        "apiVersion": "quota.koordinator.sh/v1alpha1",
        "kind": "ElasticQuotaProfile",
        "metadata": {"name": "p", "namespace": "default", "annotations": {keys: '["cpu"]'}},
        "spec": {"quotaName": "root-a", "nodeSelector": {"matchLabels": {"pool": "a"}}},
    }

    async def test(bed):
        await bed.create(make.node("n1", labels={"pool": "a"}), profile)
        await bed.start()

        async def guaranteed():
            return sorted((await bed.get("ElasticQuota", "root-a", "default"))["spec"]["min"])

        async def has(*wanted):
            return await guaranteed() == list(wanted)

        await bed.until(lambda: has("cpu"))
        await asyncio.sleep(2.5)  # what its own writes have set off is over
        await bed.client.patch(ELASTICQUOTAPROFILES, "p", {"metadata": {"annotations": {keys: '["cpu","memory"]'}}}, "default")
        await bed.until(lambda: has("cpu", "memory"), 10)

    bed(test)
