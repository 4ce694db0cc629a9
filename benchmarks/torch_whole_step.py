"""Peak memory against time of a whole training step, optimizer included, on the four networks of the zoo.

Methods, each measurement in a process of its own, with the same optimizer (SGD with momentum for the networks
of convolutions, AdamW for the others):

- ``plain``: PyTorch as it is; gradients are set to None before each step.
- ``checkpoint``: ``torch.utils.checkpoint`` around every block.
- ``compile``: ``checkmate_torch.compile``: forward and backward are planned, the optimizer runs afterwards.
- ``compile_step``: ``checkmate_torch.compile_step``: forward, loss, backward and updates in one graph.

The budgets are shares of what plain PyTorch holds beyond what is resident all the time (parameters, buffers,
batch, optimizer state): of its *activation peak*. Live tensor bytes are measured after two steps. The extra
time is given twice: as the cost model predicts it, and as the median ratio of steps that alternate with plain
ones in the same process. A method that fails gives a row with its error. Run it on an idle machine:

    python benchmarks/torch_whole_step.py [--quick] [--models mlp,unet] [--shares 0.6,0.5]
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from torch_step import forget_earlier_runs, in_process, machine, show, timed

Row = dict[str, Any]

MODELS = ("resnet18", "gpt2", "mlp", "unet")
SHARES = (0.8, 0.6, 0.5, 0.4, 0.3)
LEAST = 0.0
"""Instead of a share: the least budget that is known to work."""


def main() -> None:
    """Measure everything, print the table, write JSON and table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short timings and searches")
    parser.add_argument(
        "--shares", default=",".join(map(str, SHARES)), help="budgets; the least comes besides"
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a measurement in this process, as JSON
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(**json.loads(arguments.one))))
        return
    forget_earlier_runs()
    rows: list[Row] = []
    for model in arguments.models.split(","):
        task = {"model": model, "share": None, "budget": None, "quick": arguments.quick}
        plain = measured(task | {"method": "plain"})
        rows += [plain, measured(task | {"method": "checkpoint"})]
        for method in ("compile", "compile_step"):
            for share in (*map(float, arguments.shares.split(",")), LEAST):
                budget = int(plain["resident"] + share * (plain["peak"] - plain["resident"]))
                rows.append(measured(task | {"method": method, "share": share, "budget": budget}))
        for row in rows:
            if "peak" in row and row["model"] == model:
                held = plain["peak"] - plain["resident"]
                row["activation_share"] = (row["peak"] - plain["resident"]) / held
        report(rows, arguments.output)  # after each network, so that an interrupt loses little


def measured(task: Row) -> Row:
    """Measure in a fresh process."""
    return in_process(task, __file__, "share")


def measure(*, model: str, method: str, share: float | None, budget: int | None, quick: bool) -> Row:
    """Peak, median time and bits of one method at one budget, in this process."""
    import torch

    from checkmate_torch import memory_meter
    from checkmate_torch.zoo import CASES

    plain, case = CASES[model](), CASES[model](checkpoint_blocks=method == "checkpoint")
    try:
        reference = plain_step(plain, plain.module, optimizer_of(plain))
        optimizer = optimizer_of(case)
        step, solution = prepared(case, optimizer, method, share, budget, 3.0 if quick else 6.0)
        equal = all(torch.equal(step(), reference()) for _ in range(2))
        pairs = zip(case.module.parameters(), plain.module.parameters(), strict=True)
        equal = equal and all(torch.equal(mine, theirs) for mine, theirs in pairs)
        with memory_meter(case.module, optimizer, case.inputs, case.targets) as meter:
            step()
        ours, theirs = timed(step, reference, spend_s=1.0 if quick else 3.0)
    except Exception as failure:  # noqa: BLE001  # whatever a method raises is its row
        return {"error": f"{type(failure).__name__}: {(str(failure).splitlines() or [''])[0][:200]}"}
    row: Row = {"peak": meter.peak, "resident": meter.base, "equal": equal, "step_s": statistics.median(ours)}
    row["time_overhead"] = statistics.median(a / b for a, b in zip(ours, theirs, strict=True)) - 1
    if solution is not None:
        row |= {
            "budget": solution.problem.budget,
            "predicted_peak": solution.peak,
            "predicted_overhead": solution.overhead,
            "gap": solution.gap,
            "ops": solution.problem.graph.n_ops,
            "solver_s": solution.seconds,
        }
    return row


