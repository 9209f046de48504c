"""`torch.compile` for the repeated blocks of a denoiser, in a run's training passes.

What is replaced is a block's ``forward``, which lies inside of its hooks and of its checkpoint: a
swapped block's weights come before the compiled graph is called, and activations are computed again
by calling it once more. Blocks of one layout share their graphs, so that the time to compile does
not grow with their number. Of a layout there is a graph for the sizes that were seen first and one
for all others, each again where what autograd needs differs, as at the first block.

Passes without gradients, as of previews, are not compiled: they would need graphs of their own.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

Forward = Callable[..., Any]

_MOST = 16
"""Kinds of layout and sizes that are compiled; each takes a minute or more."""


@contextlib.contextmanager
def compiled(
    blocks: Sequence[nn.Module],
    device: torch.device,
    warn: Callable[[str], None],
    backend: str | Callable[..., Any] = "inductor",
) -> Iterator[None]:
    """Compile blocks in the passes that are made meanwhile; they are as they were after it.

    Args:
        blocks: With their adapter and their hooks.
        warn: Told in one line when some of them go on as they are, and why.
    """
    missing = missing_compiler(device) if backend == "inductor" else None
    if missing is not None:
        warn(f"memory.compile is on, and {missing}: the run goes on without it")
        yield
        return
    graphs = _Graphs(backend, warn)
    # A forward that somebody has replaced already stays.
    chosen = [block for block in blocks if "forward" not in vars(block)]
    try:
        for block in chosen:
            block.forward = _Forward(block, graphs)
        yield
    finally:
        for block in chosen:
            vars(block).pop("forward", None)


def missing_compiler(device: torch.device) -> str | None:
    """What a device lacks to have code compiled for it; None where nothing is missing."""
    from torch._dynamo.eval_frame import is_dynamo_supported

    if not is_dynamo_supported():
        return f"torch {torch.__version__} compiles nothing with this Python"
    if device.type == "cpu":
        try:
            from torch._inductor import cpp_builder

            cpp_builder.get_cpp_compiler()
        except Exception as error:  # noqa: BLE001  # the system may answer in any way
            return f"there is no C++ compiler ({_first_line(error)})"
        return None
    from torch.utils._triton import has_triton

    if device.type in {"cuda", "xpu"} and has_triton():
        return None
    return f"there is no Triton for {device.type} (on Windows it is the package triton-windows)"


class _Forward:
    """What stands in the place of a block's forward.

    Whether a block is compiled for some sizes is decided at the first call with them: what is
    computed again in the backward pass has to be computed in the same way.
    """

    def __init__(self, block: nn.Module, graphs: _Graphs) -> None:
        self._block, self._graphs = block, graphs
        self._plain: Forward = block.forward
        self._layout = _layout(block)
        self._chosen: dict[object, Forward | None] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._plain(*args, **kwargs)
        sizes = _sizes((args, kwargs))
        if sizes not in self._chosen:
            self._chosen[sizes] = self._graphs.choose(self._block, self._layout, sizes)
        forward = self._chosen[sizes]
        if forward is None:
            return self._plain(*args, **kwargs)
        try:
            return forward(self._block, *args, **kwargs)
        except self._graphs.errors as error:
            # Nothing of the block was computed: it is one graph, or none.
            self._chosen[sizes] = None
            self._graphs.stop(_first_line(error))
            return self._plain(*args, **kwargs)


class _Graphs:
    """The compiled forwards, by layout and sizes."""

    def __init__(self, backend: str | Callable[..., Any], warn: Callable[[str], None]) -> None:
        from torch._dynamo import exc

        # An older torch has another name for it.
        limit = getattr(exc, "FailOnRecompileLimitHit", exc.TorchDynamoException)
        self.errors: tuple[type[Exception], ...] = exc.TorchDynamoException, limit
        self._backend, self._warn = _whole(backend), warn
        self._stopped = False
        self._forwards: dict[object, Forward] = {}
        self._first: dict[object, object] = {}

    def choose(self, block: nn.Module, layout: object, sizes: tuple[Any, ...]) -> Forward | None:
        """The compiled forward for a block and sizes; None once something was not compiled."""
        if self._stopped:
            return None
        dynamic = self._first.setdefault(layout, sizes) != sizes
        # Of a size of 1 torch makes a graph of its own. With code for each, no limit is met.
        kind = tuple(size and tuple(min(each, 2) for each in size) for size in sizes)
        key = layout, dynamic, kind
        if key not in self._forwards:
            if len(self._forwards) == _MOST:
                self.stop(f"they are of more than {_MOST} kinds")
                return None
            self._forwards[key] = torch.compile(
                _with_own_code(type(block).forward),
                fullgraph=True,
                dynamic=dynamic,
                backend=self._backend,
            )
        return self._forwards[key]

    def stop(self, reason: str) -> None:
        """Compile nothing more: it would fail again, and take its time."""
        if not self._stopped:
            self._stopped = True
            self._warn(
                f"memory.compile: the blocks cannot all be compiled ({reason}); what is not "
                "compiled yet goes on without it"
            )


def _whole(backend: str | Callable[..., Any]) -> Callable[..., Any]:
    """A backend that compiles a backward pass with its forward pass, where it still may fail."""
    from torch._dynamo import lookup_backend
    from torch._functorch import config

    make: Callable[..., Any] = lookup_backend(backend)

    whole = {"force_non_lazy_backward_lowering": True}
    # An older torch has no such setting.
    known = {name: value for name, value in whole.items() if hasattr(config, name)}

    def compile_whole(graph: Any, inputs: Any) -> Any:
        with config.patch(known):
            return make(graph, inputs)

    return compile_whole


def _with_own_code(function: Any) -> Any:
    """The same function with code of its own.

    Torch keeps and counts what it compiled by code: so it goes when the run ends, and is not mixed
    with what others compile of the same class.
    """
    own = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    own.__kwdefaults__ = function.__kwdefaults__
    return own


def _layout(block: nn.Module) -> tuple[object, ...]:
    """What blocks have in common that can share a graph."""
    # An adapter's scale is a number in the graph.
    modules = ((n, type(each), str(vars(each).get("scaling"))) for n, each in block.named_modules())
    return (*modules, *((name, each.shape) for name, each in block.named_parameters()))


def _sizes(inputs: object) -> tuple[Any, ...]:
    return tuple(
        each.shape if isinstance(each, Tensor) else None for each in _pytree.tree_leaves(inputs)
    )


def _first_line(error: Exception) -> str:
    error = getattr(error, "inner_exception", error)
    return (str(error).strip() or type(error).__name__).splitlines()[0]
