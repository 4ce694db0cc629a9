"""PyTorch's own databases of modules and operators, trained within the least budget on the CPU.

    python benchmarks/torch_databases.py                    # both, half an hour
    python benchmarks/torch_databases.py nn.LSTM softmax    # names with one of these words

Of each entry, the first sample whose results have gradients is trained plainly and within the least budget
that Checkmate names. Results and gradients must have the bits of plain PyTorch, or those of
``torch.compile(backend="aot_eager")``, and the measured peak must be within the budget. What that backend
can't capture either is left out. Exit code 1: an entry that is not in ``KNOWN`` failed.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import checkmate
import checkmate_torch
from checkmate_torch.costs.meter import memory_meter
from faults.fault import in_time

KNOWN: Mapping[str, str] = {"combinations": "the number of its results depends on data"}
"""Name → the reason why an entry is refused."""

_LIMIT_S = 120
_SETTINGS: dict[str, Any] = {"cost_model": "flops", "time_limit": 2.0, "cache": False}


class Around(nn.Module):
    """A function or module between activations that a plan may drop; returns a loss."""

    def __init__(self, inner: Callable[..., object], spec: Any, others: Sequence[object]) -> None:
        super().__init__()
        self.inner, self.spec, self.others = inner, spec, others

    def forward(self, *tensors: Tensor) -> Tensor:
        """The sum of all outputs of the inner function; tensors take the places of None in its arguments."""
        given = iter(tensors)
        leaves = [next(given) * 1 if other is None else other for other in self.others]
        args, kwargs = tree_unflatten(leaves, self.spec)
        found = [x for x in tree_leaves(self.inner(*args, **kwargs)) if _differentiable(x)]
        return torch.stack([x.abs().tanh().sum().to(torch.float32) for x in found]).sum()


@dataclass(frozen=True, slots=True)
class Sample:
    """One call: a function of tensors that need gradients, and those tensors."""

    name: str
    make: Callable[[], tuple[nn.Module, list[Tensor]]]


def samples(words: Sequence[str]) -> Iterator[Sample]:
    """The first usable sample of each entry, all entries whose names have one of the words."""
    for info in module_db:
        if _chosen(info.name, words) and not info.is_lazy:
            calls = list(_module_calls(info))
            yield from _first(f"{info.name}", calls)
    for info in op_db:
        name = f"{info.name}.{info.variant_test_name}".rstrip(".")
        if _chosen(name, words) and info.supports_autograd and info.supports_dtype(torch.float32, "cpu"):
            yield from _first(name, _op_calls(info))


def main(words: Sequence[str]) -> int:
    """Train all samples, print what differs and a summary; returns the exit code."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    unknown = 0
    with suppress(KeyboardInterrupt):  # then the summary of what was done
        for sample in samples(words):
            said, _, why = judged(sample).partition(": ")
            counts[sample.name.startswith("nn.") and sample.name[3].isupper()][said] += 1
            wrong = said not in ("equal bits", "bits of aot_eager", "not captured by PyTorch")
            unknown += wrong and sample.name not in KNOWN
            if wrong:
                print(f"{sample.name}: {said}: {why} {KNOWN.get(sample.name, '')}", flush=True)
    for modules, title in ((True, "module_db"), (False, "op_db")):
        found = ", ".join(f"{count} × {said}" for said, count in counts[modules].most_common())
        print(f"{title}: {counts[modules].total()} entries: {found}")
    return 1 if unknown else 0


def judged(sample: Sample) -> str:
    """The answer of one sample, and the reason after a colon."""
    torch._dynamo.reset()
    try:
        with in_time(_LIMIT_S):
            return _judged(sample)
    except checkmate.CheckmateError as refusal:
        return f"refused: {type(refusal).__name__}: {' '.join(str(refusal).split())[:200]}"
    except Exception as failure:  # noqa: BLE001 - the answer of this sample
        return f"failed: {type(failure).__name__}: {' '.join(str(failure).split())[:200]}"


def _judged(sample: Sample) -> str:
    plain, _ = _trained(sample, lambda model: model)
    if not _same(plain, _trained(sample, lambda model: model)[0]):
        return "not captured by PyTorch: it differs from run to run"
    try:
        traced, _ = _trained(sample, lambda model: torch.compile(model, backend="aot_eager", fullgraph=True))
    except Exception as failure:  # noqa: BLE001 - PyTorch's, not ours
        return f"not captured by PyTorch: {type(failure).__name__}"
    torch._dynamo.reset()
    budget = _least(sample)
    ours, peak = _trained(
        sample, lambda model: checkmate_torch.compile(model, budget, **_SETTINGS), meter=True
    )
    if peak > budget:
        return f"over the budget: {peak} of {budget} bytes"
    if _same(ours, plain):
        return "equal bits"
    return "bits of aot_eager" if _same(ours, traced) else "other results"


