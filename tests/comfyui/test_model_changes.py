"""What a MODEL carries beside its weights: it counts, or the MODEL is refused."""

import pytest

pytestmark = [pytest.mark.comfy, pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def found(comfy_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("changes")
    return comfy_host.results("model_changes_process.py", folder, inside=True)


def test_a_patch_of_blocks_makes_another_base(found):
    marks = found["fingerprints"]
    # By what it does, in the next session as well: not by where it lies in memory.
    assert marks["half"] == marks["half again"]
    assert len({marks["plain"], marks["half"], marks["quarter"]}) == 3


def test_an_object_and_the_code_of_a_patch_make_another_base(found):
    marks = found["fingerprints"]
    assert marks["object"] == marks["object again"]
    different = ("plain", "object", "stronger object", "other code", "more code")
    assert len({marks[name] for name in different}) == len(different)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("cfg function", "sampler_cfg_function"),
        ("mask function", "denoise_mask_function"),
        ("function wrapper", "model_function_wrapper"),
        ("wrapper", "cache"),
    ],
)
def test_what_a_sampler_puts_around_a_model_is_refused(found, name, option):
    (said, expected, remedy) = found["refused"][name]
    assert "around it" in said
    # By the function that its node gave: two nodes use the same option.
    assert f"{option} (__main__.main.<locals>." in said
    assert "prediction" in expected
    assert "KSampler" in remedy


def test_a_compiled_model_is_the_same_model(found):
    assert found["refused"]["compiled"] is None
    # Neither a block that a node has compiled, nor one that is in place since KSampler ran.
    assert len(set(found["compiled blocks"])) == 1


def test_a_model_that_its_file_calls_distilled_is_refused_without_a_lora(found):
    named = {name: said for name, said in found["distilled"].items() if said is not None}
    for name, word in {"sdxl_lightning_4step_unet": "lightning", "LCM-SDXL": "lcm"}.items():
        assert f"{name} (SDXL) is distilled" in named[name][0]
        assert f"name says '{word}'" in named[name][2]
        assert "base.distilled of Base From Model" in named[name][2]
        assert "training adapter" in named[name][1]
        assert "Load LoRA" in named[name][2]
    # A word that others are joined to is none.
    assert found["distilled"].keys() - named.keys() == {"juggernautXL_v9", "wildHyperXL"}
    assert [found[each] for each in ("with its adapter", "as it is", "generated with")] == [
        None
    ] * 3


def test_room_is_left_for_a_step(found):
    step, larger, higher = found["room"]
    assert step > found["sampling"]
    assert larger > step
    assert higher > step


def test_a_block_that_drops_numbers_is_proven_with_those_that_it_dropped(found):
    assert found["dropped alike"]
