"""Bars of the libraries are off while a model is loaded, and as they were afterwards."""

import contextlib
import importlib

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from trainer_core.weights.reading_part import without_bars

LIBRARIES = ("transformers", "diffusers")
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
    yield
    for name in LIBRARIES:
        bars(name).enable_progress_bar()
    enable_progress_bars()


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
