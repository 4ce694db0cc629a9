"""All uses of TensorFlow's and Keras' private names; check this module at each new release of TensorFlow.

TensorFlow has no public way to put one op into a function's graph, to give it a control edge of our choice,
or to leave one call out of Grappler's rewriting. These names were the same from 2.16 to 2.21. Planning and
measuring one step uses all of them.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.function.polymorphism import function_type
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function, autograph_util
from tensorflow.python.framework import (
    auto_control_deps,
    auto_control_deps_utils,
    func_graph,
    function_def_to_graph,
)
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.ops import handle_data_util
from tensorflow.python.training import saver
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

__all__ = [
    "END_OF_STEP",
    "FuncGraph",
    "XSpace",
    "add_functions",
    "called_code",
    "copy_functions",
    "copy_handle_data",
    "cpu_allocator_events",
    "emit_op",
    "emitting",
    "end_of_step",
    "grappler_off",
    "hold",
    "is_stateful",
    "lowered",
    "must_run",
    "nodes_of",
    "optimized",
    "resource_specs",
    "resources",
    "runnable",
    "sublayers",
    "traced_shapes",
    "with_autograph",
]

FuncGraph = func_graph.FuncGraph
END_OF_STEP = "checkmate_end_of_step"
"""Name of the op that runs last in a step; buffers that the step never frees are released after it."""
_NOT_COPIED = ("_class", "_output_shapes")
"""Attributes that copies of an op lack: they name other ops of the graph, or shape inference sets them."""
_LOWERED = "_lower_using_switch_merge"
"""Attribute of an op with branches or a loop: to run the op, TensorFlow replaces it by the ops inside."""


@contextmanager
def emitting(graph: Any) -> Iterator[None]:
    """Add ops to this graph inside the block, each on the device that it names."""
    with graph.as_default(), framework_ops.device(None):
        yield


def emit_op(
    graph: Any,
    op_type: str,
    inputs: Sequence[tf.Tensor],
    *,
    attrs: dict[str, Any],
    dtypes: Sequence[tf.DType] | None = None,
    control: Iterable[tf.Operation] = (),
    name: str | None = None,
    device: str = "",
) -> tf.Operation:
    """Add one op to a function's graph, with control edges that TensorFlow doesn't simplify.

    Args:
        graph: a :data:`FuncGraph`, see :func:`emitting`; its shape inference gives the outputs their shapes.
        op_type: the type of the op, as in ``tf.Operation.type``.
        inputs: tensors of this graph, lists flattened; others are captured.
        attrs: name → ``AttrValue``.
        dtypes: the types of the outputs, where the op's definition leaves them open.
        control: ops that must run before; ``tf.control_dependencies`` would drop those that data edges imply.
        name: the name of the op, which TensorFlow makes unique.
        device: the device to place it on; empty = TensorFlow's choice.
    """
    kept = {key: value for key, value in attrs.items() if key not in _NOT_COPIED}
    op = graph._create_op_internal(op_type, list(inputs), dtypes, name=name, attrs=kept)
    if device:
        op._set_device(device)
    op._add_control_inputs(list(control))
    return op


def hold(graph: Any, tensor: tf.Tensor, until: Iterable[tf.Operation] = ()) -> tf.Operation:
    """Add an op that keeps the buffer of a tensor until other ops have run."""
    device = tensor.op.device
    return emit_op(graph, "Identity", [tensor], attrs=_of_type(tensor), control=until, device=device)


def _of_type(tensor: tf.Tensor) -> dict[str, Any]:
    return {"T": tf.compat.v1.AttrValue(type=tensor.dtype.as_datatype_enum)}


def end_of_step(graph: Any, before: Iterable[tf.Operation]) -> tf.Operation:
    """Add an op that runs after these, and that the profiler sees by the name :data:`END_OF_STEP`."""
    number = tf.constant(0.0)
    return emit_op(graph, "Neg", [number], attrs=_of_type(number), control=before, name=END_OF_STEP)


def must_run(graph: Any, ops: Iterable[tf.Operation]) -> None:
    """Let a function run these ops of its graph, although its results may not need them."""
    graph.control_outputs.append(emit_op(graph, "NoOp", [], attrs={}, control=ops))


@contextmanager
def grappler_off() -> Iterator[None]:
    """Leave functions whose first call is inside this block out of Grappler's rewriting.

    It holds for eager calls and for calls that are traced into another function.
    """
    held = context.context()
    before = held.function_call_options
    rewrites = rewriter_config_pb2.RewriterConfig(disable_meta_optimizer=True)
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.CopyFrom(rewrites)
    held.function_call_options = context.FunctionCallOptions(
        executor_type=before.executor_type, config_proto=config
    )
    try:
        yield
    finally:
        held.function_call_options = before


def optimized(graph: Any, keep: Iterable[str]) -> Any:
    """A function's graph after Grappler's rewriting, nested functions inlined, as a ``GraphDef``.

    The passes are those of ``tf.function``: the user may have switched some, as for mixed precision.
    ``If`` and ``While`` stay whole: as dataflow of dead and living tensors they could not be scheduled. The
    inputs become ``_Arg`` nodes, as in the functions that TensorFlow runs: Grappler does not know the shape
    of a variable behind a placeholder, and would leave x · 1, another buffer, in the graph. The ops in
    ``keep`` stay, by name.
    """
    exported = saver.export_meta_graph(graph_def=graph.as_graph_def(), graph=graph)
    arguments = {t.op.name: (k, t) for k, t in enumerate(graph.inputs)}
    for node in exported.graph_def.node:
        if node.name in arguments:
            _make_argument(node, *arguments[node.name])
    lowered = [(node, node.attr[_LOWERED].b) for node in _nodes(exported.graph_def) if _LOWERED in node.attr]
    for node, _ in lowered:
        node.attr[_LOWERED].b = False
    exported.collection_def["train_op"].CopyFrom(meta_graph_pb2.CollectionDef())
    exported.collection_def["train_op"].node_list.value.extend(keep)
    config = context.context().config
    rewrites = config.graph_options.rewrite_options
    rewrites.disable_meta_optimizer = False
    rewrites.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    definition = tf_optimizer.OptimizeGraph(config, exported)
    for node in _nodes(definition):
        if _LOWERED in node.attr:
            node.attr[_LOWERED].b = any(b for _, b in lowered)
    _name_uniquely(definition)
    return definition


def _make_argument(node: Any, number: int, tensor: tf.Tensor) -> None:
    """Make a placeholder in a ``GraphDef`` an argument of a function, of known shape."""
    node.op = "_Arg"
    node.ClearField("attr")
    node.attr["index"].i = number
    node.attr["T"].type = tensor.dtype.as_datatype_enum
    node.attr["_output_shapes"].list.shape.append(tensor.shape.as_proto())
    for part in _behind(tensor):
        node.attr["_handle_dtypes"].list.type.append(part.dtype)
        node.attr["_handle_shapes"].list.shape.append(part.shape)


def _name_uniquely(definition: Any) -> None:
    """Give the functions of a ``GraphDef`` unique names.

    Grappler uses one name for its versions of f(x, 2) and, in another step, of f(x, 3).
    """
    number = framework_ops.uid()
    names = {f.signature.name: f"{f.signature.name}_{number}" for f in definition.library.function}
    for function in definition.library.function:
        function.signature.name = names[function.signature.name]
    for node in _nodes(definition):
        node.op = names.get(node.op, node.op)
        for attr in node.attr.values():
            for called in (attr.func, *attr.list.func):
                if called.name in names:
                    called.name = names[called.name]


def lowered() -> dict[str, Any]:
    """The attribute that makes TensorFlow replace an op with branches by the ops of the branch that runs."""
    return {_LOWERED: tf.compat.v1.AttrValue(b=True)}


def runnable(graph: Any) -> Callable[..., Sequence[tf.Tensor]]:
    """A function of flat tensors that runs a :data:`FuncGraph`, whose inputs and outputs are set.

    Making and calling it takes less than half as long as a ``tf.function``, which would also trace.
    """
    given = graph.inputs[: len(graph.inputs) - len(graph.external_captures)]
    specs, made = ([tf.TensorSpec(t.shape, t.dtype) for t in tensors] for tensors in (given, graph.outputs))
    signature = function_type.from_structured_signature((tuple(specs), {}), tuple(made))
    name = f"{graph.name}_{framework_ops.uid()}"
    function = atomic_function.from_func_graph(name, graph, {}, signature)
    return lambda *arguments: function.call_flat(*arguments, *graph.external_captures)


def traced_shapes(graph: Any, name: str) -> list[tf.TensorShape]:
    """The shapes that a trace knows of the outputs of an op; empty if it has no such op.

    ``call/name`` is an op of the function that the op ``call`` calls, as Grappler names it in the caller.
    """
    try:
        return [t.shape for t in graph.get_operation_by_name(name).outputs]
    except KeyError:
        pass
    parts = name.split("/")
    for k in range(1, len(parts)):
        try:
            called = graph.get_operation_by_name("/".join(parts[:k])).node_def.attr["f"].func.name
        except KeyError:
            continue
        if called and (function := graph._get_function(called)) is not None:
            return traced_shapes(function.graph, "/".join(parts[k:]))
    return []


def nodes_of(function: Any, graph: Any) -> tuple[Any, dict[str, str]]:
    """The body of a ``FunctionDef`` as a ``GraphDef``, placeholders first, and its tensors' names there.

    The ``graph`` has the functions that it calls.
    """
    with graph.as_default():
        definition, names = function_def_to_graph.function_def_to_graph_def(function)
    return definition, dict(names)


def _nodes(definition: Any) -> Iterator[Any]:
    """The nodes of a ``GraphDef`` and of its functions."""
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def copy_functions(source: Any, target: Any) -> None:
    """Add to a graph the functions that ops of another one call."""
    for function in source._functions.values():
        target._add_function_recursive(function)


def add_functions(definition: Any, graph: Any) -> None:
    """Register the functions of a ``GraphDef`` with TensorFlow, and add them to a graph.

    TensorFlow removes each function with the last graph that has it, as it does with its own.
    """
    for function in definition.library.function:
        graph._add_function(atomic_function.from_function_def(function, _type_of(function)))


def _type_of(function: Any) -> Any:
    """The type of a ``FunctionDef``, which TensorFlow needs when a function is saved."""
    given, made = (
        tuple(tf.TensorSpec(None, arg.type) for arg in arguments)
        for arguments in (function.signature.input_arg, function.signature.output_arg)
    )
    return function_type.from_structured_signature((given, {}), made)


def copy_handle_data(source: tf.Tensor, target: tf.Tensor) -> None:
    """Copy the shapes and dtypes behind a resource handle, such as a variable's, to another handle."""
    handle_data_util.copy_handle_data(source, target)


