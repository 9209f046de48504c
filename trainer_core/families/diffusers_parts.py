"""What families share whose models are Diffusers': a family takes of it what fits.

Most of it is the default of a field of `family.Family`, so that a new family names what differs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ..adapter_files.names.key_map import BLOCK_NUMBER, ComfyuiName, KeyMap, NativeKey, Part
from ..diffusion.sigma import ShiftSettings
from ..errors import BaseModelError
from ..weights.base_location import BaseLocation
from ..weights.diffusers_folder import read_json
from ..weights.file_spec import Origin
from ..weights.header import WeightFile
from ..weights.library_errors import reading_part
from ..weights.loading import load_frozen, load_words

_SIDE = 32
_UNSUPPORTED = (
    "use_karras_sigmas",
    "use_exponential_sigmas",
    "use_beta_sigmas",
    "invert_sigmas",
    "stochastic_sampling",
)
_NUMBERED = re.compile(rf"([a-z_.]*[a-z_])\.({BLOCK_NUMBER})\.(.+)")
_COMPUTING: WeakKeyDictionary[nn.Module, tuple[torch.dtype | None, torch.dtype]] = (
    WeakKeyDictionary()
)
"""Models to the format of their first parameter, and the one that they compute in."""


def read_shift(location: BaseLocation, passed_over: Container[str] = ()) -> ShiftSettings:
    """What a base's scheduler says of its noise levels, in ``scheduler/scheduler_config.json``.

    The base's own scheduler comes before that of the encoders' folder; what its file leaves out has
    Diffusers' defaults. `passed_over` are settings of schedules that a family's bases are not
    trained by.

    Raises:
        BaseModelError: When the file is damaged or asks for a schedule that is not sampled here.
    """
    path = location.folder / "scheduler" / "scheduler_config.json"
    if not path.is_file():
        path = location.encoders / "scheduler" / "scheduler_config.json"
    config = read_json(path)
    for name in _UNSUPPORTED:
        if config.get(name) and name not in passed_over:
            raise BaseModelError(
                f"{path} sets {name}",
                "the plain Euler schedule of flow matching",
                f"Set {name} to false in a copy of the base; no published base needs it.",
            )
    terminal = config.get("shift_terminal")
    try:
        return ShiftSettings(
            dynamic=bool(config.get("use_dynamic_shifting", False)),
            shift=float(config.get("shift", config.get("flow_shift", 1.0))),
            base_shift=float(config.get("base_shift", 0.5)),
            max_shift=float(config.get("max_shift", 1.15)),
            base_tokens=int(config.get("base_image_seq_len", 256)),
            max_tokens=int(config.get("max_image_seq_len", 4096)),
            exponential=config.get("time_shift_type", "exponential") == "exponential",
            terminal=None if terminal is None else float(terminal),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise BaseModelError(
            f"{path} holds what is not a number where one belongs ({error})",
            "the settings of a flow-matching scheduler",
            "Copy or download the base again; the file is damaged.",
        ) from error


def pack(latents: Tensor) -> Tensor:
    """Turn every 2x2 patch of latents `[B, C, h, w]`, with even sides, into one token.

    `[B, (h/2) (w/2), 4C]`; within a token the order is channel, row, column.
    """
    batch, channels, height, width = latents.shape
    patches = latents.reshape(batch, channels, height // 2, 2, width // 2, 2)
    return patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpack(tokens: Tensor, height: int, width: int) -> Tensor:
    """Undo `pack` of `[B, (h/2) (w/2), 4C]` into `[B, C, h, w]`, with even sides.

    Tokens that follow, such as those of control images, are left out.
    """
    rows, columns = height // 2, width // 2
    patches = tokens[:, : rows * columns].unflatten(2, (-1, 2, 2)).unflatten(1, (rows, columns))
    return patches.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


def pipeline_time(sigma: Tensor, dtype: torch.dtype) -> Tensor:
    """Sigma `[B]` as Diffusers' pipelines hand it on: through 0 to 1000 and back.

    So that half precision rounds in the same place.
    """
    return (sigma.float() * 1000).to(dtype) / 1000


def area_size(width: int, height: int, area: int) -> tuple[int, int]:
    """`LatentSpec.control_size`: the size of about so many pixels that has an image's own shape.

    Width and height, each a multiple of 32 and at least 32.

    Source: Diffusers, ``calculate_dimensions`` of the Qwen-Image edit pipelines.
    """
    ratio = width / height
    wide = math.sqrt(area * ratio)
    high = wide / ratio
    return max(round(wide / _SIDE), 1) * _SIDE, max(round(high / _SIDE), 1) * _SIDE


def text_shapes(
    config: Mapping[str, Any], tokens: int, width: str = "joint_attention_dim"
) -> dict[str, tuple[int, ...]]:
    """`TextSpec.conditioning_shapes` of a denoiser that is given the text alone."""
    return {"text_embeddings": (tokens, config[width])}


def pad_text(embeddings: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Stack texts `[L_i, ...]` of different lengths to `[B, L, ...]`, and give their mask.

    Zeros are at the right. The mask `[B, L]` is true on real tokens; None when all lengths are
    equal, so that attention kernels without masks can run.
    """
    lengths = [len(text) for text in embeddings]
    padded = pad_sequence(list(embeddings), batch_first=True)
    if min(lengths) == max(lengths):
        return padded, None
    # Made where the texts are: a mask that is sent there would wait for what is computed there.
    real = [torch.ones(length, dtype=torch.bool, device=padded.device) for length in lengths]
    return padded, pad_sequence(real, batch_first=True)


