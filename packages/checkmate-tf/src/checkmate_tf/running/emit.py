"""Turn a program into a TensorFlow function that runs it, in its order and with its recomputations.

TensorFlow runs an op as soon as its inputs exist, merges equal ops, and rewrites the functions that it calls.
So every copy of an op carries its own number, every heavy copy waits for the one before it, and the function
is called without Grappler. TensorFlow frees a buffer after its last reader. A buffer that is held longer gets
one more reader, which waits for the end of the hold; the next heavy copy waits for this reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tensorflow as tf

from checkmate_tf import private
from checkmate_tf.capture.function_capture import Captured
from checkmate_tf.ops.control_flow import branch_functions, one_by_one
from checkmate_tf.running.program import Copy, Program, Value

__all__ = ["Replay", "emit"]

_NUMBER = "_checkmate_copy"
"""Attribute with the number of a copy, so that TensorFlow merges no two of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """A function that runs a program.

    Attributes:
        function: a ``ConcreteFunction`` of flat arguments and flat outputs.
        names: the names of the program's copies in this function, in order.
    """

    function: Any
    names: Sequence[str]

    def __call__(self, *arguments: tf.Tensor) -> list[tf.Tensor]:
        """Run it: eagerly, or as a part of the function that is being traced."""
        with private.grappler_off():
            return list(self.function(*arguments))


def emit(captured: Captured, program: Program) -> Replay:
    """The function that runs a program of a captured step."""
    return _function(captured, program, {"_noinline": True})


def _function(captured: Captured, program: Program, attributes: dict[str, bool]) -> Replay:
    """The function of a step, or of one of its branches."""
    branches = {
        copy.op.name: [
            _function(branch, runs, {}).function
            for branch, runs in zip(captured.branches[copy.op.name], copy.branches, strict=True)
        ]
        for copy in program.copies
        if copy.branches
    }
    names: list[str] = []

    def replay(*arguments: tf.Tensor) -> list[tf.Tensor]:
        writer = _FunctionWriter(captured, program, branches, arguments)
        names[:] = writer.write()  # TensorFlow may trace twice
        return [writer.tensor(v) for v in program.outputs]

    specs = captured.specs or [tf.TensorSpec(t.shape, t.dtype) for t in captured.arguments]
    function = tf.function(replay, autograph=False, experimental_attributes=attributes)
    return Replay(function=function.get_concrete_function(*specs), names=names)


class _FunctionWriter:
    """Writes a program, copy by copy, into the function that is being traced.

    Attributes:
        program: the program.
        branches: op with branches → the functions of these.
        graph: the graph of the function.
        given: the inputs of the step: arguments, then captured tensors.
        made: the outputs of each copy so far.
        before: the ops that the next heavy copy waits for.
        released: number of a copy → the values that are held until it has run.
    """

    def __init__(
        self,
        captured: Captured,
        program: Program,
        branches: Mapping[str, Sequence[Any]],
        arguments: Sequence[tf.Tensor],
    ) -> None:
        self.program, self.branches = program, branches
        self.graph = graph = tf.compat.v1.get_default_graph()
        private.copy_functions(captured.graph, graph)
        for branch in chain(*branches.values()):
            branch.add_to_graph(graph)
        for known, argument in zip(captured.inputs, arguments, strict=False):
            private.copy_handle_data(known, argument)
        self.given = [*arguments, *map(graph.capture, captured.captured)]
        self.made: list[Sequence[tf.Tensor]] = []
        self.before: list[tf.Operation] = []
        self.released: dict[int, list[Value]] = {}
        for hold in program.holds:
            self.released.setdefault(hold.until, []).append(hold.value)

    def tensor(self, v: Value) -> tf.Tensor:
        """The tensor that is a value of the program."""
        return self.made[v.copy][v.output] if v.copy >= 0 else self.given[-1 - v.copy]

    def write(self) -> list[str]:
        """Add all copies; return the names of their ops."""
        with private.emitting(self.graph):
            names = [self._add(k, copy) for k, copy in enumerate(self.program.copies)]
            if self.program.entire:
                end = private.end_of_step(self.graph, self.before)
                private.must_run(self.graph, [end, *self._hold(len(names), until=[end])])
        return names

    def _add(self, k: int, copy: Copy) -> str:
        """Add copy k; return the name of its op."""
        branches = self.branches.get(copy.op.name, ())
        op = private.emit_op(
            self.graph,
            copy.op.type,
            list(map(self.tensor, copy.inputs)),
            attrs=_attributes(copy.op, k, branches),
            control=self.before if copy.heavy else (),
            name=copy.op.name,
            device=copy.op.device,
        )
        self.made.append(op.outputs)
        done = [op]
        if copy.branches:  # they replace the op: edges from it do not wait for its outputs
            done += [private.hold(self.graph, t) for t in op.outputs]
        held = self._hold(k, until=done)
        self.before = [*(done if copy.heavy else self.before), *held]
        return str(op.name)

    def _hold(self, k: int, until: Sequence[tf.Operation]) -> list[tf.Operation]:
        """Hold the values that copy k releases until these ops have run."""
        return [private.hold(self.graph, self.tensor(v), until=until) for v in self.released.get(k, ())]


def _attributes(op: tf.Operation, number: int, branches: Sequence[Any]) -> dict[str, Any]:
    """The attributes of copy ``number`` of an op, which calls these branches instead of its own."""
    node = op.node_def
    for called, branch in zip(branch_functions(op.type, node), branches, strict=False):
        called.name = tf.compat.as_str(branch.name)
    own = {_NUMBER: tf.compat.v1.AttrValue(i=number)}
    return {**node.attr, **own, **one_by_one(op), **(private.lowered() if branches else {})}
