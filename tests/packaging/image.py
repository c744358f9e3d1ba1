"""Building the image without an engine and running it in a real containerd: what the image tests stand on.

The base comes from debootstrap and is committed under the name in the Dockerfile's FROM; the Dockerfile then builds over it with
buildah in chroot isolation, with the session's one-dir build in the place of its first stage.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from koord.version import VERSION
from tests.roles.runtime_proxy.support_containerd import Client
from tests.support import patience
from tests.support.processes import ROOT

NAME = "docker.io/koord-test/koord:1"
REVISION = "0123456789abcdef0123456789abcdef01234567"
PROGRAMS = ("buildah", "debootstrap")


def require() -> None:
    """Skip, with the reason, where an image cannot be built."""
    if os.geteuid() != 0:
        pytest.skip("building an image without an engine needs root")
    for program in PROGRAMS:
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} on PATH")


def base_name() -> str:
    """The base of the Dockerfile's last stage."""
    return re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[-1]


def bootstrap(target: Path) -> None:
    """The Debian release that the base's tag names, from the mirror that this machine uses; skips when that cannot be had."""
    shown = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"], capture_output=True, text=True, check=False
    )
    mirror = shown.stdout.split("\n", 1)[0]
    release = base_name().rpartition(":")[2].partition("-")[0]
    command = ["debootstrap", "--variant=minbase", release, str(target), *([mirror] if mirror else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience.seconds(400), check=False)
    if done.returncode:
        pytest.skip(f"debootstrap cannot fetch {release} here: {(done.stdout + done.stderr).strip()[-300:]}")


def require_older_libc(tree: Path) -> None:
    """Skip where this machine's build wants a newer C library than the base has: the image is then built in its own first stage."""
    status = (tree / "var/lib/dpkg/status").read_text()
    found = re.search(r"^Package: libc6$.*?^Version: (\d+)\.(\d+)", status, re.MULTILINE | re.DOTALL)
    mine = re.fullmatch(r"(\d+)\.(\d+).*", platform.libc_ver()[1])
    if found and mine and tuple(map(int, mine.groups())) > tuple(map(int, found.groups())):
        pytest.skip(f"glibc {mine.group()} of this machine is newer than the base's {found[1]}.{found[2]}")


def overlays(directory: Path) -> bool:
    """Whether this machine can mount overlays below a directory; without them every layer and container is a whole copy."""
    places = [directory / name for name in ("lower", "upper", "work", "merged")]
    for place in places:
        place.mkdir(parents=True)
    options = "lowerdir={},upperdir={},workdir={}".format(*places[:3])
    done = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(places[3])], capture_output=True, check=False)
    if done.returncode == 0:
        subprocess.run(["umount", str(places[3])], check=True)
    shutil.rmtree(directory)
    return done.returncode == 0


class Builder:
    """buildah with a storage of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.driver = "overlay" if overlays(directory / "trial") else "vfs"

    def command(self, *arguments: str) -> list[str]:
        storage = ["--root", str(self.directory / "storage"), "--runroot", str(self.directory / "run"), "--storage-driver", self.driver]
        return ["buildah", *storage, *arguments]

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=patience.seconds(300), check=False)
        assert done.returncode == 0, f"buildah {arguments[0]}: {done.stderr[-1500:]}"
        return done.stdout.strip()

    def base(self) -> None:
        """Make the base and commit it under the name that the Dockerfile knows."""
        name = base_name()
        container = self("from", "scratch")
        tree = Path(self("mount", container))
        bootstrap(tree)
        require_older_libc(tree)
        self("umount", container)
        self("commit", "--quiet", "--rm", container, f"docker.io/library/{name}" if "/" not in name else name)

    def build(self, one_dir: Path, **arguments: str) -> dict[str, Any]:
        """Build the Dockerfile with a one-dir build that is there already; the image's configuration."""
        words = [w for key, value in arguments.items() for w in ("--build-arg", f"{key}={value}")]
        flags = ["--isolation", "chroot", "--format", "docker", "--pull-never", "--build-context", f"build={one_dir}"]
        self("bud", *flags, *words, "--tag", NAME, str(ROOT))
        configuration: dict[str, Any] = json.loads(self("inspect", "--type", "image", NAME))["Docker"]["config"]
        return configuration

    def give(self, take: Sequence[str]) -> None:
        """Push the image, as an archive, to a command that reads it."""
        push = self.command("push", "--quiet", NAME, f"docker-archive:/dev/stdout:{NAME}")
        with subprocess.Popen(push, stdout=subprocess.PIPE) as pushing:
            taken = subprocess.run(take, stdin=pushing.stdout, capture_output=True, text=True, timeout=patience.seconds(300), check=False)
        assert (pushing.returncode, taken.returncode) == (0, 0), taken.stderr[-500:]


@dataclass(frozen=True)
class Built:
    configuration: dict[str, Any]
    tree: Path
    """The image's files as they are after the build."""
    builder: Builder


@contextlib.contextmanager
def built(one_dir: Path, directory: Path) -> Iterator[Built]:
    """The image of a one-dir build `one_dir`/dist/koord, with its files mounted; buildah's storage is in `directory`."""
    require()
    builder = Builder(directory)
    builder.base()
    configuration = builder.build(one_dir, VERSION=VERSION, REVISION=REVISION)
    container = builder("from", "--pull-never", NAME)
    try:
        yield Built(configuration, Path(builder("mount", container)), builder)
    finally:
        builder("umount", container)
        builder("rm", container)
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True)
class Start:
    """How a container of the image is started: read-only root, no capability, no new privileges, the runtime's seccomp profile."""

    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    read: tuple[Path, ...] = ()
    """Directories of the host that it sees, at the same path."""
    write: tuple[Path, ...] = ()
    """Those that it may write to."""
    user: int | None = None
    """None: the image's own."""


async def create(client: Client, sandbox: str, pod: Any, name: str, start: Start) -> str:
    """Create a container through the CRI, as restricted as the kubelet would make it; its ID."""
    m = client.m
    security = m.ContainerSecurityContext(
        capabilities=m.Capability(drop_capabilities=["ALL"]),
        namespace_options=m.NamespaceOption(network=2, pid=1),  # the node's network, process 1 of its own
        run_as_user=None if start.user is None else m.Int64Value(value=start.user),
        readonly_rootfs=True,
        no_new_privs=True,
        seccomp=m.SecurityProfile(profile_type=0),
    )
    config = m.ContainerConfig(
        metadata=m.ContainerMetadata(name=name),
        image=m.ImageSpec(image=NAME),
        args=start.arguments,
        envs=[m.KeyValue(key=key, value=value.encode()) for key, value in start.environment.items()],
        mounts=[
            m.Mount(container_path=str(path), host_path=str(path), readonly=path in start.read) for path in (*start.read, *start.write)
        ],
        log_path=f"{name}.log",
        linux=m.LinuxContainerConfig(security_context=security),
    )
    request = m.CreateContainerRequest(pod_sandbox_id=sandbox, config=config, sandbox_config=pod)
    return str((await client.call("CreateContainer", request, "CreateContainerResponse", timeout=120)).container_id)


async def status(client: Client, container: str) -> tuple[Any, dict[str, Any]]:
    """A container's status, and what the runtime tells beyond it."""
    request = client.m.ContainerStatusRequest(container_id=container, verbose=True)
    answer = await client.call("ContainerStatus", request, "ContainerStatusResponse")
    return answer.status, json.loads(answer.info["info"])
