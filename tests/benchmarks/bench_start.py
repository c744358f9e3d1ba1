"""Start times: `koord --help`, and each role's process until its health URL answers 200."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.table import Row, current_rss_mib, script
from tests.support.processes import KOORD, ROOT, free_port, process, roles, until_healthy


def rows(quick: bool) -> list[Row]:
    tries = 3 if quick else 7
    helps = []
    for _ in range(tries):
        started = time.monotonic()
        subprocess.run([KOORD, "--help"], check=True, stdout=subprocess.DEVNULL)
        helps.append(time.monotonic() - started)
    found = [Row("koord --help", statistics.median(helps), "s", 0.2, note=f"median of {tries}, minimum {min(helps):.3f} s")]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        kubeconfig = directory / "kubeconfig"
        port = free_port()
        started = time.monotonic()
        with process("apiserver", "--port", str(port), "--data-dir", str(directory / "data"), "--print-kubeconfig", str(kubeconfig)) as api:
            while not kubeconfig.exists() and api.poll() is None:
                time.sleep(0.01)
            found.append(Row("apiserver until it serves", time.monotonic() - started, "s", 1.5))
            subprocess.run(
                [sys.executable, "-m", "tests.benchmarks.install_crds", str(kubeconfig)], check=True, cwd=ROOT, stdout=subprocess.DEVNULL
            )
            for role, arguments, url, environment in roles(directory, kubeconfig):
                started = time.monotonic()
                with process(*arguments, KUBECONFIG=str(kubeconfig), **environment) as child:
                    until_healthy(url, child)
                    seconds = time.monotonic() - started
                    found.append(Row(f"{role} until healthy", seconds, "s", 1.5, note=f"{current_rss_mib(child.pid):.0f} MiB RSS"))
    return found


if __name__ == "__main__":
    script(rows)
