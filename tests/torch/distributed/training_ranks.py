"""One of two processes that train together: runs the scenes below and writes down their results.

    python training_ranks.py RANK FOLDER

Every scene is a function of the rank, run by both ranks; what it returns ends up in FOLDER/RANK.json. A DDP
module must die before its process group does, so each lives in a scene.
"""

from __future__ import annotations

import datetime
import gc
import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import checkpoint
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from checkmate import CheckmateError, Progress
from checkmate_torch import CompiledModule, StepPlan, compile, compile_step, enable, memory_meter
from checkmate_torch.private import capture_errors
from checkmate_torch.running.emit import emit
from checkmate_torch.running.fusing import measuring

# The second name is the one of PyTorch before 2.13.
all_gather = getattr(functional, "all_gather_single_autograd", None) or functional.all_gather_tensor_autograd
WIDTH, BATCH = 32, 256
PATIENCE = datetime.timedelta(seconds=60)
IMPATIENCE = datetime.timedelta(seconds=2)
progress: list[Progress] = []


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(dropout)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0, blocks: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(blocks))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Gathering(nn.Module):
    """Normalizes over the batches of all ranks, with collectives in the graph."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            h = block(x)
            whole = all_gather(h, gather_dim=0, group=dist.group.WORLD)
            x = h - whole.mean(0)
        return x


def batch(rank: int, size: int = BATCH) -> torch.Tensor:
    return torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(rank))


def planned(module: nn.Module, budget: str | int = "60%", **options: Any) -> CompiledModule:
    settings: dict[str, Any] = {"solver": "heuristics", "split": False, **options}  # pieces round
    return compile(module, budget, on_progress=progress.append, **settings)


def gradients(module: nn.Module, x: torch.Tensor, *, steps: int = 3) -> list[torch.Tensor]:
    """Of the last of some steps, by name of the parameter; all steps but the last change the parameters."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(steps):
        torch.manual_seed(step)
        module.zero_grad()
        module(x).square().mean().backward()
        if step < steps - 1:
            optimizer.step()
    return [whole(p.grad) for p in module.parameters() if p.grad is not None]


