"""Run generated code of a whole step as one CUDA graph: its kernels are launched together, without a host.

    call with new numbers      run as it is, on the graph's stream
    second call with them      capture, then replay
    further calls              copy the batch in, replay, copy the results out

A graph repeats the numbers and the addresses that it was captured with. So everything that the code reads on
the host is compared before each call: numbers of the optimizer, addresses of its tensors, of parameters and
of buffers. A step that counts on the host is therefore never captured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor

from checkmate import UnsupportedModelError
from checkmate_torch.private import Boxed, mark_boxed

__all__ = ["CudaGraphs", "RandomPoints", "Recorder", "Recording", "graphed", "host_side", "recorder_on"]

_log = logging.getLogger(__name__)
_PATIENCE = 8
"""Calls in a row with new numbers until one warning says so."""


class Recording(Protocol):
    """Kernels that were captured, and the results that each replay overwrites."""

    @property
    def results(self) -> Sequence[Any]:
        """The results, at their addresses."""
        ...

    def replay(self) -> None:
        """Launch the kernels."""
        ...


class Recorder(Protocol):
    """A device that captures; tests have one for the CPU."""

    @property
    def generator(self) -> torch.Generator:
        """The random generator of the device."""
        ...

    @contextmanager
    def drawing_from(self, generator: torch.Generator) -> Iterator[None]:
        """Within the block, random ops draw from another generator."""
        ...

    def run(self, code: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Run as it is, where captured code will run."""
        ...

    def record(self, code: Callable[[], Sequence[Any]], generators: Sequence[torch.Generator]) -> Recording:
        """Capture code that draws from these generators, besides the device's own."""
        ...

    def is_recording(self) -> bool:
        """Whether code is being captured."""
        ...

    def offset(self) -> int:
        """How far the device's generator is."""
        ...

    def wind(self, generator: torch.Generator, offset: int) -> None:
        """Let a generator draw what the device's generator will draw after ``offset`` more numbers."""
        ...


