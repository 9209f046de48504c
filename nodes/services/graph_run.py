"""Runs the trainer inside ComfyUI: on its device, outside its inference mode, leaving nothing."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...trainer_core.config import RunConfig
from ...trainer_core.errors import ConfigError, TrainerError
from ..host import comfy_host
from .expert_models import HIGH, LOW, may_be_expert
from .loras_folder import LoraKeeper, adapter_tensors, as_source
from .merged_run_config import run_config, training_config
from .panel.run_observer import NodeObserver
from .rerun_stamps import Continuation
from .socket_values import (
    AdapterChoice,
    BaseChoice,
    DatasetChoice,
    EncodedCache,
    Expert,
    PreviewChoice,
    RunHandle,
    SettingsChoice,
)

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from torch import Tensor

    from ...trainer_core.families.family import Family
    from ...trainer_core.inference.encoder_source import MakeSource

Work = Literal["encode", "train", "sample"]
_CLOSE = "or close other programs."
# What needs the device's memory, and what makes it less.
_MEMORY: Mapping[Work, tuple[str, str]] = {
    "encode": (
        "the text encoder and the VAE",
        f"Lower the resolution of the dataset, {_CLOSE} What is encoded already is on disk.",
    ),
    "train": (
        "the base, the adapter and a step",
        "Lower the resolution, the batch size or the rank, switch gradient checkpointing on, "
        + _CLOSE,
    ),
    "sample": (
        "the base, the adapter and an image",
        f"Lower width and height of Preview Prompts, {_CLOSE}",
    ),
}


@contextlib.contextmanager
def guest(work: Work, observer: NodeObserver | None = None) -> Iterator[torch.device]:
    """Compute on ComfyUI's device, which it gives, and let nothing stay behind.

    Inside, gradients are on and tensors are ordinary ones. An error of ours leaves without the
    frames that hold models; an error of the device's memory becomes one that says what makes this
    work smaller.
    """
    import torch

    failure: TrainerError | None = None
    with comfy_host.cleared_device() as device:
        try:
            with torch.inference_mode(False), torch.enable_grad():
                yield device
        except (Exception, comfy_host.Interrupted) as error:
            ours = isinstance(error, TrainerError)
            failure = error if ours else _full_memory(error, work, observer)
            if failure is None:
                # Whoever cancels while images are encoded or generated wants the memory back too.
                _forget_frames(error)
                _release(device)
                if not isinstance(error, comfy_host.Interrupted):
                    _tell(observer, error)
                elif observer is not None:
                    observer.interrupted()
                raise
        if failure is not None:
            _forget_frames(failure)
            _release(device)
    if failure is not None:
        _tell(observer, failure)
        raise failure.with_traceback(None) from None


def _full_memory(
    error: BaseException, work: Work, observer: NodeObserver | None
) -> TrainerError | None:
    room, remedy = _MEMORY[work]
    if observer is not None and observer.has_checkpoint:
        remedy += " The last checkpoint is on disk."
    return comfy_host.out_of_memory(error, room, remedy)


def _forget_frames(error: BaseException) -> None:
    # The frames of a failed run hold the base, the adapter and the optimizer.
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        following = cause.__cause__ or cause.__context__
        cause.__cause__ = cause.__context__ = None
        cause = following


def _tell(observer: NodeObserver | None, error: BaseException) -> None:
    if observer is None:
        return
    if isinstance(error, TrainerError):
        # Its three parts follow from where it is told in the words of the graph.
        observer.failed(f"stopped after step {observer.state.step}" if observer.state.step else "")
    else:
        observer.failed(str(error).splitlines()[0] if str(error) else type(error).__name__)


def _release(device: torch.device) -> None:
    from ...trainer_core.device import release_memory

    release_memory(device)


def source_of(
    clip: Any,
    vae: Any,
    base: BaseChoice,
    on_close: Callable[[], None] | None = None,
    *,
    probed: int = 0,
    rate: float | None = None,
) -> MakeSource | None:
    """The graph's CLIP and VAE as the run's encoders; None for a base that has its own.

    `on_close` is called when the encoders are not needed for now; `probed` and `rate` as
    `encoders_of`.
    """
    if base.embedded:
        return None
    if base.model is not None:
        from ..host.graph_family import encoders_of

        # Both experts of a model read one cache.
        name = base.expert.config if base.expert else ""
        return encoders_of(
            base.model,
            clip,
            vae,
            on_close,
            vision=base.vision,
            probed=probed,
            name=name,
            rate=rate,
            audio=base.audio,
        )
    from ..host.family_encoders import graph_encoders

    length = base.values.get("text_length")
    return lambda family, location: graph_encoders(
        family, location, clip, vae=vae, text_length=length, on_close=on_close
    )


def family_of(base: BaseChoice, clip: Any = None, config: RunConfig | None = None) -> Family | None:
    """The family of a MODEL of the graph; None for a base of files, whose family has a name.

    The text encoders of `clip` may be trained. The run's `config` says how much memory a step
    needs.
    """
    if base.model is None:
        return None
    from ..host.graph_family import graph_family, other_expert

    work, other, expert = None, None, base.expert
    if config is not None:
        side = max(config.dataset.resolution, *config.dataset.more_resolutions, 0)
        work = config.training.batch_size, side, config.adapter.rank, _longest_clip(config)
    if expert is not None and expert.other is not None:
        other = other_expert(expert.other, begins=not expert.begins, switch_at=expert.switch_at)
    rate = None if config is None else config.dataset.fps
    return graph_family(base.model, clip, work, other, audio=base.audio, rate=rate)


def _longest_clip(config: RunConfig) -> int:
    """The most frames of a sample of a run's finished cache; 1 where all are images."""
    from ...trainer_core.training.prepare.cache_manifest import read_manifest

    if not config.cache.manifest:
        return 1
    dataset = read_manifest(Path(config.cache.manifest)).dataset
    return max(each.frames for each in dataset.buckets)


