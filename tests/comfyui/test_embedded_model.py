"""The embedded base as ComfyUI's MODEL, VAE and CONDITIONING: the same numbers as the trainer's."""

import pytest
import torch
from comfyui.readings import relative
from comfyui.selection import selected
from comfyui.test_promise import KINDS, Ours, faults, images_of
from fixtures.families import record
from safetensors.torch import load_file, save_file

from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.data.image import from_pixels
from trainer_core.families.registry import embedded_family

pytestmark = pytest.mark.comfy

CAPTIONS = [("a red diamond", 0), ("", 0), ("add a frame", 1), ("", 1), ("both", 2)]
VARIANTS = ("generate", "edit", "edit_plus")
SIGMA, GUIDANCE, STEPS = 0.7, 1.0, 20
QUICK = ("lora", "lokr factor")
CASES = [pytest.param(k, marks=() if k in QUICK else pytest.mark.exhaustive) for k in KINDS]


FAMILY = embedded_family().name
IMAGES = images_of(FAMILY)


class Embedded(Ours):
    """The embedded base as the trainer loads it."""

    def __init__(self, folder):
        self.family, self.folder = embedded_family(), folder
        self.transformer = self.family.load_transformer(location(0), torch.float32, "cpu")
        self.record = record(self.family.name)
        given = load_file(folder / "inputs.safetensors")
        text = {"text_embeddings": given["text"][0]}
        self.inputs = given["noisy"], given["sigma"], text, [given["reference"]]
        self.velocities, self.states, self.layers = {}, {}, {}
        self._predict("without")


def location(count):
    """The embedded base for a number of control images."""
    variant = VARIANTS[min(count, 2)]
    section = BaseSection(path="embedded", variant=variant)
    return locate_base(section, embedded_family(), has_controls=count > 0)


def make_inputs():
    generator = torch.Generator().manual_seed(5)
    coarse = torch.rand(2, 3, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (64, 64), mode="bicubic").clamp(0, 1)
    pixels = (smooth * 255).round() / 255
    return {
        "noisy": torch.randn(1, 8, 8, 8, generator=generator),
        "reference": torch.randn(1, 8, 8, 8, generator=generator),
        "text": torch.randn(1, 7, 96, generator=generator),
        "sigma": torch.tensor([SIGMA]),
        "guidance": torch.tensor([GUIDANCE]),
        "pixels": pixels * 2 - 1,
        "controls": pixels.movedim(1, -1).contiguous(),
        "latents": torch.randn(2, 8, 8, 8, generator=generator),
    }


class Both:
    """What the trainer computed, and what ComfyUI did."""

    def __init__(self, folder, comfy_host, kinds):
        self.inputs = make_inputs()
        save_file(self.inputs, folder / "inputs.safetensors")
        self.ours = Embedded(folder)
        files = [(name, str(self.ours.export(name, **KINDS[name]))) for name in kinds]
        jobs = {"adapters": files, "captions": CAPTIONS}
        self.facts = comfy_host.results("embedded_process.py", folder, jobs=jobs)
        self.theirs = load_file(folder / "results")

    def sides(self, name, host):
        """The velocities of both sides, as `faults` reads them."""
        own = self.ours.velocities
        pairs = [(side, image) for side in ("with", "without") for image in IMAGES]
        return (
            {(s, i): own[name if s == "with" else s, i] for s, i in pairs},
            {(s, i): self.theirs[f"{host if s == 'with' else s}/{i}"] for s, i in pairs},
        )


@pytest.fixture(scope="module")
def both(request, comfy_host, tmp_path_factory):
    kinds = {*QUICK, *(kind for (kind,) in selected(request, "kind"))}
    return Both(tmp_path_factory.mktemp("embedded"), comfy_host, sorted(kinds))


@pytest.mark.parametrize("kind", CASES)
def test_comfyui_computes_with_an_adapter_what_the_trainer_computed(kind, both):
    assert faults(FAMILY, *both.sides(kind, kind), both.facts[kind], both.ours.layers[kind]) == {}


def test_another_kinds_velocity_is_a_fault(both):
    other = "lokr factor"
    found = faults(FAMILY, *both.sides("lora", other), both.facts[other], both.ours.layers[other])
    assert {("velocity", image) for image in IMAGES} < found.keys()


@pytest.mark.parametrize("image", IMAGES)
def test_the_base_alone_and_its_copy_compute_the_same(image, both):
    expected = both.ours.velocities["without", image]
    for name in ("without", "copy", "again"):
        assert relative(both.theirs[f"{name}/{image}"], expected) < 1e-5


def test_a_ksampler_goes_through_the_noise_levels_of_the_previews(both):
    expected = embedded_family().sampling_sigmas(location(0), STEPS, 64, 64)
    torch.testing.assert_close(both.theirs["sigmas"], expected.float(), atol=1e-6, rtol=0)


def test_the_vae_encodes_and_decodes_as_that_of_the_trainer(both):
    vae = embedded_family().latents.load_vae(location(0), torch.float32, "cpu")
    assert relative(both.theirs["encoded"], vae.encode(both.inputs["pixels"])) < 1e-5
    assert relative(both.theirs["decoded"], vae.decode(both.inputs["latents"])) < 1e-5


@pytest.mark.parametrize("index", range(len(CAPTIONS)))
def test_conditioning_is_what_training_caches(index, both):
    caption, count = CAPTIONS[index]
    encoders = embedded_family().load_encoders(location(count), torch.float32, "cpu")
    pixels = both.inputs["pixels"][:count]
    text = encoders.encode_text(caption, [from_pixels(each) for each in pixels])
    # What the text encoder sees of an image is made smaller by torchvision there, by Pillow here.
    assert relative(both.theirs[f"text {index}"], text["text_embeddings"]) < (
        1e-3 if count else 1e-5
    )
    for place, each in enumerate(pixels):
        latents = encoders.encode_image(each[None])[0]
        assert relative(both.theirs[f"reference {index} {place}"], latents) < 1e-5
