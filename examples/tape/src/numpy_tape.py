"""A framework in miniature: a tape runs ops on NumPy arrays, and records them for the backward pass."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Kind(NamedTuple):
    """A kind of op: a pure function of arrays and, if it needs some, of scratch memory like the first one."""

    function: Callable[..., Any]
    scratch: bool = False
    backward: str = ""  # the kind that makes the gradients of its inputs from that of its first output
    saved: Sequence[int] = ()  # and from these of its inputs and outputs

    def run(self, arrays: Sequence[Any], watch: Callable[[], object] = bool) -> Sequence[Any]:
        """The arrays that it makes; ``watch`` is called while all memory of the op is in use."""
        scratch = [np.empty_like(arrays[0])] if self.scratch else []
        made = self.function(*arrays, *scratch)
        watch()
        return made if isinstance(made, tuple) else (made,)


KINDS = {
    "matmul": Kind(np.matmul, backward="matmul back", saved=[0, 1]),
    "matmul back": Kind(lambda x, w, g: (g @ w.T, x.T @ g)),
    "relu": Kind(lambda x: np.maximum(x, 0), backward="relu back", saved=[1]),
    "relu back": Kind(lambda y, g, scratch: g * np.sign(y, out=scratch), scratch=True),
    "mask": Kind(lambda x, key, work: np.rint(np.random.default_rng(key).random(out=work)), scratch=True),
    "multiply": Kind(np.multiply, backward="multiply", saved=[1]),
    "mean": Kind(lambda x: x.mean(0, keepdims=True)),
    "add": Kind(np.add),
    "next": Kind(lambda key: key + 1),
    "loss": Kind(lambda y, scratch: np.square(y, out=scratch).sum(keepdims=True), scratch=True),
    "loss back": Kind(lambda y: y + y),
    "update": Kind(lambda w, g, scratch: w - np.multiply(g, 1e-4, out=scratch), scratch=True),
}


class Call(NamedTuple):
    """An op on a tape. A tensor is a number: its place among the arrays of the tape."""

    kind: Kind
    name: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]


class Tape:
    """One training step: its calls, and the arrays of its inputs and of all that it made."""

    def __init__(self, *inputs: Any) -> None:
        self.arrays, self.inputs = list(inputs), tuple(range(len(inputs)))
        self.calls: list[Call] = []
        self.loss = self.forward = 0  # a tensor; the number of calls before the backward pass
        self.after: dict[int, int] = {}  # inputs that change, and their values after the step

    def __call__(self, name: str, *reads: int) -> int:
        """Run and record an op; returns the first tensor that it makes, others follow it."""
        made = KINDS[name].run([self.arrays[t] for t in reads])
        makes = range(len(self.arrays), len(self.arrays) + len(made))
        self.calls.append(Call(KINDS[name], name, reads, tuple(makes)))
        self.arrays += made
        return makes[0]

    def train(self, y: int, parameters: Sequence[int]) -> None:
        """The rest of the step: the loss Σy², its gradients from the tape, new parameters."""
        forward, self.loss, self.forward = self.calls[:], self("loss", y), len(self.calls)
        gradients = {y: self("loss back", y)}
        for call in reversed(forward):
            if call.kind.backward and call.makes[0] in gradients:
                saved = [(call.reads + call.makes)[i] for i in call.kind.saved]
                self(call.kind.backward, *saved, gradients[call.makes[0]])
                for x, g in zip(call.reads, self.calls[-1].makes, strict=False):
                    gradients[x] = self("add", gradients[x], g) if x in gradients else g
        self.after |= {w: self("update", w, gradients[w]) for w in parameters}

    @property
    def outputs(self) -> tuple[int, ...]:
        """The loss, and the next values of the inputs that change."""
        return self.loss, *self.after.values()


def network(layers: int = 4) -> Tape:
    """Layers that share their weights, a statistic that sums up their results, dropout, a last layer."""
    normal = np.random.default_rng(0).normal
    tape = Tape(normal(size=(64, 16)), *normal(scale=0.3, size=(2, 16, 16)), np.zeros((1, 16)), np.array([1]))
    y, w, v, total, key = tape.inputs
    for _ in range(layers):
        y = tape("relu", tape("matmul", y, w))
    tape.after |= {total: tape("add", total, tape("mean", y)), key: tape("next", key)}
    tape.train(tape("matmul", tape("multiply", y, tape("mask", y, key)), v), [w, v])
    return tape
