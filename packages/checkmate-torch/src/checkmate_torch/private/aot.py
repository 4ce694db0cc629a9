"""AOTAutograd traces the backward pass of a captured graph; FX and Inductor turn graphs into callables.

AOTAutograd describes the inputs and outputs of its graphs in ``meta["desc"]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch._C import DispatchKey
from torch._functorch._aot_autograd.descriptors import (
    GradAOTOutput,
    InputMutationAOTOutput,
    PlainAOTInput,
    SavedForBackwardsAOTOutput,
    TangentAOTInput,
)
from torch._guards import TracingContext
from torch.autograd.graph import Node as AutogradNode
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import _BoxedCodeGen
from torch.utils._pytree import tree_leaves

from checkmate import UnsupportedModelError
from checkmate_torch.private.fakes import fake_mode_of

__all__ = [
    "HOLDS_TANGENTS",
    "Boxed",
    "GradAOTOutput",
    "Halves",
    "InputMutationAOTOutput",
    "Joint",
    "PlainAOTInput",
    "SavedForBackwardsAOTOutput",
    "TangentAOTInput",
    "WrittenInput",
    "below_autograd",
    "compile_joint",
    "compile_with_inductor",
    "mark_boxed",
    "partition_within",
]

_DATA = torch._C._autograd._get_data_attr  # type: ignore[attr-defined]
Boxed = Callable[[list[object]], object]
HOLDS_TANGENTS = not hasattr(torch.autograd.Function, "boxed_grads_call")
"""Whether incoming gradients are held to the end of the backward pass, as by PyTorch before 2.13."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joint:
    """The joint graph of a forward and its backward pass, as AOTAutograd hands it to a partitioner.

    Attributes:
        module: takes primals and tangents, returns forward outputs and gradients.
        n_primals: how many inputs, the first ones, belong to forward.
        n_outputs: how many outputs, the first ones, belong to forward; the last of these may be new values
            of inputs, with the role :class:`WrittenInput`.
    """

    module: GraphModule
    n_primals: int
    n_outputs: int


@dataclass(frozen=True, slots=True)
class WrittenInput:
    """The role of a new value of an input that forward writes into the input, and does not return."""

    mutated_input: object


def _unchanged(run: Boxed) -> Boxed:
    return run


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Halves:
    """The two parts of a joint graph, and what wraps their code; ``backward`` is None if it never runs.

    ``without`` gives the backward graph for a step in which some incoming gradients are absent, by their
    numbers among the tangents. PyTorch passes zeros in their places.
    """

    forward: GraphModule
    backward: GraphModule | None = None
    without: Callable[[Sequence[int]], GraphModule] | None = None
    around_forward: Callable[[Boxed], Boxed] = _unchanged
    around_backward: Callable[[Boxed], Boxed] = _unchanged


def compile_joint(
    gm: GraphModule, example_inputs: Sequence[object], split: Callable[[Joint], Halves]
) -> Callable[..., object]:
    """Trace forward and backward pass of a captured graph as one, split that graph, and compile both parts.

    Ops that resample images stay one kernel each, as they are in eager PyTorch. A graph without a backward
    pass is not split. The backward pass can't be differentiated again, and raises an error that says so.

    Raises:
        UnsupportedModelError: if AOTAutograd asks about a nested region, for which it names no inputs.
    """
    from torch._dynamo.backends.common import aot_autograd

    own = _Compilers(split)
    compiler = aot_autograd(
        fw_compiler=own.forward,
        bw_compiler=own.backward,
        partition_fn=own.partition,
        keep_inference_input_mutations=True,  # of training, too
    )
    config = torch._functorch.config.patch(donated_buffer=False)  # so that retain_graph=True works
    try:
        with config, _undecomposed("upsample_", "_upsample_"):
            call: Callable[..., object] = compiler(_copying_data(gm), example_inputs)
    finally:
        own.split = None  # AOTAutograd keeps the compilers, which must not keep the batch
    about = TracingContext.get().fw_metadata
    if about is None or own.outputs is None:
        return call
    about.bw_donated_idxs = []  # None would mean "not collected", and be refused with retain_graph=True
    return _noting_absent(call, about)


def _copying_data(gm: GraphModule) -> GraphModule:
    """Copy into ``x.data`` where captured code assigns it: AOTAutograd takes no ``set_`` of an input."""
    for module in (module for module in gm.modules() if isinstance(module, GraphModule)):
        for node in module.graph.find_nodes(op="call_function", target=torch.Tensor.set_):
            old, new = (getattr(x, "meta", {}).get("example_value") for x in node.args[:2])
            if len(node.args) == 2 and _alike(old, new):
                with module.graph.inserting_before(node):
                    data = module.graph.call_function(_DATA, node.args[:1])
                    copy = module.graph.call_method("copy_", (data, node.args[1]))
                node.replace_all_uses_with(copy)
                module.graph.erase_node(node)
                module.recompile()
    return gm


