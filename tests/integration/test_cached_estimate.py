"""The memory estimate of a run on a finished cache counts the texts that are there."""

from pathlib import Path

import pytest
import torch
from runs import run_config

from trainer_core.families.registry import get_family
from trainer_core.training import SingleProcess
from trainer_core.training.memory.memory_estimate import text_tokens
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.cache_manifest import read_manifest
from trainer_core.training.prepare.encode_dataset import prepare, save_manifest

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoded")
    config = run_config(folder / "runs", folder / "cache")
    with torch.inference_mode(False):
        prepared = prepare(config, SilentObserver(), SingleProcess(CPU))
    manifest = save_manifest(config, prepared)
    return run_config(folder / "runs", folder / "cache", cache={"manifest": str(manifest)})


def test_the_longest_text_of_the_cache_counts(encoded):
    dataset = read_manifest(Path(encoded.cache.manifest)).dataset
    samples = [dataset.load(index) for index in range(len(dataset))]
    lengths = {len(sample.conditioning["text_embeddings"]) for sample in samples}
    assert text_tokens(dataset.items) == max(lengths)
    assert text_tokens(dataset.items) < get_family("qwen_image").text.length / 10
