"""One real training run, twice from equal weights over equal batches: plain, and within a byte budget.

If recomputation is exact, the losses of both runs are the same numbers; if the plan is true, the live bytes
of the second never exceed its budget. ``checkmate demo`` checks both and draws them.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from checkmate import Solution
from checkmate.errors import MissingDistributionError
from checkmate.problem import keep_all_peak
from checkmate.units import Budget, format_bytes, parse_budget
from checkmate_torch.compiled import compile
from checkmate_torch.meter import MemoryMeter, memory_meter, resident_bytes
from checkmate_torch.zoo import resnet18

if TYPE_CHECKING:
    import click
    from rich.table import Table

__all__ = ["Comparison", "Run", "compare", "digits", "register"]

_BATCH = 16
_IMAGE = 64
_STAGES = (3, 3, 2, 2)
_TIME_LIMIT_S = 10.0
_UNTIMED = 2
"""First steps left out of the median: planning, allocation of the optimizer's state."""
_LOSS_RTOL = 1e-4
"""Recomputation runs the same kernels on the same values: the losses are equal, most often to the last bit.
Kernels that sum in an order of their own choice differ in the last of 24 bits, 6e-8; some dozens of steps may
amplify that a thousandfold, while a wrong gradient shows in the second loss with 1e-2 and more."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """A training run.

    Attributes:
        losses: of each step.
        step_s: median seconds of a step.
        peak: the most live bytes in any step after the first.
        last: the memory of the last step.
        optimizer_bytes: state of the optimizer.
    """

    losses: tuple[float, ...]
    step_s: float
    peak: int
    last: MemoryMeter
    optimizer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Both runs, the budget of the second in bytes, and its plan."""

    plain: Run
    checkmate: Run
    budget: int
    solution: Solution

    @property
    def within_budget(self) -> bool:
        """Whether the second run never held more than its budget."""
        return self.checkmate.peak <= self.budget

    @property
    def same_losses(self) -> bool:
        """Whether the losses of both runs are equal, up to the rounding of float32."""
        return np.allclose(self.plain.losses, self.checkmate.losses, rtol=_LOSS_RTOL, atol=0)


def digits(steps: int, *, batch: int = _BATCH, image: int = _IMAGE, seed: int = 0) -> list[Batch]:
    """Batches of scikit-learn's handwritten digits, 8×8 pixels scaled up to ``image``; nothing is downloaded.

    Returns:
        ``steps`` pairs of images float32 ``[batch, 1, image, image]`` in 0 … 1 and labels int64 ``[batch]``.

    Raises:
        MissingDistributionError: if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise MissingDistributionError(
            "the demo's data come with scikit-learn: pip install 'checkmate-torch[demo]'", name=error.name
        ) from error
    images, labels = load_digits(return_X_y=True)
    small = torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 16
    generator = torch.Generator().manual_seed(seed)
    batches: list[Batch] = []
    while len(batches) < steps:
        order = torch.randperm(len(small), generator=generator)
        for chosen in order[: len(order) // batch * batch].view(-1, batch):
            x = functional.interpolate(small[chosen], size=(image, image), mode="bilinear")
            batches.append((x, torch.from_numpy(labels)[chosen]))
    return batches[:steps]


def compare(
    model: nn.Module, batches: Sequence[Batch], budget: Budget, *, advance: Callable[[str], None]
) -> Comparison:
    """Train two copies of ``model``: plainly, then within ``budget``, a share being of the plain peak.

    Args:
        model: maps images to logits; is not changed.
        batches: one for each step, at least two.
        budget: of the second run.
        advance: called before each step with the name of the run.

    Raises:
        InfeasibleBudgetError: if no schedule within the budget was found.
    """
    plain = _train(copy.deepcopy(model), batches, lambda: advance("plain"))
    limit = parse_budget(budget, plain.peak)
    # What the compiled module can't see: the optimizer's state and the labels.
    reserve = plain.optimizer_bytes + resident_bytes(batches[0][1])
    compiled = compile(copy.deepcopy(model), limit, reserve=reserve, time_limit=_TIME_LIMIT_S)
    within = _train(compiled, batches, lambda: advance("checkmate"))
    return Comparison(plain=plain, checkmate=within, budget=limit, solution=compiled.plans[0].solution)


def _train(model: nn.Module, batches: Sequence[Batch], advance: Callable[[], None]) -> Run:
    """An ordinary loop; every step but the first, in which the plan is made, is metered."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses: list[float] = []
    seconds: list[float] = []
    meters: list[MemoryMeter] = []
    for x, y in batches:
        advance()
        start = time.perf_counter()
        with memory_meter(model, optimizer, x, y) if losses else nullcontext() as meter:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            del loss
        seconds.append(time.perf_counter() - start)
        if meter is not None:
            meters.append(meter)
    return Run(
        losses=tuple(losses),
        step_s=float(np.median(seconds[_UNTIMED:] or seconds)),
        peak=max(meter.peak for meter in meters),
        last=meters[-1],
        optimizer_bytes=resident_bytes(optimizer),
    )