def _alike(old: object, new: object) -> bool:
    """Whether two tensors have the same shape, type and device."""
    return (
        isinstance(old, torch.Tensor)
        and isinstance(new, torch.Tensor)
        and ((old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device))
    )


class _Compilers:
    """The functions that AOTAutograd calls: the partitioner once, then a compiler for each half."""

    def __init__(self, split: Callable[[Joint], Halves]) -> None:
        self.split: Callable[[Joint], Halves] | None = split
        self.around_forward: Callable[[Boxed], Boxed] = _unchanged
        self.around_backward: Callable[[Boxed], Boxed] = _unchanged
        self.without: Callable[[Sequence[int]], GraphModule] | None = None
        self.outputs: Sequence[int] | None = None  # those with a tangent, in order

    def partition(
        self,
        joint: GraphModule,
        joint_inputs: Sequence[Sequence[object]],
        *,
        num_fwd_outputs: int,
        **_: object,
    ) -> tuple[GraphModule, GraphModule]:
        if not joint_inputs or self.split is None:
            raise UnsupportedModelError(
                "a region under torch.compiler.nested_compile_region can't be planned: call it without"
            )
        empty = _without_gradients(joint, num_fwd_outputs)
        given = Joint(module=joint, n_primals=len(joint_inputs[0]), n_outputs=num_fwd_outputs)
        halves = self.split(_returning_written(given))
        self.around_forward, self.around_backward = halves.around_forward, halves.around_backward
        if halves.backward is not None:
            self.without, self.outputs = halves.without, _outputs_with_tangents(joint, num_fwd_outputs)
        return halves.forward, halves.backward or empty

    def forward(self, gm: GraphModule, _inputs: Sequence[object]) -> Boxed:
        return self.around_forward(boxed_code(gm))

    def backward(self, gm: GraphModule, _inputs: Sequence[object]) -> Boxed:
        run = boxed_code(gm)
        if self.without is not None and self.outputs is not None:
            run = _choosing(run, self.without, self.outputs)
        return self.around_backward(run)


def _returning_written(joint: Joint) -> Joint:
    """A joint graph that returns the new values of inputs, instead of writing them at its end.

    What a backward pass writes into inputs is left as it is.
    """
    graph, output = joint.module.graph, joint.module.graph.output_node()
    primals = set(graph.find_nodes(op="placeholder")[: joint.n_primals])
    writes = [
        node
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
        if node.args[0] in primals and node.meta.get("partitioner_tag") == "must_be_in_forward"
    ]
    new = [WrittenInput(node.args[0].meta["desc"]) for node in writes]
    n, roles = joint.n_outputs, list(output.meta["desc"])
    returned: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    output.args = ((*returned[:n], *(node.args[1] for node in writes), *returned[n:]),)
    output.meta["desc"] = [*roles[:n], *new, *roles[n:]]
    for node in writes:
        node.replace_all_uses_with(node.args[1])
        graph.erase_node(node)
    return replace(joint, n_outputs=n + len(writes))


def _outputs_with_tangents(joint: GraphModule, n_outputs: int) -> list[int]:
    """For each tangent of a joint graph the forward output whose gradient it is."""
    roles = list(joint.graph.output_node().meta["desc"])[:n_outputs]
    inputs = (node.meta["desc"] for node in joint.graph.find_nodes(op="placeholder"))
    return [roles.index(role.output) for role in inputs if isinstance(role, TangentAOTInput)]


def _noting_absent(call: Callable[..., object], about: object) -> Callable[..., object]:
    """A compiled call whose autograd node notes, when backward starts, which gradients are absent."""

    def run(*args: object) -> object:
        results = call(*args)
        found = (x.grad_fn for x in tree_leaves(results) if isinstance(x, torch.Tensor))
        nodes = (node for function in found if function is not None for node in _with_previous(function))
        if (node := next((node for node in nodes if _is_of(node, about)), None)) is not None:
            absent: list[bool] = []
            node.absent = absent  # type: ignore[attr-defined]
            node.register_prehook(partial(_note, absent))
        return results

    return run


def _with_previous(function: AutogradNode) -> Iterator[AutogradNode]:
    """A node, and those before it: an output that is a view comes one step after the compiled node."""
    yield function
    yield from (node for node, _ in function.next_functions if node is not None)


def _is_of(node: AutogradNode, about: object) -> bool:
    """Whether an autograd node is that of the compiled graph with this description."""
    return getattr(getattr(node, "_forward_cls", None), "metadata", None) is about


