"""Peak memory against step time in TensorFlow: whole training steps of Keras networks, Adam included.

Methods, each network in a process of its own, which has the plain step beside the others:

- ``plain``: ``tf.function``.
- ``checkmate``: ``checkmate.tf2.function`` at shares of the plain peak, down to the least budget found; 100 %
  is what our replay needs in the order of the trace.
- ``recompute_grad``, ``remat``: ``tf.recompute_grad`` and ``keras.remat`` around every block; networks of
  ``keras.applications`` are cut into blocks where one tensor is all that passes.
- ``RematScope``: ``keras.RematScope("full")`` around the building of the network and around each step.

Live bytes are measured after two steps. Steps alternate with plain ones: the wall time is the median, the
extra time the median ratio of such pairs. ``gradients`` is how far those of the first step are from the plain
ones, |g − g'| / |g'|, and ``averages`` the same for all that the model keeps besides weights: batch-norm
averages, seeds. A method that fails gives a row with its error. Run it on a machine that is otherwise idle:

    python benchmarks/tf_step.py [--quick] [--models unet,vgg19] [--shares 0.6,0.4] [--output FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import logging
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]

MODELS: dict[str, tuple[str, Row]] = {
    "unet": ("unet", {"image": 64, "width": 16}),
    "unet-dropout": ("unet", {"image": 64, "width": 16, "dropout": 0.1}),
    "transformer": ("transformer", {"length": 64, "batch": 16, "width": 64, "blocks": 4, "vocabulary": 200}),
    "vgg19": ("VGG19", {}),
    "mobilenet": ("MobileNet", {"image": 128}),
    "resnet50": ("ResNet50", {}),
    "efficientnet": ("EfficientNetB0", {}),
    "densenet121": ("DenseNet121", {}),
}
"""Which network of the zoo, or of ``keras.applications``, and its sizes."""
PEERS = ("recompute_grad", "remat", "RematScope")
SHARES = (1.0, 0.8, 0.6, 0.5, 0.4)
LEAST = 0.0
"""Instead of a share: the least budget that is known to work."""


def main() -> None:
    """Measure everything, print the table, write JSON, table and plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short timings and searches, small networks")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--shares", default=",".join(map(str, SHARES)), help="the least comes besides")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a network in this process, its rows as JSON
    arguments = parser.parse_args()
    shares = [float(x) for x in arguments.shares.split(",")]
    if arguments.one:
        for row in measured(arguments.one, shares, arguments.quick):
            print(json.dumps(row), flush=True)
        return
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="checkmate-benchmark-") as folder:
        os.environ["CHECKMATE_CACHE_DIR"] = folder  # no plan and no profile but this run's
        for model in arguments.models.split(","):
            for row in in_process([*sys.argv[1:], "--one", model]):
                rows.append({"model": model} | row)
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                write(rows, arguments.output)
    print((arguments.output / "tf_step_cpu.txt").read_text())


def in_process(arguments: list[str]) -> Iterator[Row]:
    """The rows of a fresh process; if it dies, the end of its output is the error."""
    environment = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ
    with tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, __file__, *arguments]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        for line in running.stdout or ():
            if line.startswith("{"):
                yield json.loads(line)
        if running.wait():
            errors.seek(0)
            last = (errors.read().strip().splitlines() or [""])[-1][:200]
            yield {"method": "the process", "share": None, "error": f"exit {running.returncode}: {last}"}


# --- one row ----------------------------------------------------------------------------------------------


