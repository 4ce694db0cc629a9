"""Capture a training step as a graph of TensorFlow's ops, in an order in which they can run.

    function, specs ↦ ConcreteFunction ↦ Grappler ↦ ops o₁ … oₙ, each after the ops that it reads or waits for

Grappler rewrites the step here, and must not rewrite the planned function. So a replay runs the same ops
as ``tf.function``. The functions that branches and loops call are captured like the step, each with its own
ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import tensorflow as tf

from checkmate import CheckmateError
from checkmate_tf import private
from checkmate_tf.ops.control_flow import (
    LOOPS,
    Loop,
    branch_arguments,
    branch_functions,
    has_branches,
    loop_arguments,
    loop_functions,
)
from checkmate_tf.ops.storages import nbytes, reserve_shape

__all__ = ["Captured", "UnsupportedFunctionError", "capture"]

_CONTROL_FLOW = frozenset({"Switch", "Merge", "Enter", "Exit", "NextIteration", "RefSwitch", "RefMerge"})
"""Ops of TensorFlow 1's control flow: their outputs may be dead, which a schedule can't know."""


class UnsupportedFunctionError(CheckmateError, ValueError):
    """A function can't be planned; the message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Captured:
    """A step, or a branch of it, as ops.

    Attributes:
        graph: the graph that holds the ops.
        ops: in an order in which they can run.
        inputs: the placeholders of the arguments, then of the captured tensors.
        captured: the tensors that the function captures: handles of variables, and other eager tensors.
        variables: the variables that it uses, which this object keeps alive.
        outputs: the tensors that it returns, flat.
        branches: name of an op → its branches.
        loops: name of a loop → its condition and its body.
        specs: the shapes and dtypes of the arguments that the step takes, which may be open where ``inputs``
            have the largest sizes; None if they are those of ``inputs``.
    """

    graph: Any
    ops: tuple[tf.Operation, ...]
    inputs: tuple[tf.Tensor, ...]
    captured: tuple[tf.Tensor, ...]
    variables: tuple[tf.Variable, ...]
    outputs: tuple[tf.Tensor, ...]
    branches: Mapping[str, tuple[Captured, ...]]
    loops: Mapping[str, Loop[Captured]]
    specs: tuple[tf.TensorSpec, ...] | None = None

    @property
    def arguments(self) -> tuple[tf.Tensor, ...]:
        """The placeholders of the arguments."""
        return self.inputs[: len(self.inputs) - len(self.captured)]

    @property
    def handles(self) -> dict[str, int]:
        """Name of the placeholder of a captured tensor → the id of that tensor; empty for a branch."""
        placeholders = self.inputs[len(self.arguments) :]
        return {t.op.name: id(h) for t, h in zip(placeholders, self.captured, strict=True)}

    @property
    def constants(self) -> int:
        """Bytes of the constants, also in branches and loops: TensorFlow holds them all the time."""
        inside = (*chain(*self.branches.values()), *chain(*self.loops.values()))
        own = sum(nbytes(op.outputs[0]) for op in self.ops if op.type == "Const")
        return own + sum(function.constants for function in inside)