def guide(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """`PredictionSpec.guide`: plain classifier-free guidance, of velocities `[B, C, h, w]`.

    With and without the prompt; a scale of 1 gives the first.
    """
    return unconditional + scale * (conditional - unconditional)


DECODER_NUMBERS = 1840
"""`LatentSpec.decoder_numbers` of the VAEs of FLUX.1 and of Qwen-Image, counted."""


_IMAGE_AXES = 4
"""Of latents of images; those of clips have one more."""


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True, slots=True)
class Vae:
    """The image encoder and decoder, in the normalised space of the denoiser.

    Attributes:
        model: Diffusers' model.
        normalize: Its latents `[B, C, h, w]`, float32, to those of the denoiser.
        denormalize: Undoes `normalize`.
        video: Whether the model is for videos, of which an image is one frame.
    """

    model: Any
    normalize: Callable[[Tensor], Tensor] = _as_it_is
    denormalize: Callable[[Tensor], Tensor] = _as_it_is
    video: bool = False

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Encode images without sampling: pixels `[B, 3 or 4, H, W]`, in [-1, 1].

        To `[B, C, h, w]`, float32, normalised.
        """
        pixels = pixels.to(self.model.device, self.model.dtype)
        mode = self.model.encode(pixels.unsqueeze(2) if self.video else pixels).latent_dist.mode()
        return self.normalize((mode[:, :, 0] if self.video else mode).float())

    @torch.no_grad()
    def encode_clip(self, frames: Tensor) -> Tensor:
        """Encode a clip `[T, 3, H, W]`, uint8, to `[C, f, h, w]`, as `encode`, of a video model."""
        return self.encode_frames(frames.to(self.model.device).float() / 255.0 * 2.0 - 1.0)

    @torch.no_grad()
    def encode_frames(self, pixels: Tensor) -> Tensor:
        """As `encode_clip`, of pixels `[T, 3, H, W]` in [-1, 1]."""
        video = pixels.to(self.model.device, self.model.dtype).movedim(1, 0)[None]
        mode = self.model.encode(video).latent_dist.mode()
        return self.normalize(mode[0].movedim(1, 0).float()).movedim(0, 1)

    @torch.no_grad()
    def decode(self, latents: Tensor, tile: int | None = None) -> Tensor:
        """Undo `encode`.

        Args:
            latents: `[B, C, h, w]`; of clips `[B, C, f, h, w]`.
            tile: Pixels of the side of squares that are decoded by themselves, and blended over a
                quarter of it; None decodes images as they are.

        Returns:
            `[B, 3 or 4, H, W]`, float32, in [-1, 1]; of clips `[B, T, 3, H, W]`.
        """
        if tile is not None:
            with _tiling(self.model, tile):
                return self.decode(latents)
        if latents.ndim > _IMAGE_AXES:
            return torch.cat([self._decode_clip(each.movedim(1, 0)) for each in latents])
        raw = self.denormalize(latents.to(self.model.device).float()).to(self.model.dtype)
        pixels = self.model.decode(raw.unsqueeze(2) if self.video else raw, return_dict=False)[0]
        return (pixels[:, :, 0] if self.video else pixels).float().clamp(-1, 1)

    def _decode_clip(self, frames: Tensor) -> Tensor:
        """Latents `[f, C, h, w]` of a clip to its pixels `[1, T, 3, H, W]`."""
        raw = self.denormalize(frames.to(self.model.device).float()).to(self.model.dtype)
        pixels = self.model.decode(raw.movedim(0, 1)[None], return_dict=False)[0]
        return pixels.movedim(2, 1).float().clamp(-1, 1)


@contextlib.contextmanager
def _tiling(model: Any, tile: int) -> Iterator[None]:
    """Let a model compute in tiles; Diffusers has two ways to say how large they are."""
    if hasattr(model, "tile_latent_min_size"):
        scale = 2 ** (len(model.config.block_out_channels) - 1)
        wanted = {"tile_sample_min_size": tile, "tile_latent_min_size": tile // scale}
    else:
        size, stride = ("tile_sample_min_", tile), ("tile_sample_stride_", 3 * tile // 4)
        wanted = {name + side: n for name, n in (size, stride) for side in ("height", "width")}
    before = {name: getattr(model, name) for name in ("use_tiling", *wanted)}
    try:
        vars(model).update(wanted, use_tiling=True)
        yield
    finally:
        vars(model).update(before)


def load_vae(
    kind: str,
    wrap: Callable[[Any], Vae],
    location: BaseLocation,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Vae:
    """`LatentSpec.load_vae`, by library and class; ``wrap`` gives the model its statistics.

    Raises:
        BaseModelError: When the files are damaged, or say nothing that fits the class.
    """
    with reading_part(location.encoders / "vae"):
        return wrap(load_frozen(kind, location.encoders, "vae", dtype=dtype, device=device))


def kl_latents(config: Mapping[str, Any]) -> tuple[int, int]:
    """`LatentSpec.of_config` of Diffusers' ``AutoencoderKL``."""
    return int(config.get("latent_channels", 16)), 2 ** (len(config["block_out_channels"]) - 1)


