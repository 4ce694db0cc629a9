"""Real steps: measured peak and wall time of Checkmate's schedules, beside the frameworks' own tools.

Three experiments of one shape: forward and backward in PyTorch, whole steps in PyTorch, whole steps in
TensorFlow. ``benchmarks/steps`` measures; each measurement has a process of its own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evaluation.experiment import Experiment
from evaluation.panels import panels
from evaluation.results import Results, Row, Task
from pages import table
from steps.process import LEAST, measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENTS", "STEPS_TF", "STEPS_TORCH", "plain_peak"]

_BATCH_NORM = ("resnet18", "unet")
_OURS = ("checkmate", "compile", "compile_step")
_MARKERS = {"checkpoint": "s", "recompute_grad": "s", "torch": "v", "torch-decomposed": "x", "remat": "x"}
_COLUMNS = (
    *("budget MiB", "expected", "measured", "of plain", "cost model", "step s", "extra time", "exact"),
    "plan s",
)
_MEANING = (
    "Peaks and budgets are in MiB; “of plain”: the measured peak as a share of the plain one; “cost model”: "
    "the predicted extra time."
)


def torch_tasks(quick: bool) -> Sequence[Task]:
    """Four networks on the CPU, and on a GPU if there is one."""
    networks = ("gpt2",) if quick else ("mlp", "resnet18", "unet", "gpt2")
    ours = (1.0, 0.5) if quick else (1.0, 0.8, 0.6, 0.5, 0.4, LEAST)
    theirs = (0.5,) if quick else (0.8, 0.6, 0.4, 0.2, 0.1)
    ways = [("plain", None), ("checkpoint", None)]
    ways += [("checkmate", share) for share in ours] + [("torch", share) for share in theirs]
    decomposed = [("torch-decomposed", share) for share in theirs]
    return [
        _task(network, method, share, quick) | {"device": device}
        for device in _devices()
        for network in networks
        for method, share in [*ways, *(decomposed if network in _BATCH_NORM else [])]
    ]


def whole_tasks(quick: bool) -> Sequence[Task]:
    """The same networks, whole steps."""
    networks = ("mlp",) if quick else ("mlp", "resnet18", "unet", "gpt2")
    shares = (0.5,) if quick else (0.5, LEAST)
    ways = [("plain", None), ("checkpoint", None)]
    ways += [(method, share) for method in ("compile", "compile_step") for share in shares]
    return [_task(network, *way, quick) for network in networks for way in ways]


def tf_tasks(quick: bool) -> Sequence[Task]:
    """Networks of Keras; in the large ones, variables and Adam's slots leave less to choose."""
    peers = [("recompute_grad", None), ("remat", None), ("RematScope", None)]
    all_shares = [("checkmate", share) for share in (1.0, 0.8, 0.6, 0.5, 0.4, LEAST)]
    few_shares = [("checkmate", share) for share in (1.0, LEAST)]
    ways = {"unet": [*all_shares, *peers], "unet-dropout": [*all_shares, *peers[:2]]}
    ways["transformer"] = [*all_shares, *peers[:2]]
    for network in ("vgg19", "mobilenet", "resnet50", "densenet121"):
        ways[network] = [*few_shares, *peers[:2]]
    if quick:
        ways = {
            name: [("checkmate", 1.0), ("checkmate", 0.7), *peers[:1]] for name in ("unet", "transformer")
        }
    return [
        _task(network, method, share, quick) | {"small": quick}
        for network in ways
        for method, share in [("plain", None), *ways[network]]
    ]


def markdown(results: Results, *, framework: str) -> str:
    """A summary, then one table for each network, with the failures below it."""
    parts = [_summary(results, framework)]
    for device, network in dict.fromkeys((row["device"], row["network"]) for row in results.rows):
        rows = [row for row in results.rows if (row["device"], row["network"]) == (device, network)]
        plain = plain_peak(rows)
        title = f"**{network}**" + (f" on {device}" if device not in (None, "cpu") else "")
        parts.append(
            f"{title}\n\n" + table(("method", "share", *_COLUMNS), [_line(row, plain) for row in rows])
        )
        failures: dict[str, list[str]] = {}
        for row in rows:
            if why := row.failure:
                failures.setdefault(why, []).append(f"{row['method']} {_share(row)}".strip())
        parts += [f"- {', '.join(which)}: `{why}`" for why, which in failures.items()]
    return "\n\n".join(parts)


