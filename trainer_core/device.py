"""Devices, number formats, threads and random state: all that a run borrows from the machine.

The only module that may name an accelerator, besides those that move weights to one (`offload`);
what it borrows it gives back.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .config import MemorySection
from .errors import ConfigError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def resolve_device(setting: str, path: str = "memory.device") -> torch.device:
    """Turn ``memory.device`` into a device that is there.

    Args:
        setting: ``auto`` or a torch device name.
        path: Where it was set, for the error.

    Raises:
        ConfigError: When the name is unknown or the machine has no such device.
    """
    if setting == "auto":
        return _best_device()
    try:
        device = torch.device(setting)
        # Fetching a number tells real devices from "meta", on which tensors have no values.
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{path}: {setting} ({reason})",
            f"a device of this machine, such as {_best_device()}",
            f"Set {path} to auto, or see `adapter-trainer doctor` for the devices.",
        ) from error
    return device


def has_nvidia_gpu() -> bool:
    """Whether the machine seems to have such a GPU, whatever torch finds."""
    signs = ("/dev/nvidiactl", "/dev/dxg")  # the driver's, and that of WSL
    if shutil.which("nvidia-smi") or any(map(os.path.exists, signs)):
        return True
    with contextlib.suppress(OSError):  # a container may hide it
        vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
        return any(each.read_bytes().strip() == b"0x10de" for each in vendors)
    return False


def unused_gpu(setting: str) -> str:
    """Why ``auto`` takes the CPU though the machine has an NVIDIA GPU and torch is built for it.

    Returns:
        The reason in words; empty where none is unused.
    """
    takes_cpu = setting == "auto" and _best_device().type == "cpu"
    if not takes_cpu or torch.version.cuda is None or not has_nvidia_gpu():
        return ""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None and shown.strip() in {"", "-1"}:
        reason, remedy = f"CUDA_VISIBLE_DEVICES is {shown!r}", "Unset CUDA_VISIBLE_DEVICES"
    else:
        reason, remedy = "no device answers", "Update the GPU's driver"
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().partition("\n")[0]
    return (
        f"The run computes on the CPU: torch {torch.__version__}, built for CUDA "
        f"{torch.version.cuda}, finds no GPU ({reason}). {remedy} and start again, or set "
        "memory.device to cpu."
    )


def resolve_precision(setting: str, device: torch.device) -> str:
    """Turn ``training.precision`` into ``bf16`` or ``fp32``."""
    if setting != "auto":
        return setting
    if device.type == "cuda":
        with made_current(device):
            return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return "bf16" if device.type == "xpu" else "fp32"


def made_current(device: torch.device | None) -> contextlib.AbstractContextManager[object]:
    """Make a device this thread's current one, which streams, pinning and libraries' kernels take.

    Where it is another one, they make a context there, which takes some hundred megabytes.

    Args:
        device: None for that which is.
    """
    cuda = device is not None and device.type == "cuda"
    return torch.cuda.device(device) if cuda else contextlib.nullcontext()


@contextlib.contextmanager
def borrowed_threads(settings: MemorySection, *, embedded: bool) -> Iterator[None]:
    """Set torch's CPU threads for a run and restore them.

    The embedded base's matrices are so small that threads cost more than they give; with a busy
    second core two threads were measured 75 times slower than one.
    """
    wanted = settings.threads or (1 if embedded else None)
    before = torch.get_num_threads()
    if wanted is not None:
        torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def borrowed_attention() -> Iterator[None]:
    """Keep torch from cuDNN's attention, and allow it again afterwards.

    torch keeps a plan of its backward pass for each layout of queries, keys and values, and uses it
    for gradients of any layout (`MHA.cpp`). So the plan of FLUX's single blocks makes its double
    blocks read gradients from other places. On an H200, where torch 2.11 prefers cuDNN, a step
    ended in an illegal memory access.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def has_own_attention(device: torch.device) -> bool:
    """Whether torch's own attention is known to work: of ROCm, ZLUDA and others it may not."""
    if device.type != "cuda":
        return device.type == "cpu"
    return torch.version.hip is None and "zluda" not in torch.cuda.get_device_name(device).lower()


@contextlib.contextmanager
def borrowed_random_state(device: torch.device) -> Iterator[None]:
    """Restore torch's global generators afterwards; dropout draws from them."""
    if device.type == "cpu":
        indices, kind = [], "cuda"
    elif device.type == "mps":
        # There is one, and torch.mps cannot be asked for the current device.
        indices, kind = [0], "mps"
    else:
        current = torch.get_device_module(device).current_device()
        indices, kind = [current if device.index is None else device.index], device.type
    with torch.random.fork_rng(devices=indices, device_type=kind):
        yield


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the global generators that `borrowed_random_state` gives back, and no other device's.

    Args:
        seed: Of the CPU's generator and the device's.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "mps":
        torch.mps.manual_seed(seed)
    elif device.type not in {"cpu", "meta"}:
        module = torch.get_device_module(device)
        with module.device(device):
            module.manual_seed(seed)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, without waiting for what the device still computes."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    # From pageable memory CUDA copies only when all that was queued before is done.
    return pin(tensor, device).to(device, non_blocking=True)