def load_tokens(location: BaseLocation, part: str) -> Callable[[str], int]:
    """Load a tokenizer alone: a text to the number of its tokens, with those at its ends."""
    tokenizer = load_words("AutoTokenizer", location.encoders, part)
    return lambda text: len(tokenizer(text, verbose=False).input_ids)


def _template(path: str, known: Container[str] = ()) -> tuple[str, str]:
    """A path with ``{}`` for its block's number, and that number; one that is known as it is."""
    if path in known and "{}" not in path:
        return path, ""
    block = _NUMBERED.fullmatch(path)
    if block is None:
        return ("" if "{}" in path else path), ""
    return f"{block[1]}.{{}}.{block[3]}", block[2]


_FUSED = {
    "to_qkv": ("to_q", "to_k", "to_v"),
    "to_kv": ("to_k", "to_v"),
    "to_added_qkv": ("add_q_proj", "add_k_proj", "add_v_proj"),
    "add_qkv_proj": ("add_q_proj", "add_k_proj", "add_v_proj"),
}
"""What Diffusers (``fuse_qkv_projections``) or nunchaku calls layers that it fuses, to parts."""


def _fused_names(names: Mapping[str, str], modules: dict[str, list[str]]) -> dict[str, str]:
    """Diffusers' names of fused layers to what they are, whose parts come into ``modules``."""
    found: dict[str, str] = {}
    for module, (fused, own) in itertools.product(names, _FUSED.items()):
        stem, _, end = module.rpartition(".")
        name, parts = f"{stem}.{fused}", [f"{stem}.{part}" for part in own]
        if end == own[0] and all(part in names for part in parts):
            # ComfyUI's layer where it holds just these, else one that only others have.
            found[name] = names[module] if modules[names[module]] == parts else name
            modules.setdefault(found[name], parts)
    return found