def is_stateful(op: tf.Operation) -> bool:
    """Whether an op does more than computing its outputs from its inputs; true for legacy random ops."""
    return bool(op._is_stateful) or auto_control_deps.op_is_stateful(op)


def resources(op: tf.Operation) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The resource handles that an op only reads, and those that it may write to."""
    if all(t.dtype != tf.resource for t in op.inputs):
        return [], []
    read, written = auto_control_deps_utils.get_read_write_resource_inputs(op)
    return list(read), list(written)


def with_autograph(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose ``if`` and ``while`` on tensors become ops when it is traced, as by ``tf.function``.

    They do so even if the caller is excluded from conversion.
    """
    converted = autograph_util.py_func_from_autograph(fn)

    def call(*args: Any, **kwargs: Any) -> Any:
        with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED):
            return converted(*args, **kwargs)

    return call


def called_code(op: tf.Operation) -> str:
    """A fingerprint of the function that an op calls; its own name does not count."""
    name = tf.compat.as_bytes(op.node_def.attr["f"].func.name)
    definition = op.graph._get_function(name).cached_definition
    copied = type(definition)()
    copied.CopyFrom(definition)
    copied.signature.name = ""
    return hashlib.sha256(copied.SerializeToString(deterministic=True)).hexdigest()


