"""In what one base of Wan differs from another: its clips, and the noise levels that it knows."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from ...config import BaseSection, RunConfig
from ...config.base_path import DENOISERS, names_hub, split_denoiser, split_hub
from ...errors import BaseModelError
from ...types import FrameGrid, StartFrames
from ...weights.diffusers_folder import read_json
from ...weights.header import open_weights
from ..base_names import HIGH, LOW, named_role, names_one_of_two
from ..family_specs import LatentSpec, SecondBase
from .keys import OF_5B, settings, start_channels

_CLIPS_OF_5B = FrameGrid(every=4, rate=24.0)
_NAME_OF_5B = re.compile(r"5b(?![a-z0-9])")
_OF_ALL_LEVELS = re.compile(r"2[._]?1(?![0-9])|1[._]3b")
"""In the name of a model that knows all levels of noise."""

_OF_A_FOLDER = "diffusion_pytorch_model"
"""How files of Diffusers' folders begin, whose folder says which of two they are."""

_BORDER, _BORDER_OF_IMAGE_TO_VIDEO = 0.875, 0.9
"""Where A14B's makers go over to the other one (``boundary_ratio`` of Diffusers' pipelines)."""

_SWITCH = 0.889
"""Where ComfyUI's workflows do: after half of the steps, at shift 8."""

_VISION = 1280
"""Numbers of a token of the vision model that Wan 2.1 I2V has."""

_ROLES: dict[str, str] = dict(zip(DENOISERS, (HIGH, LOW), strict=True))
"""Of the denoisers of a Diffusers folder that has two."""

_REMEDY_OF_TWO = (
    "Add /transformer, the one for high noise, or /transformer_2, the one for low noise, to "
    "base.path."
)
"""Where a base is two models."""

_REMEDY_OF_FOLDER = "Train it in ComfyUI, through Base From Model, or name a folder of Wan 2.1 T2V."


@dataclass(frozen=True, slots=True)
class Reads:
    """What a denoiser is given.

    Attributes:
        channels: That it reads.
        made: Channels that it makes, which are those of the latents.
        vision: Numbers of a token of the vision model that shows it the start frame; 0 for none.
    """

    channels: int
    made: int
    vision: int = 0

    @property
    def begins(self) -> bool:
        """Whether channels behind the noise are those of a start frame."""
        return self.channels > self.made


def reads(file: Path | None, denoiser: Path) -> Reads:
    """What the denoiser of a base is given, by its file or its folder."""
    found = read_json(denoiser / "config.json") if file is None else settings(open_weights(file))
    made = found.get("out_channels", 16)
    return Reads(found.get("in_channels", 16), made, found.get("image_dim") or 0)


def _reads(base: BaseSection) -> Reads:
    """Of one that is on the hub, or not here, by its name."""
    place, name = Path(base.path).expanduser(), base.path.lower()
    if place.is_file():
        return reads(place, place)
    if place.is_dir():
        folder, part = split_denoiser(place)
        return reads(None, folder / (part or DENOISERS[0]))
    if _NAME_OF_5B.search(name):
        return Reads(OF_5B, OF_5B)
    vision = _VISION if _OF_ALL_LEVELS.search(name) else 0
    begins = "i2v" in name and (vision or _expert(base))
    return Reads(16 + start_channels(16), 16, vision) if begins else Reads(16, 16)


def of_base(spec: LatentSpec, base: BaseSection) -> LatentSpec:
    """`LatentSpec.of_base`: TI2V-5B has a rate of its own, and I2V begins with a frame.

    Raises:
        BaseModelError: When the base's file cannot be read.
    """
    found = _reads(base)
    if found.channels == OF_5B:
        return replace(spec, clips=_CLIPS_OF_5B, starts=StartFrames(always=False, end=False))
    return replace(spec, starts=StartFrames(always=True, end=True)) if found.begins else spec


