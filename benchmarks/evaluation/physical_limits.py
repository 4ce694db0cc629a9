"""Physical limits: steps in TensorFlow whose allocator may take as many bytes as the budget, and no more.

Each row is a process that trained three steps, or ran out of memory. The limit is a share of the memory that
the allocator needs for the plain step, or the least that is known to be enough. Rows "live" have the same
budget, for live bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.experiment import Experiment
from evaluation.results import Results, Task
from pages import table
from steps.process import LEAST, Row, measured

__all__ = ["EXPERIMENT"]

_NETWORKS = ("vgg", "resnet", "densenet", "efficientnet", "unet", "unet-dropout", "transformer", "mobilenet")
_SHARES = (0.8, 0.6, LEAST)
_WAYS: Mapping[str, tuple[str, str]] = {
    "stock": ("plain", "live"),
    "live": ("checkmate", "live"),
    "allocator": ("checkmate", "allocator"),
}
"""Column → method, and what its budget counts."""
_MIB = 2**20


def tasks(quick: bool) -> Sequence[Task]:
    """Each network; all limits in one task, because they are shares of one figure."""
    return [{"network": name, "time_limit": 5.0} for name in (("transformer",) if quick else _NETWORKS)]


def measure(task: Task) -> Mapping[str, Any]:
    """The memory that the plain step needs, in bytes, and what happened within each limit."""
    task = dict(task)
    needs = measured("tf_limit", task | {"method": "needs", "counts": "allocator"}, throw=True)
    free = measured("tf_limit", task | {"method": "plain", "counts": "live"}, throw=True)
    limits = []
    for share in _SHARES:
        limit = -(-int(share * needs["whole"] if share else needs["least"]) // _MIB)
        if limit * _MIB < needs["least"]:
            continue
        found: Row = {"share": share, "limit": limit}
        for way, (method, counts) in _WAYS.items():
            found[way] = _within(limit, task | {"method": method, "counts": counts})
            if "losses" in found[way]:
                found[way]["loss_error"] = _distance(found[way]["losses"], free["losses"])
        limits.append(found)
    return needs | {"limits": limits}


def _within(limit: int, task: Task) -> Row:
    """What a process under a limit of MiB answers; one that dies, as TensorFlow's kernels do, has failed."""
    try:
        return measured("tf_limit", task, own={"TF_CPU_BFC_MEM_LIMIT_IN_MB": str(limit)})
    except RuntimeError as error:
        return {"failed": str(error).splitlines()[0]}


def _distance(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


def markdown(results: Results) -> str:
    """One line for each limit."""
    lines = []
    for row in results.rows:
        for found in row["limits"] or ():
            share = f"{found['share']:.0%}" if found["share"] else "least"
            ours = found["allocator"]
            lines.append(
                (
                    *(row["network"], f"{row['whole'] / _MIB:.0f}", share, str(found["limit"])),
                    *(_verdict(found[way]) for way in _WAYS),
                    *(_number(ours, "expected", lambda x: f"{x / _MIB:.1f}"),),
                    *(_number(ours, "overhead", lambda x: f"{x:.1%}"),),
                    *(_number(ours, "loss_error", lambda x: f"{x:.0e}" if x else "0"),),
                )
            )
    head = ("network", "plain needs", "share", "limit", *_WAYS, "expected", "overhead", "loss differs by")
    return f"Sizes in MiB.\n\n{table(head, lines)}"


def _verdict(found: Row) -> str:
    return (
        "trains" if "losses" in found else "refused" if "Infeasible" in found["failed"] else "out of memory"
    )


def _number(found: Row, name: str, shown: Any) -> str:
    return shown(found[name]) if name in found else "–"


EXPERIMENT = Experiment(
    name="physical-limits",
    title="Physical limits",
    about="training in TensorFlow within an allocator's limit that equals the budget",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    packages=("checkmate-core", "checkmate-solvers", "checkmate-tf", "tensorflow-cpu", "keras", "numpy"),
    needs=("tensorflow",),
)