def optimizer_of(case: Any) -> Any:
    """What such a network is usually trained with."""
    import torch

    parameters = case.module.parameters()
    if case.name in ("resnet18", "unet"):
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)
    return torch.optim.AdamW(parameters, lr=1e-4)


def plain_step(case: Any, module: Any, optimizer: Any) -> Any:
    """The lines of a training loop, on the module as it is or compiled."""

    def step() -> Any:
        loss = case.loss(module(*case.inputs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def prepared(
    case: Any, optimizer: Any, method: str, share: float | None, budget: int | None, time_limit: float
) -> tuple[Any, Any]:
    """The step as the method runs it, and its solution if it has one."""
    import copy

    import checkmate
    import checkmate_torch

    if budget is None:
        return plain_step(case, case.module, optimizer), None
    before = copy.deepcopy(case.module.state_dict())

    def attempt(limit: int) -> tuple[Any, Any]:
        if method == "compile_step":
            whole = checkmate_torch.compile_step(
                case.module, lambda m, *x: case.loss(m(*x)), optimizer, limit, time_limit=time_limit
            )
            whole(*case.inputs)
            return lambda: whole(*case.inputs), whole.plans[0].solution
        state = 0 if case.name in ("resnet18", "unet") else 1
        reserve = (1 + state) * sum(p.nbytes for p in case.module.parameters())
        loss_bytes = 0
        if case.targets is not None:  # else the module computes its loss itself
            loss_bytes = case.targets.nbytes + case.loss(case.module(*case.inputs)).untyped_storage().nbytes()
        compiled = checkmate_torch.compile(
            case.module, limit, reserve=reserve, loss_bytes=loss_bytes, time_limit=time_limit
        )
        step = plain_step(case, compiled, optimizer)
        step()
        return step, compiled.plans[0].solution

    try:
        made = attempt(max(budget, 1) if share != LEAST else 1)
    except checkmate.InfeasibleBudgetError as error:
        if share != LEAST or error.minimum is None:
            raise
        made = attempt(error.minimum)
    case.module.load_state_dict(before)  # as the reference, which has not been trained yet
    optimizer.state.clear()
    return made


def report(rows: list[Row], folder: Path) -> None:
    """Print the tables; write them and JSON."""
    from rich.console import Console

    folder.mkdir(parents=True, exist_ok=True)
    about = machine()
    console = Console(record=True, width=140)
    console.print(", ".join(f"{key}: {value}" for key, value in about.items()), soft_wrap=True)
    for model in dict.fromkeys(row["model"] for row in rows):
        console.print(table(model, [row for row in rows if row["model"] == model]))
    (folder / "torch_whole_step_cpu.txt").write_text(console.export_text())
    (folder / "torch_whole_step_cpu.json").write_text(
        json.dumps({"about": about, "rows": rows}, indent=1) + "\n"
    )
    print(f"written: {folder}/torch_whole_step_cpu.json, .txt")


def table(model: str, rows: list[Row]) -> Any:
    """One network's rows."""
    from rich.table import Table

    resident = next(row["resident"] for row in rows if "resident" in row)
    result = Table(
        "method",
        *(
            "budget MiB",
            "predicted MiB",
            "measured MiB",
            "activation peak",
            "cost model",
            "step s",
            "wall time",
        ),
        "same bits",
        title=f"{model}; resident all the time: {resident / 2**20:.1f} MiB",
        title_justify="left",
    )
    for column in result.columns[1:]:
        column.justify = "right"
    previous = rows[0]["method"]
    for row in rows:
        if row["method"] != previous:
            result.add_section()
            previous = row["method"]
        mebibytes = show(row.get("budget"), lambda b: f"{b / 2**20:.1f}")
        if "error" in row:
            result.add_row(row["method"], mebibytes, row["error"].split(":")[0])
            continue
        result.add_row(
            row["method"],
            mebibytes,
            show(row.get("predicted_peak"), lambda b: f"{b / 2**20:.2f}"),
            f"{row['peak'] / 2**20:.2f}",
            f"{row['activation_share']:.1%}",
            show(row.get("predicted_overhead"), lambda x: f"{x:+.1%}"),
            f"{row['step_s']:.3f}",
            f"{row['time_overhead']:+.1%}",
            "yes" if row["equal"] else "NO",
        )
    return result


if __name__ == "__main__":
    main()
