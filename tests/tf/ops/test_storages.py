"""The tables of storages, op by op, against the allocator: each op runs on inputs that no other op needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from checkmate_tf.costs.events import TraceRecorder
from checkmate_tf.ops import storages
from checkmate_tf.private import emit_op, grappler_off

SHAPE = [64, 64]
NAME = "measured"
RAW = tf.raw_ops

Made = tf.Tensor | tuple[tf.Tensor, ...]
Body = Callable[..., Made]
SPECIAL: dict[str, Body] = {
    "AddN": lambda x, y: RAW.AddN(inputs=[x, y], name=NAME),
    "BiasAdd": lambda x: RAW.BiasAdd(value=x, bias=tf.ones(64), name=NAME),
    "Bitcast": lambda x: RAW.Bitcast(input=x, type=tf.int32, name=NAME),
    "CheckNumerics": lambda x: RAW.CheckNumerics(tensor=x, message="", name=NAME),
    "ClipByValue": lambda x: RAW.ClipByValue(t=x, clip_value_min=0.0, clip_value_max=1.0, name=NAME),
    "EnsureShape": lambda x: RAW.EnsureShape(input=x, shape=SHAPE, name=NAME),
    "ExpandDims": lambda x: RAW.ExpandDims(input=x, axis=0, name=NAME),
    "IdentityN": lambda x: RAW.IdentityN(input=[x], name=NAME)[0],
    "Reshape": lambda x: RAW.Reshape(tensor=x, shape=[-1], name=NAME),
    "SelectV2": lambda x, y: RAW.SelectV2(condition=y > 0, t=x, e=y, name=NAME),
    "SparseSoftmaxCrossEntropyWithLogits": lambda x: RAW.SparseSoftmaxCrossEntropyWithLogits(
        features=x, labels=tf.zeros(64, tf.int32), name=NAME
    ),
}
"""Calls of the ops that have arguments other than tensors like the output."""

FRESH = sorted(storages.TAKE_OVER | storages.TAKE_OVER_SECOND)
ALIASES = sorted(storages.ALIASES - {"ReadVariableOp"})


def body_of(kind: str) -> tuple[Body, list[str]]:
    """A function that runs one op, and the dtypes of its inputs."""
    if kind in SPECIAL:
        return SPECIAL[kind], ["float32"] * SPECIAL[kind].__code__.co_argcount
    raw = getattr(RAW, kind)
    inputs = [a.name for a in inspect.signature(raw).parameters.values() if a.default is a.empty]
    dtype = "bool" if kind.startswith("Logical") else "float32"
    return lambda *given: raw(**dict(zip(inputs, given, strict=True)), name=NAME), [dtype] * len(inputs)


Asked = tuple[tf.Operation, list[int]]
"""An op, and the bytes of each of its allocations."""


def ready(kind: str, dying: int) -> tuple[tf.Operation, Callable[[], object]]:
    """An op, and a function that runs it so that no other op needs one of its inputs; it has run once."""
    body, dtypes = body_of(kind)

    def step(*given: tf.Tensor) -> Made:
        fresh = [RAW.Roll(input=x, shift=[1], axis=[0]) if k == dying else x for k, x in enumerate(given)]
        with tf.name_scope(f"{kind}_{dying}".replace("-", "n")):
            return body(*fresh)

    specs = [tf.TensorSpec(SHAPE, dtype) for dtype in dtypes]
    function = tf.function(step, autograph=False).get_concrete_function(*specs)
    batch: list[Any] = [tf.cast(tf.fill(SHAPE, 0.5), dtype) for dtype in dtypes]
    with grappler_off():
        function(*batch)
    found = next(op for op in function.graph.get_operations() if op.name.endswith(f"/{NAME}"))
    return found, lambda: function(*batch)


@pytest.fixture(scope="module")
def asked() -> dict[tuple[str, int], Asked]:
    """All ops, each input in turn needed by no other op; -1 = the caller needs all."""
    cases = [(kind, k) for kind in (*FRESH, *ALIASES) for k in range(-1, len(body_of(kind)[1]))]
    made = {case: ready(*case) for case in cases}
    with TraceRecorder() as recorder:
        for _, run in made.values():
            run()
    given: dict[str, list[int]] = {}
    for event in recorder.trace.allocations:
        if event.delta > 0:
            given.setdefault(event.op.partition(":")[0], []).append(event.delta)
    return {case: (op, given.get(op.name, [])) for case, (op, _) in made.items()}


@pytest.mark.parametrize("kind", FRESH)
def test_an_op_writes_over_an_input_that_no_other_op_needs(
    kind: str, asked: dict[tuple[str, int], Asked]
) -> None:
    op, of_a_needed_one = asked[kind, -1]
    size, taken = storages.nbytes(op.outputs[-1]), storages.takes_over(op)
    assert taken
    assert size in of_a_needed_one
    for k in range(len(body_of(kind)[1])):
        assert size not in asked[kind, k][1]


@pytest.mark.parametrize("kind", ALIASES)
def test_an_alias_allocates_nothing(kind: str, asked: dict[tuple[str, int], Asked]) -> None:
    op, nothing = asked[kind, -1]
    assert not nothing
    assert storages.aliased_input(op, 0) == 0


@pytest.mark.parametrize("activation", ["", "Relu"])
def test_what_a_batch_norm_keeps_for_its_gradient_has_the_shape_that_is_counted(activation: str) -> None:
    value = tf.compat.v1.AttrValue
    relu = {"activation_mode": value(s=b"Relu"), "num_side_inputs": value(i=0)} if activation else {}
    attrs = {**relu, "T": value(type=1), "U": value(type=1)}

    @tf.function(autograph=False)
    def norm(x: tf.Tensor, scale: tf.Tensor) -> Any:
        made = emit_op(
            tf.compat.v1.get_default_graph(),
            "_FusedBatchNormEx" if activation else "FusedBatchNormV3",
            [x, scale, scale, scale[:0], scale[:0]],
            attrs=attrs,
            name=NAME,
        )
        return made.outputs[-1]

    given = [tf.ones([3, 5, 7, 16]), tf.ones([16])]
    (op,) = (op for op in norm.get_concrete_function(*given).graph.get_operations() if op.name == NAME)
    with grappler_off():
        assert storages.reserve_shape(op) == norm(*given).shape
