"""The free memory of a device, which the budget "auto" uses."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import checkmate
import checkmate.tf2
from checkmate_tf.ops.device import is_limited, memory_limit, obtainable_bytes


def test_obtainable_bytes_of_the_cpu_are_those_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkmate_tf.ops.device.available_memory", lambda: 1000)
    assert obtainable_bytes("CPU:0") == 1000


def test_obtainable_bytes_of_a_gpu_are_limit_less_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("checkmate_tf.ops.device.memory_limit", lambda device: 1000)
    monkeypatch.setattr(
        tf.config.experimental, "get_memory_info", lambda device: {"current": 300, "peak": 900}
    )
    assert obtainable_bytes("GPU:0") == 700


def test_an_unknown_device_is_an_error_with_the_way_out() -> None:
    with pytest.raises(checkmate.BudgetError, match="in the place of 'auto'"):
        obtainable_bytes("GPU:99")


def test_the_limit_of_a_device_is_looked_up_by_its_name() -> None:
    assert memory_limit("CPU:0") > 0
    with pytest.raises(StopIteration):
        memory_limit("GPU:99")


def test_chunks_count_where_the_allocator_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, and on a CPU by its environment; the user may choose otherwise."""

    def counted(**settings: Any) -> str:
        x = tf.ones([64, 64])
        step = checkmate.tf2.function(
            lambda x: tf.reduce_sum(x @ x), budget="1MiB", cost_model="flops", workspaces=False, **settings
        )
        return str(step.plan(x).step.counts)

    assert is_limited("GPU:1")
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "1")
    monkeypatch.delenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", raising=False)
    assert counted() == "live"
    assert counted(counts="allocator") == "allocator"
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "512")
    assert counted() == "allocator"
    assert counted(counts="live") == "live"


def test_a_step_on_two_devices_is_planned_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.device("CPU:1"):
            y = tf.sin(x @ x)
        with tf.device("CPU:0"):
            return tf.reduce_sum(y @ x)

    planned = checkmate.tf2.function(step, budget="1MiB", cost_model="flops", workspaces=False)
    planned.plan(tf.TensorSpec([64, 64]))
    planned.plan(tf.TensorSpec([32, 32]))
    assert caplog.text.count("placed on CPU:0 and CPU:1, and a plan is for one device") == 1
