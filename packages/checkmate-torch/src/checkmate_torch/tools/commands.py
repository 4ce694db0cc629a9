"""The command ``checkmate demo``: trains twice and shows both runs as a table, a picture, or JSON.

Registering the command does not import PyTorch, so that the command line starts quickly; running it does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from checkmate import keep_all_peak
from checkmate.plugins import examples
from checkmate.units import format_bytes, parse_budget

if TYPE_CHECKING:
    import click
    from rich.table import Table

    from checkmate_torch.tools.demo import Comparison, Run

__all__ = ["register"]


def register(cli: click.Group) -> None:
    """Add the command ``demo``, which needs the extra ``checkmate-torch[demo]``."""
    import click

    output = click.Path(dir_okay=False, writable=True, path_type=Path)

    @cli.command(
        epilog=examples("checkmate demo", "checkmate demo --budget 80MiB --steps 10 --output run.png")
    )
    @click.option("--steps", type=click.IntRange(min=3), default=30, show_default=True)
    @click.option(
        "--budget", default="50%", show_default=True, help="Bytes, 80MiB, or a share of the plain peak."
    )
    @click.option("--output", type=output, default=Path("checkmate-demo.png"), show_default=True)
    @click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    @click.pass_context
    def demo(ctx: click.Context, /, steps: int, budget: str, output: Path, as_json: bool) -> None:
        """Train a residual network on handwritten digits twice: plainly, and within half its peak memory.

        Exit 1 if the budget was exceeded, or if the losses of both runs differ.
        """
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

        from checkmate_torch.tools import demo as training

        parse_budget(budget, 2**62)  # a mistake in the budget is an error before the work, not after
        model = training.network()
        count = sum(parameter.numel() for parameter in model.parameters())
        columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("loading", total=2 * steps)
            runs: list[str] = []

            def advance(run: str) -> None:
                doing = "planning" if run == "checkmate" and run not in runs else "training"
                progress.update(task, description=f"{doing}, {run}", completed=len(runs))
                runs.append(run)

            result = training.compare(model, training.digits(steps), budget, advance=advance)
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
    """Draw the memory of the last step of both runs, and the budget, as a PNG."""
    from checkmate.report import plot_memory

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
    """Predicted and measured values of both runs, then some of their losses, side by side."""
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