def encode(
    node_id: str,
    dataset: DatasetChoice,
    base: BaseChoice,
    clip: Any,
    vae: Any,
    previews: PreviewChoice | None,
    options: dict[str, Any],
    observer: NodeObserver | None = None,
) -> EncodedCache:
    """Encode what is missing in the cache for a base, and list it; the node shows progress.

    A base with its own CLIP and VAE needs no others. `options` are further values of the run file.
    A node that trains afterwards has an observer; without one the node only encodes.

    Raises:
        TrainerError: When dataset, base or encoders cannot be used, or the disk is full.
    """
    from ...trainer_core.device import borrowed_threads
    from ...trainer_core.training import SingleProcess
    from ...trainer_core.training.prepare.encode_dataset import prepare, save_manifest
    from ..host.comfy_machine import ComfyMachine
    from .datasets.combined import require_alone
    from .datasets.content_marks import marks_of

    require_alone(dataset)
    shown = previews.values if previews else {}
    output = {"dir": str(comfy_host.output_folder()), "name": "cache"}
    sections = {"dataset": dataset.values, "preview": shown, "output": output}
    config = run_config(base, sections, options)
    shows_itself = observer is not None
    observer = observer or NodeObserver(node_id, "cache", trains=False)
    trained_clip = clip if config.training.text_encoder.train else None
    _require_trainable(config, base, clip)
    marks = marks_of(config.dataset)
    with (
        guest("encode", observer) as device,
        borrowed_threads(config.memory, embedded=base.embedded),
    ):
        data = config.dataset
        make_source = source_of(clip, vae, base, probed=data.resolution, rate=data.fps)
        within = comfy_host.allowed_folders()
        machine = ComfyMachine()
        where, family = SingleProcess(device), family_of(base, trained_clip)
        prepared = prepare(
            config,
            observer,
            where,
            make_source=make_source,
            within=within,
            machine=machine,
            family=family,
        )
        manifest = save_manifest(config, prepared)
    return EncodedCache(
        manifest,
        base,
        dataset,
        previews=previews,
        trained_clip=trained_clip,
        marks=marks,
        warnings=() if shows_itself else tuple(observer.state.warnings),
    )


def _require_trainable(config: RunConfig, base: BaseChoice, clip: Any) -> None:
    if config.training.text_encoder.train and base.model is not None:
        from ..host.trained_text import require_trainable_text

        require_trainable_text(clip)


def run_training(
    node_id: str,
    base: BaseChoice,
    cache: EncodedCache,
    adapter: AdapterChoice,
    settings: SettingsChoice | None,
    vae: Any,
    own: Mapping[str, Any],
    workflow: Mapping[str, object],
    keep_in_loras: int = 0,
    observer: NodeObserver | None = None,
) -> tuple[RunHandle, Sequence[float]]:
    """Train what a node's inputs describe; gives the run, and its losses.

    The node shows the run. A VAE decodes previews. `own` is what the node itself says of the run
    file, `workflow` what `queued_graph` gave, which is kept with the run. The adapter of every so
    many checkpoints goes to the loras folder; 0: none. The observer is that of a node that has
    encoded before.

    Raises:
        TrainerError: When the input is wrong or the run failed; the last good state is on disk.
        BaseException: ComfyUI's own interrupt, after the state of a cancelled run was saved.
    """
    config = described_run(base, cache, adapter, settings=settings, vae=vae, own=own)
    observer = observer or NodeObserver(node_id, config.output.name, trains=True, queued=workflow)
    return train_described(
        config,
        base,
        cache,
        vae=vae,
        workflow=workflow,
        keep_in_loras=keep_in_loras,
        observer=observer,
    )


