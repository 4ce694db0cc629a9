"""The free memory of a device, which the budget "auto" uses."""

from __future__ import annotations

import pytest
import tensorflow as tf

import checkmate
from checkmate_tf.device import memory_limit, obtainable_bytes


def test_obtainable_bytes_of_the_cpu_are_those_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkmate_tf.device.available_memory", lambda: 1000)
    assert obtainable_bytes("CPU:0") == 1000


def test_obtainable_bytes_of_a_gpu_are_limit_less_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("checkmate_tf.device.memory_limit", lambda device: 1000)
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
