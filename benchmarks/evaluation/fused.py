"""Fused kernels within a budget: peak, time and first step beside Inductor and PyTorch's own budgets.

Each row is a process of its own on one thread. Its steps alternate with those of plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from evaluation.experiment import Experiment
from evaluation.results import Results, Row, Task
from pages import table
from steps.process import KEEPS_MEMORY, LEAST, measured

__all__ = ["EXPERIMENT"]

NETWORKS = (
    *("mlp", "resnet18", "unet", "gpt2"),
    *("GPT-2", "Llama", "BERT", "SegFormer", "ResNet-10", "ConvNeXt"),
)
_SHARES = (0.6, LEAST, 0.8, 0.4, 0.5)
_SETTINGS = (0.5,)
"""Of ``activation_memory_budget``."""
_OURS = ("eager", "fused")
_MEANING = (
    "“of plain”: the measured peak as a share of plain PyTorch's; “recomputed”: the cost of recomputation in "
    "the plan, relative to all ops once; “extra time”: median ratio of pairs of steps, less one; “first "
    "step”: seconds that plan or compile, and run it."
)


def tasks(quick: bool) -> Sequence[Task]:
    """Each network by each way."""
    networks = ("mlp", "gpt2") if quick else NETWORKS
    shares = (0.5,) if quick else _SHARES
    ways: list[tuple[str, float | None]] = [(method, share) for share in shares for method in _OURS]
    ways += [("plain", None), ("inductor", None), ("checkpoint", None)]
    ways += [("torch", setting) for setting in _SETTINGS]
    effort = {"time_limit": 3.0, "spend_s": 1.0} if quick else {"time_limit": 5.0, "spend_s": 3.0}
    return [
        {"network": name, "method": method, "share": share, **effort}
        for method, share in ways
        for name in networks
    ]


def markdown(results: Results) -> str:
    """A summary, then one table for each network, with the failures below it."""
    parts = [_summary(results)]
    head = (
        "way",
        "budget MiB",
        "expected",
        "measured",
        "of plain",
        "recomputed",
        "extra time",
        "first step s",
        "gradients",
    )
    for network in results.distinct("network"):
        rows = sorted(results.where(network=network), key=_order)
        parts.append(f"**{network}**\n\n{table(head, [_line(row) for row in rows])}")
        parts += [f"- {_way(row)}: `{why}`" for row in rows if (why := row.failure)]
    return "\n\n".join(parts)


def _order(row: Row) -> tuple[bool, str, float]:
    return row["method"] in _OURS, row["method"], -(row["share"] or 0.0)


def _summary(results: Results) -> str:
    ours = [row for row in results.rows if row["method"] in _OURS and row["peak"]]
    within = sum(row["peak"] <= row["budget"] for row in ours)
    said = [f"The measured peak is within the budget in {within} of {len(ours)} rows of ours."]
    pairs = _pairs(results)
    faster = sum(fused["time_overhead"] <= eager["time_overhead"] for eager, fused in pairs)
    said.append(f"Fused kernels are at least as fast as single ones in {faster} of {len(pairs)} cells.")
    at = [row for row in ours if row["method"] == "fused" and row["share"] == 0.6]
    free = sum(row["time_overhead"] <= 0 for row in at)
    said.append(
        f"At 60 % of the peak they are no slower than plain PyTorch for {free} of {len(at)} networks."
    )
    least = [(e["budget"], f["budget"]) for e, f in pairs if e["share"] == LEAST]
    lower = sum(fused < eager for eager, fused in least)
    said.append(f"Their least budget is lower for {lower} of {len(least)} networks.")
    return " ".join([*said, _MEANING])


def _pairs(results: Results) -> list[tuple[Row, Row]]:
    """The rows of single and of fused kernels within the same share."""
    return [
        (eager, fused)
        for fused in results.where(method="fused")
        for eager in results.where(method="eager", network=fused["network"], share=fused["share"])
        if eager["peak"] and fused["peak"]
    ]


def _line(row: Row) -> list[str]:
    if row.failure:
        return [_way(row), "", "", "", "", "", "failed", "", ""]
    return [
        _way(row),
        _mib(row["budget"]),
        _mib(row["expected"]),
        _mib(row["peak"]),
        f"{row['peak'] / row['plain_peak']:.0%}",
        f"{row['overhead']:.1%}" if row["method"] in _OURS else "",
        f"{row['time_overhead']:+.1%}",
        f"{row['first_s']:.1f}",
        "bits" if not row["gradient_error"] else f"{row['gradient_error']:.0e}",
    ]


def _mib(size: int | None) -> str:
    return "" if size is None else f"{size / 2**20:.2f}"


def _way(row: Row) -> str:
    if row["share"] is None:
        return str(row["method"])
    share = "least" if row["share"] == LEAST else f"{row['share']:.0%}"
    return f"{row['method']} {share}"


EXPERIMENT = Experiment(
    name="fused",
    title="Fused kernels within a budget",
    about="Peak and time of fused kernels within budgets, beside Inductor and PyTorch's own budgets",
    tasks=tasks,
    measure=partial(measured, "torch_fused", own={"OMP_NUM_THREADS": "1", **KEEPS_MEMORY}),
    markdown=markdown,
    packages=("checkmate-core", "checkmate-solvers", "checkmate-torch", "torch", "transformers", "timm"),
    needs=("torch", "transformers", "timm"),
    alone=True,
)
