"""The meter agrees with the allocator to the byte, under every setting that reports allocations."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

from checkmate import ProfilerBusyError
from checkmate_tf.costs.events import TraceRecorder
from checkmate_tf.costs.meter import memory_meter

MIB = 2**20
ROWS = MIB // 1024  # of 1 KiB
FLOAT16 = tf.constant([1, 2, 3], tf.bfloat16)


def rows(n: int = ROWS) -> tf.Tensor:
    return tf.zeros([n, 256])


def allocator_counts() -> dict[str, int]:
    """The CPU allocator's own statistics."""
    try:
        return tf.config.experimental.get_memory_info("CPU:0")
    except ValueError as error:  # TF_ENABLE_ONEDNN_OPTS=0
        pytest.skip(str(error))


def run(script: str, **settings: str) -> None:
    """Run a script in a new process, with environment variables."""
    command = [sys.executable, "-c", textwrap.dedent(script)]
    ran = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@tf.function(autograph=False)
def three_deep(x: tf.Tensor) -> tf.Tensor:
    """Softmax, product, softmax, one after the other; at most two of the results are held at a time."""
    squared = tf.nn.softmax(x, name="first")
    product = tf.linalg.matmul(squared, squared[:256], transpose_b=True, name="second")
    return tf.nn.softmax(product, name="third")


def test_the_curve_starts_at_the_base_and_its_top_is_the_peak() -> None:
    x = rows()
    with memory_meter(x) as meter:
        y = tf.nn.softmax(x)
        del x
        z = tf.nn.softmax(y)
        del y, z
    assert meter.base == MIB
    assert meter.bytes.tolist() == [MIB, 2 * MIB, MIB, 2 * MIB, MIB, 0]
    assert meter.peak == 2 * MIB
    assert (np.diff(meter.times_s) >= 0).all()
    assert meter.times_s[0] == 0


def test_earlier_buffers_that_are_not_named_are_not_counted() -> None:
    named, other = rows(), rows()
    with memory_meter(named) as meter:
        del other, named
    assert meter.bytes.tolist() == [MIB, 0]


def test_without_names_the_base_is_the_allocators_count() -> None:
    held = [rows(), rows()]
    current = allocator_counts()["current"]
    with memory_meter() as meter:
        held.pop()
    assert meter.base == current
    assert meter.bytes[-1] == meter.base - MIB


def test_held_is_the_allocators_own_peak() -> None:
    x = rows()
    three_deep(x)
    allocator_counts()
    tf.config.experimental.reset_memory_stats("CPU:0")
    with memory_meter(x) as meter:
        three_deep(x)
    assert meter.held == allocator_counts()["peak"]
    assert meter.peak == 3 * MIB  # x and two of the three results


def test_an_assignment_does_not_change_the_size_of_a_variable() -> None:
    variable = tf.Variable(rows())
    with memory_meter(variable) as meter:
        variable.assign(tf.nn.softmax(variable))
    assert meter.bytes[-1] == meter.base == MIB
    assert meter.peak == 2 * MIB


def resident_bytes(*resident: object) -> int:
    with memory_meter(*resident) as meter:
        return meter.base


def test_each_buffer_counts_once() -> None:
    model = keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dense(5), keras.layers.BatchNormalization()]
    )
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    weights = 4 * (3 * 5 + 5 + 4 * 5)
    assert resident_bytes(model) == weights
    assert resident_bytes(model, model.layers, model.variables, [v.value for v in model.variables]) == weights
    slots = 2 * 4 * (3 * 5 + 5 + 2 * 5)
    counts = resident_bytes(optimizer) - slots  # of steps, and the learning rate
    assert 0 < counts < 32
    assert resident_bytes(model, {"optimizer": (optimizer,)}) == weights + slots + counts


@pytest.mark.parametrize(
    "tensor", [tf.zeros([3]), tf.constant([True]), FLOAT16, tf.zeros([0, 4]), tf.zeros([], tf.int64)]
)
def test_two_names_of_one_tensor_are_one_buffer(tensor: tf.Tensor) -> None:
    size = tensor.shape.num_elements() * tensor.dtype.size
    assert resident_bytes(tensor, tf.identity(tensor)) == size


def test_other_objects_than_tensors_count_nothing() -> None:
    assert resident_bytes(None, "name", 3, [b"x"], {}, np.zeros(4)) == 0


def test_a_second_meter_is_refused_and_the_first_goes_on() -> None:
    x = rows()
    with memory_meter(x) as meter:
        with pytest.raises(ProfilerBusyError, match="end it first"), memory_meter(x):
            pass
        y = tf.nn.softmax(x)
    assert meter.peak == 2 * MIB == 2 * resident_bytes(y)


def test_an_error_in_the_block_is_raised_and_the_profiler_is_free_again() -> None:
    with pytest.raises(ZeroDivisionError), memory_meter() as meter:
        raise ZeroDivisionError
    assert meter.peak == meter.base
    with TraceRecorder():
        pass


@pytest.mark.parametrize("device", ["CPU:7", "GPU:99", "abacus"])
def test_a_device_that_is_not_here_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="can't measure memory on"), memory_meter(device=device):
        pass


SMALL_BUFFERS = """
    import tensorflow as tf
    from checkmate_tf.costs.meter import _meter_gpu, memory_meter
    from checkmate_tf.costs.profile import profile_in_turn

    x = tf.zeros([10, 100])
    with memory_meter(x) as meter:
        y = tf.nn.softmax(x)
        del x
    assert meter.bytes.tolist() == [4000, 8000, 4000], meter.bytes

    def pooled(x, y, dy):
        return tf.raw_ops.MaxPoolGrad(
            orig_input=x, orig_output=y, grad=dy, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID"
        )

    specs = [tf.TensorSpec([1, side, side, 3]) for side in (8, 4, 4)]
    graph = tf.function(pooled).get_concrete_function(*specs).graph
    op = next(op for op in graph.get_operations() if op.type == "MaxPoolGrad")
    (profile,) = profile_in_turn([op])
    assert profile.workspace >= 4 * 4 * 3 * 8, profile  # positions of the maxima
"""


@pytest.mark.parametrize("setting", ["TF_ENABLE_ONEDNN_OPTS=0", "TF_CPU_ALLOCATOR_USE_BFC=1"])
def test_two_settings_show_the_smallest_buffer(setting: str) -> None:
    name, _, value = setting.partition("=")
    run(SMALL_BUFFERS, **{name: value})


GPU_CODE_ON_CPU = """
    import tensorflow as tf
    from checkmate_tf.costs.meter import _meter_gpu

    x = tf.zeros([256, 1024])
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    with _meter_gpu("CPU:0") as meter:
        y = tf.nn.softmax(x)
        del y
    assert meter.base == before
    assert meter.bytes.tolist() == [before, meter.peak, before]
    assert meter.peak == meter.held == before + 2**20, meter
"""


def test_the_code_for_gpus_finds_the_same_peak_on_a_cpu() -> None:
    """In a process of its own: an allocator also counts for threads that earlier tests left running."""
    run(GPU_CODE_ON_CPU, TF_ENABLE_ONEDNN_OPTS="1")


@pytest.mark.gpu
@pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="needs a CUDA device")
def test_on_a_gpu_the_peak_is_the_allocators() -> None:
    with tf.device("GPU:0"):
        x = rows()
        with memory_meter(x, device="GPU:0") as meter:
            y = tf.nn.softmax(x)
            del y
    assert meter.peak - meter.base == MIB
    assert meter.bytes.tolist() == [meter.base, meter.peak, meter.base]