def draw(results: Results) -> Figure | None:
    """Peak against extra time, one panel for each network."""
    networks = list(dict.fromkeys((row["device"], row["network"]) for row in results.rows))
    figure, places = panels(len(networks), 4, (4.0, 3.6))
    for panel, (device, network) in zip(places, networks, strict=True):
        rows = list(results.where(device=device, network=network))
        plain = plain_peak(rows)
        for method in results.distinct("method"):
            found = [r for r in rows if r["method"] == method and r["peak"]]
            points = sorted((100 * r["peak"] / plain, 100 * r["time_overhead"]) for r in found)
            line = "-" if method in _OURS else ":"
            marker = _MARKERS.get(method, "o" if method in _OURS else "*")
            if points:
                panel.plot(*zip(*points, strict=True), marker=marker, ls=line, lw=1, label=method)
        panel.set_title(network if device in (None, "cpu") else f"{network} on {device}")
        panel.set_xlabel("measured peak, % of plain")
        panel.grid(alpha=0.25)
    places[0].set_ylabel("extra time of a step, %")
    places[0].legend(fontsize="small")
    return figure


def plain_peak(rows: Iterable[Row]) -> int:
    """Peak bytes of the plain step: the least over all processes, whose orders of ops may differ."""
    return min((row["plain_peak"] for row in rows if row["plain_peak"]), default=0)


def _task(network: str, method: str, share: float | None, quick: bool) -> dict[str, Any]:
    effort = {"time_limit": 3.0, "spend_s": 1.0} if quick else {"time_limit": 10.0, "spend_s": 5.0}
    return {"network": network, "method": method, "share": share, **effort}


def _devices() -> list[str]:
    if importlib.util.find_spec("torch") is None:
        return ["cpu"]
    import torch

    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def _summary(results: Results, framework: str) -> str:
    ours = [r for r in results.rows if r["method"] in _OURS and r["peak"]]
    within = sum(row["peak"] <= row["budget"] for row in ours)
    said = [
        f"The measured peak is within the budget in {within} of {len(ours)} rows of Checkmate in {framework}."
    ]
    if ours:
        worst = max(ours, key=lambda row: abs(row["expected"] / row["peak"] - 1))
        off = worst["expected"] / worst["peak"] - 1
        said.append(
            f"The expected peak differs from the measured one by at most {off:+.1%} ({worst['network']})."
        )
    return " ".join([*said, _MEANING])


def _line(row: Row, plain: int) -> list[str]:
    share = _share(row)
    if row.failure:
        return [row["method"], share, *["failed", *["–"] * (len(_COLUMNS) - 1)]]
    return [
        row["method"],
        share,
        _cell(row["budget"], lambda b: f"{b / 2**20:.1f}"),
        _cell(row["expected"], lambda b: f"{b / 2**20:.1f}"),
        f"{row['peak'] / 2**20:.1f}",
        f"{row['peak'] / plain:.0%}",
        _cell(row["overhead"], lambda x: f"{x:+.1%}"),
        f"{row['step_s']:.3f}",
        f"{row['time_overhead']:+.1%}",
        _exactness(row),
        _cell(row["plan_s"], lambda s: f"{s:.1f}"),
    ]


def _share(row: Row) -> str:
    return {None: "", LEAST: "least"}.get(row["share"], f"{row['share'] or 0:.0%}")


def _cell(value: Any, style: Callable[[Any], str]) -> str:
    return "" if value is None else style(value)


def _exactness(row: Row) -> str:
    """“bits” if all bits equal the plain step's, or the error of gradients (and averages)."""
    if row["equal"] is not None:
        return "bits" if row["equal"] else "differs"
    wrong = max(row["gradient_error"], row["average_error"] or 0.0)
    return "bits" if wrong == 0 else f"{wrong:.0e}"


STEPS_TORCH = Experiment(
    name="steps-torch",
    title="Real steps in PyTorch",
    about="measured peak and time of forward and backward, beside PyTorch's own tools",
    tasks=torch_tasks,
    measure=partial(measured, "torch_step"),
    markdown=partial(markdown, framework="PyTorch"),
    draw=draw,
    packages=("checkmate-core", "checkmate-solvers", "checkmate-torch", "torch", "numpy"),
    needs=("torch",),
    alone=True,
)
STEPS_TF = Experiment(
    name="steps-tf",
    title="Whole steps in TensorFlow",
    about="measured peak and time of Keras networks with Adam, beside tf.recompute_grad and keras.remat",
    tasks=tf_tasks,
    measure=partial(measured, "tf_step"),
    markdown=partial(markdown, framework="TensorFlow"),
    draw=draw,
    packages=("checkmate-core", "checkmate-solvers", "checkmate-tf", "tensorflow-cpu", "keras", "numpy"),
    needs=("tensorflow",),
    alone=True,
)
EXPERIMENTS = (
    STEPS_TORCH,
    replace(
        STEPS_TORCH,
        name="steps-torch-whole",
        title="Whole steps in PyTorch",
        about="the same with the optimizer: compile_step beside compile",
        tasks=whole_tasks,
        measure=partial(measured, "torch_whole_step"),
    ),
    STEPS_TF,
)
