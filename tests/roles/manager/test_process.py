"""Leadership, certificates, registration, readiness, flags."""

import asyncio
import base64
import json
import os
import signal
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from koord.api.kinds import (
    ELASTICQUOTAPROFILES,
    ELASTICQUOTAS,
    EVENTS,
    LEASES,
    MUTATINGWEBHOOKCONFIGURATIONS,
    NODEMETRICS,
    NODES,
    NODESLOS,
    RESOURCESLICES,
    SECRETS,
    VALIDATINGWEBHOOKCONFIGURATIONS,
)
from koord.api.objects import Device, convert
from koord.apiserver.testing import running_server
from koord.kube.errors import ApiError, Forbidden, Invalid, NotFound
from koord.kube.patch import copy_json
from roles.manager.controllers import registry
from roles.manager.options import CONTROLLERS, WebhookOptions
from roles.manager.slices.slices import slices_of
from roles.manager.webhooks import certs, lifecycle, registration
from roles.manager.webhooks.registry import WEBHOOKS
from tests.support import patience
from tests.support.processes import free_port

MUTATING, VALIDATING = "koordinator-mutating-webhook-configuration", "koordinator-validating-webhook-configuration"
UNREACHABLE = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
    "current-context": "c",
}
LEASE, RENEW = patience.lease()
GPU = {"type": "gpu", "minor": 0, "health": True, "resources": {"koordinator.sh/gpu-core": "100"}}
FAST = {"enable_leader_election": True, "lease_duration": LEASE, "renew_deadline": RENEW, "retry_period": 0.2}


@pytest.mark.feature("MGR-CFG-01")
@pytest.mark.feature("MGR-PROC-01")
def test_who_comes_to_lead_tells_of_a_configuration_that_was_bad_before(bed, make):
    async def test(bed):
        await bed.create(make.config(colocation_config="{", cpu_burst_config="["))
        await bed.start(**FAST)

        async def told():
            return {event["reason"] for event in (await bed.client.list(EVENTS, "koordinator-system")).items if event["type"] == "Warning"}

        async def both():
            return {"ColocationCfgUnmarshalFailed", "SLOCfgUnmarshalFailed"} <= await told()

        await bed.until(both)

    bed(test)


@pytest.mark.feature("MGR-PROC-01")
def test_one_leader_writes_and_stops_at_once_when_the_lease_is_lost(bed, make):
    async def test(bed):
        await bed.create(make.config(colocation_config={"enable": True}), make.node("n1"))
        first = await bed.start(**FAST)
        await bed.until(lambda: bed.get("NodeMetric", "n1"))
        second = await bed.start(**FAST)
        assert "koordinator_manager_is_leader 1.0" in (await first.get("/metrics"))[1]
        assert "koordinator_manager_is_leader 0.0" in (await second.get("/metrics"))[1]
        # webhooks are served by both
        for replica in (first, second):
            assert (await replica.review("/validate-pod", make.pod("w")))["allowed"]
        thief = {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 3600}}
        await bed.client.patch(LEASES, "koordinator-manager", thief, "koordinator-system")

        async def ended():
            return first.life.stopping.is_set()

        await bed.until(ended)
        assert first.life.failure
        await bed.create(make.node("n2"))
        await asyncio.sleep(0.5)
        assert [m["metadata"]["name"] for m in (await bed.client.list(NODEMETRICS)).items] == ["n1"]
        # the thief gives it back: the other replica takes over
        await bed.client.patch(LEASES, "koordinator-manager", {"spec": {"holderIdentity": ""}}, "koordinator-system")
        await bed.until(lambda: bed.get("NodeMetric", "n2"))

    bed(test)


