"""Habits around the training: evaluation, checkpoints, copies, wrappers, tools."""

from __future__ import annotations

import copy
import io
import tempfile
import threading
from contextlib import suppress

import torch
from torch import nn

from zoo.habits.habit import Door, Steps, batch, habit, mlp, of, sgd, square, trained

__all__: list[str] = []


@habit("evaluation under no_grad in between")
def evaluation(door: Door) -> Steps:
    model = mlp(4, nn.GELU, lambda: nn.Dropout(0.2))
    run = door(model)
    for results in trained(model, run):
        model.eval()
        with torch.no_grad():
            evaluated = run(batch(9)[0])
        model.train()
        yield [*results, evaluated]
        del evaluated


@habit("evaluation under inference_mode in between")
def inference(door: Door) -> Steps:
    model = mlp(4, nn.GELU, lambda: nn.BatchNorm1d(64))
    run = door(model)
    for results in trained(model, run):
        run.eval()
        with torch.inference_mode():
            evaluated = run(batch(9)[0]).sum().item()
        run.train()
        yield [*results, torch.tensor(evaluated)]


@habit("evaluation first")
def evaluation_first(door: Door) -> Steps:
    model = mlp()
    run = door(model)
    with torch.no_grad():
        run(batch(9)[0])
    yield from trained(model, run)


@habit("training in eval mode")
def eval_mode(door: Door) -> Steps:
    model = mlp(4, nn.GELU, lambda: nn.Dropout(0.2))
    run = door(model)
    model.eval()
    yield from trained(model, run)


@habit("switching between train and eval mode")
def switched(door: Door) -> Steps:
    model = mlp(4, nn.GELU, lambda: nn.Dropout(0.2))
    run = door(model)
    for step, results in enumerate(trained(model, run, steps=5)):
        run.train(step % 2 == 0)
        yield results