def capture(function: Any, largest: Sequence[tf.TensorSpec] | None = None) -> Captured:
    """Read a ``ConcreteFunction`` whose arguments have known shapes, or sizes up to those of ``largest``.

    Raises:
        UnsupportedFunctionError: if an op belongs to the control flow of TensorFlow 1.
    """
    graph = function.graph
    must_run = [op.name for op in graph.control_outputs]
    keep = dict.fromkeys([*(t.op.name for t in (*graph.inputs, *function.outputs)), *must_run])
    definition = private.optimized(graph, keep)
    base = private.FuncGraph("step")
    private.add_functions(definition, base)
    source = _Source(
        nodes={node.name: node for node in definition.node},
        order=[op.name for op in graph.get_operations()],
        inputs={t.op.name: t for t in graph.inputs},
        outputs=[t.name for t in function.outputs],
        must_run=must_run,
        shapes=partial(private.traced_shapes, graph),
        sizes={t.op.name: spec.shape for t, spec in zip(graph.inputs, largest or (), strict=False)},
        general=largest is not None,
    )
    library = {f.signature.name: f for f in definition.library.function}
    captured = tuple(function.captured_inputs)
    open_specs = [tf.TensorSpec(t.shape, t.dtype) for t in graph.inputs[: len(largest or ())]]
    return replace(
        _captured(base, source, library),
        captured=captured,
        variables=tuple(graph.variables),
        specs=tuple(open_specs) if largest is not None else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Source:
    """TensorFlow's description of a step or of a branch.

    Attributes:
        nodes: name → node.
        order: names of nodes, as they were traced; others may be among ``nodes``.
        inputs: name of a placeholder → a tensor of the same shape and dtype.
        outputs: names of the tensors that are returned.
        must_run: names of the nodes that must run although no node reads them.
        shapes: name of a node → shapes of its outputs that the trace knows; empty if it knows none.
        sizes: name of a placeholder → its shape, where that of ``inputs`` is open.
        general: whether it runs on tensors of several sizes, so that shapes are no constants.
    """

    nodes: Mapping[str, Any]
    order: Sequence[str]
    inputs: Mapping[str, tf.Tensor]
    outputs: Sequence[str]
    must_run: Sequence[str]
    shapes: Callable[[str], Sequence[tf.TensorShape]] = lambda name: ()
    sizes: Mapping[str, tf.TensorShape] = field(default_factory=dict)
    general: bool = False


def _captured(base: Any, source: _Source, library: Mapping[str, Any]) -> Captured:
    """The ops of a source in the graph ``base``, which has the functions of the library."""
    keep = [*source.inputs, *map(_source, source.outputs), *source.must_run]
    tensors: dict[str, tf.Tensor] = {}
    ops: dict[str, Sequence[tf.Operation]] = {}
    every: list[tf.Operation] = []
    with private.emitting(base):
        for name in _in_order(source.nodes, source.order, keep):
            node = source.nodes[name]
            _refuse(node)
            if _only_passes(node):
                results = [tensors[_tensor(text)] for text in node.input]
                ops[name] = [t.op for t in results]
            else:
                made = _shape(base, node, tensors, source) or [_emitted(base, node, source, tensors, ops)]
                results = list(_results(made, library))
                ops[name] = made[:1]  # its own name may differ: names are unique
                every.extend(made)
            tensors |= {f"{name}:{k}": t for k, t in enumerate(results)}
    inputs = tuple(tensors[f"{name}:0"] for name in source.inputs)
    outputs = tuple(tensors[name] for name in source.outputs)
    every = _alive(every, [t.op.name for t in (*inputs, *outputs)])
    return Captured(
        graph=base,
        ops=tuple(every),
        inputs=inputs,
        captured=(),
        variables=(),
        outputs=outputs,
        branches={op.name: tuple(_branches(op, library, source)) for op in every if has_branches(op.type)},
        loops={op.name: _loop(op, library, source) for op in every if op.type in LOOPS},
    )


def _only_passes(node: Any) -> bool:
    """Whether a node passes on tensors and does nothing else, such as the one that a function call leaves.

    As an op it would hold the tensors until the last of them exists.
    """
    return node.op == "IdentityN" and not any(text.startswith("^") for text in node.input)


def _alive(ops: Sequence[tf.Operation], keep: Iterable[str]) -> list[tf.Operation]:
    """The ops that those in ``keep``, by name, or ops with effects need; the others would run in vain."""
    needed, found = set(keep), list[tf.Operation]()
    for op in reversed(ops):
        if op.name in needed or private.is_stateful(op):
            needed.update(t.op.name for t in op.inputs)
            needed.update(c.name for c in op.control_inputs)
            found.append(op)
    return found[::-1]


def _results(made: Sequence[tf.Operation], library: Mapping[str, Any]) -> Iterator[tf.Tensor]:
    """The outputs of the ops that a node became; variables of a loop that never change need no loop."""
    first = made[0]
    if first.type in LOOPS:
        body = library[loop_functions(first).body.name]
        for k, t in enumerate(first.outputs):
            yield first.inputs[k] if _is_unchanged(body, k) else t
    else:
        yield from (t for op in made for t in op.outputs)


def _is_unchanged(body: Any, k: int) -> bool:
    """Whether the k-th variable of a loop never changes, by the ``FunctionDef`` of the body."""
    nodes = {node.name: node for node in body.node_def}
    text = body.ret[body.signature.output_arg[k].name]
    while (node := nodes.get(_source(text))) is not None and node.op == "Identity":
        text = node.input[0]
    return bool(text == body.signature.input_arg[k].name)


def _branches(op: tf.Operation, library: Mapping[str, Any], caller: _Source) -> Iterator[Captured]:
    for function in branch_functions(op.type, op.node_def):
        yield _called(op, function.name, branch_arguments(op.inputs), library, caller)


def _loop(op: tf.Operation, library: Mapping[str, Any], caller: _Source) -> Loop[Captured]:
    given = loop_arguments(op)
    return Loop(*(_called(op, f.name, given, library, caller) for f in loop_functions(op)))


def _called(
    op: tf.Operation, name: str, given: Sequence[tf.Tensor], library: Mapping[str, Any], caller: _Source
) -> Captured:
    """A function that an op calls with arguments like the ``given`` tensors, from its ``FunctionDef``."""
    function = library[name]
    base = private.FuncGraph(function.signature.name)
    private.copy_functions(op.graph, base)
    definition, names = private.nodes_of(function, base)
    arguments = (arg.name for arg in function.signature.input_arg)
    source = _Source(
        nodes={node.name: node for node in definition.node},
        order=(),  # Grappler has changed names and order
        inputs=dict(zip(arguments, given, strict=True)),
        outputs=[names[function.ret[arg.name]] for arg in function.signature.output_arg],
        must_run=sorted(function.control_ret.values()),
        general=caller.general,
    )
    captured = _captured(base, source, library)
    specs = tuple(tf.TensorSpec(None, t.dtype) for t in given) if caller.general else None
    return replace(captured, specs=specs)


def _in_order(nodes: Mapping[str, Any], traced: Sequence[str], keep: Iterable[str]) -> list[str]:
    """Names of the needed nodes, each after those that it needs: as traced, new ones just before use."""
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
    """Names of the nodes to keep, and of all that they need."""
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
    """The full name of the tensor at an input of a node."""
    return text if ":" in text else f"{text}:0"


def _refuse(node: Any) -> None:
    """Raise if a node is something that can't be planned."""
    if node.op in _CONTROL_FLOW:
        raise UnsupportedFunctionError(
            f"op {node.name!r} belongs to TensorFlow 1's control flow ({node.op}): leave out "
            "tf.compat.v1.disable_control_flow_v2()"
        )


def _shape(base: Any, node: Any, tensors: Mapping[str, tf.Tensor], source: _Source) -> list[tf.Operation]:
    """Constants that replace an op that reads only known shapes, so that no tensor is held for it."""
    if source.general and node.op != "VariableShape":
        return []
    read = [tensors[_tensor(text)] for text in node.input if not text.startswith("^")]
    if node.op == "VariableShape":
        shapes = [spec.shape for spec in private.resource_specs(read[0])] or [tf.TensorShape(None)]
    elif node.op in ("Shape", "ShapeN"):
        shapes = [t.shape for t in read]
    else:
        return []
    if not all(shape.is_fully_defined() for shape in shapes):
        return []
    dtype = tf.as_dtype(node.attr["out_type"].type) if "out_type" in node.attr else tf.int32
    with base.as_default():
        return [tf.constant(shape.as_list(), dtype, name=node.name).op for shape in shapes]


def _emitted(
    base: Any,
    node: Any,
    source: _Source,
    tensors: Mapping[str, tf.Tensor],
    ops: Mapping[str, Sequence[tf.Operation]],
) -> tf.Operation:
    """A node of a ``GraphDef`` in the graph ``base``."""
    if (argument := source.inputs.get(node.name)) is not None:
        with base.as_default():
            shape = source.sizes.get(node.name, argument.shape)
            placeholder = tf.compat.v1.placeholder(argument.dtype, shape, name=node.name)
        private.copy_handle_data(argument, placeholder)
        return placeholder.op
    data = [_tensor(text) for text in node.input if not text.startswith("^")]
    control = [op for text in node.input if text.startswith("^") for op in ops[_source(text)]]
    op = private.emit_op(
        base,
        node.op,
        [tensors[name] for name in data],
        attrs=dict(node.attr),
        control=control,
        name=node.name,
        device=node.device,
    )
    if node.op in LOOPS or node.op == "ZerosLike":
        for before, after in zip(op.inputs, op.outputs, strict=True):
            private.copy_handle_data(before, after)  # TensorFlow's shape inference does not
    if not all(t.shape.is_fully_defined() for t in op.outputs):
        _set_shapes(op, source.shapes(node.name))
    return op


def _set_shapes(op: tf.Operation, traced: Sequence[tf.TensorShape]) -> None:
    """Set the shapes of an op's outputs that the trace, or the kind of op, tells."""
    for t, shape in zip(op.outputs, traced, strict=False):
        if t.shape.is_compatible_with(shape):
            t.set_shape(shape)
    if op.type == "BroadcastGradientArgs":  # axes, of which there are at most as many as dimensions
        for t in op.outputs:
            t.set_shape([max(i.shape[0] or 0 for i in op.inputs)])
    if (reserve := reserve_shape(op)) is not None:
        op.outputs[-1].set_shape(reserve)
