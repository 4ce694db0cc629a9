"""Recomputation policies: what ``checkmate judge`` predicts and ``checkmate export`` finds, executed.

``benchmarks/steps/torch_policies.py`` measures, each task in a process of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation.experiment import Experiment
from evaluation.results import Results, Task
from pages import table
from steps.process import measured

__all__ = ["EXPERIMENT"]

NETWORKS = ("GPT-2", "Llama", "BERT", "T5", "ViT", "Swin", "DiT", "UNet2D")
BUDGETS = ("70%", "50%", "35%")
_LIMIT_S = 1800.0
_MIB = 2**20


def tasks(quick: bool) -> Sequence[Task]:
    """Each architecture, judged and exported."""
    networks = NETWORKS[:2] if quick else NETWORKS
    judged = [{"network": n, "part": "judge", "budgets": []} for n in networks]
    return [*judged, *({"network": n, "part": "export", "budgets": [*BUDGETS]} for n in networks)]


def measure(task: Task) -> Mapping[str, Any]:
    """Answer one task in a process of its own."""
    return measured("torch_policies", task, limit_s=_LIMIT_S)


def markdown(results: Results) -> str:
    """Both summaries with their tables, and what failed."""
    judged, exported = list(_parts(results, "judge")), list(_parts(results, "export"))
    failures = [f"- {row['network']}: {row.failure}" for row in results.rows if row.failure]
    parts: list[str] = []
    if judged:
        head: tuple[str, ...] = ("model", "policy", "peak MiB", "measured", "off", "FLOPs equal", "extra")
        parts += [_judged_summary(judged), table(head, [_judged_line(*row) for row in judged])]
    if exported:
        head = (
            *("model", "budget", "for", "peak MiB", "measured", "of budget"),
            *("extra", "usual", "our own", "proved"),
        )
        parts += [_exported_summary(exported), table(head, [_exported_line(*row) for row in exported])]
    parts.append("\n".join(failures))
    return "\n\n".join(filter(None, parts))


def _parts(results: Results, part: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for row in results.rows:
        if not row.failure and row["part"] == part:
            yield from ((row["network"], each) for each in row["rows"])


def _judged_summary(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    off = [abs(row["peak"] / row["measured"] - 1) for _, row in rows]
    equal = sum(row["flops_again"] == row["flops_counted"] for _, row in rows)
    close = sum(x <= 0.02 for x in off)
    return (
        f"Of {len(rows)} policies, {close} have a peak within 2 % of the measured one; the largest "
        f"difference is {max(off, default=0.0):.2%}. FLOPs that run again are equal for {equal}."
    )


def _judged_line(network: str, row: Mapping[str, Any]) -> list[str]:
    same = "yes" if row["flops_again"] == row["flops_counted"] else "no"
    return [
        network,
        row["policy"],
        *_sizes(row),
        f"{row['peak'] / row['measured'] - 1:+.2%}",
        same,
        f"{row['overhead']:+.1%}",
    ]


def _exported_summary(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    said = []
    for target in dict.fromkeys(row["target"] for _, row in rows):
        asked = [row for _, row in rows if row["target"] == target]
        found = [row for row in asked if "failed" not in row]
        within = sum(row["measured"] <= row["bytes"] for row in found)
        close = sum(abs(row["peak"] / row["measured"] - 1) <= 0.03 for row in found)
        text = (
            f"`{target}`: of {len(asked)} questions, {len(found)} have a policy; executed, {within} of them "
            f"are within the budget, and {close} within 3 % of the prediction."
        )
        if target == "sac":
            cheap, cheaper = (sum(_is_cheap(row, key) for row in found) for key in ("usual_at_peak", "usual"))
            text = (
                f"{text} {cheap} are no more expensive than what is usual at the same peak or a lower one, "
                f"and {cheaper} than what is usual in the budget."
            )
        said.append(text)
    return "\n\n".join(said)


def _is_cheap(row: Mapping[str, Any], beside: str) -> bool:
    return row[beside] is None or row["overhead"] <= row[beside] + 1e-9


def _exported_line(network: str, row: Mapping[str, Any]) -> list[str]:
    if "failed" in row:
        least = re.search(r"the least peak is ([\d.]+ \w+)", row["failed"])
        return [network, row["budget"], row["target"], f"none: {least[1]}" if least else "none", *[""] * 6]
    return [
        network,
        row["budget"],
        row["target"],
        *_sizes(row),
        f"{row['measured'] / row['bytes']:.1%}",
        f"{row['overhead']:+.1%}",
        "none" if row["usual"] is None else f"{row['usual']:+.1%}",
        "" if row["own_overhead"] is None else f"{row['own_overhead']:+.1%}",
        "" if row["own_overhead"] is None else f"{row['bound']:+.1%}",
    ]


def _sizes(row: Mapping[str, Any]) -> tuple[str, str]:
    return f"{row['peak'] / _MIB:.1f}", f"{row['measured'] / _MIB:.1f}"


EXPERIMENT = Experiment(
    name="torch-policies",
    title="Recomputation policies",
    about="what checkmate judge predicts of policies, and what checkmate export finds, executed",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    packages=(
        *("checkmate-core", "checkmate-solvers", "checkmate-torch", "torch"),
        *("transformers", "timm", "diffusers"),
    ),
    needs=("torch", "transformers", "timm", "diffusers"),
)