@habit("state_dict saved and loaded")
def state_dict(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step, results in enumerate(trained(model, run, optimizer, steps=4)):
        if step == 1:
            buffer = io.BytesIO()
            torch.save({"model": run.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
            buffer.seek(0)
            state = torch.load(buffer)
            run.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            del state
        yield results


@habit("load_state_dict(assign=True)")
def assigned(door: Door) -> Steps:
    model = mlp()
    run = door(model)
    run.load_state_dict({k: v * 0.5 for k, v in run.state_dict().items()}, assign=True)
    yield from trained(model, run)


@habit("a deep copy, trained too")
def deep_copy(door: Door) -> Steps:
    model = mlp()
    twin = copy.deepcopy(door(model))
    yield from trained(twin, twin)


@habit("torch.save of the whole model")
def whole_model(door: Door) -> Steps:
    model = mlp()
    run = door(model)
    yield from trained(model, run, steps=2)
    buffer = io.BytesIO()
    torch.save(run, buffer)
    buffer.seek(0)
    del run, model
    again = torch.load(buffer, weights_only=False)
    yield from trained(again, again)


@habit("parameters cast after compiling")
def cast(door: Door) -> Steps:
    model = mlp()
    run = door(model)
    yield from trained(model, run, steps=2)
    model.zero_grad()
    run.to(torch.float64)
    yield from trained(model, run, prepare=torch.Tensor.double)


@habit("a layer added after compiling")
def added_layer(door: Door) -> Steps:
    model = mlp()
    run = door(model)
    yield from trained(model, run, steps=2)
    model.zero_grad()
    model.append(nn.Linear(8, 8))
    yield from trained(model, run)


@habit("a layer replaced after compiling")
def replaced_layer(door: Door) -> Steps:
    model = mlp()
    run = door(model)
    yield from trained(model, run, steps=2)
    model.zero_grad()
    model[-1] = nn.Linear(64, 8)
    yield from trained(model, run)


@habit("weights initialised after compiling")
def initialised(door: Door) -> Steps:
    model = mlp()
    run = door(model)
    run.apply(lambda module: nn.init.normal_(module.weight) if isinstance(module, nn.Linear) else None)
    yield from trained(model, run)


@habit("the random state after the step")
def random_state(door: Door) -> Steps:
    model = mlp(4, nn.GELU, lambda: nn.Dropout(0.2))
    for results in trained(model, door(model)):
        yield [*results, torch.rand(4), torch.get_rng_state()]


@habit("a seed set before each step")
def seeded(door: Door) -> Steps:
    model = mlp(4, nn.GELU, lambda: nn.Dropout(0.2))
    torch.manual_seed(3)
    for results in trained(model, door(model)):
        yield results
        torch.manual_seed(3)


@habit("calling .forward instead of the module")
def forward_called(door: Door) -> Steps:
    model = mlp()
    yield from trained(model, door(model), call=lambda run, x: run.forward(x))


@habit("DistributedDataParallel of one rank")
def ddp(door: Door) -> Steps:
    from torch import distributed

    model = mlp()
    with tempfile.TemporaryDirectory() as folder:
        where = f"file://{folder}/store"
        distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
        try:
            wrapped = nn.parallel.DistributedDataParallel(door(model))
            yield from trained(model, wrapped)
        finally:
            distributed.destroy_process_group()


@habit("DataParallel (without a GPU: the module itself)")
def data_parallel(door: Door) -> Steps:
    model = mlp()
    yield from trained(model, nn.DataParallel(door(model)))


@habit("torch.compile around the planned model")
def compiled_outside(door: Door) -> Steps:
    model = mlp()
    yield from trained(model, torch.compile(door(model), backend="aot_eager"))


@habit("torch.compile on a planned model, in place")
def compiled_in_place(door: Door) -> Steps:
    model = mlp()
    run = door(model)
    run.compile(backend="aot_eager")
    yield from trained(model, run)


@habit("the planned model as a part of another")
def part(door: Door) -> Steps:
    body = mlp()[:-1]
    model = nn.Sequential(body, nn.Linear(64, 8))
    model[0] = door(body)
    yield from trained(model, model)


@habit("the profiler around a step")
def profiled(door: Door) -> Steps:
    model = mlp()
    run = door(model)
    yield from trained(model, run, steps=1)
    with torch.profiler.profile(profile_memory=True):
        (results,) = trained(model, run, steps=1)
    yield results
    yield from trained(model, run, steps=1)


@habit("the profiler around the first step")
def profiled_first(door: Door) -> Steps:
    model = mlp()
    run = door(model)
    with torch.profiler.profile():
        (results,) = trained(model, run, steps=1)
    yield results
    yield from trained(model, run)


@habit("training in another thread")
def threaded(door: Door) -> Steps:
    model = mlp()
    run = door(model)
    for _ in range(2):
        results: list[torch.Tensor] = []
        failures: list[BaseException] = []

        def work(results: list[torch.Tensor] = results, failures: list[BaseException] = failures) -> None:
            try:
                for of_step in trained(model, run, steps=1):
                    results.extend(of_step)
            except BaseException as failure:  # noqa: BLE001 - raised again below
                failures.append(failure)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        yield results
    yield from trained(model, run)


@habit("deterministic algorithms")
def deterministic(door: Door) -> Steps:
    model = mlp()
    torch.use_deterministic_algorithms(True)
    try:
        yield from trained(model, door(model))
    finally:
        torch.use_deterministic_algorithms(False)


@habit("an error in the first step, then another try")
def retried(door: Door) -> Steps:
    model = mlp()
    run = door(model)
    with suppress(RuntimeError, TypeError):
        run(torch.zeros(4, 63))
    yield from trained(model, run)


@habit("a summary by hooks, removed afterwards")
def summary(door: Door) -> Steps:
    model, shapes = mlp(), []
    handles = [
        m.register_forward_hook(lambda _m, _i, output: shapes.append(output.shape)) for m in model.modules()
    ]
    run = door(model)
    with torch.no_grad():
        run(batch(0)[0])
    for handle in handles:
        handle.remove()
    yield from trained(model, run)


@habit("gradients read and the graph dropped without a step")
def dropped(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)
        run(x)
        optimizer.zero_grad()
        loss = square(run(x), y)
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])
