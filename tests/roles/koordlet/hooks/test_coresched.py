"""CoreSched: NodeSLO and labels in, cpu.idle, switches and cookies out (KA-HK-05)."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roles.koordlet.hooks.cookies import CookieStore, Prctl
from tests.support.koordlet import exposed

GROUP, POLICY = "koordinator.sh/core-sched-group-id", "koordinator.sh/core-sched-policy"
ON = {"cpuQOS": {"enable": True}}


def spec(policy: str = "coreSched", **strategy: Any) -> dict[str, Any]:
    return {"resourceQOSStrategy": {"policies": {"cpuPolicy": policy}, **strategy}}


class Kernel:
    """Core scheduling as the kernel does it, on processes of a dictionary."""

    def __init__(self, pids: Sequence[int] = ()) -> None:
        self.cookies = dict.fromkeys(pids, 0)
        self.made = 0

    def get(self, pid: int) -> int:
        if pid == 0:
            return 0
        if pid not in self.cookies:
            raise OSError(errno.ESRCH, "no such process")
        return self.cookies[pid]

    def create(self, pid: int) -> None:
        self.get(pid)
        self.made += 1
        self.cookies[pid] = 0xC000 + self.made

    def assign(self, sibling: int, pids: Sequence[int]) -> list[int]:
        cookie = self.get(sibling)
        return self._set(pids, cookie)

    def clear(self, pids: Sequence[int]) -> list[int]:
        return self._set(pids, 0)

    def _set(self, pids: Sequence[int], cookie: int) -> list[int]:
        self.cookies.update((pid, cookie) for pid in pids if pid in self.cookies)
        return [pid for pid in pids if pid not in self.cookies]


@pytest.fixture
def node(hooked) -> Any:
    made = hooked("CoreSched")
    (made.hook,) = made.asking.hooks
    made.kernel = made.hook._kernel = Kernel()
    return made


def pod(node: Any, name: str, *pids: int, **options: Any) -> Any:
    made = node.world.pod(name, **options)
    node.files("cgroup.procs", "\n".join(map(str, pids)), made.containers[0].cgroup_dir)
    node.kernel.cookies.update((pid, 0) for pid in pids if pid not in node.kernel.cookies)
    return made


def groups(node: Any) -> list[set[int]]:
    """Processes that share a cookie, by number."""
    by_cookie: dict[int, set[int]] = {}
    for pid, cookie in node.kernel.cookies.items():
        if cookie:
            by_cookie.setdefault(cookie, set()).add(pid)
    return sorted(by_cookie.values(), key=min)


@pytest.mark.feature("KA-HK-05")
class TestNode:
    def test_idle_by_class(self, node) -> None:
        dirs = [node.machine.host.cgroups.qos_dir(q) for q in ("Guaranteed", "Burstable", "BestEffort")]
        node.files("cpu.idle", "1", *dirs)

        def seen(wanted: dict[str, Any]) -> list[str]:
            node.world.spec = wanted
            node.run()
            return [node.machine.get("cpu.idle", d) for d in dirs]

        assert seen(spec("groupIdentity", beClass={"cpuQOS": {"enable": True, "schedIdle": 1}})) == ["0", "0", "0"]
        assert seen(spec(beClass={"cpuQOS": {"enable": True, "schedIdle": 1}}, lsClass=ON)) == ["0", "0", "1"]

    def test_switches(self, node) -> None:
        identity = node.machine.file("proc/sys/kernel/sched_group_identity_enabled", "1\n")
        core = node.machine.file("proc/sys/kernel/sched_core", "0\n")
        node.world.spec = spec()
        node.run()
        assert (identity.read_text(), core.read_text()) == ("1\n", "0\n")
        node.world.spec = spec(lsClass=ON)
        node.run()
        assert (identity.read_text(), core.read_text()) == ("0", "1")


@pytest.mark.feature("KA-HK-05")
class TestCookies:
    def test_processes_in_cgroups_that_a_container_made(self, node) -> None:
        node.world.spec = spec(beClass=ON)
        box = pod(node, "be", 20, qos="BE", kube_qos="BestEffort").containers[0].cgroup_dir
        inner = f"{box}/system.slice/job.service"
        node.files("cgroup.procs", "", box)
        node.files("cgroup.procs", "20\n21", inner)
        node.kernel.cookies[21] = 0
        node.hook.note = lambda entry: node.machine.executor.note(entry, "CoreSched")
        node.run()
        assert groups(node) == [{20, 21}]
        node.hook._cookies, node.hook._looked = None, False
        node.world.spec = spec("groupIdentity", beClass=ON)
        node.run()
        assert groups(node) == []

    def test_groups(self, node) -> None:
        node.world.spec = spec(lsClass=ON, beClass=ON)
        pod(node, "ls", 10, 11, qos="LS")
        pod(node, "other-ls", 12, qos="LS")
        pod(node, "be", 20, qos="BE", kube_qos="BestEffort")
        pod(node, "plain-be", 21, kube_qos="BestEffort")
        pod(node, "named", 30, qos="BE", kube_qos="BestEffort", labels={GROUP: "mine"})
        pod(node, "alone", 40, qos="BE", kube_qos="BestEffort", labels={GROUP: "mine", POLICY: "exclusive"})
        pod(node, "never", 50, qos="BE", kube_qos="BestEffort", labels={POLICY: "none"})
        pod(node, "system", 60, qos="SYSTEM")
        pod(node, "lsr", 70, qos="LSR", kube_qos="Guaranteed")
        node.run()
        assert groups(node) == [{10, 11, 12}, {20, 21}, {30}, {40}]
        text = exposed(node.machine.metrics.internal)
        assert 'core_sched_group="default/mine"' in text
        assert 'core_sched_group="-expeller"' in text, "LS expels: it is not in the group of BE"

    def test_new_processes_join_and_restarts_learn(self, node) -> None:
        node.world.spec = spec(lsClass=ON)
        made = pod(node, "ls", 10, qos="LS")
        node.run()
        pod_dir = made.containers[0].cgroup_dir
        node.files("cgroup.procs", "10\n11\n99", pod_dir)
        node.kernel.cookies[11] = 0
        node.run()
        assert groups(node) == [{10, 11}], "a process that is gone is nobody's trouble"
        node.hook._cookies = None
        pod(node, "late", 12, qos="LS")
        node.run()
        assert groups(node) == [{10, 11, 12}]
        assert node.kernel.made == 1
        for pid in (10, 11, 12):
            del node.kernel.cookies[pid]
        pod(node, "again", 13, 14, qos="LS")
        node.run()
        assert groups(node) == [{13, 14}], "with all carriers gone a new cookie is made"

    def test_cookies_are_taken_away(self, node) -> None:
        node.world.spec = spec(lsClass=ON)
        pod(node, "ls", 10, qos="LS")
        node.run()
        assert groups(node) == [{10}]
        node.world.spec = spec("groupIdentity", lsClass=ON)
        node.run()
        assert groups(node) == []

    def test_what_is_kept_is_of_containers_and_processes_that_are_there(self, node) -> None:
        """A group may live as long as the node: neither its containers nor their processes may add up."""
        node.world.spec = spec(lsClass=ON)
        stays = pod(node, "stays", 10, qos="LS")
        for number in range(4):
            made = pod(node, f"job-{number}", 1000 + number, qos="LS")
            node.files("cgroup.procs", f"10\n{2000 + number}", stays.containers[0].cgroup_dir)
            node.kernel.cookies[2000 + number] = 0
            node.run()
            node.world.pods.remove(made)
            for pid in (1000 + number, 2000 + number):
                del node.kernel.cookies[pid]
        node.files("cgroup.procs", "10", stays.containers[0].cgroup_dir)
        node.run()
        store = node.hook._cookies
        assert len(store.members) == 1
        assert [list(group.pids.values()) for group in store.groups.values()] == [[{10}]]

    def test_a_process_with_the_number_of_one_that_ended_gets_its_cookie(self, node) -> None:
        node.world.spec = spec(lsClass=ON)
        pod(node, "ls", 10, qos="LS")
        made = pod(node, "old", 11, qos="LS")
        node.run()
        node.world.pods.remove(made)
        del node.kernel.cookies[11]
        node.run()
        pod(node, "new", 11, qos="LS")
        node.run()
        assert groups(node) == [{10, 11}]

    @pytest.mark.parametrize("policy", ["coreSched", "groupIdentity"])
    def test_cookies_of_the_agent_before_are_taken_away(self, node, policy) -> None:
        node.world.spec = spec(lsClass=ON, beClass=ON)
        pod(node, "ls", 10, qos="LS")
        pod(node, "be", 20, qos="BE", kube_qos="BestEffort")
        node.hook.note = lambda entry: node.machine.executor.note(entry, "CoreSched")
        node.run()
        node.hook._cookies, node.hook._looked = None, False
        pod(node, "own", 30, qos="BE", kube_qos="BestEffort")
        node.kernel.cookies[30] = 7
        node.world.spec = spec(policy, lsClass=ON)
        node.run()
        assert groups(node) == ([{10}, {30}] if policy == "coreSched" else [{30}]), "a cookie that somebody else gave stays"

    def test_an_agent_with_a_cookie_does_nothing(self, node, caplog) -> None:
        node.kernel.get = lambda pid: 7
        node.world.spec = spec(lsClass=ON)
        pod(node, "ls", 10, qos="LS")
        node.run()
        assert "carries the cookie" in caplog.text

    @given(steps=st.lists(st.tuples(st.sampled_from(["join", "leave", "die"]), st.integers(0, 3), st.integers(0, 2)), max_size=30))
    def test_a_group_has_one_cookie(self, steps) -> None:
        kernel = Kernel(range(1, 9))
        store = CookieStore(kernel, lambda group, worked: None)
        pids = {c: [2 * c + 1, 2 * c + 2] for c in range(4)}
        member: dict[int, int] = {}
        for what, container, group in steps:
            alive = [p for p in pids[container] if p in kernel.cookies]
            if what == "die":
                kernel.cookies.pop(pids[container][0], None)
            elif what == "leave":
                store.leave(str(container), alive)
                member.pop(container, None)
            elif alive:
                store.join(str(container), str(group), alive, 0.0)
                member[container] = group
            for group_number in range(3):
                cookies = {kernel.cookies[p] for c, g in member.items() if g == group_number for p in pids[c] if p in kernel.cookies}
                assert len(cookies) <= 1
                assert 0 not in cookies


@pytest.mark.root
@pytest.mark.feature("KA-HK-05")
def test_the_running_kernel() -> None:
    import subprocess

    kernel = Prctl()
    try:
        assert kernel.get(0) == 0
    except OSError as error:
        pytest.skip(f"the kernel has no core scheduling: {error}")
    processes = [subprocess.Popen(["sleep", "30"]) for _ in range(2)]
    try:
        first, second = (p.pid for p in processes)
        kernel.create(first)
        assert kernel.assign(first, [second, 2**22 - 1]) == [2**22 - 1]
        assert kernel.get(first) == kernel.get(second) != 0
        assert kernel.get(0) == 0
        kernel.clear([first, second])
        assert kernel.get(second) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
