"""What the system has left for this process: the part of the budget "auto" that no framework knows.

    left = min(available memory, limit of each control group − what it uses)

Only Linux tells.
"""

from __future__ import annotations

from pathlib import Path

from checkmate.errors import BudgetError

__all__ = ["AUTO", "AUTO_ADVICE", "HEADROOM", "available_memory"]

AUTO = "auto"
"""What to write for a budget that is what the device has left."""

HEADROOM = 0.1
"""Share of the obtainable bytes that ``"auto"`` leaves alone."""

AUTO_ADVICE = "write bytes ('8GiB') or a share ('60%') in the place of 'auto'"
"""The way out where it is not known what a device has left."""

_GROUPS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
"""Limit and usage of the control group that a container is, in both versions."""


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of the system's memory that this process could still allocate, on Linux.

    What the kernel calls available, or what is left of the control group's limit, if that is less.

    Args:
        root: where ``proc`` and ``sys`` are.

    Raises:
        BudgetError: on other systems.
    """
    try:
        lines = (root / "proc/meminfo").read_text(encoding="utf-8").splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError) as error:
        raise BudgetError(f"it is not known how much memory this system has left: {AUTO_ADVICE}") from error
    groups = root / "sys/fs/cgroup"
    limits = (_left_in_group(groups / limit, groups / usage) for limit, usage in _GROUPS)
    return min([available, *(left for left in limits if left is not None)])


def _left_in_group(limit: Path, usage: Path) -> int | None:
    """What is left of a control group's limit; None if there is none."""
    try:
        return max(int(limit.read_text()) - int(usage.read_text()), 0)
    except (OSError, ValueError):  # no such group, or "max"
        return None
