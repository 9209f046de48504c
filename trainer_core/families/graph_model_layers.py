"""What can be told of a denoiser in a host's memory, of which only the tree of modules is known.

Its layers are called by their own paths. Which of them are adapted is decided by what they are:
the lists of blocks that run one after another hold the layers that every trainer adapts, and
inside a block some modules make the modulation, or embed the time, and are left out.

What is a block list:

- a list of at least two modules, or of one under a name of blocks, that have a normalization and
  two layers each; a list inside such a list is a part of its blocks;
- of a UNet its three parts, two of which are lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from ..adapter_files.names.key_map import KeyMap
from ..adapter_files.names.native_key_map import native_key_map
from .family_specs import HeaderNames

_LISTS = (nn.ModuleList, nn.ModuleDict)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_UNET_PARTS = ("input_blocks", "middle_block", "output_blocks")
_FEWEST_LAYERS = 2
_UNETS = {
    768: HeaderNames("stable-diffusion-v1", "sd_v1"),
    1024: HeaderNames("stable-diffusion-v2-512", "sd_v2"),
    2048: HeaderNames("stable-diffusion-xl-v1-base", "sdxl_base_v1-0"),
}
"""Values of a text token that a UNet reads to its names in headers.

Source: kohya's sd-scripts, ``library/sai_model_spec.py`` and ``library/sdxl_model_util.py``.
"""

_NAME_OF_BLOCKS = re.compile(r"block|layer|refiner", re.IGNORECASE)

_BESIDE = re.compile(
    r"refiner|text|txt|caption|context|cond|token|adapter|connector|guidance|embed",
    re.IGNORECASE,
)
"""In the path of a list whose blocks prepare the text or the time: presets leave it out."""

_MODULATION = re.compile(
    r".*(modulation|adaln|norm|emb|timestep|gate_logits).*|([a-z]+_)?mod[A-Z]{0,2}|ada_?ln.*",
    re.IGNORECASE,
)
"""A part of a path below which layers make the modulation, or embed the time or a label."""

_ATTENTION = re.compile(r".*att(n|ention).*", re.IGNORECASE)
_OF_CROSS_ATTENTION = re.compile(r".*cross.*|attn2", re.IGNORECASE)

_SPELLINGS = ("{}", "to_{}", "{}_proj", "add_{}_proj", "to_{}_t", "w{}", "w1{}", "w2{}")
_PROJECTIONS = (
    *(tuple(spelling.format(each) for each in "qkv") for spelling in _SPELLINGS),
    ("to_query", "to_key", "to_value"),
)
"""How the projections of an attention are called: of the queries, keys and values."""

_GATED = (("w1", "w3"), ("gate", "up"))
"""The two layers of a gated MLP that read its input."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A Linear or convolution.

    Attributes:
        path: From the model.
        within: Its path in its block; empty outside of blocks.
        template: The path as a regular expression, with numbers of lists left open.
        module: Itself.
        blocks: The list of its block; empty outside of blocks.
    """

    path: str
    within: str
    template: str
    module: nn.Module
    blocks: str

    @property
    def is_linear(self) -> bool:
        return _is_linear(self.module)

    @property
    def modulates(self) -> bool:
        return any(map(_MODULATION.fullmatch, self.within.split(".")))


def is_unet(model: nn.Module) -> bool:
    """Whether a denoiser is the UNet of Stable Diffusion, in the naming of its authors."""
    found = (getattr(model, name, None) for name in ("input_blocks", "output_blocks"))
    return all(isinstance(each, nn.ModuleList) for each in found)


def block_lists(model: nn.Module) -> tuple[str, ...]:
    """The lists of blocks that run one after another, outermost ones only, in the module's order.

    `LayerSpec.repeated_blocks`. The blocks are the children of what has the path: a ``ModuleList``
    mostly, also a ``ModuleDict`` or, in the middle of a UNet, a ``Sequential``.
    """
    if is_unet(model):
        return tuple(n for n in _UNET_PARTS if isinstance(getattr(model, n, None), nn.Module))
    found: list[str] = []
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if path and not inside and isinstance(module, _LISTS) and _holds_blocks(path, module):
            found.append(path)
    return tuple(found)


def native_presets(model: nn.Module) -> Mapping[str, tuple[str, ...]]:
    """Find the sets of layers that a run may name.

    - ``default`` and ``attention_mlp``: every Linear of the blocks but for those that make the
      modulation, and for blocks that only prepare the text. Of a UNet these are the layers that
      kohya's trainer adapts: the 1x1 convolutions around its attentions are among them.
    - ``attention``: of these the layers of attentions, and those of blocks that have them joined
      with the MLP.
    - ``all_linear``: every Linear of the model.
    - ``convolutions``, where blocks have any: ``default`` and the convolutions in blocks.

    Returns:
        `LayerSpec.presets`. `convolutional_presets` says which mean convolutions too.
    """
    layers, lists = list(_layers(model)), block_lists(model)
    inside = [each for each in layers if bool(each.blocks) == bool(lists)]
    plain = [each for each in inside if _is_plain(model, each)]
    own = [each for each in plain if not _BESIDE.search(each.blocks)] or plain
    joined = {each.blocks for each in own} - {e.blocks for e in own if _is_attention(e)}
    attention = [each for each in own if each.blocks in joined or _is_attention(each)]
    presets = {
        "default": _templates(own),
        "attention": _templates(attention),
        "attention_mlp": _templates(own),
        "all_linear": (".*",),
    }
    blocks = {each.blocks for each in own if each.blocks}
    windows = [e for e in layers if not e.is_linear and e.blocks in blocks and _is_named(e)]
    if windows:
        presets["convolutions"] = _templates([*own, *windows])
    return presets


def unused(model: nn.Module) -> tuple[str, ...]:
    """`LayerSpec.unused`: what only a latent of sound goes through."""
    return (".*audio.*",) if makes_sound(model) else ()


def makes_sound(model: nn.Module) -> bool:
    """Whether a model of videos makes their sound too, where it is given a latent of it."""
    return any(name.startswith("audio_patch") for name, _ in model.named_children())


def convolutional_presets(model: nn.Module) -> frozenset[str]:
    """`LayerSpec.convolutional_presets`: those of `native_presets`."""
    names = ("default", "attention_mlp", "convolutions") if is_unet(model) else ("convolutions",)
    return frozenset(names).intersection(native_presets(model))


def key_map(model: nn.Module) -> KeyMap:
    """The names of a denoiser's layers: its own paths (`LayerSpec.key_map`)."""
    weighted = (p for p, m in model.named_modules() if p and getattr(m, "weight", None) is not None)
    return native_key_map((layer.path for layer in _layers(model)), weighted)


