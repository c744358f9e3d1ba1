"""`koord descheduler` as a process: flags, files, ports, leadership."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api import kinds
from koord.apiserver.testing import running_server
from koord.config.errors import ConfigError, InvalidConfig
from koord.process.inert import COMPONENT_BASE, inert_given
from roles.descheduler.cli import completed, read
from tests.roles.descheduler.support import configuration, eventually, node, put
from tests.support import patience
from tests.support.processes import free_port

FILE = configuration({"balance": ["LowNodeLoad"]}, {"LowNodeLoad": {"highThresholds": {"cpu": 70}, "lowThresholds": {"cpu": 30}}})


def migrating(**args: Any) -> dict[str, Any]:
    """A profile with these arguments of MigrationController."""
    return {"pluginConfig": [{"name": "MigrationController", "args": args}]}


def loaded(**args: Any) -> dict[str, Any]:
    """A profile that runs LowNodeLoad with these arguments."""
    enabled = {"balance": {"enabled": [{"name": "LowNodeLoad"}]}}
    return {"plugins": enabled, "pluginConfig": [{"name": "LowNodeLoad", "args": args}]}


def written(path: Path, text: str = FILE) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.feature("DS-CFG-02")
def test_the_completed_configuration_reads_as_the_same_one(tmp_path: Path) -> None:
    first = completed(read(written(tmp_path / "a.yaml"), {}))
    document = yaml.safe_load(first)
    (profile,) = document["profiles"]
    args = {entry["name"]: entry["args"] for entry in profile["pluginConfig"]}
    assert args["LowNodeLoad"]["nodeMetricExpirationSeconds"] == 180
    assert [entry["name"] for entry in profile["plugins"]["evict"]["enabled"]] == ["DefaultEvictor"]
    assert document["leaderElection"]["resourceName"] == "koord-descheduler"
    assert completed(read(written(tmp_path / "b.yaml", first), {})) == first


@pytest.mark.feature("DS-CFG-02")
def test_which_flags_count_beside_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.yaml", FILE + "healthzBindAddress: 127.0.0.1:1\nmetricsBindAddress: 10.0.0.1\n")
    options = read(path, {"address": "9.9.9.9", "port": 9, "leader_elect": True, "leader_elect_resource_name": "mine"})
    assert (options.config.healthz_bind_address, options.config.metrics_bind_address) == ("127.0.0.1:1", "10.0.0.1:10251")
    assert (options.config.leader_election.leader_elect, options.config.leader_election.resource_name) == (True, "mine")
    without = read(None, {"address": "127.0.0.1", "port": 9})
    assert without.config.healthz_bind_address == "127.0.0.1:9"
    assert [profile.plugins["evict"] for profile in without.profiles] == [["MigrationController"]]
    assert read(None, {"feature_gates": "DisablePVCReservation=true"}).gates["DisablePVCReservation"]
    with pytest.raises(ConfigError, match="leader-elect-renew-deadline"):
        read(path, {"leader_elect_renew_deadline": 1.0})


@pytest.mark.feature("DS-CFG-01")
@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"profiles": []}, ""),
        ({"leaderElection": {"leaderElect": False, "leaseDuration": "5s"}}, "leaseDuration: must be more than renewDeadline"),
        ({"leaderElection": {"resourceLock": "", "resourceName": "", "resourceNamespace": ""}}, ""),
        ({"leaderElection": {"resourceLock": "endpoints"}}, "resourceLock: 'endpoints' is not known; accepted: leases"),
        ({"healthzBindAddress": ""}, "healthzBindAddress: '' must be host:port"),
        ({"healthzBindAddress": "127.0.0.1:"}, "must be host:port"),
        ({"healthzBindAddress": "no such host:80"}, "cannot be resolved"),
        ({"maxNoOfPodsToEvictTotal": -1}, "maxNoOfPodsToEvictTotal"),
        ({"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}, "operator: 'Is' is not known"),
        ({"profiles": [{"name": "a"}, {"name": "a"}]}, "'a' is already used"),
        ({"profiles": [{"name": "a"}, {}]}, "profiles[1].name: is required"),
        ({"nodeSelector": {"matchLabel": {"a": "b"}}}, "nodeSelector.matchLabel: unknown field; did you mean 'matchLabels'?"),
        (
            {"profiles": [{"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "value": []}]}}]},
            "[0].value: unknown field",
        ),
        ({"profiles": [migrating(defaultDeleteOptions={"gracePeriod": 5})]}, "defaultDeleteOptions.gracePeriod: unknown field"),
        ({"profiles": [migrating(defaultDeleteOptions={"gracePeriodSeconds": "5"})]}, "must be a whole number, got '5'"),
        ({"profiles": [migrating(defaultDeleteOptions={"gracePeriodSeconds": 5, "propagationPolicy": "Orphan"})]}, ""),
        ({"profiles": [migrating(labelSelector={"matchLabel": {"a": "b"}})]}, "labelSelector.matchLabel: unknown field"),
        ({"deschedulingInterval": 5}, "is no duration"),
        ({"deschedulingInterval": "-5s"}, "deschedulingInterval: input should be greater than or equal to 0"),
        ({"profiles": [migrating(evictQPS="NaN")]}, "evictQPS: must be a number above 0"),
        ({"profiles": [migrating(evictQPS="Inf")]}, "evictQPS: must be a number above 0"),
        ({"profiles": [loaded(lowThresholds={"cpu": float("nan")})]}, "line 9: JSON has no number .nan"),
        ({"profiles": [loaded(detectorCacheTimeout="-1s")]}, "detectorCacheTimeout: input should be greater than or equal to 0"),
        ({"profiles": [{"plugins": {"evict": {"disabled": [{"name": "*"}]}}}]}, "exactly one plugin must be enabled, found 0"),
        ({"profiles": [{"plugins": {"evict": {"enabled": [{"name": "DefaultEvictor"}]}}}]}, "exactly one plugin must be enabled, found 2"),
        ({"profiles": [{"plugins": {"filter": {"enabled": [{"name": "MigrationController"}] * 2}}}]}, "is already registered"),
        ({"profiles": [{"pluginConfig": [{"name": "LowNodeLoad"}, {"name": "LowNodeLoad"}]}]}, "given twice"),
        ({"profiles": [{"pluginConfig": [{"name": "LowNodeLoad", "args": {"kind": "OtherArgs"}}]}]}, "OtherArgs does not belong here"),
        ({"profiles": [{"pluginConfig": [{"name": "SomebodyElses", "args": {"what": "ever"}}]}]}, ""),
        ({"profiles": [{"pluginConfig": [{"name": "LowNodeLoad", "args": None}], "plugins": None}]}, ""),
        ({"apiVersion": "descheduler/v1alpha1"}, "is not known; accepted: descheduler/v1alpha2 DeschedulerConfiguration"),
    ],
)
def test_what_a_file_may_say(tmp_path: Path, change: dict[str, Any], wanted: str) -> None:
    path = written(tmp_path / "a.yaml", yaml.safe_dump({**yaml.safe_load(FILE), **change}))
    if not wanted:
        assert read(path, {}).profiles
        return
    with pytest.raises(InvalidConfig) as refused:
        read(path, {})
    assert wanted in str(refused.value)


@pytest.mark.feature("DS-CFG-01")
@pytest.mark.parametrize(
    ("name", "args", "wanted"),
    [
        ("LowNodeLoad", {"lowThresholds": {"cpu": 70}, "highThresholds": {"cpu": 60}}, ""),
        (
            "LowNodeLoad",
            {"lowThresholds": {"cpu": 70}, "highThresholds": {"cpu": 60}, "paussed": True},
            "unknown field; did you mean 'paused'?",
        ),
        ("LowNodeLoad", {"numberOfNodes": "two"}, "must be a whole number"),
        ("LowNodeLoad", {"podSelectors": [{"selector": {"matchLabel": {}}}]}, "matchLabel: unknown field"),
        ("LowNodeLoad", {"detectorCacheTimeout": "5 minutes"}, "5 minutes"),
        ("CustomPriority", {}, ""),
        ("CustomPriority", {"evictionOrder": [{"name": "a", "node": {}}]}, "unknown field"),
        ("ScaleDownBinPack", {"strategy": "EvictDirectly", "maxPodsToEvict": -1}, ""),
        ("MigrationController", {"evictBurst": 0}, "greater than 0"),
    ],
)
def test_arguments_of_a_plugin_that_does_not_run_are_decoded_but_not_judged(
    tmp_path: Path, name: str, args: dict[str, Any], wanted: str
) -> None:
    only_default = {"evict": {"enabled": [{"name": "DefaultEvictor"}], "disabled": [{"name": "*"}]}}
    profile = {"plugins": only_default | {"filter": only_default["evict"]}, "pluginConfig": [{"name": name, "args": args}]}
    path = written(tmp_path / "a.yaml", yaml.safe_dump({**yaml.safe_load(FILE), "profiles": [profile]}))
    if wanted:
        with pytest.raises(InvalidConfig, match=wanted.replace("?", ".")):
            read(path, {})
        return
    options = read(path, {})
    kept = yaml.safe_load(completed(options))["profiles"][0]["pluginConfig"]
    assert {entry["name"]: entry["args"] for entry in kept}[name] == args


@pytest.mark.feature("DS-CFG-01")
def test_empty_texts_are_fields_that_were_left_out(tmp_path: Path) -> None:
    empty = {
        "MigrationController": {"defaultJobMode": "", "evictionPolicy": "", "schedulerNames": []},
        "ScaleDownBinPack": {"strategy": ""},
    }
    text = configuration({"evict": ["MigrationController"], "balance": ["ScaleDownBinPack"]}, empty, leaderElection={"resourceName": ""})
    options = read(written(tmp_path / "a.yaml", text), {})
    args = options.profiles[0].args
    migration = args["MigrationController"]
    assert (migration.default_job_mode, migration.eviction_policy, migration.scheduler_names) == (
        "ReservationFirst", "Eviction", ["koord-scheduler"],
    )  # fmt: skip
    assert args["ScaleDownBinPack"].strategy == "CalculateOnly"
    assert options.config.leader_election.resource_name == "koord-descheduler"
    assert options.config.client_connection.content_type == "application/vnd.kubernetes.protobuf"


@pytest.mark.feature("DS-CFG-01")
def test_how_plugin_sets_are_merged(tmp_path: Path) -> None:
    def merged(plugins: dict[str, Any]) -> dict[str, list[str]]:
        document = {**yaml.safe_load(FILE), "profiles": [{"plugins": plugins}]}
        return read(written(tmp_path / "a.yaml", yaml.safe_dump(document)), {}).profiles[0].plugins

    default, other = {"name": "MigrationController"}, {"name": "DefaultEvictor"}
    assert merged({})["filter"] == ["MigrationController"]
    assert merged({"filter": {"enabled": [other, default]}})["filter"] == ["MigrationController", "DefaultEvictor"]
    assert merged({"filter": {"enabled": [other, default], "disabled": [default]}})["filter"] == ["DefaultEvictor", "MigrationController"]
    assert merged({"filter": {"enabled": [other], "disabled": [{"name": "*"}]}})["filter"] == ["DefaultEvictor"]


@pytest.mark.feature("DS-CFG-02")
@pytest.mark.parametrize(
    "flags", [["extra"], ["--feature-gates=NoSuch=true"], ["--no-such-flag"], ["--port=-1"], ["--address=here"], ["--bind-address=::x"]]
)
def test_flags_that_cannot_be_end_the_process_with_one_line(flags: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "koord.cli", "descheduler", f"--config={written(tmp_path / 'a.yaml')}", "--validate-config", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience.seconds(30), check=False)
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.feature("DS-CFG-02")
def test_flags_of_every_component_are_accepted(tmp_path: Path) -> None:
    words = {"integer": "1", "bool": "true", "duration": "5s"}
    flags = [
        f"--{name}={words.get(getattr(kind, 'name', 'integer' if kind is int else ''), 'x')}" for name, (kind, _) in COMPONENT_BASE.items()
    ]
    assert {"--disabled-metrics=x", "--tls-sni-cert-key=x", "--log-flush-frequency=5s"} <= set(flags)
    command = [sys.executable, "-m", "koord.cli", "descheduler", f"--config={written(tmp_path / 'a.yaml')}", "--validate-config", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience.seconds(30), check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told = inert_given(COMPONENT_BASE, {"disabled_metrics": "x", "permit_port_sharing": False, "dry_run": True})
    assert told == ["--disabled-metrics has no effect: the set of metrics is fixed"]


@pytest.mark.feature("DS-CFG-03")
def test_ports_leadership_and_its_loss(tmp_path: Path) -> None:
    """Health and metrics on two ports and over HTTPS; somebody takes the lease away; the process says so and ends with an error."""
    health, metrics, secure = free_port(), free_port(), free_port()
    lease, renew = (f"{2000 * seconds:.0f}ms" for seconds in patience.lease())
    text = configuration(
        {},
        leaderElection={"leaderElect": True, "leaseDuration": lease, "renewDeadline": renew, "retryPeriod": "200ms"},
        healthzBindAddress=f"127.0.0.1:{health}",
        metricsBindAddress=f"127.0.0.1:{metrics}",
        deschedulingInterval="1h",
    )

    async def scenario() -> None:
        async with running_server(crds=True) as server, server.client() as client:
            await put(client, node("a"), node("b"), {"kind": "Namespace", "metadata": {"name": "koordinator-system"}})
            flags = [f"--config={written(tmp_path / 'a.yaml', text)}", f"--kubeconfig={server.kubeconfig_path}"]
            flags += [f"--secure-port={secure}", "--bind-address=127.0.0.1", "--v=1"]
            command = [sys.executable, "-m", "koord.cli", "descheduler", *flags]
            process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
            try:

                async def leads() -> bool:
                    found = await asyncio.to_thread(_get, f"http://127.0.0.1:{metrics}/metrics")
                    return 'koord_descheduler_rounds_total{result="done"} 1.0' in found

                await eventually(leads)
                assert await asyncio.to_thread(_get, f"http://127.0.0.1:{health}/healthz") == "ok"
                assert await asyncio.to_thread(_get, f"https://127.0.0.1:{secure}/healthz") == "ok"
                served = json.loads(await asyncio.to_thread(_get, f"https://127.0.0.1:{secure}/configz"))
                assert served["componentconfig"]["deschedulingInterval"] == "1h0m0s"
                stolen = {"spec": {"holderIdentity": "somebody-else"}}  # a patch: the lease is renewed meanwhile
                await client.patch(kinds.LEASES, "koord-descheduler", stolen, "koordinator-system")
                _, errors = await asyncio.wait_for(process.communicate(), patience.seconds(20))
                assert process.returncode == 1
                assert b"lost lease" in errors
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    asyncio.run(scenario())


def _get(url: str) -> str:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=patience.seconds(5), context=context if url.startswith("https") else None) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""
