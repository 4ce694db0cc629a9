"""Name the ops of a step in messages: by the layer, and by the op's part in it.

    gradient_tape/block2/conv/convolution/Conv2DBackpropFilter    block2/conv, gradient of weights
    gradient_tape/block2/bn/moments/Mul                           block2/bn/moments, gradient (Mul)
    AddN_4, a sum that a gradient of block2/conv reads            block2/conv, gradient of output (AddN_4)
    adam/AssignSubVariableOp_8                                    conv/kernel, adam/AssignSubVariableOp_8
    cond, a branch with updates                                   cond with 9 variables, the largest conv/k

Other ops keep their names: TensorFlow writes the layer into them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import tensorflow as tf

from checkmate_tf import private
from checkmate_tf.capture.function_capture import Captured
from checkmate_tf.ops.control_flow import has_branches
from checkmate_tf.ops.storages import ALIASES, nbytes

__all__ = ["Labels"]

_TAPE = "gradient_tape/"
_ROLES = {
    "BiasAddGrad": "gradient of bias",
    "Conv2DBackpropFilter": "gradient of weights",
    "Conv2DBackpropInput": "gradient of input",
    "Conv3DBackpropFilterV2": "gradient of weights",
    "Conv3DBackpropInputV2": "gradient of input",
    "DepthwiseConv2dNativeBackpropFilter": "gradient of weights",
    "DepthwiseConv2dNativeBackpropInput": "gradient of input",
}
_VIEWS = ALIASES | {"Cast", "Transpose"}
_PRODUCTS = frozenset({"MatMul", "BatchMatMulV2", "Einsum"})
"""Types whose gradients are products, too; the product that reads the weights is the input's gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The labels of the ops of one step.

    Attributes:
        ops: all ops, by name.
        variables: placeholder of a captured handle → the name of its variable.
    """

    ops: Mapping[str, tf.Operation]
    variables: Mapping[str, str]

    @classmethod
    def of(cls, captured: Captured) -> Labels:
        """The labels of a captured step, or of a branch of it."""
        names = {id(v.handle): v.name.removesuffix(":0") for v in captured.variables}
        return cls(
            ops={op.name: op for op in captured.ops},
            variables={name: names[handle] for name, handle in captured.handles.items() if handle in names},
        )

    def source(self, placeholder: str) -> str:
        """The name of the variable, or of the argument, behind a placeholder."""
        return self.variables.get(placeholder, placeholder)

    def __call__(self, op: tf.Operation) -> str:
        """The name of an op in messages."""
        name = str(op.name)
        if name.startswith(_TAPE):
            of, _, last = name.removeprefix(_TAPE).rpartition("/")
            role = self._role(op, of)
            known = f"{self._layer(of)}, {role}" if role else f"{of}, gradient ({last})"
            return known if of else name
        if op.type.startswith("Assign") and (variable := self.variables.get(op.inputs[0].op.name)):
            return f"{variable}, {name}"
        if has_branches(op.type) and (handles := [t for t in op.inputs if t.op.name in self.variables]):
            largest = max(handles, key=lambda t: sum(map(nbytes, private.resource_specs(t))))
            return f"{name} with {len(handles)} variables, the largest {self.variables[largest.op.name]}"
        layer = next(self._reading(op), "") if op.type == "AddN" else ""
        return f"{layer}, gradient of output ({name})" if layer else name

    def _role(self, op: tf.Operation, of: str) -> str | None:
        """Which gradient of the layer of the op ``of`` this op computes; None = not known."""
        if op.type in _PRODUCTS and of in self.ops and _has_weights(self.ops[of]):
            return "gradient of input" if _has_weights(op) else "gradient of weights"
        return _ROLES.get(op.type)

    def _layer(self, path: str) -> str:
        """The layer of the op of this path; a path without an op is the layer."""
        return path.rpartition("/")[0] if path in self.ops and "/" in path else path

    def _reading(self, total: tf.Operation) -> Iterator[str]:
        """The layers whose gradients read a sum."""
        for reader in total.outputs[0].consumers():
            if reader.name.startswith(_TAPE):
                if of := reader.name.removeprefix(_TAPE).rpartition("/")[0]:
                    yield self._layer(of)
            elif reader.type in ALIASES:
                yield from self._reading(reader)


def _has_weights(op: tf.Operation) -> bool:
    """Whether an op reads a variable, perhaps in another shape or type."""
    sources = [t.op for t in op.inputs]
    return any(o.type == "ReadVariableOp" or (o.type in _VIEWS and _has_weights(o)) for o in sources)
