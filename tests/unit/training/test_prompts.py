"""Preview prompts with the embedded base's real encoders."""

from dataclasses import dataclass, field

import pytest
import torch
from PIL import Image

from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection, DatasetSection, PreviewSection
from trainer_core.demo.run import dataset_folder
from trainer_core.families.registry import get_family
from trainer_core.inference.preview_prompts import encode_prompts

FAMILY = get_family("qwen_image")
TEXTS = ["a red star on a blue background", "a white circle on a green background"]
INSTRUCTION = "make the shape green"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load_encoders(variant):
    location = locate_base(
        BaseSection(variant=variant), get_family("qwen_image"), variant != "generate"
    )
    return FAMILY.load_encoders(location, torch.float32, torch.device("cpu"))


@pytest.fixture(scope="module")
def generate_encoders():
    return load_encoders("generate")


@pytest.fixture(scope="module")
def edit_encoders():
    return load_encoders("edit")


@dataclass
class Prompts:
    """The settings of some previews, and how often the encoders were opened for them."""

    folder: object
    encoders: object
    preview: dict = field(default_factory=lambda: {"prompts": TEXTS, "width": 64, "height": 64})
    dataset: dict = field(default_factory=dict)
    identity: str = "one"
    opened: int = 0

    def open(self):
        self.opened += 1
        return self.encoders

    def encode(self):
        return encode_prompts(
            PreviewSection(**self.preview),
            DatasetSection(**self.dataset),
            FAMILY,
            "edit_plus",
            self.folder,
            self.identity,
            self.open,
            16,
        )

    def count(self):
        """Encode and say how many prompts were not cached."""
        before = self.opened
        self.encode()
        return self.opened - before

    def files(self):
        return sorted((self.folder / "prompts").iterdir())


@pytest.fixture
def prompts(tmp_path, generate_encoders):
    return Prompts(tmp_path / "cache", generate_encoders)


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "control.png"
    source = dataset_folder("edit") / "control_images" / "001.png"
    Image.open(source).convert("RGB").resize((96, 64)).save(path)
    return path


@pytest.fixture
def edits(tmp_path, edit_encoders, image):
    asked = {"prompts": [INSTRUCTION], "controls": [[str(image)]], "width": 64, "height": 64}
    return Prompts(tmp_path / "cache", edit_encoders, asked)


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_prompts_are_what_the_encoders_yield_and_then_come_from_the_cache(prompts):
    prompts.preview["negative_prompt"] = "a blue square"
    first = prompts.encode()
    assert [prompt.text for prompt in first] == TEXTS
    assert prompts.opened == 2
    second = prompts.encode()
    assert prompts.opened == 2, "the encoders were opened for cached prompts"
    for text, fresh, cached in zip(TEXTS, first, second, strict=True):
        assert_same(fresh.conditioning, prompts.encoders.encode_text(text, []))
        assert_same(fresh.negative, prompts.encoders.encode_text("a blue square", []))
        assert_same(cached.conditioning, fresh.conditioning)
        assert_same(cached.negative, fresh.negative)
        assert cached.controls == ()
    assert not torch.equal(
        first[0].conditioning["text_embeddings"][:4], first[0].negative["text_embeddings"][:4]
    )


def test_the_cache_tells_neither_prompts_nor_paths(edits, image):
    edits.preview["negative_prompt"] = "ugly secret"
    edits.encode()
    for file in edits.files():
        content = file.read_bytes() + file.name.encode()
        for secret in (INSTRUCTION, "ugly secret", image.name):
            assert secret.encode() not in content
