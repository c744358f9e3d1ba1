"""What `make dist` makes: each role starts from it, serves health and ends on SIGTERM; plugins of others are found; checksums and SBOM."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from koord.cli import COMMANDS
from koord.version import VERSION
from roles.tools import manifests
from tests.support import patience
from tests.support.processes import ROOT, free_port, process, roles, until_healthy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_it_knows_its_version_and_every_command(dist: Path) -> None:
    program = dist / "koord" / "koord"
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert VERSION in shown.stdout
    for command in COMMANDS:
        shown = subprocess.run([program, command, "--help"], capture_output=True, text=True, check=False)
        assert shown.returncode == 0, f"{command}: {shown.stderr[-500:]}"


@pytest.mark.feature("BEY-DOC-01")
def test_the_frozen_executable_installs_every_variant_and_uninstalls(dist: Path, api: Path) -> None:
    program = str(dist / "koord" / "koord")
    carried, own = (
        {
            file.relative_to(top): file.read_bytes()
            for folder in ("crds", "install", "components", "optional")
            for file in (top / folder).rglob("*.*")
        }
        for top in (dist / "koord/_internal/configs", manifests.CONFIGS)
    )
    assert carried == own
    command = [program, "install", "--print", f"--overlay={','.join(manifests.OPTIONAL)}"]
    printed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert printed.returncode == 0, printed.stderr[-500:]
    listed = subprocess.run([program, "uninstall", f"--kubeconfig={api}"], capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stderr[-500:]


@pytest.mark.parametrize("role", ["scheduler", "manager", "descheduler", "koordlet"])
def test_a_frozen_role_becomes_healthy_and_ends_on_sigterm(dist: Path, api: Path, tmp_path: Path, role: str) -> None:
    arguments, url, environment = next((a, u, e) for name, a, u, e in roles(tmp_path, api) if name == role)
    with process(*arguments, program=str(dist / "koord" / "koord"), KUBECONFIG=str(api), **environment) as child:
        until_healthy(url, child)
        child.terminate()
        assert child.wait(patience.seconds(20)) == 0


def test_the_frozen_proxy_refuses_what_it_cannot_do(dist: Path) -> None:
    done = subprocess.run(
        [dist / "koord" / "koord", "runtime-proxy", "--backend-runtime-mode=Nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "accepted: Containerd" in done.stderr


@pytest.mark.parametrize("given", [None, "/opt/mine/lib"])
def test_children_of_the_executable_have_the_library_path_of_its_caller(dist: Path, tmp_path: Path, given: str | None) -> None:
    """A credential plugin is a child like any other: it is started with what the user's own shell has."""
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "interactiveMode": "Never"}
    plugin["args"] = ["-c", f"env > {tmp_path / 'seen'}; exit 1"]
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "x", "user": {"exec": plugin}}], "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    }))  # fmt: skip
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **({"LD_LIBRARY_PATH": given} if given else {})}
    program = [dist / "koord" / "koord", "why", "pod", "default/p", "--kubeconfig", str(kubeconfig)]
    subprocess.run(program, env=environment, capture_output=True, check=False, timeout=patience.seconds(60))
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines() if "=" in line)
    assert seen.get("LD_LIBRARY_PATH") == given
    assert "LD_LIBRARY_PATH_ORIG" not in seen


# -- plugins of others -------------------------------------------------------------------------------------------------------

# `statistics` is used by no role of ours: the whole standard library has to be there for plugins
_PLUGIN = """
import statistics

from roles.scheduler.framework.interfaces import Filter, Rejection


class {name}(Filter):
    name = "{name}"

    def filter(self, ctx, rows):
        return ctx.cluster.labels.column("none").ids[rows] == statistics.mean([-9, -9])

    def rejection(self, ctx, code):
        return Rejection(("never",))
"""


def installed_plugin(directory: Path) -> Path:
    """What `pip install --target DIRECTORY` leaves of a package with an entry point."""
    (directory / "siteplugin.py").write_text(_PLUGIN.format(name="FromEntryPoint"))
    metadata = directory / "siteplugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: siteplugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[koord.scheduler.plugins]\nFromEntryPoint = siteplugin:FromEntryPoint\n")
    return directory