@dataclass(frozen=True, slots=True)
class _Expert:
    """One of two models.

    Attributes:
        role: `HIGH` or `LOW`.
        border: Sigma at which the makers go over to the other one; None where no folder says it.
        other: ``base.path`` of the other one; empty where it is not known.
    """

    role: str
    border: float | None
    other: str


def _expert(base: BaseSection) -> _Expert | None:
    """Which of two models a base is, as its folder or its name says; None where it says neither."""
    folder, part, border = _two(base)
    if border is None and names_hub(base.path) and names_one_of_two(base.path):
        part = split_hub(base.path)[1]
    elif border is None:
        role = named_role(_named(base))
        return _Expert(role, None, base.other_expert or "") if role else None
    if not part:
        return None
    beside = next(each for each in DENOISERS if each != part)
    other = f"{split_hub(base.path)[0]}/{beside}" if border is None else str(folder / beside)
    return _Expert(_ROLES[part], border, base.other_expert or other)


def _two(base: BaseSection) -> tuple[Path, str, float | None]:
    """The Diffusers folder that a base is in, its part in it, and the border of the two there.

    A file of a denoiser's folder is that part: its name says nothing.
    """
    place = Path(base.path).expanduser()
    folder, part = split_denoiser(place.parent if place.is_file() else place)
    return folder, part, _boundary(folder) if part or place.is_dir() else None


def _border(base: BaseSection, one: _Expert) -> float:
    return one.border or (_BORDER_OF_IMAGE_TO_VIDEO if _reads(base).begins else _BORDER)


def levels_of(base: BaseSection) -> tuple[float, float]:
    """`PredictionSpec.levels_of`: of one of two by folder or name, and as far as either goes.

    Raises:
        BaseModelError: When it is one of two, and nothing says which.
    """
    one = _expert(base)
    if one is not None:
        border = _border(base, one)
        if one.role == HIGH:
            return min(border, _SWITCH), 1.0
        return 0.0, max(border, _SWITCH)
    name, found = _named(base), _reads(base)
    if _two(base)[2] is not None or names_one_of_two(name) or (found.begins and not found.vision):
        is_file = PurePath(base.path).suffix.lower() in (".safetensors", ".gguf")
        raise BaseModelError(
            f"base.path: {base.path} is one of two models, and its name does not say which"
            if is_file
            else f"base.path: {base.path} has two models",
            "the one for high noise or the one for low noise",
            "Put high_noise or low_noise into the file's name." if is_file else _REMEDY_OF_TWO,
        )
    return 0.0, 1.0


def check_base(folder: Path, part: str, path: str) -> None:
    """`FolderSpec.check`: `_check_folder`, and of a hub id that its folder is what its name says.

    The name told levels and start frames before the folder was here.

    Raises:
        BaseModelError: As `_check_folder`, and when the name says something else.
    """
    _check_folder(folder, part)
    if not names_hub(path):
        return
    named, found = BaseSection(path=path), BaseSection(path=str(folder / part))
    levels = levels_of(named)
    says = _in_words(named, levels)
    # Of a folder with one denoiser the name alone says which of two it may be.
    is_one = _two(found)[2] is not None
    holds = _in_words(found, levels_of(found) if is_one else levels)
    if says != holds:
        raise BaseModelError(
            f"base.path: {path} holds {holds}; its name was taken for {says}",
            "a hub id whose name says what it holds, as those of Wan-AI do",
            "Download the folder, and name its path as base.path: then the folder says it.",
        )


def _in_words(base: BaseSection, levels: tuple[float, float]) -> str:
    found = _reads(base)
    if found.channels == OF_5B:
        kind = "TI2V-5B"
    elif found.begins:
        kind = f"image-to-video {'with' if found.vision else 'without'} a vision model"
    else:
        kind = "text-to-video"
    return f"{kind}, for noise levels {levels[0]:g} to {levels[1]:g}"


