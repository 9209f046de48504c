"""Encoding in batches, and that nothing is encoded which the denoiser does not read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.fixtures.families import record, records
from tests.fixtures.flux_base import make_fill_base
from tests.fixtures.qwen21_base import make_qwen21_base
from tests.fixtures.qwen_base import make_qwen_base
from tests.fixtures.recorded_calls import relative_error
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.data.cache.encoder_protocols import encode_texts
from trainer_core.families.family import Family
from trainer_core.families.registry import get_family
from trainer_core.weights.base_location import BaseLocation

CAPTIONS = ("a red circle", "", "two blue squares on a green background")
TOLERANCE = 1e-5
QUICK = ("flux", "z_image")
"""A family with padding that is read, and one without; the others run with `make test-full`."""


@dataclass(frozen=True)
class Base:
    family: Family
    location: BaseLocation
    encoders: Any


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Base]:
    made: dict[str, Base] = {}

    def base(name: str) -> Base:
        if name not in made:
            family = get_family(name)
            folder = record(name).base(tmp_path_factory.mktemp(name))
            location = locate_base(BaseSection(path=str(folder), text_length=64), family, False)
            made[name] = Base(
                family, location, family.load_encoders(location, torch.float32, "cpu")
            )
        return made[name]

    return base


def families() -> list[Any]:
    return [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive)
        for name in records()
    ]


def random_pixels(count: int, channels: int, height: int = 64, width: int = 96) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, channels, height, width, generator=generator) * 2 - 1


def check_images(encode: Callable[[Tensor], Tensor], pixels: Tensor) -> None:
    together = encode(pixels)
    single = torch.cat([encode(each[None]) for each in pixels])
    assert together.shape == single.shape
    assert relative_error(together, single) < TOLERANCE
    assert relative_error(together.flip(0), single) > 0.1, "the images have to differ"


def check_texts(
    encoders: Any, controls: Sequence[Any] = (), captions: Sequence[str] = CAPTIONS
) -> None:
    shown = [list(controls) for _ in captions]
    for found, caption in zip(encode_texts(encoders, captions, shown), captions, strict=True):
        wanted = encoders.encode_text(caption, controls)
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert found[name].shape == tensor.shape, (caption, name)
            assert relative_error(found[name], tensor) < TOLERANCE, (caption, name)


@pytest.mark.parametrize("name", families())
def test_a_batch_of_images_is_as_each_alone(bases: Callable[[str], Base], name: str) -> None:
    base = bases(name)
    check_images(
        base.encoders.encode_image,
        random_pixels(3, base.family.pixel_channels(base.location.variant)),
    )


@pytest.mark.parametrize("name", families())
def test_texts_at_once_are_as_each_alone(bases: Callable[[str], Base], name: str) -> None:
    encoders = bases(name).encoders
    assert hasattr(encoders, "encode_texts")
    check_texts(encoders)
    # Longer than is read: all are cut where they are cut alone.
    check_texts(encoders, captions=("abc " * 40, "a"))


VARIANTS = [
    ("flux", "fill", make_fill_base),
    *(("qwen_image", each, partial(make_qwen_base, variant=each)) for each in ("layered", "edit")),
    ("qwen_image", "edit_plus", partial(make_qwen_base, variant="edit_plus")),
    ("qwen_image_21", "edit_plus", make_qwen21_base),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "variant", "make"), VARIANTS)
def test_variants_with_control_images_are_as_each_alone(name, variant, make, tmp_path):
    if name not in records():
        pytest.skip("Diffusers is older than the family")
    family = get_family(name)
    section = BaseSection(path=str(make(tmp_path)), variant=variant)
    encoders = family.load_encoders(locate_base(section, family, True), torch.float32, "cpu")
    check_images(encoders.encode_image, random_pixels(3, family.pixel_channels(variant)))
    check_texts(encoders, [Image.new("RGB", (64, 64), (90, 20, 200))])
    if variant.startswith("edit"):
        check_texts(encoders)