def whole(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone()


def same(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def plain_ddp(rank: int, dropout: float = 0.0) -> list[torch.Tensor]:
    return gradients(DistributedDataParallel(Net(dropout)), batch(rank))


def far_from_one_process(mine: list[torch.Tensor], blocks: int = 3) -> float:
    """The largest difference from training on both batches in one process, relative to the largest value."""
    alone = gradients(Net(blocks=blocks), torch.cat([batch(0), batch(1)]))
    far = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(mine, alone, strict=True)]
    return max(far)


def about(plan: StepPlan) -> dict[str, Any]:
    schedule, graph = plan.solution.schedule, plan.solution.problem.graph
    assert schedule is not None
    return {
        "schedule": hashlib.sha256(schedule.codes.tobytes()).hexdigest(),
        "graph": graph.digest,
        "cost": plan.solution.cost,
        "recomputes": plan.solution.timeline.recomputes if plan.solution.timeline else 0,
        "peak": plan.solution.peak,
        "budget": plan.solution.problem.budget,
    }


def ddp_around_compiled(rank: int) -> dict[str, Any]:
    progress.clear()
    net = Net(dropout=0.2)
    compiled = planned(net)
    ddp = DistributedDataParallel(compiled)
    mine, x = gradients(ddp, batch(rank)), batch(rank)
    ddp.zero_grad()
    with memory_meter(net, x) as meter:
        ddp(x).square().mean().backward()
    buckets = sum(p.nbytes for p in net.parameters())
    return {
        **about(compiled.plans[0]),
        "plans": len(compiled.plans),
        "worked": any(not each.step.startswith(("capturing", "tracing")) for each in progress),
        "measured": meter.peak + buckets,
        "same": same(mine, plain_ddp(rank, dropout=0.2)),
    }


def fused_inside_ddp(rank: int) -> dict[str, Any]:
    """Whatever can be fused is, if rank 0 says so: rank 1 measures that no kernel is worth it.

    One block, because each rank compiles its kernels.
    """
    measuring.seconds_alone = lambda _graph, _ops: (float("inf"), 0.0)[rank]
    compiled = planned(Net(blocks=1), "100%", lowering="inductor")
    ddp = DistributedDataParallel(compiled)
    mine = gradients(ddp, batch(rank))
    fusion = compiled.plans[0].fusion
    kernels = [] if fusion is None else [str(kernel) for kernel in fusion.kernels.values()]
    nodes = [str(node and node.target) for node in compiled.plans[0].traced.nodes]
    fused = kernels + [name for name in nodes if name.startswith("kernel")]
    return {**about(compiled.plans[0]), "kernels": fused, "far": far_from_one_process(mine, 1)}


def compiled_around_ddp(rank: int) -> dict[str, Any]:
    ddp = DistributedDataParallel(Net(), gradient_as_bucket_view=True)
    compiled = planned(ddp)
    mine = gradients(compiled, batch(rank))
    return {
        **about(compiled.plans[0]),
        "inner": type(ddp.module).__name__,
        "same": same(mine, plain_ddp(rank)),
        "far": far_from_one_process(mine),
    }


def accumulation_under_no_sync(rank: int) -> dict[str, Any]:
    def run(ddp: nn.Module, quiet: Callable[[], Any]) -> list[torch.Tensor]:
        for _ in range(2):
            ddp.zero_grad()
            for k, size in enumerate((BATCH, BATCH)):
                with quiet() if k == 0 else nullcontext():
                    ddp(batch(rank + 2 * k, size)).square().mean().backward()
        return [p.grad.clone() for p in ddp.parameters() if p.grad is not None]

    inner = DistributedDataParallel(Net())
    outer = planned(inner)
    plain = DistributedDataParallel(Net())
    return {"same": same(run(outer, inner.no_sync), run(plain, plain.no_sync)), "plans": len(outer.plans)}


def sharded_blocks(rank: int) -> dict[str, Any]:
    net = Net()
    for k, block in enumerate(net.blocks):
        net.blocks[k] = planned(block, "85%")
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)
    mine = gradients(net, batch(rank))
    return {
        **about(net.blocks[0].plans[0]),
        "plans": [len(block.plans) for block in net.blocks],
        "sharded": all(isinstance(p, DTensor) for p in net.parameters()),
        "same": same(mine, plain_ddp(rank)),
        "far": far_from_one_process(mine),
    }


def collectives_in_the_graph(rank: int) -> dict[str, Any]:
    def counted(module: nn.Module) -> tuple[list[str], list[torch.Tensor]]:
        gradients(module, batch(rank), steps=1)
        module.zero_grad()
        with torch.profiler.profile() as profiler:
            module(batch(rank)).square().mean().backward()
        ran = [e.name for e in profiler.events() if e.name.startswith("gloo:")]
        return sorted(ran), [p.grad for p in module.parameters() if p.grad is not None]

    def count(nodes: list[Any]) -> int:
        return sum("c10d" in str(node.target) and "wait" not in str(node.target) for node in nodes)

    compiled = planned(Gathering(), "60%")
    mine, theirs = counted(compiled), counted(Gathering())
    plan = compiled.plans[0]
    assert plan.solution.schedule is not None
    emitted = [n for part in emit(plan.traced, plan.solution.schedule) for n in part.graph.nodes]
    return {
        **about(plan),
        "traced": count(list(plan.traced.joint.graph.nodes)),
        "emitted": count(emitted),
        "ran": mine[0],
        "ran_plain": theirs[0],
        "same": same(mine[1], theirs[1]),
    }


