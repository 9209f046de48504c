"""From every layout to every other one that holds the same adapter, and back."""

import itertools

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.fixtures.family_states import ALL, HELD, assert_same, family_state, key_map
from trainer_core.adapter_files.convert.convert import convert
from trainer_core.adapter_files.read.adapter_file import read_adapter
from trainer_core.adapter_files.write.adapter_file import layout_name, write_adapter

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


@settings(max_examples=40, deadline=None)
@given(
    case=st.sampled_from(["lora", "loha", "lora input", "lokr", "lokr full"]),
    pair=st.tuples(*[st.sampled_from(sorted(ALL))] * 2),
    ranks=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    alpha=st.floats(0.125, 10.0, width=32),
    dtype=st.sampled_from(["fp32", "bf16", "fp16"]),
    seed=st.integers(0, 10**6),
)
def test_no_pair_is_worse_than_rounding(tmp_path_factory, case, pair, ranks, alpha, dtype, seed):
    family = "flux" if case in {"lora", "loha"} else "qwen_image"
    assume(set(pair) <= HELD[family, case])
    state, names = family_state(family, case, ranks, alpha, seed), key_map(family)
    folder = tmp_path_factory.mktemp("pairs")
    source, target = (folder / layout_name(n, x) for n, x in zip("ab", pair, strict=True))
    write_adapter(source, state, pair[0], names, {}, dtype)
    report = convert(source, target, pair[1], names)
    given = read_adapter(source, names)
    # What is only renamed is the same to the last bit; where a scale is multiplied in, a factor is
    # rounded once, which sums of a few products can enlarge.
    epsilon = {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}[dtype]
    assert report.rounding <= epsilon
    assert_same(read_adapter(target, names), given, 1e-6 if not report.rounding else 8 * epsilon)
    assert number_formats(target) == number_formats(source)


def number_formats(path):
    return {str(t.dtype) for key, t in tensors_of(path).items() if not key.endswith(".alpha")}
