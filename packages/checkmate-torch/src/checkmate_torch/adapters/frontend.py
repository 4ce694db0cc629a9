"""The frontend ``torch``: what ``checkmate trace --torch package.module:factory`` traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from torch import nn

from checkmate.framework import ProgramError
from checkmate_torch.api.trace import TracedModel, trace
from checkmate_torch.capture.arguments import Loss
from checkmate_torch.private import fake_mode

__all__ = ["Frontend", "made_by"]


class Frontend:
    """The frontend ``torch``, behind ``checkmate trace --torch package.module:factory``."""

    def trace(
        self, program: nn.Module | Callable[[], Sequence[object]], /, *args: object, **options: Any
    ) -> TracedModel:
        """Trace a model with positional inputs, or the model that a factory makes.

        Args:
            program: a module; or a function without arguments that returns ``(model, example_inputs)`` or
                ``(model, example_inputs, loss)``. It is called under fake tensors, so that it allocates
                nothing.
            args: the inputs of a module.
            options: as in :func:`trace`.
        """
        if isinstance(program, nn.Module):
            return trace(program, args, **options)
        with fake_mode():
            made = program()
        model, example_inputs, loss = made_by(program, made)
        return trace(model, example_inputs, loss=loss, **options)


def made_by(factory: object, made: object) -> tuple[nn.Module, object, Loss | None]:
    """The model, the example inputs and the loss, if any, that a factory made.

    Raises:
        ProgramError: if it made something else.
    """
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], nn.Module):
        raise ProgramError(
            f"{factory!r} returned {type(made).__name__}: a factory for tracing returns "
            "(model, example_inputs) or (model, example_inputs, loss)"
        )
    model, example_inputs, *loss = made
    return model, example_inputs, cast("Loss", loss[0]) if loss else None
