"""From every layout to every other one that holds the same adapter, and back."""

import itertools

import pytest
import torch
from safetensors.torch import load_file

from tests.fixtures.family_states import HELD, assert_same, family_state, key_map
from trainer_core.adapter_files.convert.convert import convert
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapter_files.write.write_adapter import layout_name, write_adapter

BAKED = {"diffusers"}
"""Layouts that have no alpha; what comes out of them has another one, and the same deltas."""


def path_in(folder, layout):
    return folder / layout_name(f"{layout}_file", layout)


def tensors_of(path):
    return load_file(path / "adapter_model.safetensors" if path.is_dir() else path)


@pytest.mark.parametrize(
    ("family", "case", "ranks"),
    [
        (family, case, ranks)
        for family, case in HELD
        for ranks in [(2,), (2, 3)]
        if ranks == (2,) or case in {"lora", "loha", "lora output"}
    ],
)
def test_every_pair_of_layouts_is_exact(family, case, ranks, tmp_path):
    """What a conversion gives is what writing the adapter gives, so that there and back is too."""
    state, names = family_state(family, case, ranks), key_map(family)
    # Parts of unlike scales get one when they are fused, so that one factor is multiplied.
    rescaled = family == "flux" and len(ranks) > 1 and "kohya" in HELD[family, case]
    layouts = sorted(HELD[family, case])
    for layout in layouts:
        write_adapter(path_in(tmp_path, layout), state, layout, names, {})
    for first, second in itertools.permutations(layouts, 2):
        target = path_in(tmp_path / f"from_{first}", second)
        report = convert(path_in(tmp_path, first), target, second, names)
        assert report.exact
        assert not report.errors
        assert report.rounding == 0.0
        assert_same(read_adapter(target, names), state)
        if first not in BAKED and not (rescaled and "kohya" in (first, second)):
            found, wanted = (tensors_of(path_in(f, second)) for f in (target.parent, tmp_path))
            # PEFT's rank of a LoKr with whole factors is another one, and says nothing.
            passed = ".alpha" if case == "lokr full" and first == "peft" else "nothing"
            assert set(found) == set(wanted)
            assert all(torch.equal(found[k], wanted[k]) for k in wanted if not k.endswith(passed))
