"""From a program to a TensorFlow function that runs it, in its order and with its recomputations.

TensorFlow runs an op as soon as its inputs exist, merges equal ops, and rewrites the functions that it calls.
So every copy of an op carries its own number, every heavy copy waits for the one before it, and the function
is called without Grappler. TensorFlow frees a buffer after its last reader; one that is held longer gets one
more reader, which waits, and for which the next heavy copy waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tensorflow as tf

from checkmate_tf import private
from checkmate_tf.capture.function_capture import Captured
from checkmate_tf.ops.control_flow import branch_functions, one_by_one
from checkmate_tf.running.program import Program, Value

__all__ = ["Replay", "emit"]

_NUMBER = "_checkmate_copy"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """A function that runs a program.

    Attributes:
        function: a ``ConcreteFunction`` of flat arguments and flat outputs.
        names: of the ops of this function that are the program's copies, in order.
    """

    function: Any
    names: Sequence[str]

    def __call__(self, *arguments: tf.Tensor) -> list[tf.Tensor]:
        """Run it: eagerly, or as a part of the function that is being traced."""
        with private.grappler_off():
            return list(self.function(*arguments))


def emit(captured: Captured, program: Program) -> Replay:
    """The function that runs a program of a captured step."""
    names: list[str] = []
    function = _function(captured, program, {"_noinline": True}, names)
    return Replay(function=function, names=names)


def _function(captured: Captured, program: Program, attributes: dict[str, bool], names: list[str]) -> Any:
    """The ``ConcreteFunction`` of a step or of a branch; ``names`` receives those of its copies."""
    branches = {
        copy.op.name: [
            _function(branch, runs, {}, [])
            for branch, runs in zip(captured.branches[copy.op.name], copy.branches, strict=True)
        ]
        for copy in program.copies
        if copy.branches
    }
    released: dict[int, list[Value]] = {}
    for hold in program.holds:
        released.setdefault(hold.until, []).append(hold.value)

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
        names.clear()

        def tensor(v: Value) -> tf.Tensor:
            return made[v.copy][v.output] if v.copy >= 0 else given[-1 - v.copy]

        with private.emitting(graph):
            for k, copy in enumerate(program.copies):
                op = private.emit_op(
                    graph,
                    copy.op.type,
                    list(map(tensor, copy.inputs)),
                    attrs=_attributes(copy.op, k, branches.get(copy.op.name, ())),
                    control=before if copy.heavy else (),
                    name=copy.op.name,
                    device=copy.op.device,
                )
                made.append(op.outputs)
                names.append(op.name)
                done = [op]
                if copy.branches:  # they replace the op: edges from it do not wait for its outputs
                    done += [private.hold(graph, t) for t in op.outputs]
                held = [private.hold(graph, tensor(v), until=done) for v in released.get(k, ())]
                before = [*(done if copy.heavy else before), *held]
            if program.entire:
                end = private.end_of_step(graph, before)
                last = [private.hold(graph, tensor(v), until=[end]) for v in released.get(len(made), ())]
                private.must_run(graph, [end, *last])
        return list(map(tensor, program.outputs))

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in captured.arguments]
    function = tf.function(replay, autograph=False, experimental_attributes=attributes)
    return function.get_concrete_function(*specs)


def _attributes(op: tf.Operation, number: int, branches: Sequence[Any]) -> dict[str, Any]:
    """The attributes of a copy of an op, which calls these branches instead of its own."""
    node = op.node_def
    for called, branch in zip(branch_functions(op.type, node), branches, strict=False):
        called.name = tf.compat.as_str(branch.name)
    own = {_NUMBER: tf.compat.v1.AttrValue(i=number)}
    return {**node.attr, **own, **one_by_one(op), **(private.lowered() if branches else {})}
