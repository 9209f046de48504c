"""Runs the trainer inside ComfyUI: on its device, outside its inference mode, leaving nothing."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..trainer_core.config import RunConfig
from ..trainer_core.errors import RunError, TrainerError
from . import comfy_host
from .node_observer import NodeObserver
from .run_values import encoding_config, training_config
from .sockets import (
    AdapterChoice,
    BaseChoice,
    DatasetChoice,
    EncodedCache,
    PreviewChoice,
    RunHandle,
    SettingsChoice,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..trainer_core.training.encoders import MakeSource
    from ..trainer_core.types import RunResult


@contextlib.contextmanager
def guest(observer: NodeObserver | None = None) -> Iterator[torch.device]:
    """Compute on ComfyUI's device, and let nothing stay behind.

    Inside, gradients are on and tensors are ordinary ones. An error of ours leaves without the
    frames that hold models; an error of the device's memory becomes one that says what to do.

    Args:
        observer: Told of a failure.

    Yields:
        The device.
    """
    import torch

    failure: TrainerError | None = None
    with comfy_host.cleared_device() as device:
        try:
            with torch.inference_mode(False), torch.enable_grad():
                yield device
        except TrainerError as error:
            failure = error
        except Exception as error:
            failure = comfy_host.out_of_memory(error)
            if failure is None:
                _forget_frames(error)
                _tell(observer, error)
                raise
        if failure is not None:
            _forget_frames(failure)
            _release(device)
    if failure is not None:
        _tell(observer, failure)
        raise failure.with_traceback(None) from None


def _forget_frames(error: BaseException) -> None:
    # The frames of a failed run hold the base, the adapter and the optimizer.
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        following = seen.__cause__ or seen.__context__
        seen.__cause__ = seen.__context__ = None
        seen = following


def _tell(observer: NodeObserver | None, error: BaseException) -> None:
    if observer is not None:
        observer.failed(str(error).splitlines()[0] if str(error) else type(error).__name__)


def _release(device: torch.device) -> None:
    from ..trainer_core.training.memory import release_memory

    release_memory(device)


def source_of(clip: Any, vae: Any, base: BaseChoice) -> MakeSource | None:
    """The graph's CLIP and VAE as the run's encoders; None for a base that has its own.

    Args:
        clip: The CLIP input's value, or None.
        vae: The VAE input's value, or None.
        base: The base.
    """
    if base.embedded:
        return None
    from .graph_encoders import graph_encoders

    length = base.values.get("text_length")
    return lambda family, location: graph_encoders(family.name, location.variant, clip, vae, length)


def encode(
    node_id: str,
    dataset: DatasetChoice,
    base: BaseChoice,
    clip: Any,
    vae: Any,
    previews: PreviewChoice | None,
    options: dict[str, Any],
) -> EncodedCache:
    """Encode what is missing in the cache, and list it.

    Args:
        node_id: The node that shows the progress.
        dataset: What is encoded.
        base: For which base.
        clip: Its text encoder, or None for a base with its own.
        vae: Its picture encoder, or None for a base with its own.
        previews: Prompts to encode.
        options: Further values of the run file.

    Returns:
        The finished cache.

    Raises:
        TrainerError: When dataset, base or encoders cannot be used, or the disk is full.
    """
    from ..trainer_core.training import SingleProcess
    from ..trainer_core.training.memory import borrowed_threads
    from ..trainer_core.training.prepare import prepare, save_manifest

    output = str(comfy_host.output_folder())
    config = encoding_config(base, dataset, previews, output, options)
    observer = NodeObserver(node_id, "cache", 0)
    with guest(observer) as device, borrowed_threads(config.memory, embedded=base.embedded):
        make_source = source_of(clip, vae, base)
        prepared = prepare(config, observer, SingleProcess(device), make_source)
        manifest = save_manifest(config, prepared)
        samples = len(prepared.dataset)
    return EncodedCache(manifest, base, dataset, previews, samples)


def train_on_node(
    node_id: str,
    base: BaseChoice,
    cache: EncodedCache,
    adapter: AdapterChoice,
    settings: SettingsChoice | None,
    vae: Any,
    own: Mapping[str, Any],
) -> tuple[RunHandle, Sequence[float]]:
    """Train what a node's inputs describe.

    Args:
        node_id: The node that shows the run.
        base: The base.
        cache: The encoded samples.
        adapter: What is trained.
        settings: Everything else, or None for the defaults.
        vae: Decodes previews, or None for a base with its own and for no previews.
        own: What the node itself says of the run file.

    Returns:
        The run, and its losses.

    Raises:
        TrainerError: As `run_training`, and when base and cache do not belong together.
    """
    checked_cache(base, cache)
    draws = base.embedded or vae is not None
    output = str(comfy_host.output_folder())
    config = training_config(cache, adapter, settings, own, output, draws=draws)
    observer = NodeObserver(node_id, config.output.name, config.training.steps)
    if cache.previews and not draws:
        observer.warn("Previews are off: connect a VAE to Train Adapter to see them.")
    result = run_training(config, source_of(None, vae, base), observer)
    handle = RunHandle(result.folder, result.adapters[0], result.status, result.step)
    return handle, result.losses


def run_outputs(handle: RunHandle, losses: Sequence[float]) -> tuple[Any, ...]:
    """What a run gives to the graph: LORA_MODEL, LOSS_MAP, the last previews, the run."""
    pictures = picture_batch(latest_pictures(handle.folder))
    shown = comfy_host.blocked() if pictures is None else pictures
    return adapter_tensors(handle.adapter), {"loss": list(losses)}, shown, handle


def run_training(
    config: RunConfig, make_source: MakeSource | None, observer: NodeObserver
) -> RunResult:
    """Train as the run file says.

    Args:
        config: The run file, with a finished cache.
        make_source: Decodes the previews.
        observer: Shows the run on its node.

    Returns:
        Where its files are.

    Raises:
        TrainerError: When the input is wrong or the run failed; the last good state is on disk.
        BaseException: ComfyUI's own interrupt, after the state of a cancelled run was saved.
    """
    from ..trainer_core.training import SingleProcess, train

    with guest(observer) as device:
        _check_memory(config, device, observer)
        if kept := comfy_host.kept_models():
            names = ", ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in kept.items())
            observer.warn(
                f"ComfyUI keeps models on {device}, as it was told (--highvram): {names}."
            )
        result = train(config, observer, SingleProcess(device), make_source)
    # In its last step a cancelled run is done; the nodes behind it must not run all the same.
    if result.status == "cancelled" or observer.cancelled:
        comfy_host.raise_interrupted()
    return result


def _check_memory(config: RunConfig, device: torch.device, observer: NodeObserver) -> None:
    from ..trainer_core.training.memory_estimate import cached_run_estimate, check_memory

    estimate = cached_run_estimate(config, device)
    warning = check_memory(estimate, comfy_host.free_memory(), device)
    if warning:
        observer.warn(warning)


def adapter_tensors(path: Path) -> dict[str, Tensor]:
    """Read an adapter file as core's LORA_MODEL: ordinary tensors on the CPU.

    Args:
        path: In layout comfyui.
    """
    import torch
    from safetensors.torch import load_file

    with torch.inference_mode(False):
        return {name: tensor.clone() for name, tensor in load_file(path).items()}


def picture_batch(paths: list[Path]) -> Tensor | None:
    """Read pictures of one size as core's IMAGE.

    Args:
        paths: The pictures.

    Returns:
        `[B, H, W, 3]`, float32, in [0, 1]; None without pictures.
    """
    import numpy as np
    import torch
    from PIL import Image

    if not paths:
        return None
    arrays: list[Any] = []
    for path in paths:
        with Image.open(path) as picture:
            arrays.append(np.asarray(picture.convert("RGB"), dtype=np.float32) / 255.0)
    return torch.from_numpy(np.stack(arrays))


def latest_pictures(folder: Path) -> list[Path]:
    """The preview pictures of a run's last landmark, in the order of the prompts."""
    samples = folder / "samples"
    steps = sorted(p for p in samples.iterdir() if p.is_dir()) if samples.is_dir() else []
    if not steps:
        return []
    return sorted(steps[-1].glob("*.png"), key=lambda path: int(path.stem))


def checked_cache(base: BaseChoice, cache: EncodedCache) -> None:
    """Refuse a cache that was encoded for another base.

    Raises:
        RunError: When the two differ.
    """
    if base != cache.base:
        raise RunError(
            f"Cache Embeddings was given the base {cache.base.values['path']}, and this node "
            f"{base.values['path']} with other settings or of another family",
            "the same base on both nodes",
            "Connect one Load Training Base to both.",
        )