def header_names(model: nn.Module, title: str) -> HeaderNames:
    """What other programs call a denoiser in headers of adapter files (`BaseFiles.header_names`).

    A UNet is called as kohya's trainer calls those of its kind; what no program has a name for by
    its title, such as its class.
    """
    if not is_unet(model):
        return HeaderNames(title, title)
    widths = {
        getattr(module, "in_features", 0)
        for path, module in model.named_modules()
        if path.endswith(".attn2.to_k")
    }
    return _UNETS.get(widths.pop() if len(widths) == 1 else 0, HeaderNames(title, title))


def shared_inputs(model: nn.Module) -> tuple[str, ...]:
    """`LayerSpec.shared_inputs`: layers that read one tensor, where their names make that sure."""
    owners: dict[str, dict[str, _Layer]] = {}
    for layer in _layers(model):
        if layer.blocks and layer.is_linear:
            owner, _, name = layer.template.rpartition(r"\.")
            owners.setdefault(owner, {}).setdefault(name, layer)
    return tuple(
        rf"({owner})\.(?:{'|'.join(names)})"
        for owner, layers in owners.items()
        for names in _reading_alike(owner, layers)
    )


def _holds_blocks(path: str, module: nn.Module) -> bool:
    blocks = list(module.children())
    named = _NAME_OF_BLOCKS.search(path.rpartition(".")[2])
    return bool(blocks) and (len(blocks) > 1 or bool(named)) and all(map(_is_block, blocks))