def pin(tensor: Tensor, device: torch.device) -> Tensor:
    """Have a tensor of the CPU where a device copies from without a wait.

    Args:
        tensor: On any device; returned as it is where it need not or cannot be moved.
    """
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor
    try:
        with made_current(device):
            return tensor.pin_memory()
    except RuntimeError as error:
        # RAM is short, not the device. What else may be wrong the copy will say, too.
        refused_pins.add(str(error).partition("\n")[0])
        return tensor


refused_pins: set[str] = set()
"""Why the system has not pinned memory; a run begins with none."""


def release_memory(device: torch.device) -> None:
    """Give unreferenced memory back to the device."""
    gc.collect()
    if device.type == "cuda":
        # A GPU that has stopped refuses this, too; what it said first is the error to tell.
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    elif device.type == "xpu":
        torch.xpu.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device has no memory left, whichever of its allocators says it.

    Torch has taken the error off CUDA before it raises it (`c10_cuda_check_implementation`).
    """
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    text = str(error).lower()
    accelerator = getattr(torch, "AcceleratorError", None)
    if accelerator is not None and isinstance(error, accelerator):
        return getattr(error, "error_code", None) == 2 or "out of memory" in text
    return isinstance(error, RuntimeError) and any(each in text for each in _FULL)


_FULL = (
    "mps backend out of memory",
    "cuda error: out of memory",  # as torch before 2.8 says what a driver says
    "cuda driver error: out of memory",  # of expandable segments
    "hip error: out of memory",
    "xpu out of memory",
    "not enough gpu video memory",  # DirectML
    "defaultcpuallocator: not enough memory",
    "defaultcpuallocator: can't allocate memory",
    "cublas_status_alloc_failed",
)


def spare_at_peak(device: torch.device, free: Callable[[], int]) -> tuple[int, int] | None:
    """Bytes free at the peak of what ran since `begin_peak`, and the device's size; None if untold.

    Args:
        free: Asks for the device's free bytes.
    """
    if device.type != "cuda":
        return None
    release_memory(device)
    above = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    return free() - above, int(torch.cuda.mem_get_info(device)[1])


def begin_peak(device: torch.device) -> None:
    """Let `spare_at_peak` speak of what comes from now on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def counts_allocated(device: torch.device) -> Callable[[], int] | None:
    """What gives the bytes of a device that tensors take now; None where it does not tell."""
    return partial(torch.cuda.memory_allocated, device) if device.type == "cuda" else None


def memory_in_use(device: torch.device) -> dict[str, int]:
    """Bytes that are taken now; what is not known is left out.

    Returns:
        ``ram`` of this process where psutil is installed, and of a CUDA device ``allocated``,
        ``reserved`` and ``peak``, which is the most that was allocated since it was last asked to
        begin anew (`begin_peak`).
    """
    found: dict[str, int] = {}
    with contextlib.suppress(ImportError):
        import psutil

        found["ram"] = psutil.Process().memory_info().rss
    if device.type == "cuda":
        found["allocated"] = torch.cuda.memory_allocated(device)
        found["reserved"] = torch.cuda.memory_reserved(device)
        found["peak"] = torch.cuda.max_memory_allocated(device)
    return found


class Moment:
    """A point of time in a device's work: on a CPU now, on a GPU when it gets there.

    Args:
        device: CUDA or the CPU (`knows_moments`).
    """

    def __init__(self, device: torch.device) -> None:
        self._event = None
        if device.type == "cuda":
            with made_current(device):
                self._event = torch.cuda.Event(enable_timing=True)
                self._event.record()
        self._time = time.perf_counter()

    def since(self, before: Moment) -> float:
        """Seconds since another one; on a GPU both have to be past."""
        if self._event is None or before._event is None:
            return self._time - before._time
        return before._event.elapsed_time(self._event) / 1000


def knows_moments(device: torch.device) -> bool:
    """Whether `Moment` says of a device when it gets there."""
    return device.type in {"cpu", "cuda"}


def free_memory(device: torch.device) -> int:
    """Free bytes of a device; the CPU's are those of RAM."""
    if device.type in {"cuda", "xpu"}:
        return int(torch.get_device_module(device).mem_get_info(device)[0])
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    import psutil

    return psutil.virtual_memory().available


