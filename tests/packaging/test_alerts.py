"""Alerts and queries as Prometheus itself takes them: each alert is raised by what it is for, and none by a healthy cluster."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.test_monitoring import FOLDER, queries, rules

UNPACKED = Path.home() / ".cache/koord/promtool/usr/bin/promtool"
Series = dict[str, str]


@cache
def promtool() -> str:
    found = shutil.which("promtool") or (str(UNPACKED) if UNPACKED.exists() else "")
    if not found:
        pytest.skip("needs promtool on PATH or unpacked by tests/support/promtool.sh")
    return found


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool(), *arguments], capture_output=True, text=True, check=False)


def group(directory: Path) -> Path:
    """The rules without what only the Prometheus operator reads."""
    [document] = yaml.safe_load_all((FOLDER / "rules.yaml").read_text())
    file = directory / "rules.yaml"
    file.write_text(yaml.safe_dump(document["spec"]))
    return file


# What a cluster of two koordlets looks like when all is well. Values by the minute: start, then +step x times.
HEALTHY: Series = {
    **{f'up{{job="{job}", pod="{job}-0"}}': "1x150" for job in ("koord-manager", "koord-scheduler", "koord-descheduler")},
    **{f'up{{job="koordlet", instance="{node}"}}': "1x150" for node in ("n1", "n2")},
    'koordinator_manager_is_leader{job="koord-manager", pod="a"}': "1x150",
    'koordinator_manager_is_leader{job="koord-manager", pod="b"}': "0x150",
    'leader_election_master_status{job="koord-scheduler", pod="a"}': "1x150",
    'leader_election_master_status{job="koord-scheduler", pod="b"}': "0x150",
    'rest_client_requests_total{job="koord-manager", code="200"}': "0+100x150",
    'rest_client_requests_total{job="koord-manager", code="409"}': "0+1x150",
    'koord_build_info{role="scheduler", version="1"}': "1x150",
    'koord_manager_config_errors{pod="a"}': "0x150",
    'koord_manager_webhook_webhook_duration_milliseconds_bucket{webhook_type="mutating", object_type="pod", le="16"}': "0+100x150",
    'koord_manager_webhook_webhook_duration_milliseconds_bucket{webhook_type="mutating", object_type="pod", le="+Inf"}': "0+100x150",
    'workqueue_depth{job="koord-manager", pod="a", name="nodeslo"}': "3x150",
    'workqueue_depth{job="koord-manager", pod="b", name="nodeslo"}': "500x150",  # a standby collects its nodes: nobody takes from it
    'scheduler_schedule_attempts_total{job="koord-scheduler", result="scheduled"}': "0+50x150",
    'scheduler_schedule_attempts_total{job="koord-scheduler", result="error"}': "0x150",
    'scheduler_scheduling_algorithm_duration_seconds_bucket{job="koord-scheduler", le="0.016"}': "0+50x150",
    'scheduler_scheduling_algorithm_duration_seconds_bucket{job="koord-scheduler", le="+Inf"}': "0+50x150",
    'scheduler_scheduling_timeout_total{job="koord-scheduler"}': "0x150",
    'koord_descheduler_rounds_total{result="done"}': "0+1x150",
    'koord_descheduler_rounds_total{result="failed"}': "0x150",
    'koord_descheduler_migrations_total{phase="Succeeded"}': "0+1x150",
    'koord_descheduler_migrations_total{phase="Failed"}': "0x150",
    'koordlet_tick_seconds{node="n1", stat="last"}': "0.01x150",
    'koordlet_tick_seconds{node="n1", stat="longest"}': "4x150",
    'koordlet_sensing_errors{node="n1", collector="be"}': "0x150",
    'koordlet_pod_eviction{node="n1", reason="cpu"}': "0x150",
    'koordlet_node_resource_priority_reclaimable_status{node="n1", priority="koord-prod"}': "0x150",
}
# Alert -> series that differ (None: is not there) when it has to be raised.
WRONG: dict[str, dict[str, str | None]] = {
    "KoordTargetDown": {'up{job="koord-manager", pod="koord-manager-0"}': "0x150"},
    "KoordletDown": {'up{job="koordlet", instance="n2"}': "0x150"},
    "KoordManagerNoLeader": {'koordinator_manager_is_leader{job="koord-manager", pod="a"}': "0x150"},
    "KoordSchedulerNoLeader": {
        'leader_election_master_status{job="koord-scheduler", pod="a"}': None,
        'leader_election_master_status{job="koord-scheduler", pod="b"}': None,
    },
    "KoordApiErrors": {'rest_client_requests_total{job="koord-manager", code="<error>"}': "0+10x150"},
    "KoordApiForbidden": {'rest_client_requests_total{job="koord-manager", code="403"}': "0+1x150"},
    "KoordVersionsDiffer": {'koord_build_info{role="scheduler", version="2"}': "1x150"},
    "KoordConfigRefused": {'koord_manager_config_errors{pod="a"}': "1x150"},
    "KoordWebhookSlow": {
        'koord_manager_webhook_webhook_duration_milliseconds_bucket{webhook_type="mutating", object_type="pod", le="16"}': "0x150",
        'koord_manager_webhook_webhook_duration_milliseconds_bucket{webhook_type="mutating", object_type="pod", le="2048"}': "0+100x150",
    },
    "KoordManagerQueueStuck": {'workqueue_depth{job="koord-manager", pod="a", name="nodeslo"}': "500x150"},
    "KoordSchedulingErrors": {'scheduler_schedule_attempts_total{job="koord-scheduler", result="error"}': "0+2x150"},
    "KoordSchedulingSlow": {
        'scheduler_scheduling_algorithm_duration_seconds_bucket{job="koord-scheduler", le="0.016"}': "0x150",
        'scheduler_scheduling_algorithm_duration_seconds_bucket{job="koord-scheduler", le="4.096"}': "0+50x150",
    },
    "KoordSchedulingTimeouts": {'scheduler_scheduling_timeout_total{job="koord-scheduler"}': "0+1x150"},
    "KoordDeschedulerRoundsFail": {'koord_descheduler_rounds_total{result="failed"}': "0+1x150"},
    "KoordMigrationsFail": {'koord_descheduler_migrations_total{phase="Failed"}': "0+2x150"},
    "KoordletTickSlow": {'koordlet_tick_seconds{node="n1", stat="last"}': "1.5x150"},
    "KoordletSensingErrors": {'koordlet_sensing_errors{node="n1", collector="be"}': "0+5x150"},
    "KoordletEvictsMuch": {'koordlet_pod_eviction{node="n1", reason="cpu"}': "0+2x150"},
    "KoordletReclaimableUnknown": {
        'koordlet_node_resource_priority_reclaimable_status{node="n1", priority="koord-prod"}': "1x150",
    },
}


def case(name: str, changes: dict[str, str | None], expected: set[str]) -> dict[str, Any]:
    """After two and a half hours of the healthy cluster with `changes`, exactly these alerts are raised."""
    series = [{"series": key, "values": values} for key, values in {**HEALTHY, **changes}.items() if values is not None]
    raised = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(expected)]
    firing = 'group by (alertname) (ALERTS{alertstate="firing"})'
    return {
        "name": name,
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [{"expr": firing, "eval_time": "150m", "exp_samples": raised}],
    }


def judged(directory: Path, cases: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    file = directory / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(group(directory))], "evaluation_interval": "1m", "tests": cases}))
    return run("test", "rules", str(file))


def test_prometheus_takes_every_rule_and_query(tmp_path: Path) -> None:
    done = run("check", "rules", str(group(tmp_path)))
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = []
    for number, (_, expression) in enumerate(queries()):
        found.append({"record": f"query:{number}", "expr": expression.replace("$__rate_interval", "5m").replace("$node", ".*")})
    file = tmp_path / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": found}]}))
    done = run("check", "rules", str(file))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_alerts_are_raised_by_what_they_are_for_and_alone(tmp_path: Path) -> None:
    cases = [case("healthy", {}, set()), *(case(alert, changes, {alert}) for alert, changes in WRONG.items())]
    done = judged(tmp_path, cases)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_check_finds_an_alert_that_is_not_raised(tmp_path: Path) -> None:
    done = judged(tmp_path, [case("wrong", {}, {"KoordletTickSlow"})])
    assert done.returncode != 0
    assert "KoordletTickSlow" in done.stdout + done.stderr


def test_every_alert_is_tried() -> None:
    assert set(WRONG) == {rule["alert"] for rule in rules()}
