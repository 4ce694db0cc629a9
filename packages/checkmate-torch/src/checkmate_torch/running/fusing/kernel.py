"""A fused kernel: a few ops of a joint graph as one function, compiled by Inductor when it is first needed.

A kernel returns what its ops return, up to rounding, in new tensors of the same layouts. Kernels with the
same functions and layouts share their compiled code, also between models.
"""

from __future__ import annotations

import hashlib
import logging
import operator
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from checkmate import UnsupportedModelError
from checkmate.cost import OpProfile
from checkmate_torch.costs.price import real_like
from checkmate_torch.costs.profile import profile_op
from checkmate_torch.ops.recompute_rules import Pure, as_copy
from checkmate_torch.private import Boxed, compile_with_inductor, unfaked
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["FusedKernel"]

_log = logging.getLogger(__name__)
_VERSION = 2
"""Version of the way to compile. Seconds that were measured with another version are measured again."""
_compiled: dict[str, Boxed | None] = {}
"""Text of a kernel → its code; None = it can't be used. Code is kept as long as the process lives."""


class FusedKernel(Pure):
    """A few ops of a joint graph as one function.

    Args:
        traced: the joint graph.
        ops: in the order of their runs, each once.
        done: ops that have run before.
        made: the tensors of ``traced.graph`` that the kernel returns; its other results stay inside.

    Attributes:
        sources: the ops, items, placeholders and constants of the joint graph that it reads.
        outputs: the ops and items of the joint graph whose values it returns.
        module: its own graph.
        results: the nodes of its own graph that are its outputs.
    """

    __name__: ClassVar[str] = "fused"

    def __init__(
        self, traced: TracedGraph, ops: Sequence[int], done: Collection[int], made: Sequence[int]
    ) -> None:
        self.ops = tuple(ops)
        self.outputs = tuple(traced.source_of[t] for t in made)
        builder = _Builder(traced)
        for op in ops:
            builder.add(op, again=op in done)
        self.sources = tuple(builder.sources)
        self.results = tuple(map(builder.value, self.outputs))
        builder.graph.output(self.results)
        self.module = GraphModule({}, builder.graph)

    @cached_property
    def text(self) -> str:
        """Functions, arguments and layouts as text; kernels with equal texts share their code."""
        names: dict[Node, str] = {}
        lines = []
        for node in self.module.graph.nodes:
            args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda n: names[n])
            names[node] = f"v{len(names)}"
            value = node.meta.get("val")
            layout = _layout(value) if node.op == "placeholder" else ""
            lines.append(f"{node.op} {node.target if node.op == 'call_function' else layout} {args} {kwargs}")
        return "\n".join(lines)

    def __str__(self) -> str:
        """A short name by which costs are kept."""
        text = f"{_VERSION} {self.text}"
        return f"kernel {hashlib.sha256(text.encode()).hexdigest()[:24]}"

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return cast(torch.device, self.outputs[0].meta["val"].device)

    def is_usable(self) -> bool:
        """Compile the kernel if need be and run it: whether it gives new tensors of the right layouts."""
        if self.text not in _compiled:
            _compiled[self.text] = self._checked()
        return _compiled[self.text] is not None

    def profile(self) -> OpProfile:
        """Seconds of a run, and bytes that it needs beyond its outputs; see :func:`profile_op`."""
        run = self._run
        with unfaked():
            inputs = self._inputs()
            return profile_op(lambda: run(list(inputs)), self.device)

    @cached_property
    def _run(self) -> Boxed:
        return cast("Boxed", _compiled[self.text])  # is_usable() was asked before

    @cached_property
    def _dtypes(self) -> list[torch.dtype]:
        return [node.meta["val"].dtype for node in self.sources]

    def __call__(self, *args: object) -> object:
        """The values of :attr:`outputs` from those of :attr:`sources`.

        Raises:
            UnsupportedModelError: if a source has another dtype than in the trace: the compiled code would
                misread its bytes.
        """
        tensors = cast("tuple[Tensor, ...]", args)
        for x, dtype, node in zip(tensors, self._dtypes, self.sources, strict=True):
            if x.dtype != dtype:
                text = f"{node.name} is of {x.dtype}, but traced as {dtype}, as which a kernel reads it"
                raise UnsupportedModelError(f'{text}: use lowering="eager"')
        return self._run(list(args))

    def _inputs(self) -> list[Tensor]:
        return [cast(Tensor, real_like(node.meta["val"])) for node in self.sources]

    def _checked(self) -> Boxed | None:
        """The compiled code; None if Inductor fails, or gives tensors of another layout, or not new ones."""
        try:
            run = compile_with_inductor(self.module, [n.meta["val"] for n in self.sources])
            with unfaked(), torch.no_grad():
                inputs = self._inputs()
                found: Any = run(list(inputs))
        except Exception as error:  # noqa: BLE001 - Inductor's failures are of every kind
            level = logging.INFO if None in _compiled.values() else logging.WARNING
            text = "Inductor can't compile a kernel, whose %d ops run alone: %s"
            _log.log(level, text, len(self.ops), error)
            return None
        storages = {x.untyped_storage().data_ptr() for x in (*inputs, *found)}
        alike = [*map(_layout, found)] == [_layout(node.meta["val"]) for node in self.outputs]
        if len(storages) < len(inputs) + len(found) or not alike:
            _log.info("a kernel of %d ops gives tensors in another layout: they run alone", len(self.ops))
            return None
        return run


def _layout(x: Tensor) -> tuple[object, ...]:
    """The part of a tensor that code depends on."""
    place = (tuple(x.shape), x.stride(), x.storage_offset(), x.untyped_storage().nbytes())
    return (*place, x.dtype, x.device.type)


class _Builder:
    """A graph of a few ops; what they read from outside becomes placeholders, views are made inside."""

    def __init__(self, traced: TracedGraph) -> None:
        self.traced = traced
        self.graph = Graph()
        self.sources: list[Node] = []
        self.values: dict[Node, Node] = {}

    def add(self, op: int, *, again: bool) -> None:
        """Append an op; ``again``: it has run before."""
        node = self.traced.node_of(op)
        if isinstance(node.target, FusedKernel):
            self.insert(node, node.target)
            return
        target, given = as_copy(node) if again else (node.target, node.args)
        args, kwargs = map_arg((given, node.kwargs), self.value)
        made = self.graph.call_function(target, args, kwargs)  # type: ignore[arg-type]
        made.meta = dict(node.meta)
        self.values[node] = made

    def insert(self, node: Node, kernel: FusedKernel) -> None:
        """Append the ops of a node that is a kernel itself."""
        inner = kernel.module.graph
        copies: dict[Node, Node] = {}
        for each, source in zip(inner.find_nodes(op="placeholder"), node.all_input_nodes, strict=True):
            copies[each] = self.value(source)
        for each in (n for n in inner.nodes if n.op == "call_function"):
            copies[each] = self.graph.node_copy(each, copies.__getitem__)
        for item in (user for user in node.users if user.target is operator.getitem):
            self.values[item] = copies[kernel.results[cast(int, item.args[1])]]

    def value(self, arg: Node) -> Node:
        """The value of a joint node in the kernel."""
        if arg in self.values:
            return self.values[arg]
        is_item = arg.target is operator.getitem and arg.args[0] in self.values  # of an op in the kernel
        if self.traced.sources(arg) == (arg,) and not is_item:
            self.sources.append(arg)
            self.values[arg] = self.graph.placeholder(arg.name)
            self.values[arg].meta = dict(arg.meta)
        else:
            self.values[arg] = self.graph.node_copy(arg, self.value)
        return self.values[arg]
