"""FLOPs: 2mnk for every form of a product; a gradient of a convolution has as many as the convolution."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf

from checkmate_tf.costs.flops import flops_of, number_format


def only(
    op_type: str, body: Callable[..., object], *shapes: list[int], dtype: tf.DType = tf.float32
) -> tf.Operation:
    """The one op of a type in a function's graph."""
    specs = [tf.TensorSpec(shape, dtype) for shape in shapes]
    graph = tf.function(body, autograph=False).get_concrete_function(*specs).graph
    (op,) = [op for op in graph.get_operations() if op.type == op_type]
    return op


PRODUCTS = {
    "MatMul": (tf.linalg.matmul, [3, 5], [5, 7], 2 * 3 * 5 * 7),
    "MatMul turned": (lambda a, b: tf.linalg.matmul(a, b, transpose_a=True), [5, 3], [5, 7], 2 * 3 * 5 * 7),
    "BatchMatMulV2": (tf.linalg.matmul, [2, 3, 5], [2, 5, 7], 2 * 2 * 3 * 5 * 7),
    "BatchMatMulV2 turned": (
        lambda a, b: tf.linalg.matmul(a, b, adjoint_a=True, adjoint_b=True),
        [2, 5, 3],
        [2, 7, 5],
        2 * 2 * 3 * 5 * 7,
    ),
    "Einsum": (
        lambda a, b: tf.einsum("bhqd,bhkd->bhqk", a, b),
        [2, 4, 3, 5],
        [2, 4, 7, 5],
        2 * 2 * 4 * 3 * 5 * 7,
    ),
    "Einsum ...": (
        lambda a, b: tf.einsum("...ij,jk->...ik", a, b),
        [2, 4, 3, 5],
        [5, 7],
        2 * 2 * 4 * 3 * 5 * 7,
    ),
    "Einsum stretched": (
        lambda a, b: tf.einsum("...ij,...jk->...ik", a, b),
        [1, 3, 5],
        [6, 5, 7],
        2 * 6 * 3 * 5 * 7,
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_has_two_flops_per_term_of_its_sums(name: str) -> None:
    body, *shapes, expected = PRODUCTS[name]
    assert flops_of(only(name.partition(" ")[0], body, *shapes)) == expected


def test_an_einsum_of_one_operand_has_one_flop_per_element() -> None:
    assert flops_of(only("Einsum", lambda a: tf.einsum("ij->j", a), [3, 5])) == 15


def convolved(x: tf.Tensor, kernel: tf.Tensor) -> object:
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        y = tf.nn.conv2d(x, kernel, 2, "SAME")
    return y, tape.gradient(y, [x, kernel])


def by_channel(x: tf.Tensor, kernel: tf.Tensor) -> object:
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        y = tf.nn.depthwise_conv2d(x, kernel, [1, 2, 2, 1], "SAME")
    return y, tape.gradient(y, [x, kernel])


@pytest.mark.parametrize("op_type", ["Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_and_its_gradients_have_two_flops_per_weight_and_position(
    op_type: str, groups: int
) -> None:
    op = only(op_type, convolved, [2, 8, 8, 4], [3, 3, 4 // groups, 6])
    assert flops_of(op) == 2 * (2 * 4 * 4 * 6) * (3 * 3 * 4 // groups)


@pytest.mark.parametrize("suffix", ["", "BackpropInput", "BackpropFilter"])
def test_a_filter_for_each_channel_sees_one_channel(suffix: str) -> None:
    op = only(f"DepthwiseConv2dNative{suffix}", by_channel, [2, 8, 8, 4], [3, 3, 4, 2])
    assert flops_of(op) == 2 * (2 * 4 * 4 * 4 * 2) * (3 * 3)


def test_any_other_op_has_one_flop_per_element_of_its_output() -> None:
    assert flops_of(only("Softmax", tf.nn.softmax, [3, 5])) == 15


@pytest.mark.parametrize(
    ("dtype", "form"), [(tf.float32, "fp32"), (tf.bfloat16, "bf16"), (tf.float16, "fp16"), (tf.int32, "fp32")]
)
def test_the_format_is_that_of_the_inputs(dtype: tf.DType, form: str) -> None:
    if tf.config.list_physical_devices("GPU") and dtype == tf.float32:
        form = "tf32"  # TensorFlow's choice on tensor cores
    assert number_format(only("AddV2", tf.add, [3], [3], dtype=dtype)) == form
