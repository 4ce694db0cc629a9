"""The command ``checkmate export``: the best layers for Keras' own rematerialization, within a budget.

Registering the command does not import TensorFlow, so that the command line starts quickly; running it does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from checkmate.framework import ProgramError, named_factory
from checkmate.plugins import examples, replace_file

if TYPE_CHECKING:
    import click

    from checkmate_tf.policies.export import Exported

__all__ = ["register"]

_TARGETS = ("keras-remat",)


def register(cli: click.Group, load: Callable[[], ModuleType]) -> None:
    """Add the command ``export``, which ``load`` imports; it joins one of another plugin."""
    import click

    output = click.Path(dir_okay=False, writable=True, path_type=Path)

    @cli.command(
        epilog=examples(
            "checkmate export --tf package.module:factory --budget 60% --as keras-remat --output policy.py",
        )
    )
    @click.option(
        "--tf",
        "program",
        metavar="MODULE:FACTORY",
        required=True,
        help="Returns (model, loss, optimizer, input_spec, label_spec).",
    )
    @click.option("--budget", required=True, help="Bytes, 8GiB, or a share of the plain peak, 60%.")
    @click.option("--as", "target", type=click.Choice(_TARGETS), default=_TARGETS[0], show_default=True)
    @click.option("--cost-model", help="Of ops; default measured seconds.")
    @click.option("--time-limit", type=click.FloatRange(min=0), default=10.0, show_default=True)
    @click.option("--output", type=output, help="Write the code to a file instead of printing it.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    def export(*, output: Path | None, as_json: bool, **asked: Any) -> None:
        """Which layers should Keras recompute to meet a budget? Prints code to paste.

        The prediction, on stderr, is that of Keras' own recomputation, beside the cost of a schedule of our
        own. The step is not run. FACTORY is as for trace.
        """
        from rich.console import Console

        with Console(stderr=True).status("judging layers"):
            found: Exported = load().export(**_step(**asked))
        if output is not None:
            replace_file(output, found.text.encode())
        if as_json:
            click.echo(json.dumps(found.to_dict(), indent=2))
            return
        click.echo(str(found), err=True)
        if output is None:
            click.echo(found.text)


def _step(*, program: str, cost_model: str | None, **asked: Any) -> dict[str, Any]:
    """The arguments of :func:`export`: the step of the factory that the option ``--tf`` names, and the rest.

    Raises:
        ProgramError: if there is no such factory, or it returns something else.
    """
    made = named_factory("--tf", program)()
    if not isinstance(made, tuple) or len(made) != 5:
        raise ProgramError(
            f"--tf {program} gave {made!r:.80}: the factory must return (model, loss, optimizer, input_spec, "
            "label_spec)"
        )
    names = ("model", "loss", "optimizer", "input_spec", "label_spec")
    costs = {} if cost_model is None else {"cost_model": cost_model}
    return dict(zip(names, made, strict=True)) | asked | costs