def _is_block(module: nn.Module) -> bool:
    parts = list(module.modules())
    return sum(map(_is_layer, parts)) >= _FEWEST_LAYERS and any(
        "norm" in type(e).__name__.lower() for e in parts
    )


def _is_linear(module: nn.Module) -> bool:
    """Whether it is a Linear, also one of a host's own that does not descend from torch's."""
    sizes = (getattr(module, name, None) for name in ("in_features", "out_features"))
    alike = not any(True for _ in module.children()) and all(isinstance(n, int) for n in sizes)
    return alike or isinstance(module, nn.Linear)


def _is_layer(module: nn.Module) -> bool:
    return _is_linear(module) or isinstance(module, _CONVOLUTIONS)


def _layers(model: nn.Module) -> Iterator[_Layer]:
    """Every Linear and convolution."""
    lists = block_lists(model)
    named = dict(model.named_modules())
    for path, module in named.items():
        if not path or not _is_layer(module):
            continue
        blocks = next((name for name in lists if path.startswith(f"{name}.")), "")
        behind = path[len(blocks) + 1 :] if blocks else ""
        # In the middle of a UNet there is one block, whose layers have no number in front.
        within = behind if blocks == "middle_block" else behind.partition(".")[2]
        yield _Layer(path, within, _template(path, named), module=module, blocks=blocks)


def _template(path: str, named: Mapping[str, nn.Module]) -> str:
    """A path as a regular expression that leaves the places in lists open."""
    parts, owner = [], ""
    for part in path.split("."):
        above = named.get(owner)
        if isinstance(above, nn.ModuleList):
            parts.append(r"\d+")
        else:
            # A list may be a dictionary of block0, block1 and so on.
            counted = isinstance(above, nn.ModuleDict) and re.fullmatch(r"([A-Za-z_]+)\d+", part)
            parts.append(rf"{counted[1]}\d+" if counted else re.escape(part))
        owner = f"{owner}.{part}" if owner else part
    return r"\.".join(parts)


def _is_plain(model: nn.Module, layer: _Layer) -> bool:
    """Whether it is one of the layers that every trainer adapts, where it lies in blocks."""
    if layer.modulates or not _is_named(layer):
        return False
    return layer.is_linear or _is_pointwise(model, layer)


def _is_named(layer: _Layer) -> bool:
    """Whether it is a part of something in its block, unlike a layer that stands for a block."""
    return not layer.blocks or not layer.within.replace(".", "").isdigit()


def _is_pointwise(model: nn.Module, layer: _Layer) -> bool:
    """Whether it is a 1x1 convolution that leads into transformer blocks, or out of them."""
    owner = model.get_submodule(layer.path.rpartition(".")[0])
    size = getattr(layer.module, "kernel_size", ())
    return bool(size) and set(size) == {1} and hasattr(owner, "transformer_blocks")


def _is_attention(layer: _Layer) -> bool:
    return any(map(_ATTENTION.fullmatch, layer.within.split(".")))


def _templates(layers: list[_Layer]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(layer.template for layer in layers))


def _reading_alike(owner: str, layers: Mapping[str, _Layer]) -> Iterator[tuple[str, ...]]:
    """Names of layers of one module that read the same tensor."""
    last = owner.rpartition(r"\.")[2]
    for names in (*_PROJECTIONS, *_GATED):
        # Of a cross-attention the queries are of the image, keys and values of the text.
        alike = names[1:] if _OF_CROSS_ATTENTION.fullmatch(last) else names
        if not set(names) <= set(layers):
            continue
        if len({getattr(layers[name].module, "in_features", 0) for name in alike}) == 1:
            yield alike
