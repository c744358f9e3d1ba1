"""A virtual machine for one program: Debian's cloud kernel under QEMU, an initramfs of busybox, this Python and what it imports."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import patience

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("KOORD_TEST_KERNEL", Path.home() / ".cache/koord/vm"))
INIT = """#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
for module in /modules/*; do insmod $module || true; done
cd /koord
PYTHONHOME={home} PYTHONPATH=/koord:/site PYTHONDONTWRITEBYTECODE=1 {python} {program}
poweroff -f
"""
#: Prints the files of everything that the program imports.
_TRACE = """
import runpy, sys
sys.argv = [sys.argv[1]]
runpy.run_path(sys.argv[0], run_name="traced")
import encodings.idna, encodings.ascii, encodings.latin_1, subprocess, json
print("FILES " + "|".join(sorted({m.__file__ for m in sys.modules.values() if getattr(m, "__file__", None)})))
"""


def kernel() -> Path:
    found = sorted((CACHE / "boot").glob("vmlinuz-*")) if (CACHE / "boot").is_dir() else []
    if not found:
        pytest.skip(f"needs a kernel in {CACHE}: tests/vm/kernel.sh puts it there")
    return found[-1]


def _libraries(paths: list[Path]) -> set[Path]:
    """Shared libraries of binaries."""
    out: set[Path] = set()
    for path in paths:
        shown = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
        out |= {Path(found) for found in re.findall(r"(/\S+) \(0x", shown)}
    return out


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(os.path.realpath(source), target)


def initramfs(program: Path, directory: Path) -> Path:
    """The archive; skips where a tool is missing."""
    for tool in ("busybox", "cpio", "ldd"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool} on PATH")
    traced = subprocess.run(
        [sys.executable, "-c", _TRACE, str(program)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout
    files = [Path(f) for f in traced.rpartition("FILES ")[2].strip().split("|")]
    tree = directory / "tree"
    for name in ("proc", "sys", "dev", "tmp", "bin", "modules", "var/run"):
        (tree / name).mkdir(parents=True)
    site = next((p for p in map(Path, sys.path) if p.name == "site-packages"), Path("/nowhere"))
    for file in files:
        where = Path("site") / file.relative_to(site) if site in file.parents else file
        where = Path("koord") / file.relative_to(ROOT) if ROOT in file.parents and site not in file.parents else where
        _copy(file, tree / str(where).lstrip("/"))
    _copy(program, tree / "koord" / program.relative_to(ROOT))
    python = Path(os.path.realpath(sys.executable))
    for file in (python, *_libraries([python, *(f for f in files if f.suffix == ".so")])):
        _copy(file, tree / str(file).lstrip("/"))
    # extension modules that only the started interpreter wants
    for extra in Path(sys.base_prefix, "lib", f"python3.{sys.version_info[1]}", "lib-dynload").glob("_posixsubprocess*"):
        _copy(extra, tree / str(extra).lstrip("/"))
    busybox = shutil.which("busybox")
    assert busybox is not None
    _copy(Path(busybox), tree / "bin/busybox")
    for name in ("sh", "mount", "insmod", "poweroff"):
        (tree / "bin" / name).symlink_to("busybox")
    for module in CACHE.glob("modules/*.ko"):
        _copy(module, tree / "modules" / module.name)
    (tree / "init").write_text(INIT.format(home=sys.base_prefix, python=python, program=program.relative_to(ROOT)))
    (tree / "init").chmod(0o755)
    listing = subprocess.run(["find", "."], cwd=tree, capture_output=True, check=True).stdout
    archive = subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=tree, input=listing, capture_output=True, check=True).stdout
    path = directory / "initramfs.gz"
    path.write_bytes(gzip.compress(archive, 1))
    return path


def run(program: Path, directory: Path, seconds: float = 60.0) -> dict[str, Any]:
    """Boot, run, and give what the program printed as RESULT; a machine that is not through within `seconds` is booted once more, and
    has three times as long then."""
    machine = [
        "-accel",
        "tcg,thread=multi",
        "-smp",
        "2",
        "-cpu",
        "max",
        "-M",
        "q35",
        "-m",
        "768",
        "-nographic",
        "-no-reboot",
        "-net",
        "none",
    ]
    boot = ["-kernel", str(kernel()), "-initrd", str(initramfs(program, directory)), "-append", "console=ttyS0 quiet panic=-1 psi=1"]
    command = ["qemu-system-x86_64", *machine, *boot]
    for last in (False, True):
        limit = patience.seconds(3 * seconds if last else seconds)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL, check=False)
            break
        except subprocess.TimeoutExpired:  # an emulated machine stands still now and then: that is nothing the product did
            if last:
                raise
    for line in done.stdout.splitlines():
        _, found, text = line.partition("RESULT ")  # the firmware may have left the cursor in the first line
        if found:
            result: dict[str, Any] = json.loads(text)
            return result
    raise AssertionError(f"the guest said nothing: {done.stdout[-1500:]} {done.stderr[-500:]}")
