"""From a forward network to its training step: the reverse sweep of automatic differentiation, as a graph.

Each forward op y = f(x₁ … xₖ) gets one backward op. It reads the gradient of y and the tensors that the
derivative of f needs (``saves``), and makes a gradient for every xᵢ that has one. It costs the flops of f for
each gradient: the backward op of a matrix product computes two. Gradients of a tensor with several readers
are summed in pairs, in the order in which they are made. The graph's outputs are the loss and the gradients
of all parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checkmate.model.graph import DFGraph, Op, Tensor

__all__ = ["FLOAT", "ForwardNet"]

FLOAT = 4
"""Bytes of a float32."""


@dataclass(frozen=True, slots=True)
class _Taped:
    """One forward op, as recorded for the reverse sweep."""

    name: str
    reads: tuple[int, ...]
    output: int
    saves: tuple[int, ...]
    flops: int
    is_sum: bool


class ForwardNet:
    """A forward pass under construction: each method adds an op, and returns the index of its output.

    Costs are flops. Parameters, the batch and the labels are graph inputs. Every op has to depend on a
    parameter and lead to the prediction.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._inputs: list[int] = []
        self._parameters: list[int] = []
        self._differentiable: set[int] = set()
        self._tape: list[_Taped] = []

    def data(self, name: str, size: int) -> int:
        """A graph input without gradient."""
        self._inputs.append(self._tensor(name, size))
        return self._inputs[-1]

    def parameter(self, name: str, size: int) -> int:
        """A graph input whose gradient is an output of the training step."""
        self._parameters.append(self.data(name, size))
        self._differentiable.add(self._parameters[-1])
        return self._parameters[-1]

    def op(
        self,
        name: str,
        reads: Sequence[int],
        size: int,
        flops: int,
        *,
        saves: Sequence[int] = (),
        saves_output: bool = False,
        extra: int = 0,
    ) -> int:
        """A forward op that makes one tensor of ``size`` bytes, and costs ``flops``.

        Its backward op reads the incoming gradient and the tensors ``saves``; with ``saves_output`` also the
        output, and unless ``extra`` is 0 a by-product of ``extra`` bytes.
        """
        output = self._tensor(name, size)
        by_product = [self._tensor(f"{name}.saved", extra)] if extra else []
        self._ops.append(Op(name=name, inputs=tuple(reads), outputs=(output, *by_product), cost=float(flops)))
        saved = (*saves, *([output] if saves_output else []), *by_product)
        self._record(_Taped(name, tuple(reads), output, saved, flops, False))
        return output

    def add(self, name: str, first: int, second: int) -> int:
        """The sum of two tensors of one size; its gradient is also theirs, so it needs no backward op."""
        output = self._tensor(name, self._tensors[first].size)
        self._ops.append(
            Op(name=name, inputs=(first, second), outputs=(output,), cost=float(self._elements(output)))
        )
        self._record(_Taped(name, (first, second), output, (), 0, True))
        return output

    def dropout(self, name: str, x: int) -> int:
        """Drop random elements: the mask, one byte each, is drawn by an op that can't run twice."""
        mask = self._tensor(f"{name}.mask", self._elements(x))
        cost = float(self._elements(x))
        drawn = Op(name=f"{name}.mask", inputs=(), outputs=(mask,), cost=cost, recomputable=False)
        self._ops.append(drawn)
        return self.op(name, [x, mask], self._tensors[x].size, self._elements(x), saves=[mask])

    def training_step(self, prediction: int, labels: int) -> DFGraph:
        """Add the loss, which reads prediction and labels, and the backward pass."""
        loss = self._tensor("loss", FLOAT)
        gradient = {prediction: self._tensor(_gradient_of("loss"), self._tensors[prediction].size)}
        self._backward_op(
            "loss", (prediction, labels), (loss, gradient[prediction]), self._elements(prediction)
        )
        for taped in reversed(self._tape):
            incoming = gradient.pop(taped.output)
            wanted = [t for t in taped.reads if t in self._differentiable]
            if taped.is_sum:
                made = [incoming] * len(wanted)
            else:
                made = [
                    self._tensor(f"{_gradient_of(taped.name)}.{i}", self._tensors[t].size)
                    for i, t in enumerate(wanted)
                ]
                reads = (incoming, *taped.saves)
                self._backward_op(f"{taped.name}.backward", reads, tuple(made), len(wanted) * taped.flops)
            for t, new in zip(wanted, made, strict=True):
                gradient[t] = self._summed(t, gradient[t], new) if t in gradient else new
        return DFGraph(
            ops=tuple(self._ops),
            tensors=tuple(self._tensors),
            inputs=tuple(self._inputs),
            outputs=(loss, *(gradient[t] for t in self._parameters)),
            cost_unit="flop",
            name=self._name,
        )

    def _summed(self, t: int, first: int, second: int) -> int:
        name = f"{_gradient_of(self._tensors[t].name)}.sum"
        total = self._tensor(name, self._tensors[first].size)
        self._backward_op(name, (first, second), (total,), self._elements(total))
        return total

    def _backward_op(self, name: str, reads: tuple[int, ...], makes: tuple[int, ...], flops: int) -> None:
        reads = tuple(dict.fromkeys(reads))
        self._ops.append(Op(name=name, inputs=reads, outputs=makes, cost=float(flops), backward=True))

    def _record(self, taped: _Taped) -> None:
        self._tape.append(taped)
        self._differentiable.add(taped.output)

    def _tensor(self, name: str, size: int) -> int:
        self._tensors.append(Tensor(name=name, size=size))
        return len(self._tensors) - 1

    def _elements(self, t: int) -> int:
        return self._tensors[t].size // FLOAT


def _gradient_of(name: str) -> str:
    return f"d {name}"
