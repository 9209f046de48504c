"""A VAE that comes for a preview and goes, and decodes in tiles where memory is short."""

import diffusers
import pytest
import torch

from tests.fixtures.flux_base import make_flux_vae
from tests.fixtures.machines import SmallMachine
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.families.diffusers_parts import DECODER_NUMBERS
from trainer_core.families.flux_vae import shifted_vae as flux_vae
from trainer_core.families.registry import get_family
from trainer_core.inference.decoder import TILE, PreviewDecoder
from trainer_core.training.memory.simulated_bytes import LiveBytes
from trainer_core.weights.diffusers_folder import read_json

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")


@pytest.fixture
def vae():
    model = make_flux_vae().float().eval().requires_grad_(False)
    return flux_vae(model)


def noted(vae, monkeypatch):
    """Places that the model is sent to, without going there: this machine has one device."""
    places = []
    monkeypatch.setattr(
        type(vae.model), "to", lambda model, place: places.append(str(place)) or model
    )
    return places


def test_it_stays_where_there_is_room_and_goes_where_there_is_not(vae, monkeypatch):
    places, latents = noted(vae, monkeypatch), torch.randn(1, 4, 8, 8)
    wanted = vae.decode(latents)
    size = sum(each.nbytes for each in vae.model.parameters())
    for free, visits in ((1 << 40, ["meta"]), (19 * size, ["meta", "cpu"])):
        places.clear()
        assert torch.equal(PreviewDecoder(vae, 8, ELSEWHERE, SmallMachine(free))(latents), wanted)
        assert places == visits
    places.clear()
    assert torch.equal(PreviewDecoder(vae, 8, CPU, SmallMachine(0))(latents), wanted)
    assert places == []


@pytest.mark.exhaustive
def test_an_image_that_does_not_fit_is_decoded_in_tiles(vae):
    latents = torch.randn(1, 4, 96, 72)
    needed = 96 * 72 * 64 * DECODER_NUMBERS * 4
    whole, tiled = vae.decode(latents), vae.decode(latents, TILE)
    assert not torch.equal(whole, tiled)
    for free, wanted in ((needed, whole), (needed - 1, tiled)):
        assert torch.equal(PreviewDecoder(vae, 8, CPU, SmallMachine(free))(latents), wanted)
    assert not vae.model.use_tiling, "as it was"


def test_tiles_are_close_to_the_whole(vae):
    """Their borders are blended; what differs is what a VAE sees beyond a border."""
    family = get_family("qwen_image")
    location = locate_base(BaseSection(), family, has_controls=False)
    trained = family.latents.load_vae(location, torch.float32, "cpu")
    x = torch.linspace(-1, 1, 192).expand(1, 3, 192, 192)
    latents = trained.encode(x)
    whole, tiled = trained.decode(latents), trained.decode(latents, 128)
    assert not torch.equal(whole, tiled)
    assert (whole - tiled).abs().mean() < (whole - x).abs().mean()


@pytest.mark.parametrize("name", ["flux", "qwen_image", "qwen_image_21"])
def test_the_published_vaes_need_no_more_than_is_said(name):
    """Counted on models without numbers."""
    family = get_family(name)
    settings = read_json(family.files.single_file.configs / "generate" / "vae" / "config.json")
    with torch.device("meta"):
        model = getattr(diffusers, settings["_class_name"]).from_config(settings).to(torch.bfloat16)
    channels, pixels = family.latents.of_config(settings)
    most = 0
    for side in (512, 1024, 1328):
        shape = (1, channels, side // pixels, side // pixels)
        latents = torch.zeros(shape, dtype=torch.bfloat16, device="meta")
        with torch.no_grad(), LiveBytes() as live:
            model.decode(latents if name == "flux" else latents[:, :, None])
        most = max(most, live.peaks[None] / 2 / side**2)
    assert 0.9 * family.latents.decoder_numbers < most <= family.latents.decoder_numbers
