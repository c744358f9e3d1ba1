"""`koord recommend backtest` through the command line (BEY-REC-01)."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from roles.manager.recommender.backtest import VPA_DEFAULTS, Series, Usage, replay
from roles.manager.recommender.fleets import SHAPES, fleet
from roles.manager.recommender.policy import DAY
from roles.tools.recommend import command

pytestmark = pytest.mark.feature("BEY-REC-01")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, ["backtest", *arguments])
    return result.exit_code, result.output


def test_made_up_fleets_beside_the_published_defaults() -> None:
    code, out = run("--synthetic=diurnal,idle", "--containers=4", "--days=4", "--recommendation-margin-fraction=0.3", "-o", "json")
    assert code == 0, out
    rows = json.loads(out)
    policies = ["koord", "koord in place", "VPA defaults", "moving maximum"]
    plain = [row for row in rows if not row["setting"]]
    assert [(row["source"], row["policy"]) for row in plain] == [(source, policy) for source in ("diurnal", "idle") for policy in policies]
    assert len({json.dumps({**row, "policy": "", "pareto": False}) for row in plain[:4]}) == 4, "four different answers"
    assert all(row["containerDays"] == 4 * 3 for row in rows)
    ours, _, theirs, _ = rows[:4]
    assert ours["samplesAboveCPU"] <= theirs["samplesAboveCPU"], "more margin, fewer samples above"
    assert ours["memorySlack"] < theirs["memorySlack"]
    code, out = run("--synthetic=idle", "--containers=2", "--days=3", "--curve=false")
    assert code == 0
    assert out.splitlines()[0].split()[:2] == ["source", "policy"]
    assert out.count("%") == 16


def test_the_curve_shows_what_a_setting_costs_and_marks_what_nothing_beats() -> None:
    code, out = run("--synthetic=bursty", "--containers=3", "--days=5", "-o", "json")
    assert code == 0, out
    rows = json.loads(out)
    by = {(row["policy"], row["setting"]): row for row in rows}
    wider, narrow = by["VPA defaults", "margin 60%"], by["VPA defaults", "margin 0%"]
    assert wider["memorySlack"] > narrow["memorySlack"]
    assert by["koord in place", "p99 of CPU"]["cpuSlack"] > by["koord in place", "p90 of CPU"]["cpuSlack"]
    keys = ("cpuSlack", "samplesAboveCPU", "memorySlack")
    for row in rows:
        beaten = any(all(other[k] < row[k] for k in keys) and other["oomFree"] >= row["oomFree"] for other in rows)
        assert not (beaten and row["pareto"])
    assert any(row["pareto"] for row in rows)
    assert not all(row["pareto"] for row in rows)


def test_files_may_be_packed(tmp_path) -> None:
    import gzip

    lines = ["timestamp,workload,container,replica,cpu,memory", *(f"{600 * n},w,c,r,0.5,400000000" for n in range(400))]
    (tmp_path / "u.csv").write_text("\n".join(lines))
    (tmp_path / "u.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    answers = [run(str(tmp_path / name), "--curve=false")[1].split("\n")[1].split()[1:] for name in ("u.csv", "u.csv.gz")]
    assert answers[0] == answers[1]
    (tmp_path / "broken.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode())[:50])
    code, out = run(str(tmp_path / "broken.csv.gz"))
    assert code == 1
    assert "broken.csv.gz" in out


def test_a_csv_file_with_a_kill(tmp_path) -> None:
    path = tmp_path / "usage.csv"
    lines = ["timestamp,workload,container,replica,cpu,memory"]
    for minute in range(0, 3 * 1440, 10):
        memory = "4Gi" if minute == 2 * 1440 + 600 else "400000000"
        lines.append(f"{60 * minute},web,main,r1,0.5,{memory}")
    path.write_text("\n".join(lines))
    code, out = run(str(path), "-o", "json")
    assert code == 0, out
    ours = json.loads(out)[0]
    assert ours["containerDays"] == 2
    assert ours["oomFree"] == 0.5
    assert ours["kills"] == [{"workload": "web", "container": "main", "time": 60 * (2 * 1440 + 600)}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2", "no column timestamp, workload"),
        ("timestamp,workload,container,replica,cpu,memory\nnoon,w,c,r,1,1", ":2: timestamp: 'noon'"),
        ("timestamp,workload,container,replica,cpu,memory\n1,w,c,r,1,1\nnan,w,c,r,1,1", ":3: timestamp: 'nan'"),
        ("timestamp,workload,container,replica,cpu,memory\n-inf,w,c,r,1,1", ":2: timestamp: '-inf'"),
        ("timestamp,workload,container,replica,cpu,memory\n1,w,c,r,nan,1", ":2: cpu: 'nan'"),
        ("timestamp,workload,container,replica,cpu,memory\n1,w,c,r,1,1\n2,w,c,r,-1,1", ":3: cpu: '-1'"),
        ("timestamp,workload,container,replica,cpu,memory\n1,w,c,r,1,4Xi", ":2: memory: '4Xi'"),
    ],
)
def test_bad_files_name_the_place(tmp_path, text, said) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    code, out = run(str(path))
    assert code == 1
    assert said in out
    assert "Traceback" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to replay"),
        (["--synthetic=odd"], "accepted: diurnal"),
        (["--prometheus=http://127.0.0.1:1"], "needs --namespace"),
        (["--prometheus=http://127.0.0.1:1", "--namespace=n"], "ClientConnector"),
        (["--synthetic=idle", "--recommender-cpu-percentile=7"], "--recommender-cpu-percentile"),
    ],
)
def test_mistakes_are_one_line(arguments, said) -> None:
    code, out = run(*arguments)
    assert code == (1 if said.startswith(("Client", "--rec")) else 2)
    assert said in out


@given(st.lists(st.tuples(st.floats(0, 8), st.floats(1e6, 1e10)), min_size=30, max_size=60))
def test_property_shares_are_shares_and_more_margin_never_kills_more_on_the_second_day(uses) -> None:
    step = 2 * DAY / len(uses)
    series = [Series("w", "c", "r", [Usage(n * step, cpu, memory) for n, (cpu, memory) in enumerate(uses)])]
    plain = replay(series, VPA_DEFAULTS)
    assert plain.days == 1
    assert 0 <= plain.cpu_slack <= 1
    assert 0 <= plain.memory_slack <= 1
    assert 0 <= plain.oom_free <= 1
    import dataclasses

    roomy = replay(series, dataclasses.replace(VPA_DEFAULTS, margin=1.0))
    assert roomy.killed_days <= plain.killed_days
    assert roomy.starved <= plain.starved


def test_fleets_are_the_same_for_one_seed() -> None:
    for shape in SHAPES:
        assert fleet(shape, containers=1, days=2) == fleet(shape, containers=1, days=2)
        assert fleet(shape, containers=1, days=2) != fleet(shape, containers=1, days=2, seed=2)
