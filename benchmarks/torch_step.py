"""Peak memory against step time: what each way to save memory costs, on the four networks of the zoo.

Methods, all in one run on one machine, each measurement in a process of its own:

- ``plain``: PyTorch as it is.
- ``checkpoint``: ``torch.utils.checkpoint`` around every block.
- ``checkmate``: ``checkmate_torch.compile`` at shares of the plain peak, down to the least budget found.
- ``torch``: PyTorch's own ``activation_memory_budget`` (min-cut partitioner) at 0.9 … 0.1, on the ops as they
  are traced; its graphs run by the same kind of generated code as Checkmate's.
- ``torch-decomposed``: the same on Inductor's decompositions, which it needs for batch norm.

A step is forward, loss and backward; live tensor bytes are measured after a warm-up. Steps alternate with
plain ones in the same process: the wall time is the median, the extra time the median ratio of such pairs.
A method that fails gives a row with its error. Run it on a machine that is otherwise idle:

    python benchmarks/torch_step.py [--quick] [--models mlp,unet] [--device cuda] [--output FOLDER]
"""

from __future__ import annotations

import argparse
import atexit
import datetime
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

Row = dict[str, Any]

MODELS = ("mlp", "resnet18", "unet", "gpt2")
METHODS = ("plain", "checkpoint", "checkmate", "torch", "torch-decomposed")
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
FRACTIONS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
SIZES: dict[str, dict[str, Row]] = {
    "cpu": {model: {} for model in MODELS},
    "cuda": {
        "mlp": {"width": 1024, "batch": 8192},
        "resnet18": {"width": 64, "image": 128, "batch": 64},
        "unet": {"width": 64, "image": 256, "batch": 16},
        "gpt2": {"layers": 12, "width": 768, "heads": 12, "length": 1024, "batch": 8, "vocabulary": 16384},
    },
}
"""Larger than the zoo's own where a step would take no time."""
LEAST = 0.0
"""Instead of a share: the least budget that is known to work."""