def measured(model: str, shares: list[float], quick: bool) -> Iterator[Row]:
    """All rows of a network; the plain one first, the others relative to it."""
    import tensorflow as tf

    from checkmate.tf2 import memory_meter

    plain = case_of(model, quick)
    stock = tf.function(plain.step)
    stock(*plain.batch)
    after_one = state(plain)
    stock(*plain.batch)
    with memory_meter(plain.variables, plain.batch) as meter:
        stock(*plain.batch)
    (seconds,) = timed(lambda: stock(*plain.batch), spend_s=1.0)
    yield {
        "method": "plain",
        "share": None,
        "peak": meter.peak,
        "peak_share": 1.0,
        "resident": meter.base,
        "step_s": statistics.median(seconds),
        "time_overhead": 0.0,
        "gradient_error": 0.0,
        "average_error": 0.0,
    }
    plain_peak = meter.peak
    for method, share in [("checkmate", share) for share in (*shares, LEAST)] + [(p, None) for p in PEERS]:
        budget = "100%" if share == 1.0 else int((share or 0) * plain_peak) or 1
        row: Row = {"method": method, "share": share}
        try:
            with scope_of(method):
                case = case_of(model, quick, method)
                step, facts = prepared(case, method, share, budget, 3.0 if quick else 8.0)
                start = time.perf_counter()
                step(*case.batch)
                facts["first_step_s"] = time.perf_counter() - start
                exactness = errors(state(case), after_one)
                step(*case.batch)
                with memory_meter(case.variables, case.batch) as meter:
                    step(*case.batch)
                ours, theirs = timed(
                    lambda: step(*case.batch),  # noqa: B023  # called here
                    lambda: stock(*plain.batch),
                    spend_s=2.0 if quick else 5.0,
                )
        except Exception as failure:  # noqa: BLE001  # whatever a method raises is its row
            message = (str(failure).splitlines() or [""])[0][:200]
            yield row | {"error": f"{type(failure).__name__}: {message}"}
            continue
        pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
        times = {"step_s": statistics.median(ours), "time_overhead": statistics.median(pairs) - 1}
        peaks = {"peak": meter.peak, "peak_share": meter.peak / plain_peak, "resident": meter.base}
        yield row | peaks | times | exactness | facts


def case_of(model: str, quick: bool, method: str = "plain") -> Any:
    """The network, recomputing in the way of a peer if the method is one."""
    from checkmate_tf import zoo

    name, sizes = MODELS[model]
    if quick and name in zoo.CASES:
        sizes = {"dropout": sizes["dropout"]} if "dropout" in sizes else {}
    wrap = wrapper(method) if method in ("recompute_grad", "remat") else None
    if name in zoo.CASES:
        return zoo.CASES[name](**sizes, wrap=wrap)
    case = zoo.application(name, **sizes)
    return case if wrap is None else zoo.in_blocks(case, wrap)


def wrapper(method: str) -> Callable[[Any], Any]:
    """Puts a layer that recomputes in the place of a block."""
    import keras
    import tensorflow as tf

    recomputing = tf.recompute_grad if method == "recompute_grad" else keras.remat

    class Recomputed(keras.layers.Layer):  # type: ignore[misc]
        """A block whose inside is computed again in the backward pass."""

        def __init__(self, block: Any) -> None:
            super().__init__()
            self.block = block

        def build(self, shape: Any) -> None:
            """Make the variables of the block."""
            if not self.block.built:
                self.block.build(shape)

        def call(self, x: Any, training: bool | None = None) -> Any:
            """Apply it."""
            return recomputing(lambda x: self.block(x, training=training))(x)

        def compute_output_spec(self, x: Any, training: bool | None = None) -> Any:
            """Shape and dtype of what it returns."""
            del training
            return keras.KerasTensor(self.block.compute_output_shape(x.shape), "float32")

    return Recomputed


@contextlib.contextmanager
def scope_of(method: str) -> Iterator[None]:
    """What has to surround the building of the network and its steps."""
    import keras

    with keras.RematScope("full") if method == "RematScope" else contextlib.nullcontext():
        yield


