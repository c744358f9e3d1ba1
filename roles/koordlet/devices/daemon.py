"""Describes the machine's accelerators in a file, again and again (KLO-DEV-05)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from koord import seams
from roles.koordlet.devices.families import detect
from roles.koordlet.devices.tools import DetectError, Host
from roles.koordlet.waiting import either

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """``output`` "" writes nothing; ``interval`` in seconds."""

    oneshot: bool
    interval: float
    output: str
    host_root: str


def write(path: str, devices: list[dict[str, Any]]) -> None:
    """A reader sees the old or the new file, never half of one. Raises OSError."""
    directory = os.path.dirname(path) or "."
    os.makedirs(directory, exist_ok=True)
    # in a directory of its own: readers take every file for a device file, and what is outside may be another file system
    with tempfile.TemporaryDirectory(prefix=".", dir=directory) as unready:
        temporary = os.path.join(unready, os.path.basename(path))
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(devices, file, indent=2)
            file.write("\n")
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)


async def run(read_settings: Callable[[], Settings]) -> int:
    """Until a signal ends it; SIGHUP reads the settings again. Returns the exit status.

    A family that cannot be described ends it with status 0 and without its file: koordlet then takes its accelerators out of the
    Device object until the daemon is started again, and a crash loop would help nobody.
    """
    loop = asyncio.get_running_loop()
    settings = read_settings()
    ended, reload = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        loop.add_signal_handler(number, ended.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    try:
        while not ended.is_set():
            try:
                devices = await seams.to_thread(detect, Host(settings.host_root))
                if settings.output:
                    write(settings.output, devices)
                log.info("%d accelerators described in %s", len(devices), settings.output or "nothing")
            except DetectError as error:
                log.error("the accelerators cannot be described: %s", error)
                _remove(settings)
                return 0
            except OSError as error:
                log.error("%s cannot be written: %s", settings.output, error.strerror)
                return 1
            if settings.oneshot:
                return 0
            await either(ended, reload, seconds=settings.interval)
            if reload.is_set():
                reload.clear()
                before, settings = settings, _read_again(read_settings, settings)
                if before.output != settings.output:
                    _remove(before)
        return 0
    finally:
        if not settings.oneshot:
            _remove(settings)


def _read_again(read_settings: Callable[[], Settings], last: Settings) -> Settings:
    """The settings as they are now; the last good ones where they cannot be used."""
    try:
        return read_settings()
    except ValueError as error:
        log.error("the settings stay as they were: %s", error)
        return last


def _remove(settings: Settings) -> None:
    if settings.output:
        with contextlib.suppress(OSError):
            os.unlink(settings.output)