@pytest.mark.feature("MGR-PROC-01")
def test_a_standby_keeps_no_keys_and_looks_at_everything_when_it_leads(bed, make):
    """Nodes come and go for months while another replica leads."""

    async def test(bed):
        lease = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": {"name": "koordinator-manager"}}
        held = {"holderIdentity": "other", "leaseDurationSeconds": 3600, "renewTime": "2100-01-01T00:00:00.000000Z"}
        await bed.client.create(LEASES, {**lease, "spec": held}, "koordinator-system")
        await bed.create(make.config(colocation_config={"enable": True}), *(make.node(f"n{number}") for number in range(5)))
        gates = "ColocationProfileController=true,Recommender=true,AbnormalNodes=true,DeviceResourceSlices=true"
        manager = await bed.start(gates=gates, **FAST)
        app = manager.app
        controllers = {controller.name: controller for controller in app.controllers}
        assert len(controllers) == 8
        for number in range(4):
            await bed.client.delete(NODES, f"n{number}")
        orphan = {"apiVersion": NODESLOS.api_version, "kind": "NodeSLO", "metadata": {"name": "gone"}, "spec": {}}
        slices = slices_of(convert({"metadata": {"name": "gone", "uid": "u"}, "spec": {"devices": [GPU]}}, Device), 1)
        meta = {"name": "p", "namespace": "default"}
        tree = {"quotaName": "p-root", "nodeSelector": {}, "resourceRatio": "0.5"}
        profile = {"apiVersion": ELASTICQUOTAPROFILES.api_version, "kind": "ElasticQuotaProfile", "metadata": meta, "spec": tree}
        await bed.create(orphan, *slices, profile)

        async def seen():
            node_slos, profiles = app.state.node_slos, controllers["quotaprofile"].profiles
            return len(app.state.nodes) == len(node_slos) == len(profiles) == len(controllers["deviceslices"].slices) == 1

        await bed.until(seen)
        for controller in app.controllers:
            for queue in controller.queues:
                assert (list(queue._ready), queue._since, queue._timers) == ([], {}, {}), controller.name
        await bed.client.patch(LEASES, "koordinator-manager", {"spec": {"holderIdentity": ""}}, "koordinator-system")
        await bed.until(lambda: bed.get("NodeMetric", "n4"))
        await bed.until(lambda: bed.client.get(ELASTICQUOTAS, "p-root", "default"))

        async def swept():
            left = [await bed.client.list(kind) for kind in (NODESLOS, RESOURCESLICES)]
            return [item["metadata"]["name"] for found in left for item in found.items] == ["n4"]

        await bed.until(swept)

    bed(test)


@pytest.mark.feature("MGR-WH-02")
@pytest.mark.feature("MGR-WH-03")
@pytest.mark.feature("MGR-WH-04")
def test_replicas_share_a_secret_and_register_themselves(bed, make):
    async def test(bed):
        replicas = [await bed.start() for _ in range(2)]
        secret = await bed.client.get(SECRETS, "koordinator-webhook-certs", "koordinator-system")
        assert set(certs.FILES) <= set(secret["data"])
        for replica in replicas:

            async def ready(replica=replica):
                return (await replica.get("/readyz"))[0] == 200

            await bed.until(ready)
            folder = replica.app.webhooks.folder.path
            assert not (folder / "ca-key.pem").exists(), "whoever reads a replica's files could sign for all"
            for name in set(certs.FILES) - {"ca-key.pem"}:
                assert base64.b64encode((replica.app.webhooks.folder.path / name).read_bytes()).decode() == secret["data"][name]

        async def configured():
            return await bed.client.get(MUTATINGWEBHOOKCONFIGURATIONS, MUTATING), await bed.client.get(
                VALIDATINGWEBHOOKCONFIGURATIONS, VALIDATING
            )

        mutating, validating = await bed.until(configured)
        entries = {entry["name"]: entry for entry in (*mutating["webhooks"], *validating["webhooks"])}
        # handlers behind closed gates are not registered
        assert set(entries) == {
            f"{name}.koordinator.sh"
            for name in (
                "mpod-create",
                "mpod-update",
                "melasticquota",
                "vpod",
                "vpodresize",
                "vpodbinding",
                "vpodeviction",
                "velasticquota",
            )
        }
        client = entries["vpod.koordinator.sh"]["clientConfig"]
        assert client["service"]["path"] == "/validate-pod"
        assert client["caBundle"] == secret["data"]["ca-cert.pem"]
        assert entries["vpod.koordinator.sh"]["failurePolicy"] == "Ignore"
        # somebody empties the configuration: it comes back from its template
        await bed.client.patch(MUTATINGWEBHOOKCONFIGURATIONS, MUTATING, {"webhooks": []})

        async def mended():
            return len((await bed.client.get(MUTATINGWEBHOOKCONFIGURATIONS, MUTATING))["webhooks"]) == 3

        await bed.until(mended)

    bed(test)