def prepared(
    case: Any, method: str, share: float | None, budget: int | str, time_limit: float
) -> tuple[Callable[..., Any], Row]:
    """The step as the method runs it, and what the method says of it."""
    import tensorflow as tf

    import checkmate
    import checkmate.tf2

    if method != "checkmate":
        return tf.function(case.step), {}
    timing = OpTiming()
    start, start_cpu = time.perf_counter(), time.process_time()
    step = checkmate.tf2.function(case.step, budget=budget, time_limit=time_limit)
    try:
        plan = step.plan(*case.batch)
    except checkmate.InfeasibleBudgetError as error:
        if share != LEAST or error.minimum is None:
            raise
        budget = error.minimum
        step = checkmate.tf2.function(case.step, budget=budget, time_limit=time_limit)
        plan = step.plan(*case.batch)
    planned, planned_cpu = time.perf_counter() - start, time.process_time() - start_cpu
    solution = plan.solution
    return step, {
        "budget": solution.problem.budget,
        "bound": solution.peak,
        "expected": plan.expected,
        "overhead": solution.overhead,
        "gap": solution.gap,
        "ops": plan.graph.n_ops,
        "tensorflow_ops": len(plan.traced.captured.ops),
        "solver": solution.solver,
        "plan_s": planned,
        "plan_cpu_s": planned_cpu,
        "measuring_ops_s": timing.seconds,
        "solver_s": solution.seconds,
    }


class OpTiming(logging.Handler):
    """Listens for how long the timing of ops took."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        log = logging.getLogger("checkmate_tf.costs")
        log.setLevel(logging.INFO)
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Take the seconds out of the one record that tells them."""
        if record.msg.startswith("timed") and isinstance(record.args, tuple):
            self.seconds += float(record.args[-1])  # type: ignore[arg-type]


def state(case: Any) -> tuple[list[Any], list[Any]]:
    """Adam's first slots, after one step a tenth of the gradients; and what is kept besides weights."""
    return (
        [v.numpy() for v in case.optimizer._momentums],
        [v.numpy() for v in case.model.non_trainable_variables],
    )


def errors(ours: tuple[list[Any], list[Any]], theirs: tuple[list[Any], list[Any]]) -> Row:
    """How far two states are apart."""
    return {"gradient_error": distance(ours[0], theirs[0]), "average_error": distance(ours[1], theirs[1])}


def distance(ours: list[Any], theirs: list[Any]) -> float:
    """|a − b| / |b|, of all arrays together."""
    import numpy as np

    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(ours, theirs, strict=True)]
    wrong = sum(float(np.square(a - b).sum()) for a, b in pairs)
    return math.sqrt(wrong / (sum(float(np.square(b).sum()) for _, b in pairs) or 1.0))


def timed(*steps: Callable[[], Any], spend_s: float) -> list[list[float]]:
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