def resource_specs(handle: tf.Tensor) -> list[tf.TensorSpec]:
    """Shapes and dtypes of the values behind a resource handle, one for a variable; empty if not known."""
    return [tf.TensorSpec(part.shape, tf.as_dtype(part.dtype)) for part in _behind(handle)]


def sublayers(layer: Any, *, recursive: bool = True) -> list[Any]:
    """The layers in a Keras layer or model, each followed by the layers in it, as they were made."""
    found: dict[int, Any] = {}

    def visit(outer: Any) -> None:
        for part in outer._flatten_layers(include_self=False, recursive=False):
            if found.setdefault(id(part), part) is part and recursive:
                visit(part)

    visit(layer)
    return [*found.values()]


def _behind(handle: tf.Tensor) -> Sequence[Any]:
    held = handle_data_util.get_handle_data(handle)
    return held.shape_and_type if held is not None and held.is_set else ()


@contextmanager
def cpu_allocator_events() -> Iterator[None]:
    """Let the CPU's plain allocator, the one without oneDNN, report buffers to the profiler in this block.

    The switch is a C++ function without a Python name; if it is missing, nothing changes.
    """
    _allocator_switch("Enable")
    try:
        yield
    finally:
        _allocator_switch("Disable")


def _allocator_switch(verb: str) -> None:
    """Call ``tsl::EnableCPUAllocatorStats()``, or ``Disable…``, if the library has it."""
    symbol = f"{verb}CPUAllocatorStats"
    for library in sorted(Path(tf.sysconfig.get_lib()).glob("libtensorflow_framework.*")):
        try:
            getattr(ctypes.CDLL(str(library)), f"_ZN3tsl{len(symbol)}{symbol}Ev")()
        except (OSError, AttributeError):
            continue
        return
