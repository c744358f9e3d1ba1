"""Protobuf request bodies: what typed clients send is understood, what is broken or newer is refused with a reason."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.apiserver.protobuf.decode import ProtobufError, decode
from tests.support import patience
from tests.support.processes import free_port, process


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def envelope(version: str, kind: str, raw: bytes) -> bytes:
    return b"k8s\x00" + field(1, field(1, version.encode()) + field(2, kind.encode())) + field(2, raw)


def test_a_pod_with_inline_structs_quantities_and_maps() -> None:
    meta = field(1, b"web") + field(8, b"") + field(11, field(1, b"app") + field(2, b"shop"))
    volume = field(1, b"v") + field(2, field(2, b""))  # volumeSource.emptyDir
    requests = field(2, field(1, b"cpu") + field(2, field(1, b"500m")))
    probe = field(1, field(2, field(1, b"/") + field(2, field(1, 0) + field(2, 8080)))) + field(3, 5)  # handler.httpGet
    container = field(1, b"c") + field(2, b"image") + field(8, requests) + field(10, probe)
    spec = field(1, volume) + field(2, container) + field(4, 30)
    assert decode(envelope("v1", "Pod", field(1, meta) + field(2, spec))) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "labels": {"app": "shop"}},
        "spec": {
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [
                {
                    "name": "c",
                    "image": "image",
                    "resources": {"requests": {"cpu": "500m"}},
                    "livenessProbe": {"httpGet": {"path": "/", "port": 8080}, "timeoutSeconds": 5},
                }
            ],
            "terminationGracePeriodSeconds": 30,
        },
    }


def test_members_are_called_as_in_json() -> None:
    meta = field(1, b"w")
    config = field(1, meta) + field(2, field(1, b"a.b.c"))
    assert decode(envelope("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", config))["webhooks"] == [{"name": "a.b.c"}]
    spec = field(3, field(1, b"true")) + field(7, field(1, b"v") + field(2, b"1"))
    found = decode(envelope("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", field(1, meta) + field(2, spec)))["spec"]
    assert found == {"validations": [{"expression": "true"}], "variables": [{"name": "v", "expression": "1"}]}
    node = decode(envelope("v1", "Node", field(1, meta) + field(3, field(6, field(1, field(1, 10250))))))
    assert node["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}  # capital in JSON, too


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b"{}", "does not start with the mark"),
        (envelope("v9", "Pod", b""), "v9 Pod is not known in protobuf here"),
        (envelope("v1", "Pod", field(250, 1)), "field 250 of Pod is not known here; send the object as JSON"),
        (envelope("v1", "Pod", field(1, b"\x0a\x7f")), "ends in the middle"),
        (envelope("v1", "Pod", field(1, 3)), "a number stands where"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(body: bytes, wanted: str) -> None:
    with pytest.raises(ProtobufError, match=wanted):
        decode(body)


@given(st.binary(max_size=200))
def test_property_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        found = decode(envelope("v1", "Pod", data))
    except ProtobufError:
        return
    assert found["kind"] == "Pod"


@pytest.mark.kubectl
def test_kubectl_creates_and_deletes_typed_objects(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"

    def kubectl(*words: str) -> str:
        command = [shutil.which("kubectl") or "kubectl", f"--kubeconfig={kubeconfig}", f"--cache-dir={tmp_path}/cache", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience.seconds(60), check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    with process("apiserver", "--port", str(free_port()), "--data-dir", str(tmp_path / "data"), "--print-kubeconfig", str(kubeconfig)):
        end = time.monotonic() + patience.seconds(20)
        while not kubeconfig.exists() and time.monotonic() < end:
            time.sleep(0.05)
        kubectl("create", "namespace", "shop")
        kubectl("create", "configmap", "settings", "--from-literal=a=b", "-n", "shop")
        kubectl("create", "secret", "generic", "key", "--from-literal=a=b", "-n", "shop")
        kubectl("create", "deployment", "web", "--image=web", "--replicas=2", "-n", "shop")
        kubectl("create", "quota", "small", "--hard=cpu=1,pods=2", "-n", "shop")
        kubectl("create", "priorityclass", "high", "--value=1000")
        kubectl("create", "poddisruptionbudget", "web", "--selector=app=web", "--min-available=50%", "-n", "shop")
        kubectl("create", "cronjob", "tick", "--image=tick", "--schedule=* * * * *", "-n", "shop")
        assert kubectl("get", "configmap", "settings", "-n", "shop", "-o", "jsonpath={.data.a}") == "b"
        assert kubectl("get", "secret", "key", "-n", "shop", "-o", "jsonpath={.data.a}") == "Yg=="
        assert kubectl("get", "deployment", "web", "-n", "shop", "-o", "jsonpath={.spec.template.spec.containers[0].image}") == "web"
        assert kubectl("get", "pdb", "web", "-n", "shop", "-o", "jsonpath={.spec.minAvailable}") == "50%"
        kubectl("delete", "deployment", "web", "-n", "shop", "--wait=false")
