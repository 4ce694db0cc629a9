"""The memory that the system can still give to this process, and the budget ``"auto"``.

    auto = resident + obtainable · (1 − headroom)
    obtainable on the CPU = min(available memory, limit of each control group − its usage)

*Resident* is what the step holds already: parameters, variables, the batch. *Obtainable* is what the process
can still allocate on the device. The headroom covers what no plan knows: fragmentation, the scratch memory of
libraries, other processes. Only Linux reports available memory.
"""

from __future__ import annotations

from pathlib import Path

from checkmate.errors import BudgetError

__all__ = ["AUTO", "HEADROOM", "auto_budget", "available_memory", "unknown_memory"]

AUTO = "auto"
"""The budget that stands for the memory that the device has left."""

HEADROOM = 0.1
"""Share of the obtainable bytes that ``"auto"`` leaves free."""

_GROUPS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
"""Limit and usage of a container's control group, in both versions of control groups."""


def auto_budget(resident: int, obtainable: int) -> int:
    """The budget ``"auto"`` in bytes.

    Args:
        resident: bytes of the step that are allocated already.
        obtainable: bytes that this process can still allocate on the device.

    >>> auto_budget(100, 1000)
    1000
    """
    return resident + int(obtainable * (1 - HEADROOM))


def unknown_memory(device: object) -> BudgetError:
    """The error for a device whose free memory is unknown."""
    return BudgetError(
        f"the free memory of {device} is unknown: write bytes ('8GiB') or a share ('60%') "
        "in the place of 'auto'"
    )


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of the system's memory that this process can still allocate, on Linux.

    The smaller of the kernel's ``MemAvailable`` and the rest of the control group's limit.

    Args:
        root: the folder that holds ``proc`` and ``sys``.

    Raises:
        BudgetError: on other systems.
    """
    try:
        lines = (root / "proc/meminfo").read_text(encoding="utf-8").splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError) as error:
        raise unknown_memory("this system") from error
    groups = root / "sys/fs/cgroup"
    limits = (_left_in_group(groups / limit, groups / usage) for limit, usage in _GROUPS)
    return min([available, *(left for left in limits if left is not None)])


def _left_in_group(limit: Path, usage: Path) -> int | None:
    """Bytes left below a control group's limit; None if the group has no limit."""
    try:
        return max(int(limit.read_text()) - int(usage.read_text()), 0)
    except (OSError, ValueError):  # no such group, or "max"
        return None
