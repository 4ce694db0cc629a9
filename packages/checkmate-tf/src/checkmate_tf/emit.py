"""From a program to a TensorFlow function that runs it, in its order and with its recomputations.

TensorFlow runs an op as soon as its inputs exist, merges equal ops, and rewrites the functions that it calls.
So every copy of an op carries its own number, every heavy copy waits for the one before it, and the function
is called without Grappler. TensorFlow frees a buffer after its last reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tensorflow as tf

from checkmate_tf import private
from checkmate_tf.branches import branch_functions
from checkmate_tf.capture import Captured
from checkmate_tf.program import Program

__all__ = ["Replay", "emit"]

_NUMBER = "_checkmate_copy"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """A function that runs a program.

    Attributes:
        function: a ``ConcreteFunction`` of flat arguments and flat outputs.
    """

    function: Any

    def __call__(self, *arguments: tf.Tensor) -> list[tf.Tensor]:
        """Run it: eagerly, or as a part of the function that is being traced."""
        with private.grappler_off():
            return list(self.function(*arguments))


def emit(captured: Captured, program: Program) -> Replay:
    """The function that runs a program of a captured step."""
    return Replay(function=_function(captured, program, {"_noinline": True}))


def _function(captured: Captured, program: Program, attributes: dict[str, bool]) -> Any:
    """The ``ConcreteFunction`` of a step or of a branch."""
    branches = {
        copy.op.name: [
            _function(branch, runs, {})
            for branch, runs in zip(captured.branches[copy.op.name], copy.branches, strict=True)
        ]
        for copy in program.copies
        if copy.branches
    }

    def replay(*arguments: tf.Tensor) -> list[tf.Tensor]:
        graph = tf.compat.v1.get_default_graph()
        private.copy_functions(captured.graph, graph)
        for branch in chain(*branches.values()):
            branch.add_to_graph(graph)
        for known, argument in zip(captured.inputs, arguments, strict=False):
            private.copy_handle_data(known, argument)
        given = [*arguments, *map(graph.capture, captured.captured)]
        made: list[Sequence[tf.Tensor]] = []
        before: list[tf.Operation] = []
        with private.emitting(graph):
            for k, copy in enumerate(program.copies):
                op = private.emit_op(
                    graph,
                    copy.op.type,
                    [made[v.copy][v.output] if v.copy >= 0 else given[-1 - v.copy] for v in copy.inputs],
                    attrs=_attributes(copy.op, k, branches.get(copy.op.name, ())),
                    control=before if copy.heavy else (),
                    name=copy.op.name,
                    device=copy.op.device,
                )
                made.append(op.outputs)
                before = [op] if copy.heavy else before
        return [made[v.copy][v.output] if v.copy >= 0 else given[-1 - v.copy] for v in program.outputs]

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in captured.arguments]
    function = tf.function(replay, autograph=False, experimental_attributes=attributes)
    return function.get_concrete_function(*specs)


def _attributes(op: tf.Operation, number: int, branches: Sequence[Any]) -> dict[str, Any]:
    """The attributes of a copy of an op, which calls these branches instead of its own."""
    node = op.node_def
    for called, branch in zip(branch_functions(op.type, node), branches, strict=False):
        called.name = tf.compat.as_str(branch.name)
    own = {_NUMBER: tf.compat.v1.AttrValue(i=number)}
    return {**node.attr, **own, **(private.lowered() if branches else {})}
