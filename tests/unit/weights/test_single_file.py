"""A single file in ComfyUI's naming becomes the model that it was made from, in every format."""

import mmap
import sys

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.combinations import pairwise
from tests.fixtures.families import record
from tests.fixtures.full_size import full_size_transformer
from tests.fixtures.hollow_files import write_hollow
from tests.fixtures.native_files import (
    dequantised,
    flux_to_native,
    locate_file,
    native_model,
    native_state,
    scaled_layers,
    to_scaled,
)
from tests.fixtures.tables import table
from trainer_core.bases.locate import detect_base
from trainer_core.families.registry import get_family
from trainer_core.tensors import safetensors_reader
from trainer_core.weights.loading import empty_model, file_settings

pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")
FAMILIES = ("flux", "qwen_image")
PRECISIONS = (torch.float32, torch.bfloat16)
PREFIXES = ("", "diffusion_model.", "model.diffusion_model.")


@pytest.fixture(autouse=True)
def without_copies(monkeypatch):
    """As on Windows, where a write to a file's memory ends the process."""
    monkeypatch.setattr(safetensors_reader, "_MAPPED", mmap.ACCESS_READ)


def write(path, tensors, metadata=None, prefix=""):
    save_file({f"{prefix}{k}": v.contiguous() for k, v in tensors.items()}, path, metadata)
    return path


def load(path, family, dtype=torch.float32, controls=False, **options):
    location = locate_file(path, family, controls, **options)
    return get_family(family).load_transformer(location, dtype, "cpu")


def differing(found, expected):
    found = found.state_dict() if isinstance(found, torch.nn.Module) else found
    assert found.keys() == expected.keys()
    return sorted(k for k, v in expected.items() if not torch.equal(found[k], v))


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_native_file_becomes_the_model_it_was_made_from(family, prefix, tmp_path):
    path = write(tmp_path / "base.safetensors", native_state(family), prefix=prefix)
    loaded = load(path, family)
    assert differing(loaded, native_model(family).state_dict()) == []
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    made = {k: v for k, v in native_model(family).config.items() if not k.startswith("_")}
    made |= {k: list(made[k]) for k in ("axes_dims_rope",)}
    made |= {"out_channels": loaded.config["out_channels"]} if family == "flux" else {}
    assert {k: loaded.config[k] for k in made} == made


def test_a_swapped_query_and_key_is_noticed(tmp_path):
    """Without this the round trip could compare nothing."""
    tensors = native_state("flux")
    q, k, v = tensors["double_blocks.1.img_attn.qkv.weight"].chunk(3)
    tensors["double_blocks.1.img_attn.qkv.weight"] = torch.cat([k, q, v])
    path = write(tmp_path / "base.safetensors", tensors)
    attention = "transformer_blocks.1.attn"
    assert differing(load(path, "flux"), native_model("flux").state_dict()) == [
        f"{attention}.to_k.weight",
        f"{attention}.to_q.weight",
    ]


def test_diffusers_own_converter_undoes_the_naming_of_these_tests():
    from diffusers import FluxTransformer2DModel
    from diffusers.loaders.single_file_utils import (
        convert_flux_transformer_checkpoint_to_diffusers as convert,
    )

    # It fixes the width at 3072, so the matrices are given one column.
    with torch.device("meta"):
        wide = FluxTransformer2DModel(num_layers=1, num_single_layers=1, guidance_embeds=True)
    state = {
        name: torch.randn(tensor.shape[0], 1) if tensor.ndim == 2 else torch.randn(tensor.shape)
        for name, tensor in wide.state_dict().items()
    }
    assert differing(convert(flux_to_native(state)), state) == []


@pytest.mark.parametrize(
    ("spelling", "prefix", "wanted", "family"),
    pairwise(["old", "new", "header"], PREFIXES, PRECISIONS, FAMILIES),
)
def test_scaled_weights_are_multiplied_by_their_scale(spelling, prefix, wanted, family, tmp_path):
    tensors, metadata = to_scaled(native_state(family), spelling, prefix)
    path = tmp_path / "base.safetensors"
    save_file(tensors, path, metadata)
    bare = {k.removeprefix(prefix): v for k, v in tensors.items()}
    name = "scale_weight" if spelling == "old" else "weight_scale"
    layers = scaled_layers(native_state(family))
    assert len(layers) > 10
    expected = {k: bare[k].to(wanted) for k in native_state(family)} | {
        f"{at}.weight": dequantised(bare[f"{at}.weight"], bare[f"{at}.{name}"], wanted)
        for at in layers
    }
    loaded = load(path, family, wanted)
    assert differing(native_state(family, loaded.state_dict()), expected) == []
    # And the scales matter: the same file read without them is far off.
    name, exact = f"{layers[0]}.weight", native_state(family)[f"{layers[0]}.weight"]
    found = native_state(family, loaded.state_dict())[name].float()
    assert (found - exact).norm() < 0.05 * exact.norm()
    assert (bare[name].float() - exact).norm() > exact.norm()


def test_modules_that_diffusers_keeps_in_float32_stay_so(monkeypatch, tmp_path):
    from diffusers import FluxTransformer2DModel

    path = write(tmp_path / "base.safetensors", native_state("flux"))
    monkeypatch.setattr(FluxTransformer2DModel, "_keep_in_fp32_modules", ["time_text_embed"])
    loaded = load(path, "flux", torch.bfloat16)
    kinds = {name.startswith("time_text_embed"): p.dtype for name, p in loaded.named_parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}


MARK = "__index_timestep_zero__"


MARKED = table(__file__, "edit_models")


@pytest.mark.parametrize(("name", "marked", "controls", "variant", "zero"), MARKED)
def test_name_and_marker_tell_the_edit_models_apart(
    name, marked, controls, variant, zero, tmp_path
):
    tensors = native_state("qwen_image") | ({MARK: torch.zeros(0)} if marked else {})
    path = write(tmp_path / f"{name}.safetensors", tensors)
    location = locate_file(path, "qwen_image", controls)
    assert (location.variant, location.folder.name) == (variant, variant)
    found = file_settings(location, get_family("qwen_image").files.single_file)
    assert found.get("zero_cond_t", False) == zero
    loaded = load(path, "qwen_image", controls=controls)
    assert loaded.zero_cond_t == zero
    assert differing(loaded, native_model("qwen_image").state_dict()) == []


# black-forest-labs/FLUX.1-dev, Qwen/Qwen-Image and Tongyi-MAI/Z-Image.
PARAMETERS = {"flux": 11_901_408_320, "qwen_image": 20_430_401_088, "z_image": 6_154_908_736}


def published_shapes(family):
    state = full_size_transformer(family).state_dict()
    host = record(family).host
    native = state if host is None else host.to_native(state)
    return {name: tensor.shape for name, tensor in native.items()}


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs files whose empty parts take no room"
)
@pytest.mark.parametrize("family", PARAMETERS)
def test_a_full_size_file_fits_the_published_model(family, tmp_path):
    """A whole header and no content."""
    path = tmp_path / "full.safetensors"
    write_hollow(
        path, {f"model.diffusion_model.{k}": v for k, v in published_shapes(family).items()}
    )
    assert detect_base(path) == family
    empty = empty_model(locate_file(path, family), get_family(family).files.single_file)
    assert sum(parameter.numel() for parameter in empty.parameters()) == PARAMETERS[family]
    published = {k: v.shape for k, v in full_size_transformer(family).state_dict().items()}
    assert {k: v.shape for k, v in empty.state_dict().items()} == published