def described_run(
    base: BaseChoice,
    cache: EncodedCache,
    adapter: AdapterChoice,
    settings: SettingsChoice | None,
    vae: Any,
    own: Mapping[str, Any],
) -> RunConfig:
    """The run file of a node's inputs, as `run_training` takes them."""
    output, can_preview = str(comfy_host.output_folder()), base.embedded or vae is not None
    return training_config(
        base, cache, adapter, settings=settings, own=own, output=output, can_preview=can_preview
    )


def train_described(
    config: RunConfig,
    base: BaseChoice,
    cache: EncodedCache,
    vae: Any,
    workflow: Mapping[str, object],
    keep_in_loras: int,
    observer: NodeObserver,
) -> tuple[RunHandle, Sequence[float]]:
    """Train a run file of the graph; as `run_training`."""
    from ...trainer_core.adapter_files.metadata import workflow_texts
    from ...trainer_core.training import SingleProcess, train
    from ..host.comfy_machine import ComfyMachine

    config, observer.marks = observer.continuation.applied(config), cache.marks
    observer.describe(config.preview.prompts, config.seed)
    for warning in cache.warnings:
        observer.warn(warning)
    if keep_in_loras:
        kept = config.output.name, keep_in_loras, config.training.checkpoint_every
        observer.keeper = LoraKeeper(*kept)
    if cache.previews and not (base.embedded or vae is not None):
        observer.warn("Previews are off: connect a VAE to Train Adapter to see them.")
    if base.expert is not None:
        _tell_of_expert(base.expert, config, observer)
    elif base.model is not None and may_be_expert(base.model):
        observer.note(
            "Trained at all levels of noise, as Wan 2.1 is. For one expert of Wan 2.2 A14B set "
            "expert to high noise or low noise."
        )
    texts = workflow_texts(workflow, observer.warn)
    with guest("train", observer) as device:
        _tell_beforehand(config, base, device, observer)
        within, machine = comfy_host.allowed_folders(), ComfyMachine()
        where, family = SingleProcess(device), family_of(base, cache.trained_clip, config)
        source = source_of(cache.trained_clip, vae, base, rate=config.dataset.fps)
        with _promised(observer.continuation):
            result = train(
                config,
                observer,
                where,
                make_source=source,
                workflow=texts,
                within=within,
                machine=machine,
                family=family,
            )
    # In its last step a cancelled run is done; the nodes behind it must not run all the same.
    if result.status == "cancelled" or observer.cancelled():
        comfy_host.raise_interrupted()
    return RunHandle(result.folder, result.adapters[0], result.step), result.losses


def _tell_of_expert(expert: Expert, config: RunConfig, observer: NodeObserver) -> None:
    role, sigma = HIGH if expert.begins else LOW, config.training.sigma
    observer.note(f"Trained as the expert for {role}: levels {sigma.min:g} to {sigma.max:g}.")
    if expert.other is None and config.preview.every:
        observer.warn(
            "Previews are sampled with this expert alone, and look unfinished: connect the other "
            "one to other_expert."
        )


@contextlib.contextmanager
def _promised(continuation: Continuation) -> Iterator[None]:
    """Say what to do where a run cannot go on as its panel has promised: it begins no other one."""
    try:
        yield
    except ConfigError as error:
        if continuation.folder is None or not error.found.startswith("resume:"):
            raise
        raise ConfigError(
            error.found,
            "the images and settings that this run was trained with",
            "Undo the change, or press Run: these settings start a new run.",
        ) from None


def _tell_beforehand(
    config: RunConfig, base: BaseChoice, device: torch.device, observer: NodeObserver
) -> None:
    from ...trainer_core.offload.machine import Machine
    from ...trainer_core.training.memory.memory_estimate import cached_run_estimate, check_memory

    if base.model is not None:  # what fits beside a model of the graph is ComfyUI's matter
        from ...trainer_core.device import has_own_attention
        from ..host.comfy_model_management import (
            makes_sound,
            needs_torch_attention,
            replaces_attention,
        )

        if replaces_attention():
            sentence = "gives way to torch's own while it trains"
            if not has_own_attention(device):
                sentence = f"is kept: torch's own may not work on {device}"
            observer.note(f"The attention that a pack has put in the place of torch's {sentence}.")
        if makes_sound(base.model) and base.audio is None:
            observer.note(
                "Trained on images alone: sound of clips is not read, and the layers for sound "
                "stay as they are. To train it, connect Load LTXV Audio VAE to audio_vae."
            )
        if needs_torch_attention(base.model.model_options.get("transformer_options", {})):
            observer.note(
                "Trained with torch's attention: that of ComfyUI or of a node on the MODEL has no "
                "gradient. KSampler keeps its own."
            )
    elif config.memory.plan == "off" or not Machine().plans_for(device):
        free = comfy_host.free_memory()
        warning = check_memory(cached_run_estimate(config, device, free), free, device)
        if warning:
            observer.warn(warning)
    if kept := comfy_host.kept_models():
        names = ", ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in kept.items())
        observer.warn(f"ComfyUI keeps models on {device}, as it was told (--highvram): {names}.")