_DENSE_FLOPS = {
    **dict.fromkeys([(5, 0), (5, 2), (5, 3), (6, 1), (6, 2)], 256),
    **dict.fromkeys([(6, 0), (7, 0), (7, 2), (7, 5)], 128),
    (8, 0): 2048,
    (9, 0): 4096,
    (10, 0): 8192,
    (10, 3): 8192,
}
"""Compute capability to bf16 FLOPs of a multiprocessor's clock, summed in float32; else 512.

Before 8.0 there are no bf16 units: such products are computed in float32.

Source: NVIDIA's architecture papers of A100, H100 and B200; of GeForce (8.6 to 12.0) all have 512;
CUDA C++ Programming Guide, throughput of native arithmetic instructions, of those before 8.0.
"""
_CLOCK = 1.7e9
"""Where torch does not know it."""


def rated_speed(device: torch.device) -> float | None:
    """FLOPs a second of bf16 products as a CUDA device is sold; None for any other device.

    The same in every call, unlike `product_speed`: a plan may follow from it.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return None
    return speed_of(torch.cuda.get_device_properties(device))


def speed_of(properties: Any) -> float:
    """As `rated_speed`, of torch's properties of a device."""
    clock = getattr(properties, "clock_rate", 0) * 1e3 or _CLOCK
    flops = _DENSE_FLOPS.get((properties.major, properties.minor), 512)
    return properties.multi_processor_count * clock * flops


def product_speed(device: torch.device, dtype: torch.dtype, room: float = math.inf) -> float:
    """FLOPs a second of a large product, of a smaller one where it would take more than the room.

    Args:
        room: Bytes of the device, here and below.
    """
    edge = _halved(512 if device.type == "cpu" else 4096, lambda edge: 16 * edge**2 <= room)
    matrix = _numbers((edge, edge), dtype, device)
    return 2 * edge**3 / _seconds(lambda: matrix @ matrix, device)


def attention_speed(device: torch.device, dtype: torch.dtype, room: float = math.inf) -> float:
    """FLOPs a second of attention's forward pass."""
    heads, tokens, width = (2, 256, 64) if device.type == "cpu" else (16, 2048, 128)
    # An attention that keeps all its products takes most.
    tokens = _halved(tokens, lambda tokens: 8 * heads * tokens**2 <= room)
    with borrowed_attention():
        query = _numbers((1, heads, tokens, width), dtype, device)
        attention = partial(nn.functional.scaled_dot_product_attention, query, query, query)
        return 4 * heads * tokens**2 * width / _seconds(attention, device)


def _numbers(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers like those of a step: a GPU may run faster on numbers that are alike."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(shape, dtype=dtype, device=device, generator=generator)


def moving_speed(device: torch.device, room: float = math.inf) -> float:
    """Bytes a second that a kernel reads and writes in the device's own memory."""
    size = (4 if device.type == "cpu" else 128) << 20  # above what a GPU's cache holds
    size = _halved(size, lambda size: 2 * size <= room)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / _seconds(lambda: target.copy_(source), device)


def converting_speed(device: torch.device, dtype: torch.dtype, room: float = math.inf) -> float:
    """Bytes a second of a kernel that mixes number formats: it reads weights in 8 bits."""
    rows = (1 if device.type == "cpu" else 64) << 10
    rows = _halved(rows, lambda rows: (1 + dtype.itemsize << 10) * rows <= room)
    weight = torch.ones(rows, 1 << 10, dtype=torch.int8, device=device)
    scale = torch.ones(rows, 1, device=device)
    result = torch.empty_like(weight, dtype=dtype)
    seconds = _seconds(lambda: torch.mul(weight, scale, out=result), device)
    return (weight.nbytes + result.nbytes) / seconds


def _halved(size: int, fits: Callable[[int], bool]) -> int:
    """A size, halved until it fits; never below 32, which takes nothing to speak of."""
    while size > 32 and not fits(size):
        size //= 2
    return size


def copy_speed(device: torch.device, room: float = math.inf) -> float:
    """Bytes a second from pinned memory to a device; the CPU's own memory needs no copy."""
    if device.type == "cpu":
        return math.inf
    size = _halved(64 << 20, lambda size: size <= room)
    source = pin(torch.empty(size, dtype=torch.uint8), device)
    target = torch.empty_like(source, device=device)
    return source.numel() / _seconds(lambda: target.copy_(source, non_blocking=True), device)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The least time of some rounds; the first brings kernels into memory."""
    times: list[float] = []
    for _ in range(4):
        started = time.perf_counter()
        work()
        if device.type == "mps":
            torch.mps.synchronize()
        elif device.type != "cpu":
            # Of this device, which need not be the current one.
            torch.get_device_module(device).synchronize(device)
        times.append(time.perf_counter() - started)
    return max(min(times), 1e-9)


def _best_device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return torch.device("xpu", 0)
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")