def register(cli: click.Group) -> None:
    """Add the command ``demo``; needs the extra ``checkmate-torch[demo]``."""
    import click

    output = click.Path(dir_okay=False, writable=True, path_type=Path)

    @cli.command()
    @click.option("--steps", type=click.IntRange(min=3), default=30, show_default=True)
    @click.option("--budget", default="50%", show_default=True, help="Bytes, 80MiB, or share of plain peak.")
    @click.option("--output", type=output, default=Path("checkmate-demo.png"), show_default=True)
    @click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    @click.pass_context
    def demo(ctx: click.Context, /, steps: int, budget: str, output: Path, as_json: bool) -> None:
        """Train a residual network on handwritten digits twice: plainly, and within half its peak memory.

        Exit 1 if the budget was exceeded, or if the losses of both runs differ.
        """
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

        parse_budget(budget, 2**62)  # a budget that can't be read is an error before the work, not after
        model = resnet18(channels=1, batch=1, image=8, stages=_STAGES).module
        count = sum(parameter.numel() for parameter in model.parameters())
        columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("loading", total=2 * steps)
            runs: list[str] = []

            def advance(run: str) -> None:
                what = "planning" if run == "checkmate" and run not in runs else "training"
                progress.update(task, description=f"{what}, {run}", completed=len(runs))
                runs.append(run)

            result = compare(model, digits(steps), budget, advance=advance)
            progress.update(task, completed=2 * steps)
        _draw(result, output)
        if as_json:
            click.echo(json.dumps(_facts(result) | {"picture": str(output)}, indent=2))
        else:
            title = f"Residual network, {count / 1e6:.1f} M parameters, {steps} steps"
            Console().print(_table(result, title=title))
            click.echo(f"Memory over one step of both runs: {output.resolve()}")
        for passed, fault in (
            (result.within_budget, "the budget was exceeded"),
            (result.same_losses, "the losses of both runs differ"),
        ):
            if not passed:
                click.echo(f"Failed: {fault}.", err=True)
                ctx.exit(1)
        click.echo("Within the budget, and the losses are the same.", err=as_json)


def _draw(result: Comparison, path: Path) -> None:
    """The memory of the last step of both runs, and the budget, as a PNG."""
    from checkmate.report.plot import plot_memory

    curves = {
        name: (run.last.times_s.tolist(), run.last.bytes.tolist())
        for name, run in (("plain PyTorch", result.plain), ("checkmate", result.checkmate))
    }
    title = "Memory held during one training step"
    plot_memory(curves, result.budget, path, title=title, time_label="time within the step [s]")


def _facts(result: Comparison) -> dict[str, object]:
    """The comparison as plain values: bytes, seconds, fractions."""
    plain, within, solution = result.plain, result.checkmate, result.solution

    def of(run: Run, predicted: int | None) -> dict[str, object]:
        return {"predicted_peak": predicted, "peak": run.peak, "step_s": run.step_s, "losses": run.losses}

    return {
        "budget": result.budget,
        "plain": of(plain, keep_all_peak(solution.problem.graph)),
        "checkmate": of(within, solution.peak),
        "overhead_predicted": solution.overhead,
        "overhead_measured": within.step_s / plain.step_s - 1,
        "within_budget": result.within_budget,
        "same_losses": result.same_losses,
    }


def _table(result: Comparison, *, title: str) -> Table:
    """What was predicted and measured, then some of the losses, side by side."""
    from rich.table import Table

    plain, within, solution = result.plain, result.checkmate, result.solution
    table = Table("", "plain PyTorch", "checkmate", title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    predicted = keep_all_peak(solution.problem.graph)
    table.add_row("budget", "none", format_bytes(result.budget))
    table.add_row("predicted peak", format_bytes(predicted), format_bytes(solution.peak or 0))
    table.add_row("measured peak", format_bytes(plain.peak), format_bytes(within.peak))
    table.add_row("share of the plain peak", "100 %", f"{within.peak / plain.peak:.1%}")
    table.add_row("step time, median", f"{plain.step_s:.3f} s", f"{within.step_s:.3f} s")
    slower = within.step_s / plain.step_s - 1
    table.add_row("extra time, predicted", "", f"{solution.overhead:+.1%}")
    table.add_row("extra time, measured", "", f"{slower:+.1%}", end_section=True)
    steps = len(plain.losses)
    for step in sorted({0, 1, 2, *range(0, steps, max(1, steps // 5)), steps - 1}):
        table.add_row(f"loss, step {step + 1}", f"{plain.losses[step]:.6f}", f"{within.losses[step]:.6f}")
    return table