def second_of(base: BaseSection) -> SecondBase | None:
    """`PredictionSpec.second_of`: the other one of two.

    Raises:
        BaseModelError: When ``base.other_expert`` is none, or the folder lacks the other one.
    """
    one = _expert(base)
    if one is None or not one.other:
        if base.other_expert:
            raise _no_second(base, f"nothing says which of two models {base.path} is")
        return None
    if base.other_expert and not Path(base.other_expert).expanduser().exists():
        raise _no_second(base, "there is no such file or folder")
    if one.border is not None and not Path(one.other).expanduser().exists():
        raise BaseModelError(
            f"base.path: {base.path} is one of two models, and {one.other} is not there",
            "both, because samples are made with both",
            "Download that folder, or set preview.every to 0, which trains without it.",
        )
    second = base.model_copy(update={"path": one.other, "other_expert": None})
    own = _expert(second)
    if own is not None and own.role == one.role:
        raise _no_second(base, f"it is for {own.role} noise, as base.path")
    if _reads(second) != _reads(base):
        raise _no_second(base, "it reads other latents than base.path")
    return SecondBase(second, begins=one.role == LOW, border=_border(base, one))


def _no_second(base: BaseSection, why: str) -> BaseModelError:
    return BaseModelError(
        f"base.other_expert: {base.other_expert}, and {why}",
        "the two models of one release of Wan 2.2 A14B",
        "Name the one for the other noise levels, or leave base.other_expert out.",
    )


def levels_note(config: RunConfig) -> str:
    """`PredictionSpec.levels_note`."""
    base, sigma = config.base, config.training.sigma
    if (one := _expert(base)) is not None:
        return f"Trained as the model for {one.role} noise: levels {sigma.min:g} to {sigma.max:g}."
    found = _reads(base)
    if found.channels == OF_5B or found.vision or _OF_ALL_LEVELS.search(_named(base).lower()):
        return ""
    return (
        "Trained at all levels of noise, as Wan 2.1 is. For one of the two models of Wan 2.2 A14B "
        "put high_noise or low_noise into the file's name."
    )


def _named(base: BaseSection) -> str:
    """The name that says what a base is."""
    path = PurePath(base.path)
    return path.parent.name if path.name.startswith(_OF_A_FOLDER) else path.name


def _boundary(folder: Path) -> float | None:
    """The noise level at which a folder's pipeline goes over from one denoiser to the other.

    None where it has one denoiser.

    Raises:
        BaseModelError: When it has two, and says no level between 0 and 1, or nothing that can be
            read of the second.
    """
    index = read_json(folder / "model_index.json")
    second, level = index.get(DENOISERS[1]), index.get("boundary_ratio")
    if second is None:
        return None
    if not isinstance(second, list) or not second:
        raise BaseModelError(
            f"{folder / 'model_index.json'} says {second!r} of {DENOISERS[1]}",
            "a library and a class, or null for both",
            "Download the file again.",
        )
    if second[0] is None:
        return None
    if not isinstance(level, int | float) or not 0.0 < level < 1.0:
        raise BaseModelError(
            f"{folder / 'model_index.json'} has two denoisers, and boundary_ratio is {level!r}",
            "the noise level at which one goes over to the other, between 0 and 1",
            "Download the file again.",
        )
    return float(level)


def _check_folder(folder: Path, part: str) -> None:
    """Of two denoisers one, which is given a text and maybe a start frame.

    TI2V-5B takes a time for each token, which is the same for all where no frame is given.

    Raises:
        BaseModelError: When nothing says which of two is meant, or the model is given more.
    """
    if _boundary(folder) is not None and not part:
        raise BaseModelError(
            f"base.path: {folder} has two denoisers, one for high noise and one for low noise",
            "one of the two",
            _REMEDY_OF_TWO,
        )
    transformer = read_json(folder / (part or DENOISERS[0]) / "config.json")
    read, made = (transformer.get(name, 16) for name in ("in_channels", "out_channels"))
    ends = transformer.get("pos_embed_seq_len")
    if ends or read not in (made, made + start_channels(made)):
        raise BaseModelError(
            f"base.path: {folder} is a Wan model that is given more than a text and a start frame",
            "a text-to-video model of Wan, or an image-to-video one",
            _REMEDY_OF_FOLDER,
        )
