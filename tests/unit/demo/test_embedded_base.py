"""The bundled base model: does it fit the pipelines, and does it really draw?"""

from pathlib import Path

import pytest

import trainer_core

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

from scripts.embedded_base.base_folder import folder_size, load_base, write_frozen_parts  # noqa: E402
from scripts.embedded_base.measure import (  # noqa: E402
    held_out_edits,
    held_out_request,
    measure_captions,
    measure_edits,
    share_right,
)
from scripts.embedded_base.tokenizer import fixed_prefixes  # noqa: E402
from scripts.embedded_base.words import WORDS  # noqa: E402
from trainer_core.demo.vocabulary import CONCEPT_SHAPE  # noqa: E402

FOLDER = Path(trainer_core.__file__).parent / "assets" / "tiny-qwen-image"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def base():
    return load_base(FOLDER)


@pytest.fixture(scope="module")
def pipeline():
    return diffusers.QwenImagePipeline.from_pretrained(FOLDER, local_files_only=True)


def test_takes_at_most_12_megabytes():
    assert folder_size(FOLDER) <= 12_000_000


FOREIGN = "Gr\u00fc\u00dfe, \u65e5\u672c \U0001f600\n\ttab"


def test_the_tokenizer_knows_the_words_and_takes_any_text(base):
    tokenizer = base.conditioner.tokenizer
    # What the pipelines cut off.
    counts = [len(tokenizer(prefix).input_ids) for prefix, _ in fixed_prefixes()]
    assert counts == [34, 64, 64]
    assert all(len(tokenizer(f" {word}").input_ids) == 1 for word in WORDS)
    for text in ("", "a sks zorpling", FOREIGN):
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_frozen_parts_can_be_rebuilt(tmp_path):
    write_frozen_parts(tmp_path)
    for name in ("tokenizer/tokenizer.json", "model_index.json"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
    rebuilt, kept = (
        load_file(folder / "text_encoder" / "model.safetensors") for folder in (tmp_path, FOLDER)
    )
    assert rebuilt.keys() == kept.keys()
    # Normal numbers come from logarithms, whose last bit is the CPU's; two units of bfloat16.
    for name, weight in kept.items():
        torch.testing.assert_close(rebuilt[name], weight, rtol=2**-6, atol=0, msg=name)


def test_captions_are_encoded_as_the_pipeline_does(base, pipeline):
    texts = ["a red circle on a blue background", "red circle on blue", ""]
    states, mask = pipeline._get_qwen_prompt_embeds(texts)
    batch = base.conditioner.captions(texts)
    assert torch.equal(mask.bool(), batch.mask)
    assert torch.allclose(states, batch.states, atol=1e-5)


def test_flat_autoencoder_equals_the_real_one(base, pipeline):
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.no_grad():
        real = pipeline.vae.encode(images[:, :, None]).latent_dist.mode()
        decoded = pipeline.vae.decode(real).sample[:, :, 0]
        flat = base.codec.flat.encode(images)
        assert torch.allclose(real[:, :, 0], flat, atol=1e-4)
        assert torch.allclose(decoded, base.codec.flat.decode(flat).clamp(-1, 1), atol=1e-4)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_draws_combinations_it_was_never_trained_on(base):
    assert share_right(measure_captions(base, held_out_request(45))) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("plus", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_edits_images_it_was_never_trained_on(base, plus):
    assert share_right(measure_edits(base, held_out_edits(30), plus)) >= 0.8


def test_can_not_draw_the_concept_of_the_demo(base):
    concept = [combination._replace(shape=CONCEPT_SHAPE) for combination in held_out_request(6)]
    results = measure_captions(base, concept)
    assert share_right(results) <= 0.2
