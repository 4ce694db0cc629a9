"""What the system has left: the least of what the kernel and the control groups say."""

from __future__ import annotations

from pathlib import Path

import pytest

import checkmate
from checkmate.framework.decide import available_memory

KIB = 1024


def memory(root: Path, available: int, **groups: tuple[object, object]) -> Path:
    """A system with so many bytes available, and control groups with a limit and a usage."""
    (root / "proc").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {available // KIB} kB\nHuge: 0\n")
    (root / "sys/fs/cgroup/memory").mkdir(parents=True)
    names = {"v2": ("memory.max", "memory.current")}
    names["v1"] = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
    for version, values in groups.items():
        for name, value in zip(names[version], values, strict=True):
            (root / "sys/fs/cgroup" / name).write_text(f"{value}\n")
    return root


def test_what_is_left_is_the_least_of_the_system_and_its_control_group(tmp_path: Path) -> None:
    cases = [({}, 64), ({"v2": ("max", 9)}, 64), ({"v2": (50 * KIB, 20 * KIB)}, 30)]
    cases += [({"v1": (8 * KIB, 9 * KIB)}, 0), ({"v1": (2**63, 9)}, 64)]
    for k, (groups, expected) in enumerate(cases):
        assert available_memory(memory(tmp_path / str(k), 64 * KIB, **groups)) == expected * KIB


def test_a_system_that_does_not_tell_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(checkmate.BudgetError, match="in the place of 'auto'"):
        available_memory(tmp_path)