def _failure(run: Callable[[], object]) -> dict[str, Any]:
    try:
        run()
    except (CheckmateError, capture_errors().backend) as error:
        return {"error": type(error).__name__, "says": str(error), "minimum": getattr(error, "minimum", None)}
    return {"error": None}


class Sharded:
    """A model that FSDP2 has sharded, and its training; with a budget it is enabled.

    ``planning`` are further settings of :func:`enable`, ``settings`` those of ``fully_shard``.
    """

    def __init__(
        self, budget: str | int | None, planning: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        self.net = Net(dropout=0.2, blocks=2)
        for block in self.net.blocks:
            fully_shard(block, **settings)
        fully_shard(self.net, **settings)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.training: Any = None
        if budget is not None:
            options: Any = {"optimizer": self.optimizer, "loss": squares, "time_limit": 0.5}
            self.training = enable(self.net, budget, solver="heuristics", **options, **(planning or {}))

    def step(self, x: torch.Tensor, *, micro: int = 1, waits: bool = False) -> list[torch.Tensor]:
        """The gradients of a step with its update; micro-batches may wait for the last to be reduced."""
        self.optimizer.zero_grad()
        for k in range(micro):
            self.net.set_requires_gradient_sync(k == micro - 1 or not waits)
            squares(self.net(x[k::micro])).backward()
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), 0.1)
        self.optimizer.step()
        return [local(p.grad) for p in self.net.parameters()] + [local(norm)]


def squares(y: torch.Tensor) -> torch.Tensor:
    return y.square().mean()


def local(x: torch.Tensor) -> torch.Tensor:
    return (x.to_local() if isinstance(x, DTensor) else x).clone()


def both_sharded(rank: int, steps: Callable[[Sharded], list[torch.Tensor]], **settings: Any) -> Sharded:
    """A planned model that did the same as a plain one, to the bit."""
    results = []
    for model in (plain := Sharded(None, **settings), enabled := Sharded("85%", **settings)):
        torch.manual_seed(rank)
        results.append(steps(model))
    assert same(*results), "gradients differ"
    pairs = zip(plain.net.parameters(), enabled.net.parameters(), strict=True)
    assert all(torch.equal(local(a), local(b)) for a, b in pairs), "parameters differ"
    return enabled


def whole_model_sharded(rank: int) -> dict[str, Any]:
    """Plain steps, an evaluation in between, and one more step, which is measured.

    The batch is so large that the copies that gloo's threads free late are less than 2 % of the peak.
    """
    x = batch(rank, 8 * BATCH)

    def steps(model: Sharded) -> list[torch.Tensor]:
        seen = model.step(x)
        with torch.no_grad():
            model.net(x)
        return seen + model.step(x)

    enabled = both_sharded(rank, steps)
    enabled.optimizer.zero_grad()
    with memory_meter(enabled.net, enabled.optimizer, x) as meter:
        squares(enabled.net(x)).backward()
    plan = enabled.training.plans[0]
    by_kind = {str(kind): size for kind, size in plan.by_kind.items()}
    return {
        "budget": plan.budget,
        "peak": plan.peak,
        "plain": plan.plain_peak,
        "measured": meter.peak,
        "extra": plan.overhead,
        "parts": [part.name for part in plan.parts],
        "schedules": [hashlib.sha256(p.schedule.codes.tobytes()).hexdigest() for p in plan.parts],
        "kinds": sorted(by_kind),
        "sum": sum(by_kind.values()),
        "plans": len(enabled.training.plans),
    }


def sharded_with_settings(rank: int) -> dict[str, Any]:
    """Gradients that wait for the last micro-batch or don't, bfloat16, parameters that stay gathered."""
    halves = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def accumulating(model: Sharded, *, waits: bool) -> list[torch.Tensor]:
        x = batch(rank)
        return model.step(x, micro=2, waits=waits) + model.step(x, micro=2, waits=waits)

    seen = [
        both_sharded(rank, lambda model: accumulating(model, waits=False)),
        both_sharded(rank, lambda model: accumulating(model, waits=True)),
        both_sharded(rank, lambda model: model.step(batch(rank)), mp_policy=halves),
        both_sharded(rank, lambda model: model.step(batch(rank)), reshard_after_forward=False),
    ]
    return {"extra": [max(plan.overhead for plan in model.training.plans) for model in seen]}