def run_outputs(handle: RunHandle, losses: Sequence[float]) -> tuple[Any, ...]:
    """What a run gives to the graph: LORA_MODEL, LOSS_MAP, the last previews, the run."""
    images = _latest_images(handle.folder, handle.step)
    shown = _image_batch(images) if images else comfy_host.blocked()
    return adapter_tensors(handle.adapter), {"loss": list(losses)}, shown, handle


def shown_run(handle: RunHandle) -> dict[str, list[str]]:
    """What the page hears of a run, also when ComfyUI only remembers the node's outputs."""
    return {"adapter_trainer_run": [f"{handle.folder.parent.name}/{handle.folder.name}"]}


def _latest_images(folder: Path, step: int) -> list[Path]:
    """A run's last previews by the order of prompts; those after the step are another adapter's."""
    from ...trainer_core.inference.preview_files import preview_files

    found = [path for path in folder.glob("samples/[0-9]*") if path.name.isdigit()]
    last = max(
        (path for path in found if int(path.name) <= step),
        key=lambda path: int(path.name),
        default=None,
    )
    if last is None:
        return []
    return preview_files(last)


def _image_batch(paths: list[Path]) -> Tensor:
    """Images of one size, and frames of clips, as core's IMAGE; clear is white.

    `[B, H, W, 3]`, float32, in [0, 1].
    """
    import torch
    from PIL import Image, ImageSequence

    images: list[Tensor] = []
    for path in paths:
        with Image.open(path) as image:
            images += [as_image(frame) for frame in ImageSequence.Iterator(image)]
    return torch.stack(images)


def as_image(image: Image.Image) -> Tensor:
    """An image as one of core's IMAGE: `[H, W, 3]`, float32, in [0, 1]; clear is white."""
    import numpy as np
    import torch

    from ...trainer_core.data.image import on_white

    values = np.asarray(on_white(image).convert("RGB"), dtype=np.float32) / 255.0
    return torch.from_numpy(values)


def preview_by_hand(
    node_id: str,
    base: BaseChoice,
    previews: PreviewChoice,
    lora: Mapping[str, Tensor] | None,
    clip: Any,
    vae: Any,
    strength: float,
) -> Tensor:
    """Generate each prompt once, `[B, H, W, 3]`, float32, in [0, 1]; the node shows progress.

    A base with its own CLIP and VAE needs no others. The adapter is in any layout that is read, or
    None for the base alone.

    Raises:
        TrainerError: When base, prompts or adapter cannot be used.
    """
    import torch

    from ...trainer_core.device import borrowed_threads
    from ...trainer_core.diffusion.flow import SamplingStopped
    from ...trainer_core.inference.pipeline import sample_prompts
    from ..host.comfy_machine import ComfyMachine

    output = {"dir": str(comfy_host.output_folder())}
    config = run_config(base, {"preview": previews.values, "output": output})
    adapter = None if lora is None else as_source(lora)
    # Beside the denoiser, of which ComfyUI does not know, it would keep the encoders.
    make_source = source_of(clip, vae, base, comfy_host.unload_models)
    bar = comfy_host.ProgressBar(node_id, len(config.preview.prompts))
    images: list[Tensor] = []
    done = 0
    stop = comfy_host.interrupted
    with guest("sample") as device, borrowed_threads(config.memory, embedded=base.embedded):
        memory = config.memory.model_copy(update={"device": str(device)})
        config = config.model_copy(update={"memory": memory})
        try:
            family = family_of(base, clip)
            for pixels in sample_prompts(
                config,
                adapter,
                strength,
                make_source=make_source,
                stop=stop,
                machine=ComfyMachine(),
                family=family,
            ):
                frames = (pixels / 2 + 0.5).clamp(0, 1).movedim(-3, -1).float().cpu()
                images += frames.reshape(-1, *frames.shape[-3:])
                done += 1
                if bar.show(done) or stop():
                    comfy_host.raise_interrupted()
        except SamplingStopped:
            comfy_host.raise_interrupted()
        return torch.stack(images)
