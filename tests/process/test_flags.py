"""Go-style flags through real commands."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from koord.process import flags
from koord.process.flags import HostPort, go_command, parse_host_port
from koord.version import VERSION


def make() -> tuple[click.Command, dict[str, Any]]:
    seen: dict[str, Any] = {}

    @go_command("role")
    @flags.common_options
    @flags.bool_option("--dry-run")
    @flags.bool_option("--enable", default=True)
    @flags.duration_option("--period", default="5m0s")
    @flags.gates_option()
    @click.option("--addr", type=flags.HostPortAddress, default=":9316")
    @click.option("--words", type=flags.CommaList, default="")
    @click.option("-s", "--debug-scores", type=int, default=0)
    @click.option("--plain", is_flag=True)
    def command(**values: Any) -> None:
        """A role."""
        seen.update(values)

    return command, seen


def run(*args: str) -> tuple[Any, dict[str, Any]]:
    command, seen = make()
    return CliRunner().invoke(command, list(args)), seen


@pytest.mark.parametrize(
    ("args", "name", "value"),
    [
        ([], "enable", True),
        (["--dry-run"], "dry_run", True),
        (["-dry-run"], "dry_run", True),
        (["--dry-run=false", "--dry-run=T"], "dry_run", True),
        (["--enable=0"], "enable", False),
        (["--dry_run=true"], "dry_run", True),
        ([], "period", 300.0),
        (["--period", "1h30m"], "period", 5400.0),
        (["-period=0"], "period", 0.0),
        (["--period=300ms"], "period", 0.3),
        (["--feature-gates=A=true", "--feature-gates", "B=false,"], "feature_gates", "A=true,B=false"),
        ([], "addr", HostPort("", 9316)),
        (["--addr=[::1]:80"], "addr", HostPort("::1", 80)),
        (["--addr", "0"], "addr", HostPort("", 0, disabled=True)),
        (["--words=a, b,"], "words", ("a", "b")),
        (["--words="], "words", ()),
        (["-s=5"], "debug_scores", 5),
        (["-s", "5"], "debug_scores", 5),
        (["--debug-scores", "-3"], "debug_scores", -3),
        (["--plain"], "plain", True),
        (["--kubeconfig=/a=b"], "kubeconfig", "/a=b"),
        (["--master", "http://x"], "master", "http://x"),
    ],
)
def test_spellings(args: list[str], name: str, value: Any) -> None:
    result, seen = run(*args)
    assert result.exit_code == 0, result.output
    assert seen[name] == value


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--perod=5s"], "role: error: unknown flag: --perod; did you mean --period?"),
        (["--zzz"], "role: error: unknown flag: --zzz"),
        (["-x"], "unknown flag: -x"),
        (["extra"], "unexpected argument 'extra': only flags are accepted"),
        (["--dry-run", "false"], "unexpected argument 'false'"),
        (["--", "extra"], "unexpected argument 'extra'"),
        (["--dry-run=maybe"], "accepted: true, false"),
        (["--period=5"], "'5' is not a duration"),
        (["--period"], "flag needs a value: --period"),
        (["--addr=foo"], "is no listen address; write host:port"),
        (["--addr=::1:80"], "must stand in brackets"),
        (["--addr=:70000"], "is no listen address"),
        (["--plain=false"], "--plain takes no value"),
        (["--v=x"], "'x' is not a valid integer"),
        (["--addr=:²"], "is no listen address"),
        (["--vmodule=a"], "must be pattern=number"),
        (["--vmodule=a=²"], "must be pattern=number"),
        (["--log-format=xml"], "'xml' is not one of 'text', 'json'"),
        (["--logtostderr=false", "--log-file=/nonexistent/x.log"], "log file /nonexistent/x.log: No such file"),
    ],
)
def test_mistakes_are_one_line(args: list[str], says: str) -> None:
    result, seen = run(*args)
    assert result.exit_code == (1 if says.startswith("log file") else 2)
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert not seen


def test_version_and_help() -> None:
    assert VERSION in run("--version")[0].output
    text = run("-h")[0].output
    for name in ("--kubeconfig", "--feature-gates", "--v", "--log-format", "--period DURATION"):
        assert name in text
    assert "[default: 5m0s]" in text


def test_logging_options_are_in_force() -> None:
    result, seen = run("--v=6", "--vmodule=reflector=2", "--log-format", "json", "--stderrthreshold=1", "--logtostderr")
    assert result.exit_code == 0
    assert (seen["logging"].verbosity, seen["logging"].vmodule, seen["logging"].format) == (6, (("reflector", 2),), "json")


def test_every_flag_of_klog_is_accepted() -> None:
    names = ("one_output", "add_dir_header", "skip_log_headers", "skip_headers", "alsologtostderr", "legacy_stderr_threshold_behavior")
    result, _ = run(*(f"--{name}=false" for name in names), "--add_dir_header", "--log_backtrace_at=a.go:1", "--log_file_max_size=0")
    assert result.exit_code == 0, result.output
    assert "one-output" not in run("-h")[0].output


@given(st.sampled_from(["", "127.0.0.1", "::1", "localhost"]), st.integers(0, 65535))
def test_listen_addresses_round_trip(host: str, port: int) -> None:
    address = HostPort(host, port)
    assert parse_host_port(str(address)) == address


def test_click_arguments_stay_possible() -> None:
    @go_command("why")
    @click.argument("name")
    @flags.bool_option("--all")
    def command(name: str, all: bool) -> None:
        click.echo(f"{name} {all}")

    assert CliRunner().invoke(command, ["--all", "pod-1"]).output == "pod-1 True\n"
    assert "Missing argument 'NAME'" in CliRunner().invoke(command, []).stderr
