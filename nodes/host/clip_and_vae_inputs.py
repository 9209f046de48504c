"""What arrives at a node's CLIP and VAE inputs: what it has to be, and a name for its weights."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ...trainer_core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from ...trainer_core.families.graph_spec import Row

Tokens = dict[str, list[list[tuple[Any, ...]]]]
"""ComfyUI's tokens: encoder name to rows of (token id or image or embedding, weight)."""

Socket = TypeVar("Socket")
# Beginning, middle and end: a file that is mapped into memory is read by the page, and the end of
# one tensor shares its page with the beginning of the next.
_PLACES = 3
_NEIGHBOURS = 128
_DEEPEST = 6
_PLAIN = bool | int | float | str
ATTENTION = "optimized_attention_override"
"""ComfyUI's name of what a node computes attention with."""


class Clip(Protocol):
    """What is used of ComfyUI's ``comfy.sd.CLIP``."""

    cond_stage_model: Any
    tokenizer: Any
    patcher: Any
    layer_idx: int | None

    def tokenize(self, text: str, **options: Any) -> Tokens:
        """Split a text into tokens with weights."""
        ...

    def encode_from_tokens_scheduled(self, tokens: Mapping[str, Sequence[Row]]) -> list[Any]:
        """Encode to ComfyUI's CONDITIONING: pairs of a tensor `[1, L, D]` and a mapping."""
        ...


class Vae(Protocol):
    """What is used of ComfyUI's ``comfy.sd.VAE``."""

    first_stage_model: Any
    patcher: Any

    def encode(self, pixel_samples: Tensor) -> Tensor:
        """Encode `[1, H, W, 3]` in [0, 1] to latents before the model's own scaling."""
        ...

    def decode(self, samples_in: Tensor) -> Tensor:
        """Undo `encode`."""
        ...


MUTED = "Is its node muted or bypassed? Then it gives nothing."
"""Another reason for an input without a value: its link is on the canvas all the same."""


def require(value: Socket | None, socket: str, purpose: str, remedy: str) -> Socket:
    """The value of an input that may be unconnected.

    Raises:
        InputError: When nothing is connected; it says for what purpose something has to be.
    """
    if value is None:
        found = f"nothing at the {socket} input"
        raise InputError(found, f"a {socket} {purpose}", f"{remedy} {MUTED}")
    return value


def require_plain(patcher: Any, socket: str) -> None:
    """Refuse changes of a model whose effect is not in its weights and patches.

    Raises:
        InputError: When a patcher carries hooks or injections: they can change by the sampling step
            or cannot be told apart, so that a cache would not notice that they were exchanged.
    """
    hooked = getattr(patcher, "forced_hooks", None) is not None
    if hooked or getattr(patcher, "injections", None):
        what = "hooks (Set CLIP Hooks)" if hooked else "a LoRA in bypass mode or another injection"
        raise InputError(
            f"a {socket} with {what} at the {socket} input",
            f"a {socket} as a loader gives it, or with LoRA patched in by Load LoRA",
            f"Connect the {socket} from before that node, or use Load LoRA instead.",
        )


def made_by(value: Any) -> str:
    """Where a function or an object of a node is from, such as ``nodes_flux.KV_Attn_Input``."""
    kind = value if hasattr(value, "__qualname__") else type(value)
    # ComfyUI names the module of a pack by the path of its file.
    module = re.split(r"[/\\]", str(kind.__module__))[-1]
    return f"{module}.{kind.__qualname__}"


def named_patch(name: Any, held: Any) -> str:
    """An option or wrapper of a MODEL with the functions in it."""
    functions = held if isinstance(held, list) else [held]
    where = ", ".join(made_by(each) for each in functions if not isinstance(each, _PLAIN))
    return f"{name} ({where})" if where else str(name)


def patches_of(patcher: Any) -> Iterator[str]:
    """What nodes have put inside of a MODEL, by the functions and objects that they gave."""
    options = patcher.model_options.get("transformer_options", {})
    places = [(ATTENTION, options.get(ATTENTION))]
    places += [(name, each) for name, held in options.get("patches", {}).items() for each in held]
    for name, held in options.get("patches_replace", {}).items():
        places += [(name, each) for each in held.values()]
    places += list(patcher.object_patches.items())
    for name, each in places:
        if each is not None and name != "model_sampling":
            yield named_patch(name, each)


def weights_fingerprint(model: Any, patcher: Any, unused: Collection[str] = ()) -> str:
    """Fingerprint a model as its patcher will run it, wherever its weights are now.

    32 hexadecimal digits. A CLIP or VAE does not know which file it came from. Every tensor counts
    with its name, shape, dtype and a sample of its values. A finetune, another precision or a patch
    shows in the sample; a change of single values of a large tensor may not. That is the price of
    reading next to nothing of 20 GB.

    Nothing is loaded to a device. Weights that ComfyUI has replaced by patched ones for now count
    as the originals, so that the name is the same before and after the first use. The result does
    not depend on `unused` weights: where a file lacks them, ComfyUI leaves in them what was in
    memory, other values at each load.
    """
    digest = hashlib.sha256()
    # A compiled module has the same weights, below a name of its own where it is in place.
    originals = {k.replace("._orig_mod", ""): v for k, v in _originals(model, patcher).items()}
    for name in sorted(originals.keys() - set(unused)):
        _add_tensor(digest.update, name, originals[name])
    for key, patches in sorted(patcher.patches.items()):
        digest.update(f"patch {key}".encode())
        _add(digest.update, patches)
    wrappers = getattr(patcher, "weight_wrapper_patches", {})
    objects = getattr(patcher, "object_patches", {}).items()
    plain = [name for name, each in objects if not hasattr(each, "_orig_mod")]
    changed = sorted([*wrappers, *plain])
    digest.update(f"changed {changed}".encode())
    return digest.hexdigest()[:32]


