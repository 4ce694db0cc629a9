"""One budget for each rank under FSDP2: predicted beside measured peaks, beside PyTorch's checkpointing.

``benchmarks/steps/torch_fsdp.py`` measures, each task in processes of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from checkmate.units import format_bytes
from evaluation.experiment import Experiment
from evaluation.results import Results, Row, Task
from pages import table
from steps.process import LEAST, measured

__all__ = ["EXPERIMENT"]

_WORLDS = (2, 4, 64, 512)
_RANKS = (2, 4)
_RUN_AS_RANKS = ("GPT-2", "MLP")
"""Networks of which as many processes run as a prediction has ranks."""


def tasks(quick: bool) -> Sequence[Task]:
    """Each network within budgets, beside checkpointing, and in larger worlds."""
    from zoo.torch_fsdp import DEEPER, NETWORKS

    names = ("MLP",) if quick else tuple(NETWORKS)
    deeper = () if quick else tuple(DEEPER)
    shares = (0.6,) if quick else (0.8, 0.6, 0.5, LEAST)
    worlds = _WORLDS[:2] if quick else _WORLDS
    runs = [] if quick else [(name, ranks) for name in _RUN_AS_RANKS for ranks in _RANKS]
    return [
        *({"network": name, "asks": "budgets", "ranks": 2, "shares": shares} for name in names),
        *({"network": name, "asks": "checkpointing", "ranks": 2} for name in (*names, *deeper)),
        *({"network": name, "asks": "ranks", "ranks": ranks} for name, ranks in runs),
        *({"network": name, "asks": "worlds", "worlds": worlds} for name in names),
    ]


def markdown(results: Results) -> str:
    """A table for each question, and the failures."""
    rows = [row for row in results.rows if not row.failure]
    of = {asks: [row for row in rows if row["asks"] == asks] for asks in results.distinct("asks")}
    parts = [
        "**One budget for each rank**",
        table(_BUDGETS, [line for row in of.get("budgets", ()) for line in _budget_lines(row)]),
        _summary(of.get("budgets", ())),
        "**Beside `torch.utils.checkpoint` around each block**",
        table(_CHECKPOINTING, map(_checkpointing_line, of.get("checkpointing", ()))),
        "**Ranks that are not here**",
        table(_PREDICTIONS, [line for row in of.get("worlds", ()) for line in _world_lines(row, results)]),
    ]
    failures = [f"- {row['network']}, {row['asks']}: {row.failure}" for row in results.rows if row.failure]
    return "\n\n".join([*parts, *(["\n".join(failures)] if failures else [])])


_BUDGETS = (
    "network",
    "budget",
    "predicted",
    "measured",
    "predicted / measured",
    "within",
    "extra cost",
    "bits",
)
_CHECKPOINTING = (
    "network",
    "its peak",
    "measured",
    "its extra cost",
    "our peak, no higher",
    "our extra cost",
    "of its cost",
    "our peak at its cost",
)
_PREDICTIONS = (
    "network",
    "ranks",
    "plain, predicted",
    "plain, measured",
    "at 75 %, predicted",
    "at 75 %, measured",
    "extra cost",
)


def _budget_lines(row: Row) -> Iterator[Sequence[str]]:
    plain = row["plain_predicted"], row["plain_measured"]
    yield row["network"], "plain FSDP2", *map(format_bytes, plain), _apart(*plain), "", "", ""
    for share, run in zip(row["shares"], row["runs"], strict=True):
        said = "least" if share == LEAST else f"{share:.0%}"
        if "needs" in run:
            yield row["network"], said, f"needs {format_bytes(run['needs'])}", *[""] * 5
            continue
        yield (
            row["network"],
            f"{said}: {format_bytes(run['budget'])}",
            format_bytes(run["predicted"]),
            format_bytes(run["measured"]),
            _apart(run["predicted"], run["measured"]),
            _yes(run["within"]),
            f"{run['overhead']:.1%}",
            _yes(run["bits"]),
        )


def _summary(rows: Sequence[Row]) -> str:
    """How many runs kept what was promised."""
    runs = [run for row in rows for run in row["runs"] if "needs" not in run]
    refused = sum(len(row["runs"]) for row in rows) - len(runs)
    apart = max((abs(run["predicted"] / run["measured"] - 1) for run in runs), default=0.0)
    return (
        f"Within the budget: {sum(run['within'] for run in runs)} of {len(runs)} runs. Gradients and "
        f"parameters equal plain FSDP2's to the bit: {sum(run['bits'] for run in runs)} of {len(runs)}. "
        f"Predicted and measured peak differ by {apart:.2%} at most. Refused, with the least budget that is "
        f"known to work: {refused}."
    )


def _checkpointing_line(row: Row) -> Sequence[str]:
    same_peak, same_cost = row["at_their_peak"], row["at_their_cost"]
    ours = "", "", ""
    if "needs" in same_peak:
        ours = f"needs {format_bytes(same_peak['needs'])}", "", ""
    else:
        cost = same_peak["overhead"]
        ours = format_bytes(same_peak["predicted"]), f"{cost:.1%}", f"{cost / row['theirs_overhead']:.2f}"
    return (
        row["network"],
        format_bytes(row["theirs_predicted"]),
        format_bytes(row["theirs_measured"]),
        f"{row['theirs_overhead']:.1%}",
        *ours,
        format_bytes(same_cost["predicted"]) if same_cost else "",
    )


def _world_lines(row: Row, results: Results) -> Iterator[Sequence[str]]:
    for world in row["worlds"]:
        found = row[str(world)]
        real = [*results.where(network=row["network"], asks="ranks", ranks=world)]
        runs = [format_bytes(each[name]) for each in real for name in ("plain_measured", "measured")]
        plain, ours = runs or ("", "")
        yield (
            row["network"],
            str(world),
            format_bytes(found["plain_predicted"]),
            plain,
            f"needs {format_bytes(found['needs'])}" if "needs" in found else format_bytes(found["predicted"]),
            ours,
            "" if "needs" in found else f"{found['overhead']:.1%}",
        )


def _apart(predicted: int, measured: int) -> str:
    return f"{predicted / measured - 1:+.2%}"


def _yes(answer: bool) -> str:
    return "yes" if answer else "**no**"


EXPERIMENT = Experiment(
    name="fsdp",
    title="One budget for each rank under FSDP2",
    about="peaks of ranks under fully_shard, predicted and measured, beside per-block checkpointing",
    tasks=tasks,
    measure=partial(measured, "torch_fsdp", limit_s=900.0),
    markdown=markdown,
    packages=("checkmate-core", "checkmate-solvers", "checkmate-torch", "torch", "transformers"),
    needs=("torch", "transformers"),
    alone=True,
)
