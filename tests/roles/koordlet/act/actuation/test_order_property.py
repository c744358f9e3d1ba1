"""Property: whatever the tree holds and whatever is wanted, no single write is one that the kernel refuses (KA-EXE-01)."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.accounting.cpuset import CPUSet
from roles.koordlet.actuation import kernel
from roles.koordlet.actuation.errors import from_os_error
from roles.koordlet.actuation.restore import put_back
from roles.koordlet.actuation.values import number
from roles.koordlet.actuation.writes import Batch, Merge, Write

QOS = "kubepods.slice/kubepods-besteffort.slice"
PODS = [f"{QOS}/p{i}" for i in range(3)]
BOXES = [f"{p}/c{i}" for p in PODS for i in range(2)]
PAGE = 4096
LEVELS = [[QOS], PODS, BOXES]
FILES = {"cpuset.cpus": Merge.LOOSER_CPUSET, "cpu.cfs_quota_us": Merge.LARGER_QUOTA, "memory.min": Merge.LARGER}


class Kernel:
    """Rejects what cgroup v1 rejects: a cpuset or quota beyond the parent's or below a child's."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.writes = 0

    def write(self, path: str, text: str) -> None:
        self.writes += 1
        name = os.path.basename(path)
        up = Path(path).parent.parent / name
        down = list(Path(path).parent.glob(f"*/{name}"))
        fits = self.fits_cpus if name == "cpuset.cpus" else self.fits_number
        if up.exists() and up.parent.name != "kubepods.slice" and not fits(text, up.read_text()):
            self.refuse(path, text, errno.EACCES)
        for child in down:
            if not fits(child.read_text(), text):
                self.refuse(path, text, errno.EBUSY)
        Path(path).write_text(text + "\n")

    def fits_cpus(self, child: str, parent: str) -> bool:
        return CPUSet.parse(child.strip()) <= CPUSet.parse(parent.strip())

    def fits_number(self, child: str, parent: str) -> bool:
        if child.strip() == "-1":
            return True  # no limit of its own: the parent's holds
        return number(child) <= number(parent)

    def refuse(self, path: str, text: str, number: int) -> None:
        self.refused.append(f"{path} := {text}")
        raise from_os_error(path, OSError(number, os.strerror(number)), "refused by the test's kernel")


@st.composite
def cpuset_trees(draw):
    def below(parent: frozenset[int]) -> frozenset[int]:
        return draw(st.frozensets(st.sampled_from(sorted(parent)), min_size=1))

    tree = {QOS: draw(st.frozensets(st.integers(0, 7), min_size=1))}
    for directory in PODS + BOXES:
        tree[directory] = below(tree[os.path.dirname(directory)])
    return {d: str(CPUSet(cpus)) for d, cpus in tree.items()}


@st.composite
def number_trees(draw, *, infinite: bool):
    tree: dict[str, str] = {}
    for directory in [QOS, *PODS, *BOXES]:
        parent = tree.get(os.path.dirname(directory), "-1" if infinite else str(1 << 40))
        limit = 1_000_000 if parent == "-1" else int(parent)
        value = draw(st.integers(min(1000, limit), limit)) if limit else 0
        tree[directory] = "-1" if infinite and draw(st.booleans()) else str(value if infinite else value // PAGE * PAGE)
        if tree[directory] == "-1":
            # an unlimited child is bounded by its parent, so that what lies below has to fit that
            tree[directory] = "-1" if parent == "-1" else parent
    return tree


TREES = st.one_of(
    st.tuples(st.just("cpuset.cpus"), cpuset_trees(), cpuset_trees()),
    st.tuples(st.just("cpu.cfs_quota_us"), number_trees(infinite=True), number_trees(infinite=True)),
    st.tuples(st.just("memory.min"), number_trees(infinite=False), number_trees(infinite=False)),
)


@given(TREES)
def test_leveled_batches_never_break_the_parent_child_rule(make_machine, case):
    resource, before, wanted = case
    fake = Kernel()
    with tempfile.TemporaryDirectory() as base, pytest.MonkeyPatch.context() as patch:
        machine = make_machine(Path(base))
        machine.put(resource, "kubepods.slice", before[QOS])
        for directory, text in before.items():
            machine.put(resource, directory, text)
        patch.setattr(kernel, "write", fake.write)
        levels = tuple(tuple(Write(resource, d, wanted[d], merge=FILES[resource]) for d in level) for level in LEVELS)
        applied = machine.executor.apply([Batch(levels)], rule="r", now=1.0)
        assert fake.refused == []
        assert applied.failed == []
        assert {d: machine.get(resource, d) for d in wanted} == wanted
        assert fake.writes <= 2 * len(wanted)

        result = put_back(machine.journal)
        assert fake.refused == []
        assert result.failed == []
        assert {d: machine.get(resource, d) for d in wanted} == before


@pytest.mark.parametrize(
    ("pod", "box", "left"),
    [("30000", "45000", ("45000", "45000")), ("-1", "45000", ("-1", "45000"))],
    ids=["less than below", "no limit"],
)
def test_a_quota_that_others_stand_in_the_way_of_comes_as_near_as_it_can(make_machine, monkeypatch, tmp_path, pod, box, left):
    """Somebody set a container's while its pod's was raised: cgroup v1 has no room for what was before beside it."""
    machine = make_machine(tmp_path)
    for directory, quota in ((QOS, "-1"), (PODS[0], pod), (BOXES[0], "20000")):
        machine.put("cpu.cfs_quota_us", directory, quota)
        machine.put("cpu.cfs_period_us", directory, "100000")
    monkeypatch.setattr(kernel, "write", Kernel().write)
    batch = Batch(((Write("cpu.cfs_quota_us", PODS[0], "75000", cached=False),),))
    assert not machine.executor.apply([batch], rule="burst", now=1.0).failed
    machine.put("cpu.cfs_quota_us", BOXES[0], box)
    result = put_back(machine.journal, journal=machine.journal)
    assert result.failed == []
    assert (machine.get("cpu.cfs_quota_us", PODS[0]), machine.get("cpu.cfs_quota_us", BOXES[0])) == left
    assert [error.path.rpartition("/")[2] for error in result.theirs] == (["cpu.cfs_quota_us"] if pod == "30000" else [])
