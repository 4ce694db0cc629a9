"""Architectures of four libraries, habits of training loops, and steps that vary, within a budget in PyTorch.

``nox -s world`` installs the libraries; ``benchmarks/steps`` measures, each task in a process of its own with
a time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evaluation.experiment import Experiment
from evaluation.results import Results, Row, Task
from pages import table
from steps.process import LEAST, measured

__all__ = ["DOORS", "EXPERIMENTS", "HABITS", "VARIES", "WORLD"]

DOORS = ("enable", "compile", "backend")
"""The ways in: two functions of ``checkmate.torch``, and ``torch.compile(backend="checkmate")``."""

_LIMIT_S = 600.0
_SHARES = (0.7, 0.5, LEAST)
_COST_MODEL = "roofline-A100-80GB"
_CLOSE = 1e-5


def world_tasks(quick: bool, *, time: bool = False) -> Sequence[Task]:
    """Each architecture within each budget, and with its library's own checkpointing.

    Args:
        quick: two architectures, one budget.
        time: whether steps are timed; else the extra time is only predicted, by the datasheet of a GPU.
    """
    from zoo.torch_world import ARCHITECTURES

    names = ("ViT", "GCN") if quick else ARCHITECTURES
    ways: list[tuple[str, float | None]] = [("checkmate", share) for share in ((0.5,) if quick else _SHARES)]
    effort = {"cost_model": "profiled" if time else _COST_MODEL, "time_limit": 10.0, "time": time}
    return [
        {"network": name, "method": method, "share": share, **effort}
        for name in names
        for method, share in (*ways, *([("own", None)] if ARCHITECTURES[name].own else []))
    ]


def habit_tasks(quick: bool) -> Sequence[Task]:
    """Each habit."""
    from zoo.habits import GROUPS

    tasks = [
        {"habit": name, "group": group, "doors": list(DOORS)}
        for group, names in GROUPS.items()
        for name in names
    ]
    return tasks[:2] if quick else tasks


def varies_tasks(quick: bool) -> Sequence[Task]:
    """Each loop whose steps vary."""
    from zoo.habits import VARYING

    tasks = [{"habit": name} for name in VARYING]
    return tasks[:1] if quick else tasks


def world_markdown(results: Results) -> str:
    """A summary, then one line for each architecture and way."""
    head = (
        *("network", "within", "budget MiB", "predicted", "measured", "of plain", "bits"),
        *("extra time, predicted", "extra time, measured"),
    )
    timed = any(row["time_overhead"] is not None for row in results.rows)
    lines = [_world_line(row) for row in results.rows]
    columns = len(head) - (not timed)
    said = [_world_summary(results), table(head[:columns], [line[:columns] for line in lines])]
    failures = [
        f"- {row['network']}, {_way(row)}: {_said(why)}" for row in results.rows if (why := row.failure)
    ]
    return "\n\n".join([*said, *(["\n".join(failures)] if failures else [])])


def habits_markdown(results: Results) -> str:
    """A summary, one table for each group of habits, and the messages of the refusals."""
    answers = [_answer(row, door) for row in results.rows for door in DOORS]
    counts = {said.strip(" ("): sum(one.startswith(said) for one in answers) for said in _ANSWERS}
    summary = ", ".join(f"{count} × {said}" for said, count in counts.items() if count)
    parts = [f"{len(results.rows)} habits, {len(DOORS)} ways in: {summary}."]
    for group in results.distinct("group"):
        rows = [row for row in results.rows if row["group"] == group]
        lines = [(row["habit"], *(_answer(row, door) for door in DOORS)) for row in rows]
        parts.append(f"**{group}**\n\n{table(('habit', *DOORS), lines)}")
    return "\n\n".join([*parts, *_reasons(results)])


def varies_markdown(results: Results) -> str:
    """A summary, one line for each loop, and its warnings."""
    good = sum(row["fails"] == [] for row in results.rows)
    head = (
        *("loop", "budget", "first step, of plain", "later steps, of the budget", "new plans in steps"),
        *("planning s", "results", "warnings", "holds"),
    )
    said = [f"{good} of {len(results.rows)} loops hold.", table(head, list(map(_varies_line, results.rows)))]
    warned = [f"- {row['habit']}: {_said(text)}" for row in results.rows for text in row["warned"] or ()]
    return "\n\n".join([*said, *(["\n".join(warned)] if warned else [])])


def _varies_line(row: Row) -> list[str]:
    if why := row.failure:
        return [row["habit"], *["–"] * 7, f"no: {_said(why)}"]
    plain, bounds = row["plain"], row["bounds"]
    worst = max(peak / bound for peak, bound in zip(row["peaks"][1:], bounds[1:], strict=True))
    return [
        row["habit"],
        row["budget"] if isinstance(row["budget"], str) else f"{row['budget'] / max(plain):.0%} in bytes",
        f"{row['peaks'][0] / plain[0]:.0%}",
        f"{worst:.0%}",
        ", ".join(str(step + 1) for step in row["planned"]),
        f"{row['planning_s']:.0f}",
        _cell(row["difference"], lambda x: f"{x:.0e}" if x else "equal bits") or "other",  # None = infinite
        str(len(row["warned"])),
        "yes" if not row["fails"] else f"no: {'; '.join(row['fails'])}",
    ]


def _reasons(results: Results) -> list[str]:
    """The message of each refusal and failure, after the habits that it ends."""
    reasons: dict[str, list[str]] = {}
    for row in results.rows:
        for door in DOORS:
            found = row[door] or {}
            if why := row.error or found.get("refused") or found.get("strict") or found.get("failed"):
                reasons.setdefault(_said(why), []).append(f"{row['habit']} ({door})")
    return [f"- {', '.join(which)}: {why}" for why, which in reasons.items()]


_ANSWERS = (
    *("equal bits", "close", "refused", "warned of, or refused with strict=True"),
    *("over the budget, with a warning", "over the budget (", "other results", "failed"),
)


def _answer(row: Row, door: str) -> str:
    """The cell of a habit and a door."""
    found: Mapping[str, Any] = row[door] or {"failed": row.error}
    if "refused" in found:
        return "refused"
    if "failed" in found:
        return "failed"
    if found["difference"] is None:  # infinite, as of numbers of another shape
        return "other results"
    if found["difference"] > _CLOSE:
        return f"other results ({found['difference']:.0e})"
    if found["peak"] > found["budget"]:
        over = f"({found['peak'] / found['budget'] - 1:+.1%})"
        if found.get("strict") and found["warned"]:
            return f"warned of, or refused with strict=True {over}"
        warned = ", with a warning" if any("budget" in text for text in found["warned"]) else ""
        return f"over the budget{warned} {over}"
    return "equal bits" if not found["difference"] else f"close ({found['difference']:.0e})"


def _world_line(row: Row) -> list[str]:
    if row.failure:
        said = "infeasible" if "InfeasibleBudgetError" in row.failure else "failed"
        return [row["network"], _way(row), "–", "–", "–", "–", said, "–", "–"]
    return [
        row["network"],
        _way(row),
        _cell(row["budget"], _mib),
        _cell(row["expected"], _mib),
        _mib(row["peak"]),
        f"{row['peak'] / row['plain_peak']:.0%}",
        _bits(row),
        _cell(row["overhead"], lambda x: f"{x:+.1%}"),
        _cell(row["time_overhead"], lambda x: f"{x:+.1%}"),
    ]


def _world_summary(results: Results) -> str:
    ours = [row for row in results.where(method="checkmate") if row["peak"]]
    own = {row["network"]: row for row in results.where(method="own") if row["peak"]}
    within = sum(row["peak"] <= row["budget"] for row in ours)
    off = max((abs(row["expected"] / row["peak"] - 1) for row in ours), default=0.0)
    least = {row["network"]: row["peak"] for row in ours if row["share"] == LEAST}
    lower = sum(least[name] < row["peak"] for name, row in own.items() if name in least)
    bits = sum(not row["difference"] for row in ours)
    traced = sum(row["difference"] != 0 and row["over_aot_eager"] == 0 for row in ours)
    return (
        f"The measured peak is within the budget in {within} of {len(ours)} rows of Checkmate, and differs "
        f"from the predicted one by at most {off:.1%}. All bits equal those of plain PyTorch in {bits} rows, "
        f'and those of `torch.compile(backend="aot_eager")` in {traced} further ones. The least budget is '
        "below the peak of the library's own gradient checkpointing for "
        f"{lower} of {len(own.keys() & least.keys())} architectures that have it."
    )


def _way(row: Row) -> str:
    if row["method"] == "own":
        return "the library's own checkpointing"
    return "least budget" if row["share"] == LEAST else f"{row['share']:.0%} of plain"


def _bits(row: Row) -> str:
    if not row["difference"]:
        return "equal"
    if not row["over_aot_eager"]:
        return f"aot_eager's ({row['difference']:.0e})"
    return f"{row['difference']:.0e} ({row['over_aot_eager']:.0e})"


def _said(message: str) -> str:
    """A message as code on one line."""
    return "`" + " ".join(message.replace("`", "'").split())[:300] + "`"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f}"


def _cell(value: Any, style: Callable[[Any], str]) -> str:
    return "" if value is None else style(value)


def _measured(module: str) -> Callable[[Task], Mapping[str, Any]]:
    def measure(task: Task) -> Mapping[str, Any]:
        return measured(module, task, limit_s=_LIMIT_S)

    return measure


WORLD = Experiment(
    name="torch-world",
    title="Architectures of four libraries",
    about="bits and peaks of architectures of transformers, timm, diffusers, PyTorch Geometric",
    tasks=world_tasks,
    measure=_measured("torch_world"),
    markdown=world_markdown,
    packages=(
        *("checkmate-core", "checkmate-solvers", "checkmate-torch", "torch"),
        *("transformers", "timm", "diffusers", "torch-geometric"),
    ),
    needs=("torch", "transformers", "timm", "diffusers", "torch_geometric"),
)
HABITS = Experiment(
    name="torch-habits",
    title="Habits of training loops",
    about="training loops as people write them: bits and peaks through each entry point",
    tasks=habit_tasks,
    measure=_measured("torch_habit"),
    markdown=habits_markdown,
    packages=("checkmate-core", "checkmate-solvers", "checkmate-torch", "torch"),
    needs=("torch",),
)
VARIES = Experiment(
    name="torch-varies",
    title="Steps that vary",
    about="training loops whose steps vary: new plans, seconds of planning, and the peak of each step",
    tasks=varies_tasks,
    measure=_measured("torch_varies"),
    markdown=varies_markdown,
    packages=(*HABITS.packages, "transformers", "trl", "peft"),
    needs=("torch", "trl", "peft"),
)
EXPERIMENTS = (WORLD, HABITS, VARIES)
