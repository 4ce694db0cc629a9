"""The trace of a block: each op by its name, as often as it ran."""

from __future__ import annotations

import pytest
import tensorflow as tf

from checkmate_tf.costs.events import ProfilerBusyError, TraceRecorder

SIDE = 32


@tf.function(autograph=False)
def repeated(x: tf.Tensor, n: tf.Tensor) -> tf.Tensor:
    """One convolution before a loop with one, and one after it."""
    kernel = tf.ones([3, 3, 4, 4])

    def convolution(x: tf.Tensor, name: str) -> tf.Tensor:
        return tf.nn.conv2d(x, kernel, 1, "SAME", name=name)

    x = convolution(x, "before")
    x = tf.while_loop(lambda x: True, lambda x: (convolution(x, "within"),), (x,), maximum_iterations=n)[0]
    return convolution(x, "after")


@pytest.mark.parametrize("n", [0, 1, 5])
def test_each_op_is_counted_as_often_as_it_runs(n: int) -> None:
    x = tf.zeros([2, SIDE, SIDE, 4])
    repeated(x, tf.constant(n))
    with TraceRecorder() as recorder:
        repeated(x, tf.constant(n))
    trace = recorder.trace
    counts = {name.rpartition("/")[2]: count for name, count in trace.counts.items()}
    assert [counts.get(name, 0) for name in ("before", "within", "after")] == [1, n, 1]
    convolutions = [run for run in trace.executions if "Conv2D" in run.kind]
    assert len(convolutions) == n + 2
    assert all(trace.seconds[run.name] >= run.seconds > 0 for run in convolutions)


def test_an_allocation_names_its_op_and_its_release_has_the_same_size() -> None:
    step = tf.function(lambda x: tf.reduce_sum(tf.nn.softmax(x, name="large")), autograph=False)
    x = tf.zeros([1024, 256])
    step(x)
    with TraceRecorder() as recorder:
        step(x)
    made, returned = (a for a in recorder.trace.on("CPU:0") if abs(a.delta) == 2**20)
    assert (made.op, made.delta, returned.delta) == ("large", 2**20, -(2**20))
    assert (made.address, made.older, returned.older) == (returned.address, False, False)
    assert made.time_s < returned.time_s
    assert recorder.trace.on("GPU:0") == ()


def test_nothing_is_written_on_stderr_and_no_file_is_left(
    capfd: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("scratch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(folder))
        with TraceRecorder():
            tf.nn.softmax(tf.zeros([4, 4]))
    assert capfd.readouterr().err == ""
    assert not list(folder.iterdir())


def test_another_profiler_is_left_alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        tf.profiler.experimental.Profile(str(tmp_path_factory.mktemp("user"))),
        pytest.raises(ProfilerBusyError, match="another profiler"),
        TraceRecorder(),
    ):
        pass
    with TraceRecorder():
        pass
