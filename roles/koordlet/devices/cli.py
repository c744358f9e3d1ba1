"""`koord device-daemon`: settings by command line, environment and file, in this order."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from koord.api.times import parse_duration
from koord.process.flags import Bool, FlagError, bool_option, go_command

DEFAULT_INTERVAL = "900s"
DEFAULT_OUTPUT = "/var/run/koordlet/xpu-device-infos/ic-device"


def _file(path: str) -> dict[str, Any]:
    """``flags.kdd`` of a configuration file. Raises ValueError."""
    import yaml

    from koord.config import plainyaml

    try:
        with open(path, encoding="utf-8") as file:
            found = plainyaml.load(file.read()) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("version") != "v1":
        raise ValueError(f"{path}: version: 'v1' is wanted")
    flags = found.get("flags") or {}
    own = (flags.get("kdd") or {}) if isinstance(flags, dict) else None
    known = {"oneshot", "noTimestamp", "sleepInterval", "printsOutputFile"}
    if not isinstance(own, dict) or set(own) - known:
        raise ValueError(f"{path}: flags.kdd: accepted are {', '.join(sorted(known))}")
    return own


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def settings(given: dict[str, Any], environ: dict[str, str]) -> Any:
    """Raises ValueError that says which setting is wrong."""
    from roles.koordlet.devices.daemon import Settings

    path = _first(given["config_file"], environ.get("KDD_CONFIG_FILE"))
    own = _file(path) if path else {}
    oneshot = _first(given["oneshot"], environ.get("KDD_ONESHOT"), own.get("oneshot"), False)
    if isinstance(oneshot, str):
        if oneshot.lower() not in ("true", "false", "1", "0"):
            raise ValueError(f"KDD_ONESHOT: {oneshot!r} is not true or false")
        oneshot = oneshot.lower() in ("true", "1")
    text = _first(given["sleep_interval"], environ.get("KDD_SLEEP_INTERVAL"), own.get("sleepInterval"), DEFAULT_INTERVAL)
    interval = parse_duration(str(text))
    if interval <= 0:
        raise ValueError(f"sleep-interval: {text} is not positive")
    output = _first(given["prints_output_file"], environ.get("KDD_PRINTS_OUTPUT_FILE"), own.get("printsOutputFile"), DEFAULT_OUTPUT)
    return Settings(bool(oneshot), float(interval), str(output), given["host_root"])


@go_command("device-daemon")
@click.option("--oneshot", type=Bool, default=None, metavar="BOOL", help="Write once and exit, leaving the file.")
@bool_option("--no-timestamp", "no_timestamp", default=False, help="Accepted for old manifests: the file has no time stamp.")
@click.option("--sleep-interval", help=f"Time between two looks (default {DEFAULT_INTERVAL}).")
@click.option("--prints-output-file", help=f"File to write, empty for none (default {DEFAULT_OUTPUT}).")
@click.option("--config-file", help="YAML or JSON file with these settings under flags.kdd.")
@click.option(
    "--host-root", default="/hostfs", show_default=True, help="Where the machine's file system is mounted; / for the machine itself."
)
@click.option("--v", "verbosity", type=int, default=0, help="Log verbosity.")
def command(verbosity: int, no_timestamp: bool, **given: Any) -> None:
    """Describe the node's accelerators (Huawei NPU, Kunlun, Cambricon, MetaX) in a file for koordlet.

    Settings come from the command line, then the environment (KDD_ONESHOT, KDD_SLEEP_INTERVAL, KDD_PRINTS_OUTPUT_FILE, KDD_CONFIG_FILE),
    then the file. SIGHUP reads them again.
    """
    import asyncio

    from koord.process import logs
    from roles.koordlet.devices.daemon import run

    environ = dict(os.environ)
    try:
        settings(given, environ)
    except ValueError as error:
        raise FlagError(str(error), click.get_current_context()) from None
    logs.setup(verbosity=verbosity)
    sys.exit(asyncio.run(run(lambda: settings(given, environ))))
