"""Files of the published sizes, with a whole header and no content, fit the published models."""

from __future__ import annotations

import sys

import pytest

from tests.fixtures.families import record
from tests.fixtures.full_size import full_size_transformer
from tests.fixtures.hollow_files import write_hollow
from tests.fixtures.native_files import locate_file
from trainer_core.bases.locate import detect_base
from trainer_core.errors import BaseModelError
from trainer_core.families.registry import get_family
from trainer_core.weights.file_spec import Origin
from trainer_core.weights.loading import empty_model

# black-forest-labs/FLUX.1-dev, Qwen/Qwen-Image and Tongyi-MAI/Z-Image.
PARAMETERS = {"flux": 11_901_408_320, "qwen_image": 20_430_401_088, "z_image": 6_154_908_736}

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs files whose empty parts take no room"
)


def shapes(family):
    state = full_size_transformer(family).state_dict()
    host = record(family).host
    native = state if host is None else host.to_native(state)
    return {name: tensor.shape for name, tensor in native.items()}


@pytest.mark.parametrize("family", PARAMETERS)
def test_a_full_size_file_fits_the_published_model(family, tmp_path):
    path = tmp_path / "full.safetensors"
    write_hollow(path, {f"model.diffusion_model.{k}": v for k, v in shapes(family).items()})
    assert detect_base(path) == family
    empty = empty_model(locate_file(path, family), get_family(family).file)
    assert sum(parameter.numel() for parameter in empty.parameters()) == PARAMETERS[family]
    published = {k: v.shape for k, v in full_size_transformer(family).state_dict().items()}
    assert {k: v.shape for k, v in empty.state_dict().items()} == published


@pytest.mark.parametrize("family", PARAMETERS)
def test_one_tensor_less_or_more_is_noticed_at_full_size(family, tmp_path):
    path = tmp_path / "full.safetensors"
    whole = shapes(family)
    last = list(whole)[-1]
    for changed in (
        {name: shape for name, shape in whole.items() if name != last},
        {**whole, f"{last}.more": whole[last]},
    ):
        write_hollow(path, changed)
        with pytest.raises(BaseModelError) as error:
            empty_model(locate_file(path, family), get_family(family).file)
        assert last in error.value.found


@pytest.mark.parametrize("family", PARAMETERS)
def test_the_names_map_both_ways(family):
    facts = get_family(family).file
    names = list(full_size_transformer(family).state_dict())
    own = bool(facts.native_marks)
    origins = [facts.origin(name, own) or Origin(name) for name in names]
    assert len({(origin.name, origin.part) for origin in origins}) == len(names)
    native = {name.replace("_norm.scale", "_norm.weight") for name in shapes(family)}
    assert {origin.name for origin in origins} == native