def test_a_frozen_scheduler_finds_plugins_of_others(dist: Path, api: Path, tmp_path: Path) -> None:
    """By file and by entry point of a package that was installed beside the executable; one that is missing stops the start."""
    arguments, url, _ = next((a, u, e) for name, a, u, e in roles(tmp_path, api) if name == "scheduler")
    config = tmp_path / "scheduler.yaml"
    enabled = ", ".join(f"{{name: {name}}}" for name in ("FromFile", "FromEntryPoint"))
    config.write_text(config.read_text() + f"profiles:\n- plugins: {{filter: {{enabled: [{enabled}]}}}}\n")
    site, file = tmp_path / "site", tmp_path / "fromfile.py"
    site.mkdir()
    installed_plugin(site)
    file.write_text(_PLUGIN.format(name="FromFile"))
    program = str(dist / "koord" / "koord")
    with process(*arguments, f"--plugin-path={file}", program=program, KOORD_PLUGIN_DIRS=str(site)) as child:
        until_healthy(url, child)
    without = subprocess.run(
        [program, *arguments, f"--plugin-path={file}"], capture_output=True, text=True, timeout=patience.seconds(60), check=False
    )
    assert without.returncode == 1
    assert "FromEntryPoint" in without.stderr


def test_a_frozen_koordlet_loads_extensions(dist: Path, tmp_path: Path) -> None:
    """The extension is run: what it raises stops the start and is told."""
    file = tmp_path / "extension.py"
    file.write_text("import fractions\n\ndef register(extensions):\n    raise RuntimeError(f'reached {fractions.Fraction(1, 2)}')\n")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "users: [{name: u, user: {}}]\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
    )
    command = [dist / "koord" / "koord", "koordlet", "--node-name=n", f"--kubeconfig={kubeconfig}", f"--plugin-path={file}"]
    command += [f"--host-root={tmp_path}", f"--addr=127.0.0.1:{free_port()}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience.seconds(60), check=False)
    assert done.returncode == 1
    assert "reached 1/2" in done.stderr


# -- beside it ---------------------------------------------------------------------------------------------------------------


#: Of each version, driver, top, runtime and sort of kubelet one at least; all of them with KOORD_BINARY (docs/testing.md).
FROZEN = [
    ("v1", "systemd", "", "containerd", "plain", "/host"),
    ("v2", "systemd", "kubelet", "cri-o", "static", "/host"),
    ("v2", "cgroupfs", "", "containerd", "10 ms", "/"),
    ("hybrid", "cgroupfs", "kubelet", "cri-o", "no quota", "/host"),
]


@pytest.mark.root
@pytest.mark.feature("BEY-JRN-01")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a mount namespace")
@pytest.mark.parametrize("layout", FROZEN, ids="-".join)
def test_a_frozen_koordlet_puts_back_what_was_written(
    dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: tuple[str, str, str, str, str, str]
) -> None:
    from tests.roles.koordlet.test_matrix import test_any_machine as any_machine

    monkeypatch.setenv("KOORD_BINARY", str(dist / "koord" / "koord"))
    any_machine(tmp_path, *layout)


def test_the_checksums_cover_everything(dist: Path) -> None:
    listed = dict(reversed(line.split("  ", 1)) for line in (dist / "SHA256SUMS").read_text().splitlines())
    there = {str(p.relative_to(dist)) for p in dist.rglob("*") if p.is_file() and not p.is_symlink()} - {"SHA256SUMS"}
    assert set(listed) == there
    for name in ("koord-onefile", "koord/koord", "koord.cdx.json"):
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == listed[name]


def test_the_sbom_tells_what_is_inside(dist: Path) -> None:
    """Every Python package that was packed, at the locked version, with hashes of the lock file and a licence."""
    sbom = json.loads((dist / "koord.cdx.json").read_text())
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.5")
    assert sbom["metadata"]["component"]["version"] == VERSION
    locked = (ROOT / "requirements-dev.lock").read_text()
    packages = {c["name"]: c for c in sbom["components"] if c["purl"].startswith("pkg:pypi/")}
    for name, component in packages.items():
        assert f"\n{name}=={component['version']} " in "\n" + locked.replace("_", "-").lower(), name
        assert component["hashes"], name
        assert all(digest["content"] in locked for digest in component["hashes"]), name
        assert component["licenses"], name
    folders = {p.name.lower() for p in (dist / "koord" / "_internal").iterdir() if p.is_dir()}
    for folder, package in (("aiohttp", "aiohttp"), ("grpc", "grpcio"), ("numpy", "numpy"), ("orjson", "orjson"), ("uvloop", "uvloop")):
        assert folder in folders
        assert package in packages
    assert not {"pytest", "hypothesis", "mypy"} & set(packages), "the build environment is not inside"
    references = [c["bom-ref"] for c in sbom["components"]]
    assert len(references) == len(set(references))
    assert sbom["dependencies"][0]["dependsOn"] == references


def test_no_library_under_the_gpl_is_inside(dist: Path) -> None:
    names = os.listdir(dist / "koord" / "_internal")
    assert [n for n in names if n.startswith(("libreadline", "libgdbm"))] == []