def reads_weights(clip: Clip | None) -> bool:
    """Whether a CLIP's tokenizer reads round brackets as weights of words."""
    if clip is None:
        return False
    rows = (row for rows in clip.tokenize("(a:1.5)").values() for row in rows)
    return any(float(token[1]) != 1.0 for row in rows for token in row)


def clip_identity(clip: Clip, signature: str, unused: Collection[str] = ()) -> str:
    """What an encoded text depends on, for the cache's keys.

    The signature says how tokens are made of a text; `unused` as of `weights_fingerprint`.
    """
    tokens = hashlib.sha256(signature.encode()).hexdigest()[:32]
    return f"clip {tokens} {weights_fingerprint(clip.cond_stage_model, clip.patcher, unused)}"


def vae_identity(vae: Vae) -> str:
    """What an encoded image depends on, for the cache's keys."""
    precision = getattr(vae, "vae_dtype", "unknown")
    return f"vae {precision} {weights_fingerprint(vae.first_stage_model, vae.patcher)}"


def options_fingerprint(patcher: Any) -> str:
    """Fingerprint what a patcher does to its model's blocks and objects, such as FreeU.

    32 hexadecimal digits. A function counts with its name, its code, and the numbers, words and
    tensors that it was made with. A compiled module is another form of the same.
    """
    digest = hashlib.sha256()
    _add_made(digest.update, patcher.model_options.get("transformer_options", {}), _DEEPEST)
    objects = {
        name: each
        for name, each in patcher.object_patches.items()
        if name != "model_sampling" and not hasattr(each, "_orig_mod")
    }
    _add_made(digest.update, objects, _DEEPEST)
    return digest.hexdigest()[:32]


def _add_made(update: Callable[[bytes], None], value: Any, deeper: int) -> None:
    """Add a value and what it was made with, so far down; nothing of where it lies in memory."""
    import torch

    if isinstance(value, torch.Tensor):
        _add_tensor(update, "", value)
    elif _is_plain(value):
        update(f"{value!r};".encode())
    elif not deeper:
        update(type(value).__qualname__.encode())
    elif isinstance(value, Mapping):
        for key, each in sorted(value.items(), key=lambda item: str(item[0])):
            update(f"{key}:".encode())
            _add_made(update, each, deeper - 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value if isinstance(value, list | tuple) else sorted(value, key=str):
            _add_made(update, each, deeper - 1)
    else:
        named = value if callable(value) and hasattr(value, "__qualname__") else type(value)
        update(f"{named.__module__} {named.__qualname__};".encode())
        if code := getattr(value, "__code__", None):
            update(
                code.co_code + repr([each for each in code.co_consts if _is_plain(each)]).encode()
            )
        cells = getattr(value, "__closure__", None) or ()
        held = [cell.cell_contents for cell in cells] or getattr(value, "__dict__", {})
        _add_made(update, held, deeper - 1)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, _PLAIN)


def _originals(model: Any, patcher: Any) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = dict(model.state_dict())
    # Layers of a pack that reads GGUF list empty tensors instead of their packed ones.
    held = dict(model.named_parameters())
    hidden = {name for name, tensor in tensors.items() if tensor.is_meta and name in held}
    tensors |= {name: held[name] for name in hidden}
    replaced = {key: kept.weight for key, kept in patcher.backup.items()}
    replaced |= {key: kept[0] for key, kept in (getattr(patcher, "hook_backup", {}) or {}).items()}
    replaced |= getattr(patcher, "backup_buffers", {})
    for key, tensor in replaced.items():
        # ComfyUI's quantized tensors say themselves which plain tensors they are made of.
        parts = tensor.state_dict(key) if hasattr(tensor, "state_dict") else {key: tensor}
        tensors.update(parts)
    return tensors


def _add(update: Callable[[bytes], None], value: Any) -> None:
    """Add a patch, which nests tensors, numbers, adapters and functions."""
    import torch

    if isinstance(value, torch.Tensor):
        _add_tensor(update, "", value)
    elif isinstance(value, Mapping):
        _add(update, sorted(value.items()))
    elif isinstance(value, list | tuple):
        update(f"[{len(value)}]".encode())
        for each in value:
            _add(update, each)
    elif hasattr(value, "weights"):  # LoRA, LoHa, LoKr ... as comfy.weight_adapter keeps them
        update(type(value).__name__.encode())
        _add(update, value.weights)
    elif callable(value):
        update(getattr(value, "__qualname__", type(value).__name__).encode())
    else:
        update(f"{value!r};".encode())


def _add_tensor(update: Callable[[bytes], None], name: str, tensor: Tensor) -> None:
    update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
    update(_sample(tensor))


def _sample(tensor: Tensor) -> bytes:
    import torch

    count, size = tensor.numel(), tensor.element_size()
    wanted = _PLACES * _NEIGHBOURS
    if tensor.is_meta:
        return bytes(min(count, wanted) * size)  # ComfyUI fills what a file lacks with zeros
    with torch.no_grad():
        # As bytes, because not every precision can be indexed or joined.
        plain = tensor.detach().as_subclass(torch.Tensor).contiguous()
        values = plain.view(-1).view(torch.uint8)
        if count > wanted:
            last = count - _NEIGHBOURS
            starts = [size * (last * index // (_PLACES - 1)) for index in range(_PLACES)]
            values = torch.cat([values[start : start + size * _NEIGHBOURS] for start in starts])
        return values.cpu().numpy().tobytes()
