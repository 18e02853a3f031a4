"""What memory is available, by the files of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.client.available_memory import available_memory, fits_in_memory

GIB = 1 << 30
FREE = f"MemTotal: 99 kB\nMemAvailable:   {8 * GIB // 1024} kB\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def v2(folder: str, limit: str, used: int, cache: int = 0) -> dict[str, str]:
    at = f"sys/fs/cgroup/{folder}"
    stat = f"anon 5\ninactive_file {cache}\nactive_file 1000\nshmem 77\n"
    return {f"{at}/memory.max": f"{limit}\n", f"{at}/memory.current": f"{used}\n", f"{at}/memory.stat": stat}


def test_without_limits_it_is_what_the_machine_has(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/meminfo": FREE, "proc/self/cgroup": "0::/job/step\n", **v2("job/step", "max", GIB)})
    assert available_memory(root) == 8 * GIB


def test_a_cgroup_leaves_its_limit_less_what_is_used_beside_the_file_cache(tmp_path: Path) -> None:
    groups = v2("job/step", str(4 * GIB), 3 * GIB, cache=2 * GIB)
    root = write(tmp_path, {"proc/meminfo": FREE, "proc/self/cgroup": "0::/job/step\n", **groups})
    assert available_memory(root) == 3 * GIB + 1000


def test_the_limit_of_a_cgroup_above_counts(tmp_path: Path) -> None:
    groups = {**v2("job/step", "max", GIB), **v2("job", str(2 * GIB), GIB)}
    root = write(tmp_path, {"proc/meminfo": FREE, "proc/self/cgroup": "0::/job/step\n", **groups})
    assert available_memory(root) == GIB + 1000


def test_in_a_container_its_own_cgroup_is_the_mount(tmp_path: Path) -> None:
    root = write(
        tmp_path, {"proc/meminfo": FREE, "proc/self/cgroup": "0::/outside/of/it\n", **v2("", str(GIB), GIB // 2)}
    )
    assert available_memory(root) == GIB // 2 + 1000


@pytest.mark.parametrize(("limit", "left"), [(2 * GIB, GIB + GIB // 2), (9223372036854771712, 8 * GIB)])
def test_version_1(tmp_path: Path, limit: int, left: int) -> None:
    at = "sys/fs/cgroup/memory/slurm/job_7"
    files = {
        "proc/meminfo": FREE,
        "proc/self/cgroup": "5:cpu,cpuacct:/slurm\n4:memory:/slurm/job_7\n0::/\n",
        f"{at}/memory.limit_in_bytes": f"{limit}\n",
        f"{at}/memory.usage_in_bytes": f"{GIB}\n",
        f"{at}/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 4}\ntotal_active_file {GIB // 4}\n",
    }
    assert available_memory(write(tmp_path, files)) == left


def test_more_than_the_limit_is_nothing_left(tmp_path: Path) -> None:
    files = {"proc/meminfo": FREE, "proc/self/cgroup": "0::/\n", **v2("", str(GIB), 2 * GIB)}
    assert available_memory(write(tmp_path, files)) == 0


def test_where_nothing_tells_it_is_not_known(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None
    assert fits_in_memory(1 << 60, None)


def test_this_machine_tells() -> None:
    left = available_memory()
    assert left is not None
    assert 0 <= left < 1 << 50


def test_a_copy_leaves_a_quarter_of_its_size() -> None:
    assert fits_in_memory(100, 125)
    assert not fits_in_memory(100, 124)
    assert fits_in_memory(0, 0)
