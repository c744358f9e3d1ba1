"""koordlet on this machine's node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roles.sandbox.compose import Sandbox


def settings(sandbox: Sandbox) -> dict[str, Any]:
    """Options of the agent: its own directories in the run's scratch, cgroups through the private view, the process kubelet's port."""
    assert sandbox.local is not None
    assert sandbox.kubelet is not None
    scratch = sandbox.scratch
    for name in ("var-run/koordlet", "kubelet", "metrics", "checkpoints", "audit", "hooks"):
        (scratch / name).mkdir(parents=True, exist_ok=True)
    return {
        "node_name": sandbox.kubelet.name,
        "cgroup_root_dir": str(sandbox.local.cgroup_root),
        "sys_root_dir": "/sys",
        "sys_fs_root_dir": "/sys/fs",
        "proc_root_dir": "/proc",
        "run_root_dir": "/run",
        "var_run_root_dir": str(scratch / "var-run"),
        "var_lib_kubelet_dir": str(scratch / "kubelet"),
        "tsdb_path": str(scratch / "metrics"),
        "prediction_checkpoint_filepath": str(scratch / "checkpoints"),
        "audit_log_dir": str(scratch / "audit"),
        "pod_resources_proxy_path": str(scratch / "var-run" / "pod-resources"),
        "xpu_device_infos_dir": str(scratch / "var-run" / "xpu"),
        "runtime_hooks_addr": str(scratch / "var-run" / "koordlet.sock"),
        "runtime_hooks_host_endpoint": str(scratch / "var-run" / "koordlet.sock"),
        "runtime_hooks_config_path": str(scratch / "hooks"),
        "enable_nri_runtime_hook": False,
        "kubelet_insecure_tls": True,
        "kubelet_read_only_port": sandbox.kubelet.server.port,
        "kubelet_sync_interval": 2.0,
        "runtime_hooks_reconcile_interval": 1.0,
        "only_evict_by_api": True,
        "feature_gates": sandbox.scenario.node_agent.feature_gates,
        "pressure_triggers": sandbox.scenario.node_agent.pressure_triggers,
    }


async def start(sandbox: Sandbox) -> None:
    """Build the App on the sandbox's client and cache and let it live. Raises ConfigurationError."""
    from roles.koordlet.app import App
    from roles.koordlet.options import Options, check

    ops = sandbox.endpoint("koordlet")
    options = Options(addr="127.0.0.1:0", **settings(sandbox))
    check(options)
    app = App(options, client=sandbox.client, informers=sandbox.informers, recorder=sandbox.recorders["koordlet"], ops=ops)
    sandbox.live(app.run(sandbox.life), "koordlet")


def arguments(sandbox: Sandbox) -> list[str]:
    """The same settings as flags."""
    values = {**settings(sandbox), "addr": f"127.0.0.1:{sandbox.port('koordlet')}"}
    return [flag(name, value) for name, value in values.items()]


def flag(name: str, value: Any) -> str:
    """One option as a Go-style flag; floats are durations."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, float):
        text = f"{value:g}s"
    else:
        text = str(value)
    return f"--{name.replace('_', '-')}={text}"
