"""Answers of Python code that depend on what an input holds: known at the trace, and guarded.

Dynamo traces without values, so libraries take the general way while it traces. Here a function that asks for
a fact of an input is answered by the real input of the call that is traced; a call for which the answer is
another gets a graph of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from inspect import signature
from typing import Any, NamedTuple, cast
from weakref import ref

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

__all__ = ["Answer", "Answers", "answers", "note_values", "noted_values"]


Fact = Callable[[Tensor], bool]


class Answer(NamedTuple):
    """How a function is answered that asks whether something holds for one of its arguments.

    Attributes:
        argument: its name; None as the argument is taken as an input for which it holds.
        holds: whether it holds for a real tensor. On a GPU it waits for the answer.
        kept_by: names of the ops that keep it: if it holds for the first argument, then for the result.
        made_by: the name of an op that makes tensors for which it holds.
        instead: the function that is traced then. It takes the same arguments.
    """

    argument: str
    holds: Fact
    kept_by: frozenset[str]
    made_by: str
    instead: Callable[..., object]


Answers = Mapping[Callable[..., object], Answer]
answers: ContextVar[Answers] = ContextVar("answers", default={})  # noqa: B039 - never changed
"""The functions that are answered while a call is captured."""
_read_in_call: ContextVar[dict[tuple[Fact, int], tuple[Tensor, bool]]] = ContextVar("_read_in_call")
"""What one call of captured code has read so far: fact and tensor → the tensor, whether it held."""
_ALONG = ("expand", "repeat", "unsqueeze")
"""Ops that keep what holds for rows, unless they change the length of rows."""
_REAL = "_checkmate_real"


def note_values(fake: Tensor, real: Tensor) -> None:
    """Remember the tensor of which an input is the fake twin."""
    setattr(fake, _REAL, real)


def noted_values(fake: Tensor) -> Tensor | None:
    """The tensor of which a fake one is the twin, if it was noted."""
    return getattr(fake, _REAL, None)


@cache
def answer_functions() -> None:
    """Let Dynamo ask :data:`answers` at each call of a Python function that it inlines."""
    from torch._dynamo.variables import UserFunctionVariable

    inline = UserFunctionVariable.call_function

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        answer = answers.get().get(self.fn)
        if answer is not None:
            given = signature(answer.instead).bind(*args, **kwargs).arguments
            if _is_known(given[answer.argument].realize(), answer):
                instead: Any = UserFunctionVariable(cast("Any", answer.instead))
                return instead.call_function(tx, args, kwargs)
        return inline(self, tx, args, kwargs)

    UserFunctionVariable.call_function = call_function  # type: ignore[method-assign]


def _is_known(variable: Any, answer: Answer) -> bool:
    """Whether the fact is known to hold for a variable of Dynamo; what was read is guarded."""
    from torch._dynamo.guards import install_guard
    from torch._dynamo.variables import TensorVariable

    if variable.is_python_constant():
        return variable.as_python_constant() is None
    if not isinstance(variable, TensorVariable):
        return False
    node = _root(variable.as_proxy().node, answer)
    if node is None or _is_changed(node):
        return False
    if node.op != "placeholder":
        return True
    given = node.meta.get("grapharg")
    if given is None or not _is_argument(given.source):
        return False
    real = getattr(given.example, _REAL, given.example)
    if not isinstance(real, Tensor) or isinstance(real, FakeTensor) or real.is_meta:
        return False
    found = _read(answer.holds, real)
    if real is given.example:
        install_guard(given.source.make_guard(_guard(answer.holds, found)))
    return found


def _root(node: Node, answer: Answer) -> Node | None:
    """The input, or the op that makes tensors for which it holds, that a fact depends on; None = unknown."""
    while (name := _name(node)) in answer.kept_by and isinstance(node.args[0], Node):
        if name in _ALONG and _width(node) != _width(node.args[0]):
            return None
        if any(isinstance(x, Node) and _width(x) is not None for x in node.args[1:]):
            return None
        node = node.args[0]
    made = name == answer.made_by and len(node.args) < 3 and "step" not in node.kwargs
    return node if made or node.op == "placeholder" else None


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target)) if node.op.startswith("call") else ""


def _width(node: Node) -> int | None:
    """The length of rows; None for a value that is no tensor with rows."""
    value = node.meta.get("example_value")
    return value.shape[-1] if isinstance(value, Tensor) and value.dim() else None


def _is_changed(root: Node) -> bool:
    """Whether the traced code writes to a tensor, or to one that is made of it, before it asks."""
    reached, todo = {root}, [root]
    while todo:
        node = todo.pop()
        for user in node.users:
            name = _name(user)
            writes = name in ("setitem", "copy_", "iand", "imul") or (name[-1:] == "_" and name[-2:] != "__")
            if (writes or "out" in user.kwargs) and node in (*user.args[:1], user.kwargs.get("out")):
                return True
            if user not in reached:
                reached.add(user)
                todo.append(user)
    return False


def _is_argument(source: Any) -> bool:
    """Whether an input of the graph is an argument of the call, and not an attribute of a module."""
    kind = source.guard_source
    kind = kind() if callable(kind) else kind  # a method before PyTorch 2.13
    return bool(kind.name == "LOCAL")


@cache
def _guard(holds: Fact, found: bool) -> Callable[..., None]:
    """A kind of guard: for this input of a call, the fact is found again."""
    from torch._dynamo.guards import get_verbose_code_parts

    def is_as_traced(value: object) -> bool:
        return isinstance(value, Tensor) and _read(holds, value) == found

    def guard_on_values(builder: Any, guard: Any) -> None:
        parts = get_verbose_code_parts(f"{holds.__name__}(…) is {found}", guard)
        add = builder.get_guard_manager(guard).add_lambda_guard
        try:
            add(is_as_traced, parts, guard.user_stack)
        except TypeError:  # before PyTorch 2.12
            add(is_as_traced, parts)

    return guard_on_values


@contextmanager
def reading_once() -> Iterator[None]:
    """Within the block, one call of captured code, each fact of a tensor is read once for all plans."""
    token = _read_in_call.set({})
    try:
        yield
    finally:
        _read_in_call.reset(token)


def _read(holds: Fact, value: Tensor) -> bool:
    """Whether a fact holds for a tensor."""
    known = _read_in_call.get(None)
    if known is None:
        return _read_now(holds, value)
    key = holds, id(value)
    if key not in known:
        known[key] = value, _read_now(holds, value)
    return known[key][1]


_last: dict[Fact, tuple[ref[Tensor], int, bool]] = {}
"""Fact → the last tensor of a GPU that was read for it, its version, and whether it held."""


def _read_now(holds: Fact, value: Tensor) -> bool:
    """Whether a fact holds for a tensor. A read that waits for a GPU is done once for each tensor."""
    if value.device.type == "cpu" or value.is_inference():
        return holds(value)
    last = _last.get(holds)
    if last is None or last[0]() is not value or last[1] != value._version:
        with torch.no_grad():
            last = _last[holds] = ref(value), value._version, holds(value)
    return last[2]
