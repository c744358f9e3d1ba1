"""The decision log of a role answers `koord why` after the role has been killed."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from koord.decisions.sinks import log_files, read_records
from tests.support import patience
from tests.support.processes import KOORD, free_port, process, until_healthy

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1"},
    "status": {
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"},
        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "10"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "default"},
    "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}]},
}


def post(url: str, path: str, body: object) -> None:
    import urllib.request

    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=patience.seconds(10)) as answer:
        assert answer.status == 201


def test_koord_why_answers_from_the_files_of_a_scheduler_that_was_killed(tmp_path: Path) -> None:
    at, own = free_port(), free_port()
    kubeconfig, logs, config = tmp_path / "kubeconfig", tmp_path / "decisions", tmp_path / "scheduler.yaml"
    config.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection: {leaderElect: false}\n"
        f"clientConnection: {{kubeconfig: {kubeconfig}}}\nprofiles: [{{schedulerName: koord-scheduler}}]\n"
    )
    flags = [f"--config={config}", "--address=127.0.0.1", f"--port={own}", "--secure-port=0", f"--decision-log={logs}"]
    with process("apiserver", f"--port={at}", "--no-tls", "--anonymous", f"--print-kubeconfig={kubeconfig}") as api:
        until_healthy(f"http://127.0.0.1:{at}/readyz", api)
        with process("scheduler", *flags) as scheduler:
            until_healthy(f"http://127.0.0.1:{own}/healthz", scheduler)
            post(f"http://127.0.0.1:{at}", "/api/v1/nodes", NODE)
            post(f"http://127.0.0.1:{at}", "/api/v1/namespaces/default/pods", POD)
            end = time.monotonic() + patience.seconds(40)
            while not (logs.is_dir() and any(True for file in log_files(logs) for _ in read_records(file))):
                assert time.monotonic() < end
                time.sleep(0.05)
            scheduler.kill()
            scheduler.wait()
    said = subprocess.run(
        [KOORD, "why", "pod", "default/p", "--decision-log", str(logs)],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(tmp_path)},
        timeout=patience.seconds(60),
    )
    assert said.returncode == 0, said.stderr
    assert "n1" in said.stdout or "0/" in said.stdout
    again = subprocess.run([KOORD, "replay", str(logs)], capture_output=True, text=True, check=False, timeout=patience.seconds(60))
    assert again.returncode == 0, again.stdout + again.stderr
    assert "100 %" in again.stdout


def test_a_directory_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    flags = ["--kubeconfig", str(tmp_path / "kubeconfig"), f"--decision-log={tmp_path / 'file'}"]
    (tmp_path / "kubeconfig").write_text(json.dumps({"clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": ""}}], "current-context": "x"}))  # fmt: skip
    done = subprocess.run([KOORD, "descheduler", *flags], capture_output=True, text=True, check=False, timeout=patience.seconds(40))
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("koord descheduler: error: --decision-log ")
