"""One training step as a graph of TensorFlow's ops, in an order in which they can run.

    function, specs ↦ ConcreteFunction ↦ Grappler ↦ ops o₁ … oₙ, each after what it reads or waits for

Grappler goes first, because what runs later must be left out of its rewriting: so a replay runs the very ops
that ``tf.function`` would run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate import CheckmateError
from checkmate_tf import private

__all__ = ["Captured", "UnsupportedFunctionError", "capture"]

_CONTROL_FLOW = frozenset({"Switch", "Merge", "Enter", "Exit", "NextIteration", "RefSwitch", "RefMerge"})
"""Ops of TensorFlow 1's control flow: their outputs may be dead, which no schedule can tell."""


class UnsupportedFunctionError(CheckmateError, ValueError):
    """A function that can't be planned, with the reason and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Captured:
    """A step as ops.

    Attributes:
        ops: in an order in which they can run; placeholders first.
        inputs: the placeholders of the arguments, then those of what is captured.
        captured: what the function captures: handles of variables, and other eager tensors.
        variables: the variables that it uses; they live as long as this.
        outputs: the tensors that it returns, flat.
        must_run: ops that must run though nobody reads them.
        function: TensorFlow's own, for its structure of arguments and outputs.
    """

    ops: tuple[tf.Operation, ...]
    inputs: tuple[tf.Tensor, ...]
    captured: tuple[tf.Tensor, ...]
    variables: tuple[tf.Variable, ...]
    outputs: tuple[tf.Tensor, ...]
    must_run: tuple[tf.Operation, ...]
    function: Any

    @property
    def arguments(self) -> tuple[tf.Tensor, ...]:
        """The placeholders of the arguments."""
        return self.inputs[: len(self.inputs) - len(self.captured)]


def capture(function: Any, *, grappler: bool = True) -> Captured:
    """Read a ``ConcreteFunction``.

    Args:
        function: with arguments of known shapes.
        grappler: False = the ops as they were traced.

    Raises:
        UnsupportedFunctionError: if XLA compiles a part of it, or an op is of TensorFlow 1's control flow.
    """
    graph = function.graph
    must_run = {op.name for op in graph.control_outputs}
    returned = [t.name for t in function.outputs]
    keep = [*(t.op.name for t in (*graph.inputs, *function.outputs)), *must_run]
    definition = private.optimized(graph, dict.fromkeys(keep)) if grappler else graph.as_graph_def()
    nodes = {node.name: node for node in definition.node}
    order = _in_order(nodes, [op.name for op in graph.get_operations()], keep)
    private.register_functions(definition)
    base = private.FuncGraph("step")
    with base.as_default():
        tf.graph_util.import_graph_def(tf.compat.v1.GraphDef(library=definition.library), name="")
    inputs = {t.op.name: t for t in graph.inputs}
    tensors: dict[str, tf.Tensor] = {}
    ops: dict[str, tf.Operation] = {}
    every: list[tf.Operation] = []
    with private.emitting(base):
        for name in order:
            _refuse(nodes[name])
            made = _shape(base, nodes[name], tensors) or [
                _emitted(base, nodes[name], inputs.get(name), tensors, ops)
            ]
            ops[name] = made[0]  # which may have another name: ops of one node may take that of the next
            every.extend(made)
            tensors |= {f"{name}:{k}": t for k, t in enumerate(t for op in made for t in op.outputs)}
    captured = tuple(function.captured_inputs)
    return Captured(
        ops=tuple(every),
        inputs=tuple(tensors[t.name] for t in graph.inputs),
        captured=captured,
        variables=tuple(graph.variables),
        outputs=tuple(tensors[name] for name in returned),
        must_run=tuple(ops[name] for name in order if name in must_run),
        function=function,
    )


def _in_order(nodes: Mapping[str, Any], traced: Sequence[str], keep: Iterable[str]) -> list[str]:
    """Names of the nodes that matter, each after what it needs: as traced, new ones just before their use."""
    order: dict[str, None] = {}
    needed = _needed(nodes, keep)
    for first in [*(name for name in traced if name in needed), *needed]:
        stack = [(first, False)]
        while stack:
            name, ready = stack.pop()
            if name in order:
                continue
            if ready:
                order[name] = None
                continue
            stack.append((name, True))
            stack.extend((_source(text), False) for text in reversed(nodes[name].input))
    return list(order)


def _needed(nodes: Mapping[str, Any], keep: Iterable[str]) -> dict[str, None]:
    found: dict[str, None] = {}
    stack = list(keep)
    while stack:
        name = stack.pop()
        if name not in found:
            found[name] = None
            stack.extend(_source(text) for text in nodes[name].input)
    return found


def _source(text: str) -> str:
    """The node that an input of a node comes from."""
    return text.lstrip("^").partition(":")[0]


def _tensor(text: str) -> str:
    """The name of the tensor that an input of a node is."""
    return text if ":" in text else f"{text}:0"


def _refuse(node: Any) -> None:
    """Raise if a node is something that can't be planned."""
    if node.op in _CONTROL_FLOW:
        raise UnsupportedFunctionError(
            f"op {node.name!r} is of TensorFlow 1's control flow ({node.op}): leave out "
            "tf.compat.v1.disable_control_flow_v2()"
        )
    if "_XlaMustCompile" in node.attr and node.attr["_XlaMustCompile"].b:
        raise UnsupportedFunctionError(
            f"op {node.name!r} calls a function that XLA compiles, which orders and frees in its own way: "
            "leave out jit_compile=True"
        )


def _shape(base: Any, node: Any, tensors: Mapping[str, tf.Tensor]) -> list[tf.Operation]:
    """Constants in the place of an op that only asks for known shapes, so that nothing is held for it."""
    if node.op not in ("Shape", "ShapeN"):
        return []
    shapes = [tensors[_tensor(text)].shape for text in node.input if not text.startswith("^")]
    if not all(shape.is_fully_defined() for shape in shapes):
        return []
    dtype = tf.as_dtype(node.attr["out_type"].type) if "out_type" in node.attr else tf.int32
    with base.as_default():
        return [tf.constant(shape.as_list(), dtype, name=node.name).op for shape in shapes]


def _emitted(
    base: Any,
    node: Any,
    argument: tf.Tensor | None,
    tensors: Mapping[str, tf.Tensor],
    ops: Mapping[str, tf.Operation],
) -> tf.Operation:
    """A node of a ``GraphDef`` in the graph ``base``."""
    if argument is not None:
        with base.as_default():
            placeholder = tf.compat.v1.placeholder(argument.dtype, argument.shape, name=node.name)
        private.copy_handle_data(argument, placeholder)
        return placeholder.op
    data = [_tensor(text) for text in node.input if not text.startswith("^")]
    control = [ops[_source(text)] for text in node.input if text.startswith("^")]
    return private.emit_op(
        base,
        node.op,
        [tensors[name] for name in data],
        attrs=dict(node.attr),
        control=control,
        name=node.name,
        device=node.device,
    )
