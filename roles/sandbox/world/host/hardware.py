"""The hardware of a modelled machine as the kernel shows it: CPUs, memory, time used."""

from __future__ import annotations

from pathlib import Path

from roles.sandbox.world.host.layout import cpu_text


def lay(root: Path, cpus: int) -> None:
    """One socket and one NUMA node with two threads a core; what never changes."""
    everything = cpu_text(frozenset(range(cpus)))
    files = {
        "sys/devices/system/cpu/online": everything,
        "sys/devices/system/node/node0/cpulist": everything,
        "sys/bus/node/devices/node0/cpulist": everything,
        "proc/sys/kernel/random/boot_id": "11111111-2222-3333-4444-555555555555",
        "proc/cpuinfo": "\n".join(
            f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\nmodel name\t: Modelled CPU\nphysical id\t: 0\n"
            f"core id\t\t: {cpu // 2}\nflags\t\t: fpu ht\n"
            for cpu in range(cpus)
        ),
    }
    for cpu in range(cpus):
        base = f"sys/devices/system/cpu/cpu{cpu}"
        first = cpu // 2 * 2
        files[f"{base}/topology/core_id"] = str(cpu // 2)
        files[f"{base}/topology/physical_package_id"] = "0"
        files[f"{base}/topology/thread_siblings_list"] = cpu_text(frozenset(range(first, min(first + 2, cpus))))
        files[f"{base}/topology/core_siblings_list"] = everything
        files[f"{base}/cache/index3/level"] = "3"
        files[f"{base}/cache/index3/shared_cpu_list"] = everything
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")


def ticks(cpus: int, used: int, idle: int) -> str:
    """/proc/stat, in ticks of 10 ms."""
    lines = [f"cpu  {used} 0 0 {idle} 0 0 0 0 0 0"]
    return "\n".join(lines + [f"cpu{cpu} {used // cpus} 0 0 {idle // cpus} 0 0 0 0 0 0" for cpu in range(cpus)])


def meminfo(memory: int, taken: int) -> str:
    """/proc/meminfo of so many bytes."""
    total, free = memory // 1024, max(memory - taken, 0) // 1024
    return f"MemTotal: {total} kB\nMemFree: {free} kB\nMemAvailable: {free} kB\nBuffers: 0 kB\nCached: 0 kB"


def numa_meminfo(memory: int, taken: int) -> str:
    """The same of NUMA node 0, which has all of it."""
    node, total, free = "Node 0 ", memory // 1024, max(memory - taken, 0) // 1024
    return (
        f"{node}MemTotal: {total} kB\n{node}MemFree: {free} kB\n{node}Active(file): 0 kB\n{node}Inactive(file): 0 kB\n"
        f"{node}Shmem: 0 kB\n{node}SReclaimable: 0 kB"
    )
