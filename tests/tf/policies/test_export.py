"""Layers chosen for Keras' rematerialization: within the budget, the first of a kind, judged as they run."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import checkmate.tf2
from checkmate_tf.policies.export import Exported, export, judge
from checkmate_tf.policies.remat import RematError

CHEAP: dict[str, Any] = {"cost_model": "flops", "cache": False}
SPECS = (tf.TensorSpec([2048, 32]), tf.TensorSpec([2048, 32]))
NAMES = [f"block_{k}" for k in range(3)]


def block(name: str, rate: float = 0.0) -> keras.Model:
    dropout = [layers.Dropout(rate)] if rate else []
    stack = [layers.Dense(128, "gelu", name=f"{name}_up"), layers.LayerNormalization(name=f"{name}_norm")]
    return keras.Sequential([keras.Input([32]), *stack, *dropout, layers.Dense(32)], name=name)


def network(rate: float = 0.0) -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input([32]), *(block(name, rate) for name in NAMES)])


def found(budget: object, **settings: Any) -> Exported:
    return export(network(), "mse", "sgd", *SPECS, budget, **{"time_limit": 0, **CHEAP, **settings})


@pytest.fixture(scope="module")
def tight() -> Exported:
    return found("52%", time_limit=2)


def test_the_prediction_is_that_of_the_list(tight: Exported) -> None:
    judged = judge(network(), "mse", "sgd", *SPECS, tight.layers, **CHEAP)
    assert judged == tight.judged
    assert judged.peak <= tight.budget == int(0.52 * tight.plain.peak)
    assert judged.overhead > 0
    assert tight.bound <= tight.best_overhead < judged.overhead


def test_the_layers_are_the_first_of_a_line_and_one_fewer_is_too_few(tight: Exported) -> None:
    inner = [f"{name}_{part}" for name in NAMES for part in ("up", "norm")]
    lines = [NAMES, inner, inner[::2], inner[1::2]]
    assert any([*tight.layers] == line[: len(tight.layers)] for line in lines)
    fewer = judge(network(), "mse", "sgd", *SPECS, tight.layers[:-1], **CHEAP)
    assert fewer.peak > tight.budget
    assert fewer.overhead < tight.judged.overhead


def test_a_real_fit_has_the_predicted_peak(tight: Exported) -> None:
    model = network()
    tight.apply(model)
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((tf.ones([2048, 32]), tf.ones([2048, 32]))).repeat(2)
    model.fit(data, shuffle=False, verbose=0)
    peaks = []
    for _ in range(4):  # TensorFlow starts ops in another order in each run
        with checkmate.tf2.memory_meter(model.variables, tf.ones([2, 2048, 32])) as meter:
            model.fit(data, shuffle=False, verbose=0)
        peaks.append(meter.peak)
    assert 0.8 * tight.judged.peak <= min(peaks) <= 1.05 * tight.judged.peak
    assert min(peaks) < 0.6 * tight.plain.peak


def test_cheap_activations_come_first() -> None:
    cheap = found("80%")
    assert cheap.judged.policy.activations
    assert cheap.judged.in_scope
    assert cheap.judged.overhead < 0.02


def test_nothing_runs_again_within_the_plain_peak() -> None:
    all_kept = found("100%")
    assert (all_kept.layers, all_kept.judged, all_kept.judged.overhead) == ((), all_kept.plain, 0)
    assert "Nothing" in all_kept.text


def test_a_budget_that_no_list_meets_names_the_least_peak(tight: Exported) -> None:
    with pytest.raises(RematError, match=r"the least peak is .* MiB, remat of . layers.*may need less"):
        found("10%")


def test_layers_that_draw_numbers_are_left_out() -> None:
    with pytest.raises(RematError, match="random numbers are left out, such as 'block_0'"):
        export(network(0.1), "mse", "sgd", *SPECS, "10%", time_limit=0, **CHEAP)


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of keras-remat"):
        found("50%", target="sac")


def test_plain_values_have_the_prediction(tight: Exported) -> None:
    facts = tight.to_dict()
    assert facts["layers"] == [*tight.layers]
    assert (facts["peak"], facts["own_overhead"]) == (tight.judged.peak, tight.best_overhead)
    assert "our own schedule: +" in str(tight)
    assert np.isfinite(facts["bound"])
