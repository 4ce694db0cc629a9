"""Recurrent networks as one op: PyTorch's own kernel for all time steps, computed again as a whole.

    y, states = kernel(x, states, weights)        gradients = ∇ kernel(x, states, weights), from a second run

Autograd keeps all time steps of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` from forward to backward. Dynamo
refuses them, and AOTAutograd would trace each time step. In a planned graph each is an op that keeps its
inputs only; its backward op runs the kernel again, with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from checkmate_torch.capture.dynamo_capture import NotOneGraphError
from checkmate_torch.ops.device import counts_as_cuda
from checkmate_torch.ops.recompute_rules import random_state_bytes
from checkmate_torch.private import autograd_inside_of_op

__all__ = ["with_recurrent_ops"]

_KERNELS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "lstm": torch.lstm,
    "gru": torch.gru,
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
}
_NAMES = {kernel: name for name, kernel in _KERNELS.items()}


def with_recurrent_ops(gm: GraphModule) -> GraphModule:
    """Turn each recurrent network of a captured graph into one op; NotOneGraphError for packed sequences."""
    found = [node for node in gm.graph.nodes if node.op == "call_function" and node.target in _NAMES]
    for node in found:
        x, state, *rest = node.args
        if len(rest) != 7 or not isinstance(rest[0], Sequence):
            raise NotOneGraphError(
                "a recurrent network that gets a packed sequence can't be planned: pass padded sequences"
            )
        states = tuple(state) if isinstance(state, Sequence) else (state,)
        node.args = (_NAMES[node.target], x, states, *rest)
        node.target = _recurrent
    if found:
        gm.recompile()
    return gm


def _recurrent(
    kind: str, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *settings: Any
) -> tuple[Tensor, ...]:
    """Run the kernel of this kind; return its output and last states.

    Raises:
        NotOneGraphError: under autocast, which changes the kernel's dtypes; with dropout between layers in
            cuDNN, which draws from a generator of its own, so that a second run drops other values.
    """
    if torch.is_autocast_enabled(x.device.type):
        raise NotOneGraphError(
            "a recurrent network can't be planned under autocast: convert the model instead"
        )
    bias, layers, dropout, train, both_ways, batch_first = settings
    p = dropout if train and layers > 1 else 0.0
    if p and counts_as_cuda(x.device) and torch.backends.cudnn.enabled:
        raise NotOneGraphError(
            "a recurrent network with dropout between its layers can't be planned on CUDA, where cuDNN draws "
            "the random numbers: make a network of each layer, with nn.Dropout between them"
        )
    outputs = _forward(kind, x, list(states), list(weights), bias, layers, p, train, both_ways, batch_first)
    return tuple(outputs[:-1])


_NETWORK = (
    "str kind, Tensor x, Tensor[] states, Tensor[] weights, "
    "bool bias, int layers, float dropout_p, bool train, bool both_ways, bool batch_first"
)
"""Arguments that both ops have. From ``bias`` on they are settings, in the order of the kernels."""


@torch.library.custom_op(
    "checkmate_torch::recurrent",
    mutates_args=(),
    schema=f"({_NETWORK}) -> Tensor[]",
    tags=(torch.Tag.nondeterministic_seeded,),
)
def _forward(
    kind: str, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *settings: Any
) -> list[Tensor]:
    """The output, the last states, and the random state before dropout, which is empty without dropout."""
    *_, dropout_p, _, _, batch_first = settings
    random_state = _random_state(x) if dropout_p else torch.empty(0, dtype=torch.uint8)
    inputs = [t.detach().requires_grad_() for t in (x, *states, *weights)]
    with autograd_inside_of_op():  # the kernel of training
        y, *last = _run(kind, inputs, len(states), *settings)
    return [_laid_out(y.detach(), batch_first), *(t.detach().contiguous() for t in last), random_state]


@_forward.register_fake
def _(
    kind: str, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *settings: Any
) -> list[Tensor]:
    *_, dropout_p, _, both_ways, batch_first = settings
    first, second, _width = x.shape
    width = states[0].shape[-1] * (2 if both_ways else 1)
    y = _laid_out(x.new_empty((first, second, width)), batch_first)
    size = random_state_bytes(x.device) if dropout_p else 0
    return [y, *(torch.empty_like(t) for t in states), torch.empty(size, dtype=torch.uint8)]


@torch.library.custom_op(
    "checkmate_torch::recurrent_backward",
    mutates_args=(),
    schema="(Tensor[] gradients, int[] of_outputs, int[] of_inputs, Tensor random_state, "
    f"{_NETWORK}) -> Tensor[]",
)
def _backward(
    gradients: Sequence[Tensor],
    of_outputs: Sequence[int],
    of_inputs: Sequence[int],
    random_state: Tensor,
    *network: Any,
) -> list[Tensor]:
    """Gradients of some inputs (x, states, weights), given gradients of some outputs (y, states)."""
    kind, x, states, weights, *settings = network
    *_, dropout_p, _, _, _ = settings
    inputs = [t.detach() for t in (x, *states, *weights)]
    wanted = [inputs[k].requires_grad_() for k in of_inputs]
    gpus = [x.device] if x.is_cuda else []
    with torch.random.fork_rng(gpus, enabled=bool(dropout_p)), autograd_inside_of_op():
        if dropout_p and bool(random_state.any()):  # it is not where the op is timed on made-up inputs
            _set_random_state(x, random_state)
        results = _run(kind, inputs, len(states), *settings)
        found = torch.autograd.grad([results[k] for k in of_outputs], wanted, list(gradients))
    return [_own(g) for g in found]


@_backward.register_fake
def _(
    _gradients: object, _of_outputs: object, of_inputs: Sequence[int], _state: object, *network: Any
) -> list[Tensor]:
    _kind, x, states, weights, *_settings = network
    inputs = (x, *states, *weights)
    return [torch.empty_like(inputs[k], memory_format=torch.contiguous_format) for k in of_inputs]


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    kind, x, states, weights, *settings = inputs
    ctx.save_for_backward(x, *states, *weights, output[-1])
    ctx.kind, ctx.settings, ctx.n_states = kind, settings, len(states)
    ctx.of_inputs = [k for k, t in enumerate((x, *states, *weights)) if t.requires_grad]


def _differentiate(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    *inputs, random_state = ctx.saved_tensors
    network = (ctx.kind, *_parts(inputs, ctx.n_states), *ctx.settings)
    of_outputs = [k for k, g in enumerate(gradients[:-1]) if g is not None]
    given = [gradients[k] for k in of_outputs]
    found = _backward(given, of_outputs, ctx.of_inputs, random_state, *network)
    of: list[Tensor | None] = [None] * len(inputs)
    for k, gradient in zip(ctx.of_inputs, found, strict=True):
        of[k] = gradient
    return None, *_parts(of, ctx.n_states), *[None] * len(ctx.settings)


def _parts(inputs: Sequence[Any], n_states: int) -> tuple[Any, Sequence[Any], Sequence[Any]]:
    """Split a list of inputs into x, the states, and the weights."""
    return inputs[0], inputs[1 : 1 + n_states], inputs[1 + n_states :]


_forward.register_autograd(_differentiate, setup_context=_keep_inputs)


def _run(kind: str, inputs: Sequence[Tensor], n_states: int, *settings: object) -> tuple[Tensor, ...]:
    """The kernel's results."""
    x, states, weights = _parts(inputs, n_states)
    return _KERNELS[kind](x, tuple(states) if kind == "lstm" else states[0], list(weights), *settings)


def _laid_out(y: Tensor, batch_first: bool) -> Tensor:
    """The output with time steps outermost in memory, as the kernels write it."""
    return y.transpose(0, 1).contiguous().transpose(0, 1) if batch_first else y.contiguous()


def _own(x: Tensor) -> Tensor:
    """The tensor in a storage of its own: cuDNN returns the gradients of all weights in one storage."""
    own = x.contiguous()
    return own if own.untyped_storage().nbytes() == own.nbytes else own.clone()


def _random_state(like: Tensor) -> Tensor:
    return torch.cuda.get_rng_state(like.device) if like.device.type == "cuda" else torch.get_rng_state()


def _set_random_state(like: Tensor, state: Tensor) -> None:
    if like.device.type == "cuda":
        torch.cuda.set_rng_state(state, like.device)
    else:
        torch.set_rng_state(state)