def layer_names(
    names: Mapping[str, str],
    shares: Mapping[str, int] | None = None,
    comfyui_spellings: tuple[str, ...] = (),
    comfyui_names: tuple[ComfyuiName, ...] = (),
    aliases: Mapping[str, str] | None = None,
    native_only: frozenset[str] = frozenset(),
) -> KeyMap:
    """`LayerSpec.key_map` from a table.

    Args:
        names: Every layer in Diffusers' transformer to its name in ComfyUI's model, both with
            ``{}`` for a block's number. Layers of one name are the parts of a fused layer, in the
            order in which they lie in it.
        shares: Parts that have several of a fused layer's shares of rows, to how many (`Part`);
            also of a layer that only other programs fuse.
        comfyui_spellings: As `KeyMap.comfyui_spellings`.
        comfyui_names: As `KeyMap.comfyui_names`.
        aliases: As `KeyMap.aliases`.
        native_only: As `KeyMap.native_only`.
    """
    modules: dict[str, list[str]] = {}
    for module, native in names.items():
        modules.setdefault(native, []).append(module)
    fused = _fused_names(names, modules)

    def native_key(path: str) -> NativeKey | None:
        template, number = _template(path, names)
        native = names.get(template)
        if native is None:
            return None
        return NativeKey(native.replace("{}", number), part=len(modules[native]) > 1)

    def parts(native: str) -> tuple[Part, ...]:
        template, number = _template(native, modules)
        found = modules.get(template, ())
        if len(found) < 2:
            return ()
        return tuple(Part(m.replace("{}", number), (shares or {}).get(m, 1)) for m in found)

    def module_path(native: str) -> str | None:
        template, number = _template(native, modules)
        found = modules.get(template, ())
        return found[0].replace("{}", number) if len(found) == 1 else None

    return KeyMap(
        native_key,
        module_path,
        parts,
        layers=tuple(names),
        comfyui_spellings=comfyui_spellings,
        comfyui_names=comfyui_names,
        aliases={**fused, **(aliases or {})},
        native_only=native_only,
    )


def origin_by_names(key_map: KeyMap) -> Callable[[str, bool], Origin | None]:
    """`FileSpec.origin` of files that have Diffusers' names or those of a key map.

    What is not a layer, such as norms, is among the key map's `comfyui_names`.
    """
    others = {each.path: each for each in key_map.comfyui_names if not each.shares}

    def origin(name: str, native: bool) -> Origin | None:
        if not native:
            return Origin(name)
        path, _, kind = name.rpartition(".")
        key = key_map.to_native(path)
        if key is not None:
            parts = [part.module for part in key_map.parts(key.name)]
            return Origin(f"{key.name}.{kind}", parts.index(path) if key.part else 0)
        template, number = _template(path, others)
        if template not in others:
            return None
        other = others[template]
        return Origin(f"{other.native.replace('{}', number)}.{kind}", swapped=other.swapped)

    return origin


def names_in(
    file: WeightFile, marks: tuple[str, ...], origin: Callable[[str, bool], Origin | None]
) -> Callable[[str], str]:
    """A tensor's name in Diffusers' transformer to that in a file, native where it has a mark."""
    native = any(name.startswith(marks) for name in file.tensors)

    def name_in_file(name: str) -> str:
        found = origin(name, native)
        return name if found is None else found.name

    return name_in_file


def check_heads(file: WeightFile, settings: Mapping[str, Any]) -> None:
    """`FileSpec.check` for rotary positions that fill every head; else `BaseModelError`."""
    heads, head = settings["num_attention_heads"], settings["attention_head_dim"]
    rotary = sum(settings["axes_dims_rope"])
    if heads < 1 or head != rotary:
        raise file.broken(
            f"its attention heads have {head} values each",
            f"heads of {rotary}, which the rotary positions are for",
        )


def computing_dtype(transformer: nn.Module) -> torch.dtype:
    """The number format that a denoiser of Diffusers computes in, as its ``dtype`` says.

    That walks all of the model's parts, which takes 39 ms for 60 blocks with an adapter. So it is
    asked once for each model, and again when the model's first parameter has another format.
    """
    inner = inner_module(transformer)
    stored = next((each.dtype for each in inner.parameters()), None)
    known = _COMPUTING.get(inner)
    if known is None or known[0] != stored:
        known = _COMPUTING[inner] = stored, inner.dtype
    return known[1]


def inner_module(transformer: nn.Module) -> Any:
    """The model inside a wrapper for several processes, or the model itself."""
    inner = getattr(transformer, "module", None)
    return transformer if inner is None else inner


def takes_guidance(transformer: nn.Module) -> bool:
    """`PredictionSpec.takes_guidance` of Diffusers' classes that say it in their configuration."""
    return bool(inner_module(transformer).config.guidance_embeds)


def enable_checkpointing(transformer: nn.Module, call: Callable[..., Any] | None = None) -> None:
    """`LayerSpec.enable_checkpointing` of Diffusers' classes."""
    inner_module(transformer).enable_gradient_checkpointing(call)