@dataclass(kw_only=True, eq=False)
class RandomPoint:
    """The place of a random op's first run; generated code calls it right before.

    Attributes:
        recorder: the device.
        again: a generator for each further run of the op.
        offset: how far the device's generator is there.
    """

    recorder: Recorder
    again: list[torch.Generator] = field(default_factory=list)
    offset: int = 0
    __name__: ClassVar[str] = "random_point"

    def __call__(self) -> None:
        """Note the random state for further runs; a captured step keeps what was noted when it ran."""
        if not self.recorder.is_recording():
            self.offset = self.recorder.offset()
            state = self.recorder.generator.get_state()
            for generator in self.again:
                generator.set_state(state)

    def further_run(self) -> RandomRun:
        """The next further run of the op."""
        self.again.append(self.recorder.generator.clone_state())
        return RandomRun(recorder=self.recorder, generator=self.again[-1])


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomRun:
    """A further run of a random op, with the numbers of its first run."""

    recorder: Recorder
    generator: torch.Generator
    __name__: ClassVar[str] = "random_run"

    def __call__(self, op: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run the op; the device's generator is left as it is."""
        with self.recorder.drawing_from(self.generator):
            return op(*args, **kwargs)


class RandomPoints:
    """The random ops of one step that run more than once."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._points: dict[int, RandomPoint] = {}
        self._start = 0

    def first_run(self, op: int) -> RandomPoint:
        """What generated code calls before the first run of an op."""
        self._points[op] = RandomPoint(recorder=self.recorder)
        return self._points[op]

    def further_run(self, op: int) -> RandomRun:
        """What generated code calls to run an op again."""
        return self._points[op].further_run()

    @property
    def generators(self) -> list[torch.Generator]:
        """The generators of all further runs."""
        return [generator for point in self._points.values() for generator in point.again]

    def start(self) -> None:
        """Note how far the generator is before a step that is run as it is."""
        self._start = self.recorder.offset()

    def wind(self) -> None:
        """Let each further run draw in the next replay what its first run will draw."""
        for point in self._points.values():
            for generator in point.again:
                self.recorder.wind(generator, point.offset - self._start)


@dataclass(kw_only=True, eq=False)
class CudaGraphs:
    """A step that is captured, and captured again when a number or an address has changed.

    Attributes:
        run: the generated code, which takes a list and empties it.
        points: its random ops that run more than once.
        static: arguments, by number, that are read at their own addresses: parameters and buffers.
        copied: results, by number, that the caller copies at once.
        reads: what the code reads on the host.
        captures: the number of captures so far.
    """

    run: Boxed
    points: RandomPoints
    static: frozenset[int]
    copied: frozenset[int]
    reads: Callable[[], Hashable]
    captures: int = 0
    _key: Hashable = None
    _changes: int = 0
    _recording: Recording | None = None
    _inputs: dict[int, Tensor] = field(default_factory=dict)

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Train one step; the results are the caller's to keep."""
        given = list(args)
        args.clear()
        key = (self.reads(), *map(self._read_on_host, range(len(given)), given))
        if key != self._key:
            self._key, self._recording, self._inputs = key, None, {}
            self._note_change()
            self.points.start()
            return self.points.recorder.run(partial(self._run_on, given))
        self._changes = 0
        if self._recording is None:
            self._recording = self._recorded(given)
        else:
            for k, kept in self._inputs.items():
                kept.copy_(given[k])
        self.points.wind()
        self._recording.replay()
        results = enumerate(self._recording.results)
        return [x.clone() if isinstance(x, Tensor) and k not in self.copied else x for k, x in results]

    def _recorded(self, given: Sequence[Any]) -> Recording:
        """Capture the code on copies of the batch; nothing is computed."""
        passed = ((k, x) for k, x in enumerate(given) if isinstance(x, Tensor) and k not in self.static)
        self._inputs = {k: x.detach().clone() for k, x in passed}
        self.captures += 1
        code = partial(self._run_on, [self._inputs.get(k, x) for k, x in enumerate(given)])
        try:
            return self.points.recorder.record(code, self.points.generators)
        except RuntimeError as error:
            said = str(error).partition("\n")[0]
            raise UnsupportedModelError(
                f"the step could not be captured as one CUDA graph ({said}): an op or the optimizer reads a "
                "number on the host; say cuda_graph=False"
            ) from error

    def _run_on(self, static: Sequence[Any]) -> Sequence[Any]:
        return cast("Sequence[Any]", self.run(list(static)))

    def _read_on_host(self, k: int, x: object) -> Hashable:
        if isinstance(x, Tensor):
            return x.data_ptr() if k in self.static else None
        return host_side(x)

    def _note_change(self) -> None:
        self._changes += 1
        if self._changes == _PATIENCE:
            _log.warning(
                "%d steps in a row ran without a CUDA graph, as numbers that a graph can't read changed "
                "before each: pass the learning rate as a tensor on the GPU, "
                "lr=torch.tensor(1e-3, device='cuda')",
                _PATIENCE,
            )


def graphed(
    run: Boxed,
    *,
    points: RandomPoints,
    static: frozenset[int],
    copied: frozenset[int],
    reads: Callable[[], Hashable],
) -> Boxed:
    """Generated code that is captured; arguments as the attributes of :class:`CudaGraphs`."""
    graphs = CudaGraphs(run=run, points=points, static=static, copied=copied, reads=reads)
    return mark_boxed(lambda args: graphs(args))


def host_side(value: object) -> Hashable:
    """What code on the host reads of a value: numbers, and the addresses of tensors on other devices."""
    if isinstance(value, Tensor):
        if value.device.type == "cpu" and not value.dim():
            return value.item()
        return value.data_ptr()
    if isinstance(value, Mapping):
        return tuple((id(k) if isinstance(k, Tensor) else k, host_side(x)) for k, x in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(host_side, value))
    return value if isinstance(value, int | float | complex | str | None) else id(value)


class _CudaRecorder:
    """Captures on one GPU, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def generator(self) -> torch.Generator:
        return torch.cuda.default_generators[self.device.index or 0]

    @contextmanager
    def drawing_from(self, generator: torch.Generator) -> Iterator[None]:
        own, current = self.generator, self.generator.graphsafe_get_state()
        own.graphsafe_set_state(generator)
        try:
            yield
        finally:
            own.graphsafe_set_state(current)

    def run(self, code: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        caller = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(caller)
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            results = code()
        caller.wait_stream(self.stream)
        return results

    def record(
        self, code: Callable[[], Sequence[Any]], generators: Sequence[torch.Generator]
    ) -> _CudaRecording:
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        # It also frees the allocator's unused blocks: the graph's pool takes their place. Other threads, such
        # as those that pin batches, may go on.
        with (
            torch.cuda.device(self.device),
            torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"),
        ):
            results = code()
        return _CudaRecording(graph=graph, results=results)

    def is_recording(self) -> bool:
        return torch.cuda.is_current_stream_capturing()  # type: ignore[no-any-return,no-untyped-call,unused-ignore]

    def offset(self) -> int:
        return self.generator.get_offset()

    def wind(self, generator: torch.Generator, offset: int) -> None:
        generator.manual_seed(self.generator.initial_seed())
        generator.set_offset(self.generator.get_offset() + offset)


@dataclass(frozen=True, kw_only=True, eq=False)
class _CudaRecording:
    graph: torch.cuda.CUDAGraph
    results: Sequence[Any]

    def replay(self) -> None:
        self.graph.replay()


def recorder_on(device: torch.device) -> Recorder:
    """Captures on a GPU."""
    return _CudaRecorder(device)
