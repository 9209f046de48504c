"""A MODEL of the graph is trained through in place, and is left as it was."""

import pytest

pytestmark = pytest.mark.comfy

QUICK = ("flux", "ltxv")
"""Blocks that change their inputs, and a change whose result is dropped.

A UNet's gradient is held to finite differences in `test_train_lora_loss`.
"""
EVERY = ["ltxav", "ltxav with sound", "ltxav_23 with sound", "minimax_h3 with sound"]


def run(comfy_host, folder, names):
    return comfy_host.results("trainable_model_process.py", folder, *names)


@pytest.fixture(scope="module")
def results(comfy_host, tmp_path_factory):
    return run(comfy_host, tmp_path_factory.mktemp("borrowed"), QUICK)


def check_gradients(found):
    assert found["trained"] > 30
    assert found["torch"], "checkpointing gives other gradients"
    assert found["called"], "checkpointing of some blocks gives other gradients"
    # Float32 sums over thousands of numbers, in another order.
    assert found["output"] < 1e-5
    assert found["gradient"] < 1e-5
    assert found["left"] == [{}, {}]


@pytest.mark.parametrize("name", QUICK)
def test_gradients_are_torchs_and_checkpointing_changes_no_bit(results, name):
    check_gradients(results["gradients"][name])


@pytest.mark.exhaustive
def test_gradients_of_every_class(comfy_host, tmp_path):
    found = run(comfy_host, tmp_path, EVERY)["gradients"]
    assert len(found) == len(EVERY)
    for each in found.values():
        check_gradients(each)


def test_a_model_is_left_as_it_was_however_a_run_ends(results):
    found = results["ways out"]
    assert len(found) == 6
    for way, each in found.items():
        assert each["left"] == {}, way
        assert each["same picture"], way
    plain, patched = (
        {each["output"] for way, each in found.items() if way.startswith(kind)}
        for kind in ("plain", "patched")
    )
    assert len(plain) == len(patched) == 1
    assert plain != patched, "the LoRA of the MODEL is not in what a run sees"


def test_what_cannot_be_trained_through_is_refused(results):
    injected, several = results["refusals"]
    assert "injection" in injected
    assert "several GPUs" in several


def test_it_gives_its_raw_output_and_then_its_own_again(results):
    assert results["raw"] == [True] * 6


def test_attention_whose_gradients_may_be_wrong_is_not_preferred_meanwhile(results):
    before, meanwhile, after = results["attention"]
    assert meanwhile == [each for each in before if each != "CUDNN_ATTENTION"]
    assert before == after != meanwhile
