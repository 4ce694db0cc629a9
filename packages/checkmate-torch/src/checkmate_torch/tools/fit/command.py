"""The command ``checkmate fit``: how much memory training takes, as a table, JSON, or a picture.

Registering the command does not import PyTorch, so that the command line starts quickly; running it does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkmate import CheckmateError
from checkmate.framework import ProgramError, named_factory
from checkmate.plugins import examples

if TYPE_CHECKING:
    import click
    import torch

    from checkmate_torch.tools.fit.table import FitTable

__all__ = ["DTYPES", "errors_of", "factory_of", "register"]

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
"""Names on the command line → names in ``torch``."""


def register(cli: click.Group) -> None:
    """Add the command ``fit``."""
    import click

    existing = click.Path(exists=True)
    output = click.Path(dir_okay=False, writable=True, path_type=Path)

    @cli.command(
        epilog=examples(
            "checkmate fit --hf config.json --batch 1,2,4,8 --sequence 2048,8192 --device H100-80GB",
            "checkmate fit --hf config.json --sequence 2048 --lora r=16,targets=q_proj+v_proj --budget 24GB",
            "checkmate fit --hf config.json --batch 4 --memory 24GiB",
            "checkmate fit --hf config.json --sequence 4096 --device H100-80GB --world-size 64 --fsdp",
            "checkmate fit --torch package.module:factory --batch 32,64 --optimizer sgd,momentum=0.9 --json",
        )
    )
    @click.option("--torch", "program", metavar="MODULE:FACTORY", help="A function of (batch[, sequence]).")
    @click.option("--hf", type=existing, metavar="CONFIG.JSON", help="The config of a model of transformers.")
    @click.option("--head", metavar="CLASS", help="With --hf: class in transformers; default the config's.")
    @click.option("--lora", metavar="SETTINGS", help="With --hf: train adapters, r=16,targets=q_proj+v_proj.")
    @click.option("--batch", "batches", default="1", show_default=True, metavar="N,…", help="Examples.")
    @click.option("--sequence", "sequences", default="", metavar="N,…", help="Lengths of a sequence.")
    @click.option("--optimizer", default="adamw", show_default=True, help="Of torch.optim, or 'none'.")
    @click.option("--dtype", type=click.Choice([*DTYPES]), help="Of the parameters; default as they are.")
    @click.option("--device", help="As H100-80GB; default the CPU, whose memory is no limit.")
    @click.option("--memory", metavar="SIZE", help="Of the GPU, as 24GiB; default the device's.")
    @click.option("--budget", help="Bytes, 24GB, or a share of the memory; default nine tenths of it.")
    @click.option("--world-size", type=click.IntRange(min=2), help="With --fsdp: predict each of N ranks.")
    @click.option(
        "--fsdp",
        is_flag=False,
        flag_value=",",
        metavar="[CLASS,…]",
        help="Shard each block by FSDP2, or the modules of these classes; with --world-size.",
    )
    @click.option("--fsdp-dtype", type=click.Choice([*DTYPES]), help="Of gathered parameters and gradients.")
    @click.option(
        "--workspaces", is_flag=True, help="Run each distinct op once here, to measure its workspace."
    )
    @click.option("--time-limit", type=click.FloatRange(min=0, min_open=True), default=2.0, show_default=True)
    @click.option("--output", type=output, help="Draw the table as a picture.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    def fit(*, output: Path | None, as_json: bool, **asked: Any) -> None:
        """How much memory does training take? Plain, and with recomputation; nothing is allocated or run.

        FACTORY returns (model, example_inputs) or (model, example_inputs, loss).
        """
        from rich.console import Console

        with Console(stderr=True).status("reading the model") as status:

            def show(batch: int, sequence: int | None) -> None:
                of = "" if sequence is None else f", sequence {sequence}"
                status.update(f"batch {batch}{of}")

            table = _table(asked, show)
        if output is not None:
            table.save_picture(output)
        said = "Least peak unknown" if table.world_size is None else "Not planned"
        for remark in {cell.remark for cell in table if cell.remark}:
            click.echo(f"{said}: {remark}", err=True)
        click.echo(table.to_json() if as_json else str(table))


def _table(asked: dict[str, Any], on_cell: Any) -> FitTable:
    """Compute the table for the options of the command."""
    import torch

    from checkmate_torch.tools.fit.predict import fit

    dtype = getattr(torch, DTYPES[asked["dtype"]]) if asked["dtype"] else None
    with errors_of(asked["hf"]):
        return fit(
            factory_of(asked, dtype),
            _numbers(asked["batches"]),
            _numbers(asked["sequences"]),
            device=asked["device"],
            memory=asked["memory"],
            budget=asked["budget"],
            optimizer=None if asked["optimizer"] == "none" else asked["optimizer"],
            dtype=None if asked["hf"] else dtype,
            time_limit=asked["time_limit"],
            on_cell=on_cell,
            workspaces=asked["workspaces"] or None,
            shard=_shard(asked),
            world_size=asked["world_size"],
        )


def _shard(asked: dict[str, Any]) -> Any:
    """The function that ``--fsdp`` asks for; None without it."""
    if (asked["fsdp"] is None) != (asked["world_size"] is None):
        raise ProgramError("--fsdp and --world-size go together: --world-size 64 --fsdp")
    if asked["fsdp"] is None:
        if asked["fsdp_dtype"]:
            raise ProgramError("--fsdp-dtype goes with --fsdp")
        return None
    import torch

    from checkmate_torch.tools.fit.sharding import block_sharding

    names = [name.strip() for name in asked["fsdp"].split(",") if name.strip()]
    return block_sharding(names, getattr(torch, DTYPES[asked["fsdp_dtype"]]) if asked["fsdp_dtype"] else None)


@contextmanager
def errors_of(config: str | None) -> Iterator[None]:
    """Turn a ValueError, and what running the model of a config raises, into one sentence.

    Args:
        config: the file; None = the model has none.
    """
    with nullcontext() if config is None else _sentences(config):
        try:
            yield
        except CheckmateError:
            raise
        except ValueError as error:
            raise ProgramError(str(error)) from error


def _sentences(config: str) -> AbstractContextManager[None]:
    """As in the module that knows transformers, which is imported without network and hints to its users."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from checkmate_torch.tools.fit.hugging_face import sentences

    return sentences(config)


def factory_of(asked: dict[str, Any], dtype: torch.dtype | None) -> Any:
    """The factory that ``--torch`` or ``--hf`` names.

    Args:
        asked: the options ``program``, ``hf``, ``head`` and ``lora``.
        dtype: of the parameters of a config's model; None = the config's.

    Raises:
        ProgramError: if none is named, or both; if there is no such factory.
    """
    if bool(asked["hf"]) == bool(asked["program"]):
        raise ProgramError("name the model, once: --torch MODULE:FACTORY or --hf CONFIG.JSON")
    if asked["hf"]:
        from checkmate_torch.tools.fit.hugging_face import hugging_face_factory

        return hugging_face_factory(asked["hf"], head=asked["head"], dtype=dtype, lora=asked["lora"])
    if asked["head"] or asked["lora"]:
        raise ProgramError("--head and --lora go with --hf: with --torch the factory makes head and adapters")
    return named_factory("--torch", asked["program"])


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ProgramError(f"{text!r} is no list of whole numbers: write 1,2,4") from error