@pytest.mark.feature("MGR-WH-03")
def test_an_upgrade_registers_what_is_new_and_keeps_what_the_user_changed():
    active = [webhook for webhook in WEBHOOKS if webhook.mutating]
    options = WebhookOptions()
    fresh = registration.desired({"metadata": {"name": "m"}}, True, active, options, 9876, b"ca")
    names = [entry["name"] for entry in fresh["webhooks"]]
    older = [{**entry, "timeoutSeconds": 7} for entry in registration.default_entries(True)][
        1:-1
    ]  # a version without the first and the last
    current = {**fresh, "metadata": {"name": "m", "annotations": {"template": json.dumps(older), "removed-webhooks": f"{names[-1]}, x"}}}
    upgraded = registration.desired(current, True, active, options, 9876, b"ca")
    found = {entry["name"]: entry["timeoutSeconds"] for entry in upgraded["webhooks"]}
    assert found == {**dict.fromkeys(names[1:-1], 7), names[0]: 10}
    assert registration.desired(upgraded, True, active, options, 9876, b"ca") == upgraded
    odd = [
        json.dumps([{"name": "x", **part}]) for part in ({"name": 1}, {"clientConfig": "x"}, {"rules": ["pods"]}, {"matchConditions": [1]})
    ]
    for broken in ("[1]", "{}", "[", *odd):
        with pytest.raises(ValueError, match="annotation template of m"):
            registration.desired({"metadata": {"name": "m", "annotations": {"template": broken}}}, True, active, options, 9876, b"ca")


