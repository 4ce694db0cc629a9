# %% [markdown]
# # Five minutes with Keras
#
# You train a network within a byte budget: first with Keras' `fit`, then with a training loop of your own. Install Checkmate
# from a clone of the repository; without `[cpu]` it uses the TensorFlow that is installed:
#
# ```sh
# pip install './packages/checkmate-core[plot]' ./packages/checkmate-solvers './packages/checkmate-tf[cpu]'    # or [gpu]
# ```
#
# ## 1. A model

# %%
import keras
import numpy as np

keras.utils.set_random_seed(1)


def network() -> keras.Model:
    inputs = x = keras.Input((32, 32, 3))
    for channels in (16, 32, 32):
        for _ in range(2):
            x = keras.layers.Conv2D(channels, 3, padding="same")(x)
            x = keras.layers.BatchNormalization()(x)
            x = keras.layers.ReLU()(x)
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Dropout(0.2)(keras.layers.Flatten()(x))
    return keras.Model(inputs, keras.layers.Dense(10)(x))


images = np.random.default_rng(0).normal(size=(70, 32, 32, 3)).astype("float32")
labels = np.arange(70) % 10
model = network()
model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

# %% [markdown]
# ## 2. One more line, and `fit`

# %%
import checkmate

training = checkmate.tf2.enable(model, budget="70%")
history = model.fit(images, labels, batch_size=32, epochs=2, verbose=0)
history.history

# %% [markdown]
# For the first batch, Checkmate traces the step, times its ops and looks for a schedule. That takes some seconds, once: the
# measurements are kept on disk. From then on every step keeps the activations that the schedule keeps, and computes the others again
# when the backward pass needs them. Losses, gradients, batch norm's averages and dropout's masks equal those of the plain step.
#
# ## 3. What happened?
#
# There is a plan for batches of 32, and one for the last batch of 6. The report shows where every byte of the peak is.

# %%
print(training.report(plan=0))

# %% [markdown]
# The explanation lists the recomputed ops: times computed, bytes saved, extra seconds, and the peak if their results were kept.

# %%
print(training.explain(plan=0))

# %% [markdown]
# `training.save_report("step.html")` makes a page with pictures.
#
# The budget bounds everything that the step holds at once: variables, the optimizer's included, the batch, activations, gradients,
# workspaces. `"70%"` is a share of the peak of the plain step, without Checkmate; for a device you would write a size, such as
# `"8GiB"`; `"auto"`, the default, uses the memory that the device has left. Measure it:

# %%
batch = images[:32], labels[:32]
model.train_on_batch(*batch)  # Keras traces it at the first call
with checkmate.tf2.memory_meter(model, model.optimizer) as meter:
    model.train_on_batch(*batch)
budget = training.plans[0].solution.problem.budget
print(f"peak {meter.peak / 2**20:.1f} MiB, budget {budget / 2**20:.1f} MiB")

# %% [markdown]
# ## 4. A budget that is too low
#
# A budget that can't be met raises an error before any training. It names the lowest budget known to work, and the op that
# needs more.

# %%
checkmate.tf2.enable(model, budget="2 MB")
try:
    model.train_on_batch(*batch)
except checkmate.InfeasibleBudgetError as error:
    print(error)

# %% [markdown]
# `disable` restores the plain step:

# %%
checkmate.tf2.disable(model)
plain = model.fit(images, labels, batch_size=32, verbose=0)

# %% [markdown]
# Both steps over time, measured:

# %%
# %matplotlib inline
import matplotlib.pyplot as plt

model.train_on_batch(*batch)
with checkmate.tf2.memory_meter(model, model.optimizer) as plain_meter:
    model.train_on_batch(*batch)

for name, measured in {"plain": plain_meter, "within 70 %": meter}.items():
    plt.step(measured.times_s * 1e3, measured.bytes / 2**20, where="post", label=name)
plt.axhline(budget / 2**20, color="black", linewidth=0.8, linestyle="--", label="budget")
plt.xlabel("ms")
plt.ylabel("MiB held")
_ = plt.legend()

# %% [markdown]
# ## 5. A training loop of your own
#
# `checkmate.tf2.compile`, as in the original Checkmate, returns a function that trains on one batch:

# %%
import tensorflow as tf

model, optimizer = network(), keras.optimizers.SGD(0.01, momentum=0.9)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
train_iteration_fn = checkmate.tf2.compile(
    model,
    loss,
    optimizer,
    input_spec=tf.TensorSpec([32, 32, 32, 3], tf.float32),
    label_spec=tf.TensorSpec([32], tf.int64),
    budget="80%",
)
prediction, first = train_iteration_fn(*batch)
for _ in range(10):
    prediction, last = train_iteration_fn(*batch)
float(first), float(last)

# %% [markdown]
# [examples/keras_quick_start.py](../../examples/keras_quick_start.py) does the same with a data set. For other steps, such as several
# models, two optimizers or a gradient penalty, write a function that computes losses and gradients:


# %%
@checkmate.tf2.function(budget="80%")
def step(image: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        decay = tf.add_n([tf.nn.l2_loss(w) for w in model.trainable_variables])
        value = loss(label, model(image, training=True)) + 1e-4 * decay
    gradients = tape.gradient(value, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    return value


float(step(*batch))

# %% [markdown]
# ## Further
#
# - [Choose a budget](../how-to/choose-a-budget.md): which bytes count, and how low to go
# - [Train with Keras' `fit` within a budget](../how-to/train-with-keras-fit.md): callbacks, validation, mixed precision, limits
# - [TensorFlow API reference](../reference/tensorflow.md)
# - [How a TensorFlow step runs](../explanation/tensorflow.md): what is recomputed, and what never