def main() -> None:
    """Measure everything, print the table, write JSON, table and plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="three budgets, short timings and searches")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--time-limit", type=float, help="seconds for the solver, for each plan")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--device", choices=tuple(SIZES), default="cpu")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a measurement in this process, as JSON
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(**json.loads(arguments.one))))
        return
    forget_earlier_runs()
    time_limit = arguments.time_limit or (3.0 if arguments.quick else 10.0)
    effort = {"quick": arguments.quick, "time_limit": time_limit, "device": arguments.device}
    rows = [row for model in arguments.models.split(",") for row in rows_of(model, effort)]
    report(rows, arguments.output, machine() | effort)


def forget_earlier_runs() -> None:
    """Use no plan or profile on disk but this run's: others were made in other states of the machine."""
    folder = tempfile.mkdtemp(prefix="checkmate-benchmark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["CHECKMATE_CACHE_DIR"] = folder


# --- one row ----------------------------------------------------------------------------------------------


def rows_of(model: str, effort: Row) -> Iterable[Row]:
    """All rows of one network, the plain one first; the others are relative to it."""
    quick = effort["quick"]
    plain = in_process({"model": model, "method": "plain", "setting": None, "budget": None, **effort})
    settings: dict[str, Iterable[float | None]] = {
        "checkpoint": [None],
        "checkmate": (1.0, 0.7, 0.5, LEAST) if quick else (*SHARES, LEAST),
        "torch": (0.8, 0.5, 0.2) if quick else FRACTIONS,
        "torch-decomposed": (0.8, 0.5, 0.2) if quick else FRACTIONS,
    }
    yield relative(plain, plain)
    for method, values in settings.items():
        for setting in values:
            budget = int(setting * plain["peak"]) if method == "checkmate" and setting is not None else None
            task = {"model": model, "method": method, "setting": setting, "budget": budget, **effort}
            yield relative(in_process(task), plain)


def in_process(task: Row, script: str = __file__, key: str = "setting") -> Row:
    """Measure a task of a script in a fresh process; if it dies, the end of its output is the error."""
    command = [sys.executable, script, "--one", json.dumps(task)]
    environment = {**os.environ, "TORCH_LOGS": "-all"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = done.stdout.splitlines()
    row = json.loads(lines[-1]) if done.returncode == 0 and lines else {"error": done.stderr.strip()[-300:]}
    row = {name: task[name] for name in ("model", "method", key, "budget")} | row
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def relative(row: Row, plain: Row) -> Row:
    """Add the share of the plain step's peak."""
    if "peak" in row and "peak" in plain:
        row["peak_share"] = row["peak"] / plain["peak"]
    return row


def measure(
    *,
    model: str,
    method: str,
    setting: float | None,
    budget: int | None,
    quick: bool,
    time_limit: float,
    device: str,
) -> Row:
    """Peak, median time and gradients of one method at one setting, in this process."""
    import torch

    from checkmate_torch.meter import memory_meter, resident_bytes
    from checkmate_torch.zoo import CASES, Case

    with torch.device(device):
        plain = CASES[model](**SIZES[device][model])
        case = CASES[model](**SIZES[device][model], checkpoint_blocks=method == "checkpoint")

    def step(case: Case, module: Any) -> None:
        for parameter in case.module.parameters():
            parameter.grad = None
        outputs = module(*case.inputs)  # held to the end of the step, as in most training loops
        case.loss(outputs).backward()  # type: ignore[no-untyped-call]
        if device == "cuda":
            torch.cuda.synchronize()

    try:
        module, facts = prepared(case, method, setting, budget, time_limit, partial(step, case))
        step(plain, plain.module)
        step(case, module)
        error = gradient_error(case.module, plain.module)
        for parameter in (*case.module.parameters(), *plain.module.parameters()):
            parameter.grad = None
        held = resident_bytes(plain.module, plain.inputs, plain.targets) if device == "cuda" else 0
        with memory_meter(case.module, case.inputs, case.targets) as meter:
            step(case, module)
        seconds = timed(
            lambda: step(plain, plain.module), lambda: step(case, module), spend_s=2.0 if quick else 5.0
        )
    except Exception as failure:  # noqa: BLE001  # whatever a method raises is its row
        cause = getattr(failure, "inner_exception", failure)  # Dynamo wraps what a backend raises
        return {"error": f"{type(cause).__name__}: {(str(cause).splitlines() or [''])[0][:200]}"}
    pairs = [ours / plain for plain, ours in zip(*seconds, strict=True)]
    times = {"step_s": statistics.median(seconds[1]), "time_overhead": statistics.median(pairs) - 1}
    return {"peak": meter.peak - held, **times, "gradient_error": error, **facts}


def gradient_error(module: Any, plain: Any) -> float:
    """|g − g'| / |g'| over all parameters together."""
    pairs = list(zip(module.parameters(), plain.parameters(), strict=True))
    wrong = sum(float((p.grad.double() - q.grad.double()).square().sum()) for p, q in pairs)
    return math.sqrt(wrong / sum(float(q.grad.double().square().sum()) for _, q in pairs))


def prepared(
    case: Any,
    method: str,
    setting: float | None,
    budget: int | None,
    time_limit: float,
    step: Callable[[Any], None],
) -> tuple[Any, Row]:
    """The module as the method runs it, after its first step, and what the method says of it."""
    start = time.perf_counter()
    module, facts = case.module, Row()
    if method == "checkmate":
        module, facts = checkmate_module(case, setting, budget, time_limit, step)
    elif method.startswith("torch"):
        module = torch_module(module, setting, decomposed=method.endswith("decomposed"))
        step(module)
    else:
        step(module)
    return module, {"first_step_s": time.perf_counter() - start, **facts}


def checkmate_module(
    case: Any, setting: float | None, budget: int | None, time_limit: float, step: Callable[[Any], None]
) -> tuple[Any, Row]:
    """Compile within the budget, or within the least one known to work."""
    import checkmate
    import checkmate_torch

    loss_bytes = 0
    if case.targets is not None:  # else the module computes its loss itself
        # All that these losses keep to the end; mean squared error returns its scalar in a large storage.
        loss = case.loss(case.module(*case.inputs))
        loss_bytes = case.targets.nbytes + loss.untyped_storage().nbytes()
        del loss
    compile = partial(checkmate_torch.compile, case.module, time_limit=time_limit, loss_bytes=loss_bytes)
    compiled = compile(max(budget or 0, 1))
    try:
        step(compiled)
    except checkmate.InfeasibleBudgetError as error:
        if setting != LEAST or error.minimum is None:
            raise
        budget = error.minimum
        compiled = compile(budget)
        step(compiled)
    solution = compiled.plans[0].solution
    return compiled, {
        "budget": budget,
        "predicted_peak": solution.peak,
        "predicted_overhead": solution.overhead,
        "gap": solution.gap,
        "ops": solution.problem.graph.n_ops,
        "solver": solution.solver,
        "solver_s": solution.seconds,
        "origin": dict(solution.origin),
    }


def torch_module(module: Any, setting: float | None, *, decomposed: bool) -> Any:
    """PyTorch's own partitioner at a memory budget, its graphs as boxed generated code."""
    import torch
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.graph import _BoxedCodeGen

    def boxed(graph: Any, _inputs: Any) -> Any:
        graph.graph.set_codegen(_BoxedCodeGen())
        graph.recompile()

        def call(args: list[Any]) -> Any:
            return graph.forward(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    torch._functorch.config.activation_memory_budget = 1.0 if setting is None else setting
    keywords: Row = {"decompositions": select_decomp_table} if decomposed else {}
    backend = aot_autograd(
        fw_compiler=boxed, bw_compiler=boxed, partition_fn=min_cut_rematerialization_partition, **keywords
    )
    return torch.compile(module, backend=backend, fullgraph=True)


def timed(*steps: Callable[[], None], spend_s: float) -> list[list[float]]:
    """Seconds of each step, run in turn so that what else the machine does hits all alike."""
    seconds: list[list[float]] = [[] for _ in steps]
    end = time.perf_counter() + spend_s
    while len(seconds[0]) < 3 or time.perf_counter() < end:
        for step, mine in zip(steps, seconds, strict=True):
            start = time.perf_counter()
            step()
            mine.append(time.perf_counter() - start)
    return seconds


# --- the report -------------------------------------------------------------------------------------------


def report(rows: list[Row], folder: Path, about: Row) -> None:
    """Print the table; write it, JSON and a plot, named after the device."""
    from rich.console import Console

    folder.mkdir(parents=True, exist_ok=True)
    name = f"torch_step_{about['device']}"
    console = Console(record=True, width=150)
    console.print(", ".join(f"{key}: {value}" for key, value in about.items()), soft_wrap=True)
    for model in dict.fromkeys(row["model"] for row in rows):
        console.print(table(model, [row for row in rows if row["model"] == model]))
    (folder / f"{name}.txt").write_text(console.export_text())
    (folder / f"{name}.json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    plot(rows, folder / f"{name}.png")
    print(f"written: {folder}/{name}.json, .txt, .png")


def machine() -> Row:
    """What the numbers depend on."""
    import torch

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = {line.split(":")[1].strip() for line in lines if line.startswith("model name")}
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": ", ".join(sorted(models)) or platform.processor(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def table(model: str, rows: list[Row]) -> Any:
    """One network's rows."""
    from rich.table import Table

    columns = ("setting", "budget MiB", "predicted MiB", "measured MiB", "of plain", "cost model", "step s")
    result = Table("method", *columns, "wall time", "gradient error", title=model, title_justify="left")
    for column in result.columns[1:]:
        column.justify = "right"
    for row in rows:
        setting = {None: "", LEAST: "least"}.get(row["setting"], f"{row['setting'] or 0:.0%}")
        budget = show(row.get("budget"), lambda b: f"{b / 2**20:.1f}")
        if "error" in row:
            result.add_row(row["method"], setting, budget, "failed", end_section=row["method"] == "plain")
            continue
        result.add_row(
            row["method"],
            setting,
            budget,
            show(row.get("predicted_peak"), lambda b: f"{b / 2**20:.1f}"),
            f"{row['peak'] / 2**20:.1f}",
            show(row.get("peak_share"), lambda x: f"{x:.0%}"),
            show(row.get("predicted_overhead"), lambda x: f"{x:+.1%}"),
            f"{row['step_s']:.3f}",
            show(row.get("time_overhead"), lambda x: f"{x:+.1%}"),
            f"{row['gradient_error']:.0e}",
        )
    failures: dict[str, list[str]] = {}
    for row in rows:
        if "error" in row:
            where = " ".join([row["method"], *([] if row["setting"] is None else [f"{row['setting']:.0%}"])])
            failures.setdefault(row["error"], []).append(where)
    result.caption = "\n".join(f"{', '.join(where)}: {error}" for error, where in failures.items())
    result.caption_justify = "left"
    return result


def show(value: Any, style: Callable[[Any], str]) -> str:
    """A cell, empty if there is no value."""
    return "" if value is None else style(value)


def plot(rows: list[Row], path: Path) -> None:
    """Peak against step-time overhead, one panel for each network."""
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(row["model"] for row in rows))
    figure = Figure(figsize=(4.5 * len(models), 4.2), layout="constrained")
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for panel, model in zip(panels, models, strict=True):
        for method, marker in zip(METHODS, "*sovx", strict=True):
            mine = [r for r in rows if (r["model"], r["method"]) == (model, method) and "peak_share" in r]
            mine.sort(key=lambda row: row["peak_share"])
            shares = [100 * row["peak_share"] for row in mine]
            line = "-" if method == "checkmate" else ":"
            panel.plot(
                shares, [100 * r["time_overhead"] for r in mine], marker=marker, ls=line, lw=1, label=method
            )
        panel.set_title(model)
        panel.set_xlabel("measured peak, % of plain")
        panel.grid(alpha=0.25)
    panels[0].set_ylabel("extra time of a step, %")
    panels[0].legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