@pytest.mark.feature("MGR-WH-03")
@pytest.mark.feature("MGR-WH-04")
def test_a_typo_in_a_template_stops_nobody(bed, make, monkeypatch):
    """What is registered stays and gets new certificates; replicas that answer are ready, and new ones start."""
    monkeypatch.setattr(lifecycle, "PROBE_PERIOD", 0.05)

    async def test(bed):
        replicas = [await bed.start() for _ in range(2)]

        async def ready():
            return {(await replica.get("/readyz"))[0] for replica in replicas} == {200}

        async def authorities():
            found = [await bed.client.get(MUTATINGWEBHOOKCONFIGURATIONS, MUTATING)]
            found.append(await bed.client.get(VALIDATINGWEBHOOKCONFIGURATIONS, VALIDATING))
            assert [len(one["webhooks"]) for one in found] == [3, 5]
            return {entry["clientConfig"]["caBundle"] for one in found for entry in one["webhooks"]}

        await bed.until(ready)
        before = await authorities()
        broken = {"metadata": {"annotations": {registration.TEMPLATE: "[{"}}}
        await bed.client.patch(MUTATINGWEBHOOKCONFIGURATIONS, MUTATING, broken)

        async def told():
            reasons = {(event["reason"], event["regarding"]["name"]) for event in (await bed.client.list(EVENTS)).items}
            return ("InvalidWebhookTemplate", MUTATING) in reasons

        await bed.until(told, 5)
        aged = certs.renew(None, replicas[0].app.options.webhook.dns_name, datetime.now(UTC) - timedelta(days=3650 * 3 // 4))
        data = {name: base64.b64encode(content).decode() for name, content in aged.files().items()}
        await bed.client.patch(SECRETS, "koordinator-webhook-certs", {"data": data}, "koordinator-system")

        async def renewed():
            return not before & (found := await authorities()) and len(found) == 1

        await bed.until(renewed)
        replicas.append(await bed.start())
        await bed.until(ready)
        assert (await replicas[0].review("/validate-pod", make.pod("w")))["allowed"]
        kept = (await bed.client.get(MUTATINGWEBHOOKCONFIGURATIONS, MUTATING))["metadata"]["annotations"]
        assert kept[registration.TEMPLATE] == "[{"

    bed(test)


@pytest.mark.feature("MGR-WH-03")
def test_configurations_are_kept_each_for_itself():
    """One whose template the API server refuses keeps its list, in any namespace; one that may not be written holds up no other."""

    class Api:
        def __init__(self):
            self.objects, self.locked = {}, ""

        async def get(self, kind, name):
            if name not in self.objects:
                raise NotFound(404, "NotFound", name)
            return copy_json(self.objects[name])

        async def create(self, kind, obj):
            self.objects[obj["metadata"]["name"]] = copy_json(obj)
            return obj

        async def replace(self, kind, obj):
            if obj["metadata"]["name"] == self.locked:
                raise Forbidden(403, "Forbidden", "an admission policy guards it")
            if any(entry["failurePolicy"] not in ("Fail", "Ignore") for entry in obj["webhooks"]):
                raise Invalid(422, "Invalid", "failurePolicy")
            return await self.create(kind, obj)

    async def main():
        api, options = Api(), WebhookOptions(namespace="a-koordinator-system")
        assert await registration.sync(api, (), options, 0, b"", create=False) == []
        assert api.objects == {}
        assert await registration.sync(api, WEBHOOKS, options, 9876, b"ca") == []
        bad = registration.default_entries(False)
        bad[-1]["failurePolicy"] = "Fial"
        api.objects[VALIDATING]["metadata"]["annotations"][registration.TEMPLATE] = json.dumps(bad)
        listed = api.objects[VALIDATING]["webhooks"]
        ((about, mistake),) = await registration.sync(api, WEBHOOKS, options, 9876, b"ca")
        assert (about.name, listed) == (VALIDATING, api.objects[VALIDATING]["webhooks"])
        assert mistake.startswith(f"annotation template of {VALIDATING} is refused")
        assert json.loads(api.objects[VALIDATING]["metadata"]["annotations"][registration.TEMPLATE]) == bad
        api.locked = MUTATING
        with pytest.raises(Forbidden):
            await registration.sync(api, WEBHOOKS, options, 9876, b"new")
        bundles = {name: {entry["clientConfig"]["caBundle"] for entry in one["webhooks"]} for name, one in api.objects.items()}
        assert bundles == {MUTATING: {base64.b64encode(b"ca").decode()}, VALIDATING: {base64.b64encode(b"new").decode()}}

    asyncio.run(main())


@pytest.mark.feature("MGR-WH-02")
def test_rotation_reaches_every_replica_without_a_restart(bed, make):
    async def test(bed):
        async def files():
            data = (await bed.client.get(SECRETS, "koordinator-webhook-certs", "koordinator-system"))["data"]
            return {name: base64.b64decode(data[name]) for name in certs.FILES}

        replicas = [await bed.start() for _ in range(2)]
        old = certs.Certs.from_files(await files())
        long_ago = datetime.now(UTC) - timedelta(days=3650 * 3 // 4)
        aged = certs.renew(None, replicas[0].app.options.webhook.dns_name, long_ago)
        data = {name: base64.b64encode(content).decode() for name, content in aged.files().items()}
        await bed.client.patch(SECRETS, "koordinator-webhook-certs", {"data": data}, "koordinator-system")

        async def renewed():
            served = []
            for replica in replicas:
                pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", replica.port))
                served.append(x509.load_pem_x509_certificate(pem.encode()).serial_number)
            kept = {x509.load_pem_x509_certificate(one.cert).serial_number for one in (old, aged)}
            return served[0] == served[1] and served[0] not in kept

        await bed.until(renewed, 20)
        bundle = base64.b64decode((await bed.client.get(SECRETS, "koordinator-webhook-certs", "koordinator-system"))["data"]["ca-cert.pem"])
        # the former CA stays trusted while a replica may still serve with its certificate
        assert len(x509.load_pem_x509_certificates(bundle)) == 2
        assert (await replicas[0].review("/validate-pod", make.pod("w")))["allowed"]

    bed(test)


@pytest.mark.feature("MGR-WH-02")
def test_a_secret_that_lost_its_server_certificate_keeps_its_ca(bed):
    async def test(bed):
        await bed.start()
        name, namespace = "koordinator-webhook-certs", "koordinator-system"
        before = (await bed.client.get(SECRETS, name, namespace))["data"]
        await bed.client.patch(SECRETS, name, {"data": {"cert.pem": None, "tls.crt": None}}, namespace)

        async def whole():
            data = (await bed.client.get(SECRETS, name, namespace))["data"]
            return data if data.get("cert.pem") and data["cert.pem"] == data["tls.crt"] != before["cert.pem"] else None

        after = await bed.until(whole)
        assert [after[part] for part in ("ca-key.pem", "ca-cert.pem")] == [before[part] for part in ("ca-key.pem", "ca-cert.pem")]
        assert after["key.pem"] == after["tls.key"] != before["key.pem"]

    bed(test)


@pytest.mark.feature("MGR-WH-02")
def test_certificates_are_judged_as_specified():
    name, now = "koordinator-webhook-service.koordinator-system.svc", datetime(2026, 1, 1, tzinfo=UTC)
    made = certs.renew(None, name, now)
    assert certs.problem(made, name, now) == ""
    # with RSA a handshake costs fifty times as much, and API servers open hundreds of connections at once
    assert isinstance(serialization.load_pem_private_key(made.key, None), ec.EllipticCurvePrivateKey)
    assert certs.problem(made, name, now + timedelta(days=59)) == ""
    assert "it ends at" in certs.problem(made, name, now + timedelta(days=61))
    assert "the CA ends at" in certs.problem(certs.renew(made, name, now + timedelta(days=2400)), name, now + timedelta(days=2434))
    # a clock that is behind is no reason to replace what all other replicas use
    assert certs.problem(made, name, now - timedelta(hours=3)) == ""
    behind = certs.renew(made, "other.svc", now - timedelta(hours=3))
    assert behind.ca_cert == made.ca_cert
    assert certs.problem(behind, "other.svc", now) == ""
    encrypted = serialization.load_pem_private_key(made.key, None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    assert "cannot be read" in certs.problem(certs.Certs(made.ca_key, made.ca_cert, encrypted, made.cert), name, now)
    assert certs.renew(certs.Certs(encrypted, made.ca_cert, made.key, made.cert), name, now).ca_cert != made.ca_cert
    # secp112r1, which no library of today signs with
    odd = b"""-----BEGIN EC PRIVATE KEY-----
MD4CAQEEDqltwSua+9ZxeZE6qf7AoAcGBSuBBAAGoSADHgAEe449BI7GkhYbcEOY
QEBZihrmfubfVQyifpqZbw==
-----END EC PRIVATE KEY-----
"""
    assert "cannot be read" in certs.problem(certs.Certs(made.ca_key, made.ca_cert, odd, made.cert), name, now)
    assert certs.renew(certs.Certs(odd, made.ca_cert, made.key, made.cert), name, now).ca_cert != made.ca_cert
    assert "is not for other.svc" in certs.problem(made, "other.svc", now)
    other = certs.renew(None, name, now)
    assert "do not belong together" in certs.problem(certs.Certs(made.ca_key, made.ca_cert, other.key, made.cert), name, now)
    assert "not signed" in certs.problem(certs.Certs(other.ca_key, other.ca_cert, made.key, made.cert), name, now)
    assert "cannot be read" in certs.problem(certs.Certs(b"x", b"x", b"x", b"x"), name, now)
    same_ca = certs.renew(made, "other.svc", now + timedelta(days=10))
    assert (same_ca.ca_key, same_ca.ca_cert) == (made.ca_key, made.ca_cert)
    late = certs.renew(made, name, now + timedelta(days=3000))
    assert late.ca_key != made.ca_key
    assert late.ca_cert.endswith(made.ca_cert)
    assert certs.problem(certs.renew(None, "10.0.0.7", now), "10.0.0.7", now) == ""


@pytest.mark.feature("MGR-WH-03")
def test_with_the_gate_off_nobody_waits_for_webhooks_and_with_it_on_they_are_back(bed):
    def quota(name):
        meta = {"name": name, "namespace": "default"}
        return {
            "apiVersion": ELASTICQUOTAS.api_version,
            "kind": "ElasticQuota",
            "metadata": meta,
            "spec": {"min": {"cpu": "1"}, "max": {"cpu": "1"}},
        }

    async def test(bed):
        async def look():
            kinds = ((MUTATINGWEBHOOKCONFIGURATIONS, MUTATING), (VALIDATINGWEBHOOKCONFIGURATIONS, VALIDATING))
            found = [await bed.client.get(kind, name) for kind, name in kinds]
            return [one.get("webhooks") or [] for one in found], [one["metadata"]["annotations"][registration.TEMPLATE] for one in found]

        first = await bed.start(host="127.0.0.1")

        async def full():
            return all((await look())[0])

        await bed.until(full)
        registered, templates = await look()
        first.life.stop()
        await first.life.finish()
        with pytest.raises(ApiError, match="failed calling webhook"):
            await bed.create(quota("nobody-answers"))
        elsewhere = {"service": {"name": "their-webhooks", "namespace": "theirs", "path": "/validate-pod"}}
        found = await bed.client.get(VALIDATINGWEBHOOKCONFIGURATIONS, VALIDATING)
        found["webhooks"].append(
            {**found["webhooks"][0], "name": "theirs.example.org", "failurePolicy": "Ignore", "clientConfig": elsewhere}
        )
        await bed.client.replace(VALIDATINGWEBHOOKCONFIGURATIONS, found)
        second = await bed.start(host="127.0.0.1", gates="WebhookFramework=false")

        async def gone():
            return [[entry["name"] for entry in entries] for entries in (await look())[0]] == [[], ["theirs.example.org"]]

        await bed.until(gone)
        assert (await look())[1] == templates
        await bed.create(quota("off"))
        second.life.stop()
        await second.life.finish()
        await bed.start(host="127.0.0.1")

        async def back():
            lists = (await look())[0]
            return [len(entries) for entries in lists] == [len(entries) for entries in registered]

        await bed.until(back)

    bed(test)


@pytest.mark.feature("MGR-WH-03")
def test_the_api_server_calls_us_by_url(bed, make):
    profile = {
        "apiVersion": "config.koordinator.sh/v1alpha1",
        "kind": "ClusterColocationProfile",
        "metadata": {"name": "p"},
        "spec": {"selector": {"matchLabels": {"app": "etl"}}, "qosClass": "BE", "priorityClassName": "koord-batch"},
    }

    async def test(bed):
        await bed.create(profile, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}})
        await bed.start(host="127.0.0.1")

        async def registered():
            found = await bed.client.get(MUTATINGWEBHOOKCONFIGURATIONS, MUTATING)
            return found["webhooks"][0]["clientConfig"].get("url", "").startswith("https://127.0.0.1:")

        await bed.until(registered)

        async def translated():
            name = f"w{os.urandom(3).hex()}"
            await bed.create(make.pod(name, namespace="lab", labels={"app": "etl"}, requests={"cpu": "1500m"}))
            found = await bed.get("Pod", name, "lab")
            return (
                found["spec"]["containers"][0]["resources"]["requests"] == {"kubernetes.io/batch-cpu": "1500"}
                and found["spec"]["priority"] == 5000
            )

        await bed.until(translated)

    bed(test)


def koord_manager(*flags, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "koord.cli", "manager", *flags],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.feature("MGR-PROC-01")
def test_every_controller_can_be_named():
    assert tuple(name for name, *_ in registry.CONTROLLERS) == CONTROLLERS


@pytest.mark.feature("MGR-PROC-01")
@pytest.mark.feature("MGR-FG-01")
@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        (["--feature-gates=PodMutatingWebook=true"], {}, "did you mean 'PodMutatingWebhook'"),
        (["--controllers=*,-nodeslos"], {}, "did you mean 'nodeslo'"),
        (["--noderesource-plugins=Batch"], {}, "--noderesource-plugins"),
        (["--metric-addr=:1"], {}, "did you mean --metrics-addr"),
        (["extra"], {}, "unexpected argument"),
        (["--quota-update-max-retries=-1"], {}, "--quota-update-max-retries: must not be negative"),
        (["--colocation-profile-reconcile-interval=0"], {}, "--colocation-profile-reconcile-interval: must be more than 0"),
        (["--webhook-client-ca-file=/none"], {}, "--webhook-client-ca-file: /none has no certificates"),
        ([], {"WEBHOOK_PORT": "http"}, "WEBHOOK_PORT"),
        ([], {"WEBHOOK_FAILURE_POLICY": "pods=Maybe"}, "WEBHOOK_FAILURE_POLICY"),
        ([], {"WEBHOOK_TIMEOUT_SECONDS": "31"}, "WEBHOOK_TIMEOUT_SECONDS"),
        ([], {"WEBHOOK_CERT_WRITER": "nfs"}, "WEBHOOK_CERT_WRITER"),
    ],
)
def test_bad_flags_end_with_one_line(tmp_path, flags, environment, words):
    kubeconfig = tmp_path / "k"
    kubeconfig.write_text(json.dumps(UNREACHABLE))
    process = koord_manager(f"--kubeconfig={kubeconfig}", *flags, **environment)
    _, stderr = process.communicate(timeout=patience.seconds(20))
    assert process.returncode != 0
    assert words in stderr
    assert "Traceback" not in stderr