def _least(sample: Sample) -> int:
    """The least budget that Checkmate names."""
    try:
        _trained(sample, lambda model: checkmate_torch.compile(model, "1B", **_SETTINGS))
    except checkmate.InfeasibleBudgetError as error:
        if error.minimum is None:
            raise
        return error.minimum
    return 1


def _trained(
    sample: Sample, door: Callable[[nn.Module], Any], *, meter: bool = False
) -> tuple[list[Tensor | None], int]:
    """The loss, the gradients and the buffers after one step; the peak of a second one if it is metered."""
    model, tensors = sample.make()
    run = door(model)

    def step() -> Tensor:
        for x in (*tensors, *model.parameters()):
            x.grad = None
        torch.manual_seed(0)
        loss: Tensor = run(*tensors)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    loss = step()
    gradients = [None if x.grad is None else x.grad.clone() for x in (*tensors, *model.parameters())]
    results = [loss, *gradients, *(b.clone() for b in model.buffers())]
    if not meter:
        return results, 0
    for x in (*tensors, *model.parameters()):
        x.grad = None
    del gradients, loss
    with memory_meter(model, tensors, tree_leaves(model.others)) as measured:
        step()
    return results, int(measured.peak)


def _same(first: Sequence[Tensor | None], second: Sequence[Tensor | None]) -> bool:
    if [x is None for x in first] != [x is None for x in second]:
        return False
    pairs = ((x, y) for x, y in zip(first, second, strict=True) if x is not None and y is not None)
    return all(x.shape == y.shape and _bits(x) == _bits(y) for x, y in pairs)


def _bits(x: Tensor) -> bytes:
    dense = x.to_dense() if x.layout != torch.strided else x
    return bytes(dense.contiguous().resolve_conj().resolve_neg().view(-1).view(torch.uint8).numpy().tobytes())


def _chosen(name: str, words: Sequence[str]) -> bool:
    return not words or any(word in name for word in words)


def _differentiable(x: object) -> bool:
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex()) and x.requires_grad


def _first(name: str, calls: Sequence[Callable[[], tuple[nn.Module, list[Tensor]]]]) -> Iterator[Sample]:
    """The first call whose loss has a gradient."""
    for make in calls[:8]:
        try:
            torch.manual_seed(0)
            model, tensors = make()
            model(*tensors).backward()  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - PyTorch can't differentiate this sample
            continue
        yield Sample(name, make)
        return


def _module_calls(info: Any) -> list[Callable[[], tuple[nn.Module, list[Tensor]]]]:
    def call(number: int) -> Callable[[], tuple[nn.Module, list[Tensor]]]:
        def make() -> tuple[nn.Module, list[Tensor]]:
            torch.manual_seed(0)
            inputs = _module_inputs(info)[number]
            module = info.module_cls(*inputs.constructor_input.args, **inputs.constructor_input.kwargs)
            return _around(module, inputs.forward_input.args, inputs.forward_input.kwargs)

        return make

    return [call(number) for number in range(len(_module_inputs(info)))]


def _module_inputs(info: Any) -> list[Any]:
    made = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=True)
    return [x for x in made if x.forward_input is not None]


def _op_calls(info: Any) -> list[Callable[[], tuple[nn.Module, list[Tensor]]]]:
    def call(number: int) -> Callable[[], tuple[nn.Module, list[Tensor]]]:
        def make() -> tuple[nn.Module, list[Tensor]]:
            sample = _op_samples(info)[number]
            return _around(info.op, (sample.input, *sample.args), sample.kwargs)

        return make

    return [call(number) for number in range(min(8, len(_op_samples(info))))]


def _op_samples(info: Any) -> list[Any]:
    torch.manual_seed(0)
    return list(info.sample_inputs("cpu", torch.float32, requires_grad=True))


def _around(
    inner: Any, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[nn.Module, list[Tensor]]:
    leaves, spec = tree_flatten((tuple(args), dict(kwargs)))
    tensors = [x.detach().requires_grad_() for x in leaves if _differentiable(x)]
    return Around(inner, spec, [None if _differentiable(x) else x for x in leaves]), tensors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
