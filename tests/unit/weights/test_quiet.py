"""Bars of the libraries are off while a model is loaded, and as they were afterwards."""

from __future__ import annotations

import contextlib
import importlib

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.families.registry import get_family
from trainer_core.weights.loading import without_bars

LIBRARIES = ("transformers", "diffusers")
FOLDER = locate_base(BaseSection(), get_family("qwen_image"), has_controls=False).folder
pytestmark = pytest.mark.skipif(
    constants.HF_HUB_DISABLE_PROGRESS_BARS is not None, reason="the environment decides on bars"
)


def bars(library):
    return importlib.import_module(f"{library}.utils.logging")


def state():
    return [
        bars(name).is_progress_bar_enabled() for name in LIBRARIES
    ], are_progress_bars_disabled()


@pytest.fixture(autouse=True)
def bars_on():
    """Every test begins and leaves with all bars switched on."""
    for name in LIBRARIES:
        bars(name).enable_progress_bar()
    enable_progress_bars()
    yield
    for name in LIBRARIES:
        bars(name).enable_progress_bar()
    enable_progress_bars()


def load():
    transformers = importlib.import_module("transformers")
    transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(FOLDER / "text_encoder")


def test_a_model_is_loaded_in_silence(capfd):
    load()
    if "Loading" not in capfd.readouterr().err:
        pytest.skip("this version of transformers shows no bar for a small model")
    with without_bars("transformers"):
        load()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("off", "fails"), [("none", False), ("none", True), ("library's", False), ("downloads'", False)]
)
def test_bars_are_as_they_were_even_after_an_error(library, off, fails, capfd):
    if off == "library's":
        bars(library).disable_progress_bar()
    if off == "downloads'":
        disable_progress_bars()
    before = state()
    with contextlib.suppress(KeyError), without_bars(library):
        assert not bars(library).is_progress_bar_enabled()
        list(bars(library).tqdm(range(3)))
        if fails:
            raise KeyError
    assert state() == before
    assert capfd.readouterr().err == ""
    list(bars(library).tqdm(range(3)))
    assert ("3/3" in capfd.readouterr().err) == (off != "library's")