def sharded_and_uneven(rank: int) -> dict[str, Any]:
    model = Sharded("75%")
    return _failure(lambda: model.net(batch(rank, BATCH - 8 * rank)))


def sharded_and_hopeless(rank: int) -> dict[str, Any]:
    model = Sharded(1000)
    return _failure(lambda: model.net(batch(rank)))


def sharded_and_resumed(rank: int) -> dict[str, Any]:
    """A state that is saved, by state_dict and by a distributed checkpoint, and loaded into other models."""
    first, second, third = Sharded("75%"), Sharded("75%"), Sharded("75%")
    first.step(batch(rank))
    second.net.load_state_dict(first.net.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    folder = Path(sys.argv[2]) / "checkpoint"
    checkpoint.save(checkpointed(first), checkpoint_id=folder)
    loaded = checkpointed(third)
    checkpoint.load(loaded, checkpoint_id=folder)
    both = {"model_state_dict": loaded["model"], "optim_state_dict": loaded["optimizer"]}
    set_state_dict(third.net, third.optimizer, **both)
    seen = []
    for model in (first, second, third):
        torch.manual_seed(rank)
        seen.append(model.step(batch(rank)))
    return {"same": same(seen[0], seen[1]) and same(seen[0], seen[2])}


def checkpointed(model: Sharded) -> dict[str, Any]:
    """What a distributed checkpoint saves."""
    of_model, of_optimizer = get_state_dict(model.net, model.optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def sharded_and_alone(rank: int) -> dict[str, Any]:
    """Each rank plans for itself, and the last batch of one is smaller."""
    plain, enabled = Sharded(None), Sharded("85%", {"process_group": "alone"})
    seen = []
    for model in (plain, enabled):
        torch.manual_seed(rank)
        seen.append(model.step(batch(rank)) + model.step(batch(rank, BATCH - 64 * rank)))
    return {"same": same(*seen), "plans": len(enabled.training.plans)}


def sharded_and_rank_0_fails(rank: int) -> dict[str, Any]:
    model = Sharded("75%", {"cost_model": Broken()})
    return _failure(lambda: model.net(batch(rank)))


def uneven_batches(rank: int) -> dict[str, Any]:
    ddp = DistributedDataParallel(planned(Net()))
    return _failure(lambda: ddp(batch(rank, BATCH - 8 * rank)))


def uneven_batches_below_a_maximum(rank: int) -> dict[str, Any]:
    compiled = planned(Net(), dynamic=True)
    ddp, plain = DistributedDataParallel(compiled), DistributedDataParallel(Net())
    seen = []
    for size in (BATCH - 8 * rank, BATCH // 2 + rank):
        x = batch(rank, size)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=BATCH)  # noqa: TID251 - as users do
        seen.append(same(gradients(ddp, x, steps=1), gradients(plain, x, steps=1)))
    return {"same": all(seen), **about(compiled.plans[0]), "plans": len(compiled.plans)}


def settings_of_ddp(rank: int) -> dict[str, Any]:
    """Parameters that nothing reads, a graph that DDP may take as fixed, sums in half the bits."""

    def wrapped(net: nn.Module) -> list[nn.Module]:
        net.spare = nn.Linear(2, 2)
        odd = DistributedDataParallel(net, find_unused_parameters=True)
        fixed = DistributedDataParallel(Net() if type(net) is Net else planned(Net()), static_graph=True)
        fixed.register_comm_hook(None, fp16_compress_hook)
        return [odd, fixed]

    pairs = zip(wrapped(planned(Net())), wrapped(Net()), strict=True)
    return {"same": all(same(gradients(m, batch(rank)), gradients(p, batch(rank))) for m, p in pairs)}


def uneven_batches_alone(rank: int) -> dict[str, Any]:
    size = BATCH - 8 * rank
    ddp, plain = (DistributedDataParallel(net) for net in (planned(Net(), process_group="alone"), Net()))
    return {"same": same(gradients(ddp, batch(rank, size)), gradients(plain, batch(rank, size)))}


def _one_rank_only(rank: int, planning: int) -> dict[str, Any]:
    store = dist.distributed_c10d._get_default_store()
    store.set_timeout(IMPATIENCE)
    seen = _failure(lambda: planned(Net())(batch(rank))) if rank == planning else {"error": None}
    store.set_timeout(PATIENCE)
    # The other rank never asked; from here on they are in step again.
    store.add(f"checkmate/rounds/{1 - planning}", int(rank == 0))
    dist.barrier()
    return seen


def only_rank_0_plans(rank: int) -> dict[str, Any]:
    return _one_rank_only(rank, planning=0)


def only_rank_1_plans(rank: int) -> dict[str, Any]:
    return _one_rank_only(rank, planning=1)


def hopeless_budget(rank: int) -> dict[str, Any]:
    return _failure(lambda: planned(Net(), 1000, time_limit=0.5)(batch(rank)))


def different_budgets(rank: int) -> dict[str, Any]:
    compiled = planned(Net(), ("90%", "60%")[rank])
    compiled(batch(rank))
    plan = compiled.plans[0]
    return {**about(plan), "asked": round((0.9, 0.6)[rank] * plan.plain_bytes)}


class Broken:
    """A cost model that fails."""

    def annotate(self, graph: object) -> object:
        raise ValueError("no such device")


def rank_0_fails(rank: int) -> dict[str, Any]:
    compiled = compile(Net(), "60%", solver="heuristics", cost_model=Broken())
    return _failure(lambda: compiled(batch(rank)))


def split_by_dynamo(rank: int) -> dict[str, Any]:
    options = {"budget": "60%", "solver": "heuristics"}
    ddp = torch.compile(DistributedDataParallel(Net()), backend="checkmate", options=options)
    return _failure(lambda: ddp(batch(rank)))


def wrapped_the_other_way(rank: int) -> dict[str, Any]:
    net, block = Net(), Block()
    fully_shard(net.blocks[1])
    fully_shard(block)
    wrapped = {"part": net, "whole": block, "threads": nn.DataParallel(Net())}
    seen = {kind: _failure(lambda m=module: planned(m)(batch(rank))) for kind, module in wrapped.items()}
    ddp = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    return {
        **seen,
        "step": _failure(lambda: compile_step(ddp, lambda model, x: model(x).sum(), optimizer, "60%")),
    }


SCENES: tuple[Callable[[int], dict[str, Any]], ...] = (
    *((fused_inside_ddp,) if shutil.which("g++") else ()),
    ddp_around_compiled,
    compiled_around_ddp,
    accumulation_under_no_sync,
    sharded_blocks,
    collectives_in_the_graph,
    uneven_batches,
    uneven_batches_below_a_maximum,
    settings_of_ddp,
    uneven_batches_alone,
    only_rank_0_plans,
    only_rank_1_plans,
    hopeless_budget,
    different_budgets,
    rank_0_fails,
    split_by_dynamo,
    wrapped_the_other_way,
    whole_model_sharded,
    sharded_with_settings,
    sharded_and_uneven,
    sharded_and_hopeless,
    sharded_and_resumed,
    sharded_and_alone,
    sharded_and_rank_0_fails,
)


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=PATIENCE)
    seen = {}
    for scene in SCENES:
        torch.compiler.reset()
        seen[scene.__name__] = scene(rank)
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    gc.collect()  # no DDP module may outlive its process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
