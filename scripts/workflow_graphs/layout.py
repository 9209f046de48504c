"""Where nodes stand: columns from left to right, nothing on top of anything.

Sizes were measured in ComfyUI's frontend 1.49: the larger one of its two renderers, with room
for the line that it adds below a node whose model file is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .graph import Item, Note, Section, Workflow
from .schemas import Schemas, inputs_of

TITLE = 30
_GAP = 30
_FRAME = 20
_FRAME_TITLE = 44
_BETWEEN = 40

_SIZES: Mapping[str, tuple[int, int]] = {
    "AdapterTrainerQuick": (480, 1030),
    "AdapterTrainerEmbeddedModel": (340, 78),
    "AdapterTrainerEmbeddedText": (340, 160),
    "AdapterTrainerDatasetFolder": (400, 450),
    "AdapterTrainerDatasetCombine": (400, 120),
    "AdapterTrainerDatasetReport": (400, 100),
    "AdapterTrainerBase": (400, 138),
    "AdapterTrainerBaseFromModel": (400, 104),
    "AdapterTrainerPreviewPrompts": (400, 290),
    # With what it says while it encodes.
    "AdapterTrainerCache": (360, 232),
    "AdapterTrainerAdapter": (360, 278),
    "AdapterTrainerSettings": (360, 306),
    "AdapterTrainerTrain": (480, 794),
    "AdapterTrainerPreview": (340, 166),
    # With what they say at the end.
    "AdapterTrainerSave": (340, 262),
    "AdapterTrainerConvert": (400, 386),
    "CheckpointLoaderSimple": (400, 142),
    "UNETLoader": (400, 118),
    "CLIPLoader": (400, 146),
    "DualCLIPLoader": (400, 176),
    "VAELoader": (400, 94),
    "LoraModelLoader": (340, 134),
    "KSampler": (340, 262),
    "KSamplerAdvanced": (340, 370),
    "SamplerCustom": (340, 290),
    "KSamplerSelect": (340, 62),
    "LTXVScheduler": (340, 190),
    "LTXVConditioning": (340, 82),
    "LTXAVTextEncoderLoader": (400, 176),
    "LTXVAudioVAELoader": (400, 94),
    "LTXVEmptyLatentAudio": (340, 130),
    "LTXVConcatAVLatent": (340, 54),
    "LTXVSeparateAVLatent": (340, 54),
    "LTXVAudioVAEDecode": (340, 54),
    "EmptyHunyuanLatentVideo": (340, 154),
    "EmptyHunyuanVideo15Latent": (340, 154),
    "EmptyLTXVLatentVideo": (340, 154),
    "Wan22ImageToVideoLatent": (340, 190),
    "WanImageToVideo": (340, 240),
    "CreateVideo": (340, 82),
    "SaveVideo": (400, 480),
    "EmptyLatentImage": (340, 118),
    "EmptySD3LatentImage": (340, 118),
    "EmptyQwenImageLayeredLatentImage": (340, 142),
    "EmptyFlux2LatentImage": (340, 118),
    "LatentCutToBatch": (340, 82),
    "ImageScale": (340, 154),
    "ImageScaleBy": (340, 106),
    "ImageScaleToTotalPixels": (340, 130),
    "ModelSamplingAuraFlow": (340, 62),
    "ModelSamplingFlux": (340, 142),
    "CFGNorm": (340, 114),
    "FluxGuidance": (340, 62),
    "ConditioningZeroOut": (340, 34),
    "FluxKontextImageScale": (340, 34),
    "ReferenceLatent": (340, 54),
    "LossGraphNode": (400, 480),
    "TextEncodeQwenImageEditPlus": (400, 200),
    "CLIPTextEncode": (400, 160),
    "LoadImage": (340, 330),
    "EmptyImage": (340, 146),
    "ImageCompositeMasked": (340, 158),
    "ImageStitch": (340, 200),
    "PreviewAny": (400, 300),
    "PreviewImage": (400, 280),
    "SaveImage": (420, 440),
    "VAEDecode": (340, 54),
    "VAEEncode": (340, 54),
}
_ROW, _LINES = 28, 100
"""A folded setting that differs from its default stays visible: in a row, or in lines of text."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands; a node's title bar is above its `y`."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A section's frame and title."""

    title: str
    place: Place


def arrange(workflow: Workflow, schemas: Schemas) -> tuple[dict[int, Place], list[Frame]]:
    """Give every node and note a place.

    Args:
        workflow: Its sections say what stands beside and below what.
        schemas: What its nodes are, which tells what they fold away.

    Returns:
        Places by id, and the frames.

    Raises:
        ValueError: When an item stands in no section or in two.
    """
    places: dict[int, Place] = {}
    frames: list[Frame] = []
    top = 0
    for row in workflow.rows:
        left, lowest = 0, top
        for section in row:
            frame = _section(section, left, top, places, schemas)
            frames.append(frame)
            left += frame.place.width + _BETWEEN
            lowest = max(lowest, top + frame.place.height)
        top = lowest + _BETWEEN
    items = [*workflow.nodes, *workflow.notes]
    if sorted(places) != sorted(item.id for item in items):
        raise ValueError(f"{workflow.name}: not every node stands in a section")
    return places, frames


def _section(
    section: Section, left: int, top: int, places: dict[int, Place], schemas: Schemas
) -> Frame:
    x, bottom = left + _FRAME, 0
    for column in section.columns:
        y, width = top + _FRAME_TITLE + TITLE, max(_size(item, schemas)[0] for item in column)
        for item in column:
            if item.id in places:
                raise ValueError(f"{section.title}: {item} stands in two places")
            height = _size(item, schemas)[1]
            places[item.id] = Place(x, y, width, height)
            bottom = max(bottom, y + height)
            y += height + _GAP + TITLE
        x += width + _GAP
    return Frame(section.title, Place(left, top, x - _GAP + _FRAME - left, bottom + _FRAME - top))


def _size(item: Item, schemas: Schemas) -> tuple[int, int]:
    if isinstance(item, Note):
        return item.width, item.height
    width, height = item.subgraph.size if item.subgraph else _SIZES[item.type]
    more = sum(
        _LINES if each.options.get("multiline") else _ROW
        for each in inputs_of(schemas[item.type], item.values)
        if item.type.startswith("AdapterTrainer")
        and each.is_widget
        and each.options.get("advanced")
        and item.values.get(each.name, each.default) != each.default
    )
    return width, item.tall or height + more