def _note(absent: list[bool], gradients: Sequence[torch.Tensor | None]) -> None:
    if torch.is_grad_enabled():
        raise UnsupportedModelError(
            "create_graph=True asks for the gradient of a gradient, but a planned backward pass can't be "
            "differentiated: for that step call disable(model), the .original of a compiled model, or the "
            "model that was given to torch.compile"
        )
    absent[:] = [x is None for x in gradients]


def _choosing(run: Boxed, without: Callable[[Sequence[int]], GraphModule], outputs: Sequence[int]) -> Boxed:
    """A backward pass that runs the code for the incoming gradients that are present."""
    codes: dict[tuple[int, ...], Boxed] = {(): run}

    def chosen(args: list[object]) -> object:
        noted = getattr(torch._C._current_autograd_node(), "absent", ())
        absent = tuple(k for k, output in enumerate(outputs) if noted and noted[output])
        if absent not in codes:
            codes[absent] = boxed_code(without(absent))
        return codes[absent](args)

    return mark_boxed(chosen)


def _without_gradients(joint: GraphModule, n_outputs: int) -> GraphModule:
    """A backward graph that takes the tangents of a joint graph and gives no gradient."""
    roles = list(joint.graph.output_node().meta["desc"])[n_outputs:]
    graph = Graph()
    for node in joint.graph.find_nodes(op="placeholder"):
        if isinstance(node.meta["desc"], TangentAOTInput):
            graph.placeholder(node.name).meta.update(node.meta)
    graph.output([None] * len(roles)).meta["desc"] = roles
    return GraphModule(joint, graph)


@contextmanager
def _undecomposed(*names: str) -> Iterator[None]:
    """Within the block, tracing does not decompose operators whose names begin so.

    Decompositions in Python for autograd run even if no table of decompositions is given.
    """
    keys = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
    removed = []
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, full = name.partition("::")
        if namespace == "aten" and full.startswith(names):
            base, _, overload = full.partition(".")
            op = getattr(getattr(torch.ops.aten, base), overload or "default")
            removed += [(op, key, op.py_kernels.pop(key)) for key in keys if key in op.py_kernels]
            op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, key, kernel in removed:
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()


def partition_within(joint: Joint, share: float) -> tuple[list[str], list[str]]:
    """Names of the nodes of a joint graph that PyTorch's partitioner would run forward, and backward.

    Args:
        joint: left unchanged.
        share: ``activation_memory_budget``.

    Raises:
        RuntimeError, AssertionError: if the partitioner can't treat the graph.
    """
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    graph, copies = Graph(), dict[Node, Node]()
    graph.graph_copy(joint.module.graph, copies)  # without the output
    graph.node_copy(joint.module.graph.output_node(), copies.__getitem__)
    module = GraphModule(joint.module, graph)
    with torch._functorch.config.patch(activation_memory_budget=share):
        halves = min_cut_rematerialization_partition(module, (), num_fwd_outputs=joint.n_outputs)
    forward, backward = ([node.name for node in half.graph.nodes] for half in halves)
    return forward, backward


def mark_boxed(call: Boxed) -> Boxed:
    """Mark a callable for AOTAutograd as one that takes its arguments in one list and empties it."""
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def below_autograd(run: Boxed) -> Boxed:
    """Generated code that skips the layers which record ops for autograd: views take half of the time.

    What its ops write keeps its version. Those of inputs in the graph are raised by PyTorch's runtime.
    """
    keys = torch._C.DispatchKeySet(DispatchKey.AutogradFunctionality)
    for key in (DispatchKey.ADInplaceOrView, DispatchKey.AutogradOther):
        keys = keys.add(key)

    def skipping(args: list[object]) -> object:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return run(args)

    return mark_boxed(skipping)


def boxed_code(gm: GraphModule) -> Boxed:
    """The graph as generated Python code that takes its arguments in one list and empties it."""
    gm.graph.set_codegen(_BoxedCodeGen())
    gm.recompile()
    forward = gm.forward
    return mark_boxed(lambda args: forward(args))  # a method takes no attributes


def compile_with_inductor(gm: GraphModule, example_inputs: Sequence[Any]) -> Boxed:
    """Compile a functional graph by Inductor; its results have the strides of the graph's fake tensors.

    Asserts about sizes are off: they cost more than small kernels. CUDA graphs are off: they keep memory.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch.fx.experimental.proxy_tensor import make_fx

    settings = {"size_asserts": False, "alignment_asserts": False, "triton.cudagraphs": False}
    mode = fake_mode_of(example_inputs)  # the graph's constants are real tensors
    with config.patch(settings), patch.object(mode, "allow_non_fake_inputs", True):
        decomposed = make_fx(gm, decomposition_table=select_decomp_table())(*example_inputs)
        joint_graph_passes(decomposed)
        output = decomposed.graph.output_node()
        output.meta["user_visible_output_idxs"] = list(range(len(output.all_input_nodes)))
        return compile_fx_inner(decomposed, example_inputs)