@pytest.mark.feature("MGR-PROC-01")
@pytest.mark.feature("MGR-MET-01")
def test_the_process_serves_and_ends_in_order(tmp_path, make):
    import aiohttp

    async def main():
        async with running_server(crds=True) as server, server.client() as client:
            await client.create(NODES, make.node("n1"))
            metrics, health, webhook = free_port(), free_port(), free_port()
            flags = [
                f"--kubeconfig={server.kubeconfig_path}", f"--metrics-addr=127.0.0.1:{metrics}", f"--health-probe-addr=127.0.0.1:{health}",
                "--enable-pprof=false", "--enable-leader-election=false", "--sync-period=0",
            ]  # fmt: skip
            process = koord_manager(*flags, WEBHOOK_PORT=str(webhook), WEBHOOK_CERT_DIR=str(tmp_path / "certs"), POD_NAMESPACE="default")
            try:
                async with aiohttp.ClientSession() as session:

                    async def get(port, path):
                        try:
                            async with session.get(f"http://127.0.0.1:{port}{path}") as response:
                                return response.status, await response.text()
                        except aiohttp.ClientError:
                            return 0, ""

                    for _ in patience.tries(600):
                        if (await get(health, "/healthz"))[0] == 200:
                            break
                        await asyncio.sleep(0.05)
                    else:
                        pytest.fail("never healthy")
                    for _ in patience.tries(400):
                        status, text = await get(metrics, "/all-metrics")
                        if 'slo_controller_nodemetric_reconcile_count{reason="createNodeMetric",status="succeeded"} 1' in text:
                            break
                        await asyncio.sleep(0.05)
                    assert status == 200
                    assert 'slo_controller_nodeslo_reconcile_count{reason="createNodeSLO",status="succeeded"} 1' in text
                    assert "koordinator_manager_is_leader 1" in text
                    assert "rest_client_requests_total" in text
            finally:
                process.send_signal(signal.SIGTERM)
                _, stderr = await asyncio.to_thread(process.communicate, timeout=patience.seconds(10))
            assert process.returncode == 0, stderr
            assert "Traceback" not in stderr

    asyncio.run(main())
