"""Memory of training steps, predicted by ``checkmate.torch.fit`` and measured by the allocator.

``benchmarks/steps/torch_fit.py`` measures, each task in a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.experiment import Experiment
from evaluation.results import Results, Row, Task
from pages import table
from steps.process import measured

__all__ = ["EXPERIMENT", "LORA"]

LORA: Mapping[str, Sequence[str]] = {
    "GPT-2": ("c_attn",),
    "Llama": ("q_proj", "v_proj"),
    "Qwen3": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "BERT": ("query", "value"),
    "T5": ("q", "v"),
    "ViT": ("qkv",),
}
"""Architecture → the modules that get adapters."""

_OTHERS = {"GPT-2": "sgd,momentum=0.9", "Llama": "adafactor", "ViT": "rmsprop", "UNet2D": "nadam"}
_TRAINED = ("GPT-2", "Llama", "BERT", "T5", "ViT", "GCN", "DiT")
"""Architectures that are also trained within the least peak."""

_LIMIT_S = 600.0
_CLOSE = 0.02


def tasks(quick: bool) -> Sequence[Task]:
    """Each architecture with AdamW, some with other optimizers, some with adapters."""
    from zoo.torch_world import ARCHITECTURES

    names = ("ViT", "GCN") if quick else tuple(ARCHITECTURES)
    plain = [{"network": n, "optimizer": "adamw", "lora": [], "train": n in _TRAINED} for n in names]
    others = [{"network": n, "optimizer": o, "lora": [], "train": False} for n, o in _OTHERS.items()]
    adapted = [
        {"network": n, "optimizer": "adamw", "lora": [*targets], "train": False}
        for n, targets in LORA.items()
    ]
    return plain if quick else [*plain, *others, *adapted]


def measure(task: Task) -> Mapping[str, Any]:
    """Answer one task in a process of its own."""
    return measured("torch_fit", task, limit_s=_LIMIT_S)


def markdown(results: Results) -> str:
    """A summary, then one line for each model and optimizer."""
    head = (
        *("model", "optimizer", "predicted MiB", "measured", "off", "with workspaces"),
        *("least MiB", "of plain", "trained within it"),
    )
    failures = [f"- {_name(row)}: {row.failure}" for row in results.rows if row.failure]
    lines = [_line(row) for row in results.rows if not row.failure]
    return "\n\n".join([_summary(results), table(head, lines), *(["\n".join(failures)] if failures else [])])


def _summary(results: Results) -> str:
    rows = [row for row in results.rows if not row.failure]
    plain = [abs(_off(row, "predicted")) for row in rows]
    full = [abs(_off(row, "with_workspaces")) for row in rows]
    adapted = [off for row, off in zip(rows, full, strict=True) if row["lora"]]
    trained = [row for row in rows if row["least_measured"]]
    within = sum(row["least_measured"] <= row["least"] for row in trained)
    return (
        f"Of {len(rows)} predictions, {_close(plain)} are within 2 % of the measured peak if no op runs, and "
        f"{_close(full)} if workspaces are measured, {_close(adapted)} of {len(adapted)} with adapters among "
        f"them; then the largest difference is {max(full, default=0.0):.1%}. Trained within the predicted "
        f"least peak: {within} of {len(trained)}."
    )


def _close(differences: Sequence[float]) -> int:
    return sum(off <= _CLOSE for off in differences)


def _line(row: Row) -> list[str]:
    return [
        _name(row),
        row["optimizer"],
        _mib(row["predicted"]),
        _mib(row["measured"]),
        f"{_off(row, 'predicted'):+.2%}",
        f"{_off(row, 'with_workspaces'):+.2%}",
        *(_trained(row) if row["train"] else ("", "", "")),
    ]


def _trained(row: Row) -> tuple[str, str, str]:
    """The least peak, its share of the plain one, and the measured peak of training within it."""
    measured = _mib(row["least_measured"]) if row["least_measured"] else row["least_failed"]
    return _mib(row["least"]), f"{row['least'] / row['measured']:.0%}", measured


def _off(row: Row, name: str) -> float:
    """The difference of a prediction from the measured peak, as a share of it."""
    return float(row[name] / row["measured"] - 1)


def _name(row: Row) -> str:
    return f"{row['network']}, LoRA" if row["lora"] else str(row["network"])


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f}"


EXPERIMENT = Experiment(
    name="torch-fit",
    title="Memory needed",
    about="memory that checkmate fit predicts for architectures of four libraries, and adapters",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    packages=(
        *("checkmate-core", "checkmate-solvers", "checkmate-torch", "torch"),
        *("transformers", "peft", "timm", "diffusers", "torch-geometric"),
    ),
    needs=("torch", "transformers", "peft", "timm", "diffusers", "torch_geometric"),
)
