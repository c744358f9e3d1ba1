"""Pods from the kubelet (KLO-SI-02) and callbacks (KLO-SI-08)."""

from __future__ import annotations

import asyncio
import datetime
import shutil
import ssl
from typing import Any

import orjson
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from koord import seams
from koord.api.names import ANNOTATION_CONFIG_SOURCE
from koord.api.objects import Node
from koord.api.objects_meta import convert
from koord.kube.config import ClientConfig, Pem
from koord.kube.credentials import StaticHeader
from koord.process import certificates
from koord.process.certificates import ensure
from roles.koordlet.metrics.registry import Metrics
from roles.koordlet.states.callbacks import Callbacks, StateKind
from roles.koordlet.states.kubelet import KubeletClient, KubeletError, KubeletOptions, kubelet_url
from roles.koordlet.states.kubelet_trust import Machine
from roles.koordlet.states.podinformer import PodInformer, export_container_resources
from roles.koordlet.states.pods import PodListError
from tests.support import patience
from tests.support.koordlet import exposed


def listed(*pods: dict[str, Any]) -> bytes:
    return orjson.dumps({"kind": "PodList", "items": list(pods)})


def as_node(obj: dict[str, Any]) -> Node:
    return convert(obj, Node)


def certificate(host: str, *, expired: bool = False) -> tuple[bytes, bytes, bytes]:
    """Authority, certificate and key as PEM, of a kubelet that long runs without making another one where `expired`."""
    ca, ca_key = certificates._authority()
    served, key = certificates._server(ca, ca_key, {host})
    if expired:
        private: Any = serialization.load_pem_private_key(key, None)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "n1@1")])
        end = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        builder = x509.CertificateBuilder(
            name, name, private.public_key(), x509.random_serial_number(), end - datetime.timedelta(days=365), end
        )
        served = builder.sign(private, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return ca, served, key


@pytest.mark.feature("KLO-SI-02")
class TestBook:
    def test_an_unchanged_pod_keeps_its_object(self, agent, make_pod) -> None:
        pod_cache = agent().pod_cache
        assert pod_cache.take(listed(make_pod("a", "u-1"), make_pod("b", "u-2")))
        first = pod_cache.pods
        assert not pod_cache.take(listed(make_pod("a", "u-1"), make_pod("b", "u-2")))
        assert not pod_cache.take(listed(make_pod("b", "u-2"), make_pod("a", "u-1"))), "the kubelet lists them in any order"
        assert pod_cache.pods is first
        assert pod_cache.take(listed(make_pod("a", "u-1"), make_pod("b", "u-2", phase="Failed")))
        assert pod_cache.pods[0] is first[0]
        assert pod_cache.pods[1].terminated

    def test_the_grace_of_a_pod_runs_from_when_the_kubelet_said_so(self, agent, make_pod) -> None:
        """By the agent's own steady clock: the API server's, whose time the deletion timestamp is, may be hours away."""
        pod_cache, now = agent().pod_cache, 100.0
        pod_cache.clock = lambda: now
        a, b = make_pod("a", "u-1"), make_pod("b", "u-2")
        pod_cache.take(listed(a, b))
        assert pod_cache.leaving() == {}
        a["metadata"] |= {"deletionTimestamp": "2020-01-01T00:00:00Z", "deletionGracePeriodSeconds": 60}
        pod_cache.take(listed(a, b))
        now = 110.0
        b["metadata"]["deletionTimestamp"] = "2999-01-01T00:00:00Z"
        pod_cache.take(listed(a, b))
        assert pod_cache.leaving() == {"u-1": 50, "u-2": 30}
        now = 200.0
        assert pod_cache.leaving() == {"u-1": -40, "u-2": -60}
        pod_cache.take(listed(b))
        assert pod_cache.leaving() == {"u-2": -60}

    @pytest.mark.parametrize("body", [b"", b"[]", b"null", b"<html>", b'{"items":7}', b'{"items":{}}', b'{"a":' * 5000])
    def test_rubbish_leaves_the_pods(self, agent, make_pod, body) -> None:
        pod_cache = agent().pod_cache
        pod_cache.take(listed(make_pod("a", "u-1")))
        with pytest.raises(PodListError, match="not a PodList"):
            pod_cache.take(body)
        assert len(pod_cache.pods) == 1

    def test_a_node_without_pods_is_synced_after_a_few_empty_answers(self, agent) -> None:
        pod_cache = agent().pod_cache
        empty = b'{"items":[]}'
        assert [pod_cache.take(empty) for _ in range(4)] == [False, False, True, False]
        assert pod_cache.synced
        assert pod_cache.pods == ()
        assert not pod_cache.confirmed, "a kubelet that has just started looks the same"
        assert [pod_cache.take(empty) for _ in range(40)] == [False] * 40
        assert pod_cache.confirmed

    def test_an_empty_list_leaves_the_pods(self, agent, make_pod) -> None:
        pod_cache = agent().pod_cache
        assert not pod_cache.take(listed())
        assert not pod_cache.synced
        pod_cache.take(listed(make_pod("a", "u-1")))
        assert not pod_cache.take(b'{"items":null}')
        assert len(pod_cache.pods) == 1

    def test_the_last_pod_is_gone_with_its_cgroup(self, agent, make_pod) -> None:
        a = agent()
        directory = a.tree.pod_dir("Burstable", "u-1")
        a.tree.cgroup(directory)
        a.pod_cache.take(listed(make_pod("a", "u-1")))
        empty = b'{"items":[]}'
        assert [a.pod_cache.take(empty) for _ in range(9)] == [False] * 9, "a kubelet that starts again, while its pod runs on"
        shutil.rmtree(a.tree.root / a.tree.file("cpu", directory, ""))
        assert a.pod_cache.take(empty)
        assert a.pod_cache.pods == ()
        assert a.pod_cache.take(listed(make_pod("a", "u-1")))
        assert [a.pod_cache.take(empty) for _ in range(3)] == [False, False, True]

    def test_static_pods_alone_leave_the_others(self, agent, make_pod) -> None:
        """A kubelet that starts again has them at once, and the others as soon as it reaches the API server. They run on meanwhile."""
        a = agent()
        directory = a.tree.pod_dir("Burstable", "u-1")
        a.tree.cgroup(directory)
        proxy = make_pod("proxy", "u-0", annotations={ANNOTATION_CONFIG_SOURCE: "file"})
        web = make_pod("web", "u-1", annotations={ANNOTATION_CONFIG_SOURCE: "api"})
        a.pod_cache.take(listed(proxy, web))
        before = a.pod_cache.pods
        assert [a.pod_cache.take(listed(proxy)) for _ in range(9)] == [False] * 9
        assert a.pod_cache.pods is before
        assert a.pod_cache.take(listed(make_pod("proxy", "u-9", annotations={ANNOTATION_CONFIG_SOURCE: "file"})))
        assert [p.uid for p in a.pod_cache.pods] == ["u-1", "u-9"], "of static pods the list says all"
        assert a.pod_cache.take(listed(proxy, web))
        shutil.rmtree(a.tree.root / a.tree.file("cpu", directory, ""))
        assert [a.pod_cache.take(listed(proxy)) for _ in range(4)] == [False, False, True, False]
        assert [p.name for p in a.pod_cache.pods] == ["proxy"]

    def test_static_pods_alone_at_the_start_are_no_whole_list(self, agent, make_pod) -> None:
        pod_cache = agent().pod_cache
        proxy = listed(make_pod("proxy", "u-0", annotations={ANNOTATION_CONFIG_SOURCE: "file"}))
        seen = []
        for _ in range(30):
            pod_cache.take(proxy)
            seen.append((pod_cache.synced, pod_cache.confirmed))
        assert seen == [(False, False)] * 2 + [(True, False)] * 27 + [(True, True)]
        assert [p.name for p in pod_cache.pods] == ["proxy"]

    def test_one_bad_pod_does_not_spoil_the_others(self, agent, make_pod, caplog) -> None:
        pod_cache = agent().pod_cache
        bad_uid = make_pod("evil", "../../etc")
        bad_type = make_pod("typo", "u-2")
        bad_type["spec"]["containers"] = "none"
        bad_container = make_pod("odd", "u-3", containers={"main": "../../x"})
        pod_cache.take(listed(make_pod("a", "u-1"), bad_uid, bad_type, bad_container))
        assert [p.name for p in pod_cache.pods] == ["a", "odd"]
        assert pod_cache.pods[1].containers[0].cgroup_dir == ""
        assert "uid" in caplog.text

    def test_what_is_known_about_a_pod(self, agent, make_pod) -> None:
        pod_cache = agent().pod_cache
        pod = make_pod("a", "u-1", labels={"koordinator.sh/qosClass": "BE"}, containers={"x": "1", "y": "2"})
        pod["status"]["qosClass"] = ""
        pod["status"]["containerStatuses"][1]["state"] = {"terminated": {"exitCode": 1}}
        pod["status"]["containerStatuses"].pop(0)
        pod_cache.take(listed(pod))
        state = pod_cache.pods[0]
        assert (state.kube_qos, state.qos, state.priority_class) == ("BestEffort", "BE", "koord-batch")
        assert [(c.name, bool(c.cgroup_dir), c.running) for c in state.containers] == [("x", False, False), ("y", True, False)]

    def test_gauges_of_extended_resources(self, agent, make_pod) -> None:
        a = agent()
        limits = {"kubernetes.io/batch-cpu": "2k", "kubernetes.io/batch-memory": "1Gi"}
        a.list(make_pod("a", "u-1", requests={"kubernetes.io/batch-cpu": "1k", "cpu": "1"}, limits=limits))
        export_container_resources(a.metrics, a.pod_cache.pods)
        labels = ("u-1", "a", "default", "containerd://a-main", "main")
        assert a.metrics.container_requests.get("kubernetes.io/batch-cpu", "integer", *labels) == 1000
        assert a.metrics.container_limits.get("kubernetes.io/batch-memory", "byte", *labels) == 1 << 30


@pytest.mark.feature("KLO-SI-02")
class TestKubelet:
    def test_addresses(self, make_node) -> None:
        node = as_node(make_node(port=4242))
        assert kubelet_url(node, KubeletOptions()) == "https://127.0.0.1:4242"
        assert kubelet_url(node, KubeletOptions(insecure=True, read_only_port=7)) == "http://127.0.0.1:7"
        assert kubelet_url(node, KubeletOptions(address_type="Nonsense")) == "https://127.0.0.1:4242"
        with pytest.raises(KubeletError, match="no address of type Hostname"):
            kubelet_url(node, KubeletOptions(address_type="Hostname"))

    def test_failures_name_the_url_and_are_counted(self, kubelet, make_node, make_pod) -> None:
        async def main() -> None:
            metrics = Metrics("n1")
            async with kubelet() as served:
                client = KubeletClient(KubeletOptions(insecure=True, read_only_port=served.port, timeout=1.0), metrics, None)
                node = as_node(make_node())
                served.pods = listed(make_pod("a", "u-1"))
                assert b"u-1" in await client.pods(node)
                served.status = 503
                with pytest.raises(KubeletError, match=r"/pods/: HTTP 503"):
                    await client.pods(node)
                served.status, served.config = 200, {"x": 1}
                assert await client.configz(node) == {"x": 1}
                await client.close()
            client = KubeletClient(KubeletOptions(insecure=True, read_only_port=served.port, timeout=1.0), metrics, None)
            with pytest.raises(KubeletError, match=r"/pods/"):
                await client.pods(node)
            await client.close()
            text = exposed(metrics.internal)
            assert 'koordlet_kubelet_request_duration_seconds_count{code="200",path="/pods/",verb="get"} 1' in text
            assert 'code="503",path="/pods/",verb="get"' in text

        asyncio.run(main())

    @pytest.mark.feature("BEY-SEC-01")
    @pytest.mark.parametrize("known_by", ["cluster", "file", "expired", "rotated", "flag", "nobody", "other name", "other file"])
    def test_the_token_goes_to_the_kubelet_that_is_known(self, known_by, kubelet, make_node, make_pod, tmp_path) -> None:
        ca, other = tmp_path / "ca.crt", ensure(tmp_path / "other", "127.0.0.1").cert_file.read_bytes()
        ca_pem, served_pem, key_pem = certificate("elsewhere" if known_by == "other name" else "127.0.0.1", expired=known_by == "expired")
        ca.write_bytes(ca_pem)
        (tmp_path / "served.pem").write_bytes(served_pem + key_pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "served.pem")
        machine = Machine(str(tmp_path), str(tmp_path), str(ca) if known_by == "flag" else "")
        (tmp_path / "pki").mkdir()
        # behind the certificate that is served stand others, which are not trusted for that
        (tmp_path / "pki/kubelet.crt").write_bytes(
            {"file": served_pem, "expired": served_pem, "other file": other + ca_pem}.get(known_by, b"")
        )
        if known_by == "rotated":
            (tmp_path / "pki/kubelet-server-current.pem").write_bytes(key_pem + served_pem)
        trusted = Pem(data=ca_pem) if known_by in ("cluster", "other name") else None
        config = ClientConfig("https://nowhere", credentials=StaticHeader.bearer("secret"), ca=trusted)

        async def main() -> None:
            async with kubelet(context) as served:
                served.pods = listed(make_pod("a", "u-1"))
                client = KubeletClient(KubeletOptions(), Metrics("n1"), config, machine)
                if known_by in ("cluster", "file", "expired", "rotated", "flag"):
                    assert b"u-1" in await client.pods(as_node(make_node(port=served.port)))
                    assert served.headers[0]["Authorization"] == "Bearer secret"
                else:
                    with pytest.raises(KubeletError, match=r"the certificate there is not known.*--kubelet-ca-file"):
                        await client.pods(as_node(make_node(port=served.port)))
                    assert served.headers == []
                await client.close()

        asyncio.run(main())

    @pytest.mark.feature("BEY-SEC-01")
    def test_the_token_stays_on_this_machine(self, make_node, tmp_path) -> None:
        net = tmp_path / "1/net"
        net.mkdir(parents=True)
        (net / "fib_trie").write_text(
            "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 192.0.2.7\n        /32 host LOCAL\n     |-- 192.0.2.0\n        /24 link UNICAST\n"
        )
        (net / "if_inet6").write_text("20010db8000000000000000000000007 02 40 00 80 eth0\n")
        machine = Machine(str(tmp_path), str(tmp_path))
        assert {"192.0.2.7", "2001:db8::7"} <= machine.addresses()
        assert [machine.is_here(a) for a in ("192.0.2.7", "192.0.2.0", "2001:db8::7", "127.0.0.3", "::1", "x")] == [
            True,
            False,
            True,
            True,
            True,
            False,
        ]
        node = make_node()
        node["status"]["addresses"] = [{"type": "InternalIP", "address": "198.51.100.9"}, {"type": "Hostname", "address": "localhost"}]

        async def main() -> None:
            client = KubeletClient(KubeletOptions(timeout=5.0), Metrics("n1"), None, machine)
            with pytest.raises(KubeletError, match=r"198.51.100.9 is no address of this machine .*192.0.2.7.*the token is not sent there"):
                await client.pods(as_node(node))
            with pytest.raises(KubeletError, match=r"refused|not known|Cannot connect"):
                await KubeletClient(KubeletOptions("Hostname"), Metrics("n1"), None, machine).pods(as_node(node))
            await client.close()

        asyncio.run(main())

    def test_the_informer_survives_a_kubelet_that_comes_late(self, agent, kubelet, make_node, make_pod, caplog) -> None:
        async def main() -> None:
            a = agent()
            changes: list[int] = []
            async with kubelet() as served:
                served.status = 500
                client = KubeletClient(KubeletOptions(insecure=True, read_only_port=served.port), a.metrics, None)
                informer = PodInformer(
                    a.pod_cache, client, lambda: as_node(make_node()), 30.0, lambda: changes.append(len(a.pod_cache.pods))
                )
                stopping = asyncio.Event()
                task = asyncio.create_task(informer.run(stopping))
                await asyncio.sleep(0.2)
                assert not a.pod_cache.synced
                served.status, served.pods = 200, listed(make_pod("a", "u-1"))
                informer.trigger()
                for _ in patience.tries(100):
                    await asyncio.sleep(0.02)
                    if changes:
                        break
                assert changes == [1]
                stopping.set()
                await asyncio.wait_for(task, patience.seconds(5))
                await client.close()

        asyncio.run(main())
        assert len([r for r in caplog.records if "is kept" in r.getMessage()]) == 1

    @pytest.mark.parametrize("insecure", [True, False])
    @pytest.mark.parametrize("address", ["10.0.0.1:10250", "::g", "[", "a..b", "ﬀ", "x\ny", "a" * 70 + ".example"])
    def test_an_address_that_is_none_keeps_the_last_list(self, agent, make_node, make_pod, caplog, address, insecure) -> None:
        """Whatever the Node's status says: the agent goes on, and says so."""

        async def main() -> None:
            a = agent()
            a.pod_cache.take(listed(make_pod("a", "u-1")))
            node = make_node()
            node["status"]["addresses"] = [{"type": "InternalIP", "address": address}]
            client = KubeletClient(KubeletOptions(insecure=insecure), a.metrics, None)
            informer = PodInformer(a.pod_cache, client, lambda: as_node(node), 30.0, lambda: None)
            assert not await informer.fetch()
            assert [pod.uid for pod in a.pod_cache.pods] == ["u-1"]
            assert "the last pod list is kept" in caplog.text
            await client.close()

        asyncio.run(main())

    @pytest.mark.parametrize("uid", ["u\0", "..", "a/b", ""])
    def test_a_uid_that_names_no_directory_costs_that_pod_alone(self, agent, make_pod, uid) -> None:
        cache = agent().pod_cache
        cache.take(listed(make_pod("a", "u-1"), make_pod("b", uid)))
        assert [pod.uid for pod in cache.pods] == ["u-1"]
        for _ in range(5):
            cache.take(listed())

    def test_a_container_id_that_names_no_directory_costs_that_container_alone(self, agent, make_pod) -> None:
        cache = agent().pod_cache
        pod = make_pod("a", "u-1")
        pod["status"]["containerStatuses"][0]["containerID"] = "containerd://x\0"
        cache.take(listed(pod))
        assert [container.cgroup_dir for container in cache.pods[0].containers] == [""]

    @pytest.mark.parametrize("port", [70000, -5])
    def test_a_port_that_is_none_keeps_the_last_list(self, agent, make_node, port) -> None:
        async def main() -> None:
            client = KubeletClient(KubeletOptions(), agent().metrics, None)
            with pytest.raises(KubeletError):
                await client.pods(as_node(make_node(port=port)))
            await client.close()

        asyncio.run(main())

    def test_of_two_requests_the_later_answer_stays(self, agent, make_node, make_pod) -> None:
        """Hooks ask in between, and a kubelet that is busy answers them in any order."""

        class Busy:
            def __init__(self) -> None:
                self.bodies = [listed(make_pod("a", "u-1")), listed(make_pod("a", "u-1"), make_pod("b", "u-2"))]
                self.asked, self.waiting = 0, asyncio.Event()

            async def pods(self, node: Any) -> bytes:
                self.asked += 1
                if self.asked == 1:
                    await self.waiting.wait()
                    return self.bodies[0]
                return self.bodies[1]

        async def main() -> None:
            a, kubelet = agent(), Busy()
            informer = PodInformer(a.pod_cache, kubelet, lambda: as_node(make_node()), 30.0, lambda: None)
            first = asyncio.create_task(informer.fetch())
            await asyncio.sleep(0)
            assert await informer.fetch(), "it does not wait for the first: hooks have a second"
            assert not first.done()
            kubelet.waiting.set()
            assert await first
            assert [pod.uid for pod in a.pod_cache.pods] == ["u-1", "u-2"]

        asyncio.run(main())

    def test_after_a_standstill_the_kubelet_is_asked_before_anybody_acts(self, agent, kubelet, make_node, make_pod) -> None:
        async def main() -> None:
            a = agent()
            async with kubelet() as served:
                served.pods = listed(make_pod("a", "u-1"))
                client = KubeletClient(KubeletOptions(insecure=True, read_only_port=served.port), a.metrics, None)
                informer = PodInformer(a.pod_cache, client, lambda: as_node(make_node()), 30.0, lambda: None)
                await informer.fetch()
                at = seams.boot_time()
                assert informer.current(at - 6)
                assert informer.current(at - 2), "a slow round is no standstill"
                assert not informer.current(at + 20), "it stood still: what it knows is old"
                assert not informer.current(at + 21)
                assert informer.current(at + 23), "a kubelet that does not answer is not waited for"

                informer = PodInformer(a.pod_cache, client, lambda: as_node(make_node()), 30.0, lambda: None)
                assert informer.current(at - 30), "the first look is no standstill"
                assert not informer.current(at - 10)
                await informer.fetch()
                assert informer.current(at - 9), "the kubelet answered since"
                await client.close()

        asyncio.run(main())


@pytest.mark.feature("KLO-SI-08")
class TestCallbacks:
    def test_coalesced_ordered_and_isolated(self, caplog) -> None:
        async def main() -> list[str]:
            callbacks = Callbacks()
            seen: list[str] = []

            async def slow() -> None:
                seen.append("slow")
                await asyncio.sleep(0.02)

            def broken() -> None:
                raise RuntimeError("boom")

            callbacks.register(StateKind.ALL_PODS, "broken", broken)
            callbacks.register(StateKind.ALL_PODS, "slow", slow)
            callbacks.emit(StateKind.ALL_PODS)
            task = asyncio.create_task(callbacks.run(StateKind.ALL_PODS))
            await asyncio.sleep(0.01)
            for _ in range(5):
                callbacks.emit(StateKind.ALL_PODS)
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(ValueError, match="twice"):
                callbacks.register(StateKind.ALL_PODS, "slow", slow)
            return seen

        assert asyncio.run(main()) == ["slow", "slow"]
        assert "boom" in caplog.text
