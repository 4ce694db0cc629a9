"""Functions that are hard to trace: planned, they have the same results and effects as unplanned."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate.tf2
from checkmate import InfeasibleBudgetError

CHEAP: dict[str, Any] = {"cost_model": "flops", "workspaces": False, "time_limit": 1, "cache": False}
Case = tuple[Callable[..., Any], tuple[Any, ...], list[Any]]
"""A function, its arguments, and the variables that it may change."""
Pair = namedtuple("Pair", ["first", "second"])
X = tf.reshape(tf.linspace(-1.0, 1.0, 64 * 32), [64, 32])
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def weight(size: int = 32, seed: int = 0) -> tf.Variable:
    return tf.Variable(tf.random.stateless_normal([size, size], [seed, 1]) / size**0.5)


def deep(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    """Layers whose activations can be kept or recomputed."""
    for _ in range(4):
        x = tf.nn.gelu(x @ w) + x
    return tf.reduce_mean(x**2)


@case
def recurrent() -> Case:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input([3, 32]),
            keras.layers.LSTM(16, recurrent_dropout=0.2),
            keras.layers.Dense(1),
        ]
    )

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        for v, g in zip(model.trainable_variables, gradients, strict=True):
            v.assign(v - 0.1 * g)
        return loss, gradients

    return step, (tf.reshape(tf.tile(X, [3, 1]), [64, 3, 32]),), model.variables


@case
def loops_and_branches() -> Case:
    w, seen = weight(), tf.Variable(0)

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            _, y = tf.while_loop(lambda k, _: k < 3, lambda k, y: (k + 1, tf.tanh(y @ w)), (0, x))
            y = tf.cond(tf.reduce_sum(y) > 0, lambda: y @ w, lambda: tf.sin(y @ w))
            tf.cond(tf.reduce_sum(y) > 0, lambda: seen.assign_add(1), lambda: seen.assign_add(10))
            y = tf.switch_case(seen % 3, [lambda: y, lambda: tf.sin(y), lambda: y @ w])
            loss = deep(y, w)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return step, (X,), [w, seen]


@case
def seeds() -> Case:
    w, generator = weight(), tf.random.Generator.from_seed(1)

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            y = tf.nn.dropout(x @ w, 0.5) + tf.random.uniform([64, 32]) + tf.random.normal([32], seed=3)
            y = y * generator.normal([64, 32]) + generator.uniform([64, 32])
            loss = deep(y, w)
        return loss, tape.gradient(loss, w), generator.normal([2])

    return step, (X,), [w, generator.state]


@case
def reads_after_writes() -> Case:
    w, total, big = weight(64), tf.Variable(0.0), tf.Variable(tf.zeros([64, 64]))

    def step(x: tf.Tensor) -> Any:
        x = tf.reshape(x, [32, 64])
        before = big.read_value()
        first = deep(x @ big, w)
        big.assign(w * 2)
        after = big + 1
        total.assign_add(first)
        big.assign_add(before)
        big[3].assign(tf.ones([64]))
        second = deep(x @ big, w) + total
        big.scatter_nd_sub([[1, 1]], [5.0])
        big.assign(big * 0.5)
        total.assign(second)
        return before, after, first, second, big.read_value(), big, total.value()

    return step, (X,), [w, total, big]


@case
def several_tapes() -> Case:
    w = weight()

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape(persistent=True) as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = deep(x, w)
            slope = inner.gradient(loss, x)
            penalty = tf.reduce_sum(slope**2)
        return penalty, outer.gradient(penalty, w), outer.gradient(loss, w), outer.jacobian(slope[0, :2], w)

    return step, (X,), [w]


@case
def custom_gradients() -> Case:
    w = weight()

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def clipped(x: tf.Tensor) -> Any:
        return tf.sin(x), lambda g: tf.clip_by_norm(g * tf.cos(x), 0.1)

    @tf.recompute_grad  # type: ignore[untyped-decorator]
    def block(x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(x @ w) @ w

    @tf.function  # type: ignore[untyped-decorator]
    def nested(x: tf.Tensor) -> tf.Tensor:
        return block(clipped(x @ w))

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = deep(nested(nested(x)), w)
        return loss, tape.gradient(loss, w)

    return step, (X,), [w]


@case
def all_kinds_of_outputs() -> Case:
    w, table = weight(), tf.Variable(tf.random.stateless_normal([300, 32], [1, 1]))

    def step(x: tf.Tensor, ids: tf.Tensor, number: int, name: str) -> Any:
        with tf.GradientTape() as tape:
            loss = deep(tf.gather(table, ids) + x[: ids.shape[0]], w)
        sparse = tape.gradient(loss, table)
        return {
            "b": Pair(loss, [loss, None, x]),
            "a": (w, table.handle.shape, sparse, number, name),
            "constant": tf.constant([1, 2]),
            "empty": tf.zeros([0, 3]) + number,
            "nothing": None,
            "dup": (x, x, x + 1),
        }

    return step, (X, tf.constant([5, 7, 5]), 3, "name"), [w, table]


@case
def all_kinds_of_dtypes() -> Case:
    w = weight()
    flags = tf.Variable(tf.zeros([64, 32], tf.bool))

    def step(x: tf.Tensor, words: tf.Tensor) -> Any:
        flags.assign(tf.logical_or(flags, x > 0))
        small = tf.cast(x * 100, tf.int8)
        spectrum = tf.signal.fft(tf.cast(x, tf.complex64) * tf.complex(0.0, 1.0))
        joined = tf.strings.join([words, tf.strings.as_string(small[0, :3])], ":")
        with tf.GradientTape() as tape:
            loss = deep(tf.math.real(spectrum) + tf.cast(small, tf.float32), w)
        many = tf.tile(joined, [800])
        return loss, tape.gradient(loss, w), joined, tf.strings.length(many), tf.cast(x, tf.bfloat16), small

    return step, (X, tf.constant(["a", "bb", "ccc"])), [w, flags]


@case
def captured_tables_and_datasets() -> Case:
    w = weight()
    keys = tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([1, 2], tf.int64))
    table = tf.lookup.StaticHashTable(keys, -1)
    changing = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    data = iter(tf.data.Dataset.range(10).map(lambda k: tf.cast(k, tf.float32)))

    def step(x: tf.Tensor, words: tf.Tensor) -> Any:
        found = table.lookup(words)
        changing.insert(found, changing.lookup(found) + 1.0)
        scale = data.get_next() + tf.reduce_sum(changing.lookup(found))
        loss = deep(x * scale, w)
        loss += tf.data.Dataset.range(3).reduce(0.0, lambda a, k: a + tf.cast(k, tf.float32))
        return loss, found, changing.size()

    return step, (X, tf.constant(["a", "c"])), [w]


@case
def keywords_and_numbers() -> Case:
    w = weight()

    def step(x: tf.Tensor, *more: tf.Tensor, scale: float, options: dict[str, Any]) -> Any:
        y = x * scale if options["double"] else x
        return deep(y + more[0] + options["bias"], w), tf.constant(2.0) * scale

    def call(x: tf.Tensor) -> Any:
        return planned(x, np.float32(1), scale=0.5, options={"double": True, "bias": np.ones(32, "f4")})

    planned = step
    return call, (X,), [w]


@case
def sizes_that_depend_on_data() -> Case:
    w = weight()

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            y = tf.tanh(x @ w)
            chosen = tf.boolean_mask(y, y > 0)
            values, index = tf.unique(tf.cast(tf.reshape(x, [-1]) * 10, tf.int32))
            ragged = tf.RaggedTensor.from_row_lengths(tf.repeat(chosen, 2)[:10], [3, 0, 7])
            sparse = tf.sparse.from_dense(tf.nn.relu(y))
            loss = tf.reduce_sum(chosen) + tf.reduce_sum(ragged) + tf.sparse.reduce_sum(sparse) + deep(y, w)
        w.assign_sub(1e-4 * tape.gradient(loss, w))
        return loss, values, index, ragged, sparse

    return step, (X,), [w]


@case
def arrays_maps_and_calls_that_stay() -> Case:
    w, count = weight(), tf.Variable(0)

    @tf.function(experimental_attributes={"_noinline": True})  # type: ignore[untyped-decorator]
    def counted(x: tf.Tensor) -> tf.Tensor:
        count.assign_add(1)
        return tf.sin(x @ w) * tf.cast(count, tf.float32)

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            array = tf.TensorArray(tf.float32, 3)
            for k in range(3):
                array = array.write(k, counted(x) + k)
            y = tf.reduce_mean(array.stack(), 0)
            y = tf.map_fn(lambda row: row * tf.reduce_sum(row), y)
            y += tf.vectorized_map(lambda row: tf.sin(row) + tf.reduce_max(row), y)
            y = tf.scan(lambda a, b: 0.5 * a + b, y)
            loss = deep(y, w)
        return loss, tape.gradient(loss, w), count.read_value()

    return step, (X,), [w, count]


@case
def variables_of_the_first_call() -> Case:
    held: dict[str, tf.Variable] = {}

    def step(x: tf.Tensor) -> Any:
        if not held:
            held["w"] = weight(seed=2)
            held["n"] = tf.Variable(0)
        held["n"].assign_add(1)
        with tf.GradientTape() as tape:
            loss = deep(x, held["w"])
        held["w"].assign_sub(tape.gradient(loss, held["w"]))
        return loss, held["n"]

    return step, (X,), []


@case
def one_large_update_after_another() -> Case:
    a, b = weight(64), weight(64, seed=1)

    def step(x: tf.Tensor) -> Any:
        x = tf.reshape(x, [32, 64])
        swap = tf.identity(a)
        a.assign(b)
        b.assign(swap)
        c = a @ b
        a.assign_add(c)
        kept = [a.read_value()]
        for _ in range(3):
            b.assign(tf.sin(a) + b)
            a.assign(tf.cos(b))
            kept.append(a + b)
        return kept, deep(x, a), a.sparse_read([1, 2]), tf.gather(b, [0])

    return step, (X,), [a, b]


@case
def tensors_of_unknown_rank() -> Case:
    w = weight(64)

    def step(x: tf.Tensor) -> Any:
        x = tf.reshape(x, [32, 64])
        with tf.GradientTape() as tape:
            made = tf.nn.relu(tf.numpy_function(lambda a: 2 * a, [x], tf.float32))
            loss = tf.reduce_sum(deep(tf.reshape(made, [32, 64]) + x, w))
        return loss, tape.gradient(loss, w), tf.shape(tf.concat([made, made], 0))

    return step, (X,), [w]


def after(function: Callable[..., Any], args: tuple[Any, ...], variables: list[Any]) -> list[Any]:
    """The results of some calls, and the variables after them."""
    results = [function(*args) for _ in range(3)]
    leaves = tf.nest.flatten([results, variables], expand_composites=True)
    return [np.asarray(v.numpy() if hasattr(v, "numpy") else v) for v in leaves]


def tight(fn: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """The least budget known to work, from the error for one that does not."""
    with pytest.raises(InfeasibleBudgetError) as caught:
        checkmate.tf2.function(fn, budget="1 B", **CHEAP).plan(*args)
    assert caught.value.minimum is not None
    return caught.value.minimum


@pytest.mark.parametrize("name", CASES)
def test_results_and_state_are_those_of_the_plain_function(name: str) -> None:
    tf.random.set_seed(7)
    plain, args, variables = CASES[name]()
    expected = after(tf.function(plain), args, variables)
    budgets: list[Any] = ["100%", tight(CASES[name]()[0], args)]
    for budget in budgets:
        tf.random.set_seed(7)
        fn, args, variables = CASES[name]()
        found = after(checkmate.tf2.function(fn, budget=budget, **CHEAP), args, variables)
        assert len(found) == len(expected)
        for a, b in zip(expected, found, strict=True):
            assert a.dtype == b.dtype
            if a.dtype.kind in "fcV":
                a, b = a.astype(np.complex128), b.astype(np.complex128)
                assert np.allclose(a, b, rtol=1e-4, atol=1e-5), (budget, np.abs(a - b).max())
            else:
                assert np.array_equal(a, b), budget


def test_effects_happen_once_and_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    w = weight()

    def note(name: str, x: tf.Tensor) -> tf.Tensor:
        def noted(x: Any) -> Any:
            seen.append(name)
            return x * 2

        return tf.ensure_shape(tf.py_function(noted, [x], x.dtype), x.shape)

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            y = note("a", tf.tanh(x @ w))
            tf.print("printed", tf.reduce_sum(y) > 1e9)
            y = note("b", tf.tanh(y @ w))
            tf.debugging.assert_less(y, 1e9)
            tf.numpy_function(lambda: seen.append("c") or np.int32(0), [], tf.int32)
            loss = deep(y, w)
        gradient = tape.gradient(loss, w)
        note("d", loss)
        w.assign_sub(gradient)
        tf.print("and printed")
        return loss

    planned = checkmate.tf2.function(step, budget=tight(step, (X,)), **CHEAP)
    seen.clear()
    planned(X)
    assert planned.plans[-1].solution.overhead > 0
    assert seen == ["a", "b", "c", "d"]
    assert capfd.readouterr().err.splitlines()[-2:] == ["printed 0", "and printed"]