def write(rows: list[Row], folder: Path) -> None:
    """Write the table, JSON and plot, after each row so that an interrupt loses little."""
    from rich.console import Console

    folder.mkdir(parents=True, exist_ok=True)
    about = machine()
    console = Console(record=True, width=150, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(", ".join(f"{key}: {value}" for key, value in about.items()), soft_wrap=True)
    for model in dict.fromkeys(row["model"] for row in rows):
        console.print(table(model, [row for row in rows if row["model"] == model]))
    for line in goals(rows):
        console.print(line)
    (folder / "tf_step_cpu.txt").write_text(console.export_text())
    (folder / "tf_step_cpu.json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    plot(rows, folder / "tf_step_cpu.png")


def goals(rows: list[Row]) -> Iterator[str]:
    """What is aimed at, and what was reached."""
    ours = [r for r in rows if r["method"] == "checkmate" and "peak" in r]
    if not ours:
        return
    yield f"measured within the budget: {sum(r['peak'] <= r['budget'] for r in ours)} of {len(ours)}"
    worst = max(ours, key=lambda r: abs(r["expected"] / r["peak"] - 1))
    yield f"expected against measured: at most {worst['expected'] / worst['peak'] - 1:+.1%}, {worst['model']}"
    whole = {r["model"]: r["time_overhead"] for r in ours if r["share"] == 1.0}
    yield "extra time at 100 % (goal: at most 5 %): " + ", ".join(f"{m} {t:+.1%}" for m, t in whole.items())
    for row in ours:
        if (row["model"], row["share"]) == ("unet", 0.4):
            yield f"U-Net at 0.4 of the plain peak (goal: at most +25 %): {row['time_overhead']:+.1%}"
        if row["share"] == 1.0 and row["model"] in ("vgg19", "resnet50"):
            goal = {"vgg19": 10, "resnet50": 60}[row["model"]]
            rest = row["plan_s"] - row["measuring_ops_s"] - row["solver_s"]
            yield (
                f"trace and solve of {row['model']} (goal: {goal} s): {row['plan_s']:.1f} s, of which "
                f"timing of ops {row['measuring_ops_s']:.1f} s, solver {row['solver_s']:.1f}, rest {rest:.1f}"
            )


def machine() -> Row:
    """What the numbers depend on."""
    from importlib.metadata import version

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = {line.split(":")[1].strip() for line in lines if line.startswith("model name")}
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": ", ".join(sorted(models)) or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "intra-op threads": os.environ.get("TF_NUM_INTRAOP_THREADS", "all"),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "tensorflow": version("tensorflow-cpu"),
        "keras": version("keras"),
        "seed": 0,
    }


def table(model: str, rows: list[Row]) -> Any:
    """One network's rows."""
    from rich.table import Table

    columns = ("share", "budget MiB", "expected", "measured", "of plain", "cost model", "step s", "wall time")
    result = Table("method", *columns, "gradients", "averages", title=model, title_justify="left")
    for column in result.columns[1:]:
        column.justify = "right"
    for row in rows:
        share = {None: "", LEAST: "least"}.get(row["share"], f"{row['share'] or 0:.0%}")
        if "error" in row:
            result.add_row(row["method"], share, "failed")
            continue
        result.add_row(
            row["method"],
            share,
            mebibytes(row.get("budget")),
            mebibytes(row.get("expected")),
            mebibytes(row["peak"]),
            f"{row['peak_share']:.0%}",
            f"{row['overhead']:+.1%}" if "overhead" in row else "",
            f"{row['step_s']:.3f}",
            f"{row['time_overhead']:+.1%}",
            f"{row['gradient_error']:.0e}",
            f"{row['average_error']:.0e}",
            end_section=row["method"] == "plain",
        )
    result.caption = "\n".join(
        f"{row['method']} {row['share'] or ''}: {row['error']}" for row in rows if "error" in row
    )
    result.caption_justify = "left"
    return result


def mebibytes(size: int | None) -> str:
    """A cell, empty if there is no value."""
    return "" if size is None else f"{size / 2**20:.1f}"


def plot(rows: list[Row], path: Path) -> None:
    """Peak against step-time overhead, one panel for each network."""
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(row["model"] for row in rows))
    figure = Figure(figsize=(4 * min(len(models), 4), 4 * math.ceil(len(models) / 4)), layout="constrained")
    panels = figure.subplots(math.ceil(len(models) / 4), min(len(models), 4), squeeze=False).flatten()
    for panel, model in zip(panels, models, strict=False):
        for method, marker in zip(("plain", "checkmate", *PEERS), "*osvx", strict=True):
            mine = [r for r in rows if (r["model"], r["method"]) == (model, method) and "peak_share" in r]
            mine.sort(key=lambda row: row["peak_share"])
            shares = [100 * row["peak_share"] for row in mine]
            panel.plot(shares, [100 * r["time_overhead"] for r in mine], marker=marker, lw=1, label=method)
        panel.set_title(model)
        panel.set_xlabel("measured peak, % of plain")
        panel.grid(alpha=0.25)
    panels[0].set_ylabel("extra time of a step, %")
    panels[0].legend()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
