"""Machines are trees of files in a temporary folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.machine import cgroup, topology
from orchestrator.machine.gpu import Gpu
from orchestrator.machine.slots import Slot, SlotPool
from orchestrator.machine.topology import Cpu, Machine, detect, largest_job

GIB = 1 << 30
V1_NO_LIMIT = "9223372036854771712\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def cpu_tree(
    root: Path, cores: Iterable[tuple[int, ...]], nodes: dict[int, str] | None = None
) -> None:
    """``cores``: the CPUs of every physical core; ``nodes``: NUMA node → CPU list."""
    files = {
        "proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n"
    }
    every = []
    for core in cores:
        for cpu in core:
            every.append(cpu)
            files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = (
                ",".join(map(str, core)) + "\n"
            )
            files[f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = "0\n"
    files["sys/devices/system/cpu/online"] = ",".join(map(str, sorted(every))) + "\n"
    for node, cpus in (nodes or {}).items():
        files[f"sys/devices/system/node/node{node}/cpulist"] = cpus + "\n"
    write(root, files)


def mount(root: Path, *lines: str) -> None:
    """``lines``: mount root, mount point, type, super options."""
    texts = ["22 27 0:21 / /proc rw,relatime - proc proc rw"]
    for number, line in enumerate(lines):
        top, point, kind, options = line.split()
        texts.append(
            f"{30 + number} 25 0:{number} {top} {point} rw,relatime shared:9 - {kind} {kind} {options}"
        )
        (root / point.lstrip("/")).mkdir(parents=True, exist_ok=True)
    write(root, {"proc/self/mountinfo": "\n".join(texts) + "\n"})


def v2(root: Path, path: str, files: dict[str, str]) -> None:
    mount(root, "/ /sys/fs/cgroup cgroup2 rw")
    write(root, {"proc/self/cgroup": f"0::{path}\n"})
    (root / "sys/fs/cgroup" / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    write(root / "sys/fs/cgroup", files)


def v1(root: Path, path: str, files: dict[str, str], top: str = "/") -> None:
    mount(
        root,
        f"{top} /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct",
        f"{top} /sys/fs/cgroup/memory cgroup rw,memory",
    )
    write(root, {"proc/self/cgroup": f"9:name=systemd:/x\n4:memory:{path}\n2:cpu,cpuacct:{path}\n"})
    if path.startswith(top):
        for controller in ("cpu,cpuacct", "memory"):
            folder = root / "sys/fs/cgroup" / controller / path.removeprefix(top).lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
    write(root / "sys/fs/cgroup", files)


def order(found: Machine) -> list[int]:
    return [cpu.index for cpu in found.cpus]


class TestTopology:
    def test_two_plain_cores(self, tmp_path: Path) -> None:
        cpu_tree(tmp_path, [(0,), (1,)], {0: "0-1"})
        found = detect(tmp_path)
        assert order(found) == [0, 1]
        assert (found.physical_cores, found.capacity, found.quota) == (2, 2, None)
        assert found.memory_total_mib == 16384
        assert found.gpus == ()

    def test_physical_cores_come_before_smt_siblings(self, tmp_path: Path) -> None:
        cpu_tree(tmp_path, [(0, 4), (1, 5), (2, 6), (3, 7)], {0: "0-7"})
        found = detect(tmp_path)
        assert order(found) == [0, 1, 2, 3, 4, 5, 6, 7]
        assert (found.physical_cores, found.capacity, largest_job(found)) == (4, 4, 8)

    def test_numa_nodes_take_turns(self, tmp_path: Path) -> None:
        cpu_tree(tmp_path, [(0, 4), (1, 5), (2, 6), (3, 7)], {0: "0-1,4-5", 1: "2-3,6-7"})
        found = detect(tmp_path)
        assert order(found) == [0, 2, 1, 3, 4, 6, 5, 7]
        assert [cpu.numa_node for cpu in found.cpus[:4]] == [0, 1, 0, 1]

    def test_affinity_mask_narrows(self, tmp_path: Path) -> None:
        cpu_tree(tmp_path, [(0, 4), (1, 5), (2, 6), (3, 7)])
        found = detect(tmp_path, affinity={1, 5, 6, 99})
        assert order(found) == [1, 6, 5]
        assert found.physical_cores == 2

    def test_offline_cpus_are_left_out(self, tmp_path: Path) -> None:
        cpu_tree(tmp_path, [(0,), (1,), (2,)])
        write(tmp_path, {"sys/devices/system/cpu/online": "0,2\n"})
        assert order(detect(tmp_path)) == [0, 2]
        assert order(detect(tmp_path, affinity=[0, 1, 2])) == [0, 2]

    def test_without_the_files_every_cpu_is_a_core_and_nothing_is_limited(
        self, tmp_path: Path
    ) -> None:
        machine = detect(tmp_path, affinity=[0, 1])
        assert (order(machine), machine.physical_cores, machine.quota) == ([0, 1], 2, None)
        assert cgroup.throttled_s(tmp_path) is None
        assert cgroup.oom_kills(tmp_path) is None


class TestCgroups:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        cpu_tree(tmp_path, [(0,), (1,), (2,), (3,)])
        return tmp_path

    def test_v2_quota_of_a_grandparent_counts(self, root: Path) -> None:
        v2(
            root,
            "/a/b/c",
            {
                "a/cpu.max": "150000 100000\n",
                "a/b/cpu.max": "max 100000\n",
                "a/b/c/cpu.max": "max\n",
            },
        )
        found = detect(root)
        assert found.quota == 1.5
        assert (found.capacity, largest_job(found), found.physical_cores) == (1, 1, 4)

    def test_v1_quota_of_an_ancestor_counts(self, root: Path) -> None:
        v1(
            root,
            "/a/b",
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
                "cpu,cpuacct/a/cpu.cfs_quota_us": "250000\n",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
                "cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n",
            },
        )
        found = detect(root)
        assert (found.quota, found.capacity) == (2.5, 2)

    def test_hybrid_reads_v1_controllers_beside_an_empty_v2_tree(self, root: Path) -> None:
        mount(
            root,
            "/ /sys/fs/cgroup/cpu cgroup rw,cpu",
            "/ /sys/fs/cgroup/memory cgroup rw,memory",
            "/ /sys/fs/cgroup/unified cgroup2 rw",
        )
        write(root, {"proc/self/cgroup": "4:memory:/job\n1:cpu:/\n0::/\n"})
        write(
            root / "sys/fs/cgroup",
            {
                "cpu/cpu.cfs_quota_us": "300000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
                "cpu/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 2500000000\n",
                "unified/cpu.stat": "usage_usec 1\n",
                "memory/memory.limit_in_bytes": V1_NO_LIMIT,
                "memory/job/memory.limit_in_bytes": f"{4 * GIB}\n",
                "memory/job/memory.usage_in_bytes": f"{3 * GIB}\n",
                "memory/job/memory.stat": f"inactive_file 0\ntotal_inactive_file {GIB}\n",
                "memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            },
        )
        found = detect(root)
        assert (found.quota, found.memory_total_mib) == (3.0, 4096)
        assert topology.available_memory_mib(root) == 2048
        assert cgroup.throttled_s(root) == 2.5
        assert cgroup.oom_kills(root) == 2

    def test_memory_limits_of_ancestors_count(self, root: Path) -> None:
        v2(
            root,
            "/a/b",
            {
                "a/memory.max": f"{6 * GIB}\n",
                "a/memory.current": f"{5 * GIB}\n",
                "a/memory.stat": f"anon 7\ninactive_file {GIB // 2}\n",
                "a/b/memory.max": f"{4 * GIB}\n",
                "a/b/memory.current": f"{GIB}\n",
                "a/b/memory.stat": "inactive_file 0\n",
            },
        )
        assert detect(root).memory_total_mib == 4096
        assert topology.available_memory_mib(root) == 1536

    def test_container_whose_mount_shows_only_its_own_group(self, root: Path) -> None:
        quota = {
            "cpu,cpuacct/cpu.cfs_quota_us": "100000\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        }
        v1(root, "/docker/4f2a", quota, top="/docker/4f2a")
        assert detect(root).quota == 1.0

    def test_throttling_of_all_groups_is_summed(self, root: Path) -> None:
        v2(
            root,
            "/a",
            {"cpu.stat": "throttled_usec 500000\n", "a/cpu.stat": "throttled_usec 1000000\n"},
        )
        assert cgroup.throttled_s(root) == 1.5
        write(root, {"sys/fs/cgroup/a/cpu.stat": "nr_throttled 4\nthrottled_usec 3000000\n"})
        assert cgroup.throttled_s(root) == 3.5

    def test_oom_kills_of_our_group_first_then_of_the_machine(self, root: Path) -> None:
        v2(root, "/a", {})
        write(root, {"proc/vmstat": "nr_free_pages 5\noom_kill 4\n"})
        assert cgroup.oom_kills(root) == 4
        write(root, {"sys/fs/cgroup/a/memory.events": "low 0\noom 1\noom_kill 1\n"})
        assert cgroup.oom_kills(root) == 1


def made(
    nodes: int = 1, cores: int = 4, smt: int = 1, quota: float | None = None, gpus: int = 0
) -> Machine:
    """``cores`` per node; CPUs are numbered as Linux mostly does: every core's first thread, then
    the siblings."""
    total = nodes * cores
    cpus = [
        Cpu(index=sibling * total + core, core=core, package=core // cores, numa_node=core // cores)
        for sibling in range(smt)
        for core in range(total)
    ]
    return Machine(
        cpus=topology._preference(cpus),
        quota=quota,
        memory_total_mib=1024,
        gpus=tuple(Gpu(index=str(index), name="x", memory_mib=1) for index in range(gpus)),
    )


def fill(pool: SlotPool, cores: int = 1) -> list[Slot]:
    slots = []
    while slot := pool.acquire(cores):
        slots.append(slot)
    return slots


class TestSlotPool:
    @pytest.mark.parametrize(
        ("of", "max_parallel", "cores", "expected"),
        [
            (made(cores=2), None, 1, [(0,), (1,)]),
            (made(cores=2, smt=2), None, 1, [(0,), (1,)]),
            (made(cores=2, smt=2), 4, 1, [(0,), (1,), (2,), (3,)]),
            (made(cores=2), 3, 1, [(0,), (1,), (0,)]),
            (made(cores=4), None, 2, [(0, 1), (2, 3)]),
            (made(cores=2, smt=2), None, 3, [(0, 1, 2)]),
            (made(nodes=2, cores=2), None, 1, [(0,), (2,), (1,), (3,)]),
            (made(nodes=2, cores=2), None, 2, [(0, 1), (2, 3)]),
            (made(nodes=2, cores=4), None, 4, [(0, 1, 2, 3), (4, 5, 6, 7)]),
            (made(nodes=2, cores=4), None, 6, [(0, 1, 2, 4, 5, 6)]),  # node by node, for ranks
            (made(quota=2.5), None, 1, [(0,), (1,)]),
            (made(quota=2.5), 4, 1, [(0,), (1,)]),
            (made(quota=0.5), None, 1, [(0,)]),
            (made(cores=2), None, 3, []),
        ],
    )
    def test_who_gets_what(
        self, of: Machine, max_parallel: int | None, cores: int, expected: list[tuple[int, ...]]
    ) -> None:
        slots = fill(SlotPool(of, max_parallel), cores)
        assert [slot.cpus for slot in slots] == expected
        assert [slot.index for slot in slots] == list(range(len(expected)))

    def test_gpus_are_looked_for_once_when_the_first_job_asks_for_one(self) -> None:
        asked: list[str] = []

        def find() -> tuple[Gpu, ...]:
            asked.append("nvidia-smi")
            return made(gpus=1).gpus

        pool = SlotPool(made(cores=3), find_gpus=find)
        assert pool.acquire(1) is not None
        assert asked == []
        assert pool.fits_ever(1, 1)
        assert not pool.fits_ever(1, 2)
        slot = pool.acquire(1, 1)
        assert slot is not None
        assert len(slot.gpus) == 1
        assert pool.acquire(1, 1) is None
        assert asked == ["nvidia-smi"]

    def test_two_core_job_takes_the_node_where_it_fits(self) -> None:
        pool = SlotPool(made(nodes=2, cores=2))
        one = pool.acquire(1)
        two = pool.acquire(2)
        assert one is not None
        assert two is not None
        assert (one.cpus, two.cpus) == ((0,), (2, 3))

    def test_no_more_cores_than_the_machine_feeds_are_out_at_once(self) -> None:
        pool = SlotPool(made(cores=8, quota=4.9))
        assert pool.acquire(3) is not None
        assert pool.acquire(2) is None
        assert pool.acquire(1) is not None
        assert pool.acquire(1) is None

    def test_jobs_share_a_gpu_until_it_is_full_and_the_others_stay_whole(self) -> None:
        pool = SlotPool(made(cores=9, gpus=2))
        slots = [pool.acquire(1, gpus) for gpus in (0.5, 0.3, 1, 0.2, 0.1)]
        assert [slot and slot.gpus for slot in slots] == [("0",), ("0",), ("1",), ("0",), None]
        assert slots[1] is not None
        pool.release(slots[1])
        again = [pool.acquire(1, gpus) for gpus in (0.4, 0.3)]
        assert [slot and slot.gpus for slot in again] == [None, ("0",)]

    @pytest.mark.parametrize(("share", "fit"), [(0.1, 10), (0.3333, 3), (0.3334, 2), (0.7, 1)])
    def test_as_many_jobs_fit_as_their_shares_say(self, share: float, fit: int) -> None:
        pool = SlotPool(made(cores=12, gpus=1))
        assert [pool.acquire(1, share) is not None for _ in range(11)].count(True) == fit

    @pytest.mark.parametrize(
        ("of", "max_parallel", "words"),
        [
            (made(), None, []),
            (made(), 4, []),
            (made(smt=2), None, []),
            (made(smt=2), 6, ["there are 4 physical cores"]),
            (made(smt=2), 9, ["there are 4 physical cores"]),
            (made(quota=2.5), None, []),
            (made(quota=2.5), 4, ["quota of 2.5 CPUs"]),
        ],
    )
    def test_warnings(self, of: Machine, max_parallel: int | None, words: list[str]) -> None:
        texts = SlotPool(of, max_parallel).warnings()
        assert len(texts) == len(words)
        for text, expected in zip(texts, words, strict=True):
            assert expected in text

    @given(
        nodes=st.integers(1, 3),
        cores=st.integers(1, 4),
        smt=st.integers(1, 2),
        quota=st.none() | st.floats(0.1, 20),
        max_parallel=st.none() | st.integers(1, 30),
        moves=st.lists(
            st.tuples(
                st.booleans(), st.integers(1, 8), st.sampled_from([0, 1, 2, 0.1, 0.3, 0.5, 0.7])
            ),
            max_size=40,
        ),
    )
    def test_cpus_are_shared_only_when_asked_for_and_all_come_back(
        self,
        nodes: int,
        cores: int,
        smt: int,
        quota: float | None,
        max_parallel: int | None,
        moves: list[tuple[bool, int, float]],
    ) -> None:
        of = made(nodes, cores, smt, quota, gpus=2)
        pool = SlotPool(of, max_parallel)
        fresh = fill(SlotPool(of, max_parallel))
        held: list[Slot] = []
        for take, number, gpus in moves:
            if not take and held:
                pool.release(held.pop(number % len(held)))
            elif number <= largest_job(of):
                slot = pool.acquire(number, gpus)
                assert slot is not None or held, "an empty pool takes any job that fits the machine"
                held += [slot] if slot else []
            users = Counter(cpu for slot in held for cpu in slot.cpus)
            assert max(users.values(), default=0) <= max(1, -(-pool.jobs_at_once // len(of.cpus)))
            assert len(held) <= pool.jobs_at_once
            assert len({slot.index for slot in held}) == len(held)
            assert all(len(set(slot.cpus)) == len(slot.cpus) for slot in held)
            shares = {gpu: sum(slot.gpu_share for slot in held if gpu in slot.gpus) for gpu in "01"}
            assert max(shares.values()) < 1.0001
            if quota is not None:
                assert sum(users.values()) <= max(1, quota)
        for slot in held:
            pool.release(slot)
        assert fill(pool) == fresh
        assert len(fresh) == pool.jobs_at_once


def test_gpus_that_others_use_are_taken_last_and_are_told() -> None:
    def gpu(name: str, free_mib: int | None) -> Gpu:
        return Gpu(index=name, name="H200", memory_mib=100_000, free_mib=free_mib)

    cpus = tuple(Cpu(index=index, core=index, package=0, numa_node=0) for index in range(4))
    gpus = (gpu("busy", 40_000), gpu("screen", 99_000), gpu("unknown", None))
    pool = SlotPool(Machine(cpus=cpus, quota=None, memory_total_mib=1, gpus=gpus))
    taken = [pool.acquire(1, 1) for _ in gpus]
    assert [slot and slot.gpus for slot in taken] == [("screen",), ("unknown",), ("busy",)]
    assert len(pool.warnings()) == 1
