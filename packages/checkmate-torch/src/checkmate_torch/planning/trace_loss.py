"""Find the bytes of a loss outside of the model, by following a plain step on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule

from checkmate_torch.capture.dynamo_capture import Stop, captured, stopped
from checkmate_torch.memory.plain_step import PlainStep, plain_step_of_graph
from checkmate_torch.planning.options import Options
from checkmate_torch.private import plain_call
from checkmate_torch.tracing.loss_bytes import LossBytes

__all__ = ["trace_loss"]


def trace_loss(
    model: nn.Module,
    loss: Callable[[Any], Tensor],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    options: Options,
) -> LossBytes | None:
    """The bytes of a loss; neither the model nor the loss is run.

    Args:
        model: the model.
        loss: from the model's output to a scalar.
        args: positional arguments of the model.
        kwargs: keyword arguments of the model.
        options: how the step is planned.

    Returns:
        None if the step can't be followed, or nothing in it needs a gradient.

    Raises:
        UnsupportedModelError: if model and loss can't be captured as one graph.
    """

    def both(module: nn.Module, *args: object, **kwargs: object) -> tuple[Tensor, object]:
        output = plain_call(module, *args, **kwargs)
        return loss(output), output

    step: PlainStep | None = stopped(
        captured(both, _Follow(options), read_masks=options.read_masks), model, *args, **kwargs
    )
    return None if step is None else step.loss


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class _Follow:
    """A Dynamo backend that follows the first graph and runs nothing."""

    options: Options

    def __call__(self, gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        raise Stop(plain_step_of_graph(gm, example_inputs, returns_loss=True))
