"""The commands ``checkmate judge`` and ``export``: what recomputation policies cost, and the best for a tool.

Registering the command does not import PyTorch, so that the command line starts quickly; running it does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkmate.plugins import examples, replace_file
from checkmate_torch.tools.fit.command import DTYPES, errors_of, factory_of

if TYPE_CHECKING:
    import click

    from checkmate_torch.tools.fit.predict import Made

__all__ = ["register"]

_TARGETS = ("sac", "modules", "every-n-layers", "torchtitan")


def register(cli: click.Group) -> None:
    """Add the commands ``judge`` and ``export``."""
    import click

    output = click.Path(dir_okay=False, writable=True, path_type=Path)

    @cli.command(
        epilog=examples(
            "checkmate judge --hf config.json --batch 4 --sequence 2048 --policy library --policy library/2",
            "checkmate judge --torch package.module:factory --policy 'blocks.* save aten.mm.default' --json",
        )
    )
    @_of_model
    @click.option(
        "--policy",
        "policies",
        multiple=True,
        help="As blocks.*, library/2, budget=0.5, schedule.json; several: repeat it.",
    )
    @click.option("--time-limit", type=click.FloatRange(min=0), default=2.0, show_default=True)
    @click.option("--output", type=output, help="Draw policies and best schedules as a picture.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    def judge(
        *, policies: tuple[str, ...], time_limit: float, output: Path | None, as_json: bool, **asked: Any
    ) -> None:
        """What does a recomputation policy cost, what is its true peak, and how far is it from the best?

        Without --policy the model's own checkpointing is judged, or that of its repeated layers. Nothing is
        allocated or run. FACTORY takes (batch[, sequence]) and returns (model, example_inputs) or (model,
        example_inputs, loss).
        """
        from rich.console import Console

        with Console(stderr=True).status("judging"), errors_of(asked["hf"]):
            from checkmate_torch.policies import judge as judging
            from checkmate_torch.policies.policy import usual_policies

            model, example_inputs, loss = _made(asked)
            found = judging.judge(
                model,
                example_inputs,
                [*policies] or usual_policies(model),
                loss=loss,
                device=asked["device"],
                time_limit=time_limit,
                **_costs(asked),
            )
        if output is not None:
            found.save_picture(output)
        click.echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))

    @cli.command(
        epilog=examples(
            "checkmate export --hf config.json --batch 4 --sequence 2048 --budget 60% --as every-n-layers",
            "checkmate export --torch package.module:factory --budget 8GiB --as sac --output policy.py",
        )
    )
    @_of_model
    @click.option("--budget", required=True, help="Bytes, 8GiB, or a share of the plain peak, 60%.")
    @click.option("--as", "target", type=click.Choice(_TARGETS), default="sac", show_default=True)
    @click.option("--time-limit", type=click.FloatRange(min=0), default=2.0, show_default=True)
    @click.option("--output", type=output, help="Write the policy to a file instead of printing it.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    def export(
        *, budget: str, target: str, time_limit: float, output: Path | None, as_json: bool, **asked: Any
    ) -> None:
        """Which policy of another tool is the best within a budget? Prints something to paste.

        The prediction, on stderr, is that of the policy, beside the cost of a schedule of our own. Nothing is
        allocated or run. FACTORY is as for judge.
        """
        from rich.console import Console

        with Console(stderr=True).status("judging policies"), errors_of(asked["hf"]):
            from checkmate_torch.policies import export as exporting

            model, example_inputs, loss = _made(asked)
            found = exporting.export(
                model,
                example_inputs,
                budget,
                target,
                loss=loss,
                device=asked["device"],
                time_limit=time_limit,
                **_costs(asked),
            )
        if output is not None:
            replace_file(output, found.text.encode())
        if as_json:
            click.echo(json.dumps(found.to_dict(), indent=2))
            return
        click.echo(str(found), err=True)
        if output is None:
            click.echo(found.text)


def _of_model(command: Any) -> Any:
    """Add the options that name a model and how its ops are priced."""
    import click

    for option in reversed(
        [
            click.option(
                "--torch", "program", metavar="MODULE:FACTORY", help="A function of (batch[, sequence])."
            ),
            click.option(
                "--hf", type=click.Path(exists=True), metavar="CONFIG.JSON", help="Of transformers."
            ),
            click.option("--head", metavar="CLASS", help="With --hf: class in transformers."),
            click.option(
                "--lora", metavar="SETTINGS", help="With --hf: adapters, r=16,targets=q_proj+v_proj."
            ),
            click.option(
                "--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Examples."
            ),
            click.option("--sequence", type=click.IntRange(min=1), help="Length of a sequence."),
            click.option("--dtype", type=click.Choice([*DTYPES]), help="Of the parameters."),
            click.option("--device", help="As H100-80GB; default the CPU."),
            click.option("--cost-model", help="Of ops; default the device's roofline, or else flops."),
        ]
    ):
        command = option(command)
    return command


def _made(asked: dict[str, Any]) -> Made:
    """The model that the options name, its inputs and its loss."""
    import torch

    from checkmate_torch.tools.fit.predict import make

    dtype = getattr(torch, DTYPES[asked["dtype"]]) if asked["dtype"] else None
    factory = factory_of(asked, dtype)
    return make(factory, asked["batch"], asked["sequence"], None if asked["hf"] else dtype)


def _costs(asked: dict[str, Any]) -> dict[str, Any]:
    """The cost model: the one that was asked for, that of a device of the table, or FLOPs."""
    from checkmate_torch.ops.device import Target

    if asked["cost_model"]:
        return {"cost_model": asked["cost_model"]}
    target = Target.parse(asked["device"])
    return {"cost_model": "flops"} if target is None or target.name is None else {}
