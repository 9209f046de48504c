"""Wan beside what its record shows: texts, clips through the VAE, and what is refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.recorded_calls import RecordedCalls, relative_error
from tests.fixtures.wan_base import make_wan, make_wan_base, make_wan_pipeline, wan_to_native
from trainer_core.bases.locate import detect_base, locate_base
from trainer_core.commands.local_base import locate_local_base
from trainer_core.config import BaseSection, DatasetSection, PreviewSection, RunConfig
from trainer_core.errors import BaseModelError, ConfigError
from trainer_core.families.registry import get_family
from trainer_core.families.wan.keys import start_channels
from trainer_core.inference.pipeline import open_pipeline
from trainer_core.inference.preview_prompts import check_frames, encode_prompts
from trainer_core.inference.sampler import SampleSettings
from trainer_core.inference.second_model import locate_second
from trainer_core.training import SingleProcess
from trainer_core.training.setup.refusals import require_possible
from trainer_core.types import StartFrames

FAMILY = get_family("wan")
CAPTIONS = ("", "a red circle", "two blue squares, a longer text than the others have")
FRAMES = 9


def locate(folder):
    return locate_base(BaseSection(path=str(folder)), FAMILY, has_controls=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_wan_base(tmp_path_factory.mktemp("wan"))


@pytest.fixture(scope="module")
def encoders(folder):
    return FAMILY.load_encoders(locate(folder), torch.float32, "cpu")


def test_texts_are_those_of_the_pipeline(folder, encoders):
    expected, _ = make_wan_pipeline().encode_prompt(
        list(CAPTIONS), do_classifier_free_guidance=False, max_sequence_length=512
    )
    count = FAMILY.text.load_token_counter(locate(folder))
    found = encoders.encode_texts(CAPTIONS, [()] * len(CAPTIONS))
    for text, caption, whole in zip(found, CAPTIONS, expected, strict=True):
        rows = text["text_embeddings"]
        torch.testing.assert_close(rows, whole[: len(rows)], rtol=1e-5, atol=1e-6)
        assert not whole[len(rows) :].any()
        assert count(caption, 0) == len(rows)


def test_a_clip_goes_through_the_vae_as_the_pipelines(folder, encoders):
    generator = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 256, (FRAMES, 3, 32, 48), generator=generator, dtype=torch.uint8)
    latents = encoders.encode_clip(frames)
    pipeline = make_wan_pipeline()
    pixels = pipeline.video_processor.normalize(frames.movedim(1, 0)[None] / 255.0)
    vae = pipeline.vae
    raw = vae.encode(pixels).latent_dist.mode()
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    torch.testing.assert_close(latents[None], (raw - mean) / std)
    assert latents.shape == FAMILY.latent_shape(locate(folder), 48, 32, frames=FRAMES)
    shown = vae.decode(latents[None] * std + mean, return_dict=False)[0]
    found = FAMILY.latents.load_vae(locate(folder), torch.float32, "cpu").decode(latents[None])
    torch.testing.assert_close(found, shown.movedim(2, 1).clamp(-1, 1), rtol=1e-4, atol=1e-5)
    # A still image is a clip of one frame.
    still = encoders.encode_image(pixels[:, :, 0])
    torch.testing.assert_close(still, latents[None, :, 0])


def test_the_small_model_of_two_has_its_own_vae_and_rate(tmp_path, folder):
    base = make_wan_base(tmp_path / "5b", of_5b=True)
    family, location = FAMILY, locate(base)
    frames = torch.zeros(FRAMES, 3, 64, 96, dtype=torch.uint8)
    latents = family.load_encoders(location, torch.float32, "cpu").encode_clip(frames)
    assert latents.shape == (48, 3, 4, 6) == family.latent_shape(location, 96, 64, frames=FRAMES)
    pixels = family.latents.load_vae(location, torch.float32, "cpu").decode(latents[None])
    assert pixels.shape == (1, FRAMES, 3, 64, 96)
    names = {str(base): 24.0, str(folder): 16.0, "Wan-AI/Wan2.2-TI2V-5B-Diffusers": 24.0}
    for name, rate in names.items():
        assert family.of_base(BaseSection(path=name)).clips.rate == rate
    mixed = BaseSection(path=str(base), encoders=str(folder))
    with pytest.raises(BaseModelError, match="latents of 4 channels"):
        family.load_encoders(locate_base(mixed, family, False), torch.float32, "cpu")


FOLDERS = {
    "image to video": ("transformer/config.json", {"in_channels": 36}),
    "first and last": ("transformer/config.json", {"pos_embed_seq_len": 514}),
    "two denoisers": (
        "model_index.json",
        {"transformer_2": ["diffusers", "WanTransformer3DModel"], "boundary_ratio": 0.875},
    ),
    "no border": ("model_index.json", {"transformer_2": ["diffusers", "WanTransformer3DModel"]}),
    "nothing of the second": ("model_index.json", {"transformer_2": []}),
}
WANTED = {
    "two denoisers": "/transformer_2, the one for low noise",
    "no border": "boundary_ratio",
    "nothing of the second": "a library and a class",
}


@pytest.mark.parametrize("what", FOLDERS)
def test_a_folder_that_is_given_more_than_a_text_is_refused(what, tmp_path):
    base = make_wan_base(tmp_path)
    name, changes = FOLDERS[what]
    path = base / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(BaseModelError, match=WANTED.get(what, "Base From Model")):
        locate(base)


BORDER = 0.8


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return make_wan_base(tmp_path_factory.mktemp("two") / "a14b", border=BORDER)


def adapter_of(layer, file):
    """A file with an adapter of one layer, and the change that it makes of the weight."""
    generator = torch.Generator().manual_seed(3)
    down, up = torch.randn(2, 256, generator=generator), torch.randn(256, 2, generator=generator)
    key = f"diffusion_model.{layer}"
    factors = {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": 0.1 * up}
    save_file({**factors, f"{key}.alpha": torch.tensor(1.0)}, file)
    return 0.1 * up @ down / 2


def previews(base, adapter=None, **settings):
    """Latents of two previews with an adapter, whose noise levels lie at both sides of the border.

    Returns:
        Latents, and the noise levels.
    """
    values = {"path": str(base), **settings}
    drawn = {"prompts": ["x"], "width": 64, "height": 64, "steps": 4, "guidance": 2.0}
    config = RunConfig.model_validate(
        {"family": "wan", "base": values, "preview": drawn, "memory": {"device": "cpu"}}
    )
    with open_pipeline(config, has_controls=False) as pipeline:
        if adapter is not None:
            pipeline.put_on(adapter)
        size = SampleSettings(64, 64, 4, 2.0, frames=5)
        found = pipeline.sampler.latents([pipeline.request(CAPTIONS[1], 5)], size)[0]
        sigmas = FAMILY.sampling_sigmas(pipeline.sampler.location, 4, 64, 64)
    return found, sigmas


def drawn_by_pipeline(sigmas, adapted="", change=None):
    """What Diffusers' pipeline makes of the same noise, by the same noise levels."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    class Levels(FlowMatchEulerDiscreteScheduler):
        def set_timesteps(self, steps, device):
            super().set_timesteps(sigmas=sigmas[:-1].tolist(), device=device)

    pipeline = make_wan_pipeline(border=BORDER)
    pipeline.scheduler = Levels()
    if adapted:
        getattr(pipeline, adapted).blocks[0].attn1.to_q.weight.data += change
    return pipeline(
        prompt=CAPTIONS[1],
        negative_prompt="",
        width=64,
        height=64,
        num_frames=5,
        num_inference_steps=4,
        guidance_scale=2.0,
        generator=torch.Generator().manual_seed(5),
        output_type="latent",
    ).frames


@pytest.mark.parametrize("part", ["transformer", "transformer_2"])
def test_a_folder_of_two_models_trains_the_one_that_is_named_and_samples_with_both(
    part, two, tmp_path
):
    section = BaseSection(path=str(two / part))
    location = locate(two / part)
    loaded = FAMILY.load_transformer(location, torch.float32, "cpu").state_dict()
    expected = getattr(make_wan_pipeline(border=BORDER), part).state_dict()
    assert all(torch.equal(loaded[name], each) for name, each in expected.items())
    # Both read one cache.
    assert location.identity == locate(two / "transformer").identity
    assert detect_base(two / part) == "wan"
    config = RunConfig.model_validate(
        {"family": "wan", "base": {"path": str(two / part)}, "preview": {"prompts": ["x"]}}
    )
    sigma = FAMILY.with_noise(config).training.sigma
    levels = {"transformer": (BORDER, 1.0), "transformer_2": (0.0, 0.889)}
    assert (sigma.min, sigma.max) == levels[part]
    require_possible(config, FAMILY, SingleProcess(torch.device("cpu")))
    role = "high" if part == "transformer" else "low"
    assert f"for {role} noise" in FAMILY.prediction.levels_note(FAMILY.with_noise(config))
    change = adapter_of("blocks.0.self_attn.q", tmp_path / "adapter.safetensors")
    found, sigmas = previews(two / part, tmp_path / "adapter.safetensors")
    assert sigmas[1] > BORDER > sigmas[2]
    assert relative_error(found, drawn_by_pipeline(sigmas, part, change)) <= 1e-5
    assert relative_error(found, drawn_by_pipeline(sigmas)) > 1e-3
    assert FAMILY.prediction.second_of(section).begins == (part == "transformer_2")


def test_two_files_sample_what_their_folder_does(two, tmp_path):
    files = {}
    for part, role in (("transformer", "high"), ("transformer_2", "low")):
        files[role] = tmp_path / f"wan2.2_t2v_{role}_noise_14B.safetensors"
        state = getattr(make_wan_pipeline(border=BORDER), part).state_dict()
        native = {name: each.contiguous() for name, each in wan_to_native(state).items()}
        save_file(native, files[role])
    names = {"other_expert": str(files["low"]), "encoders": str(two)}
    found, _ = previews(files["high"], **names)
    # The second and the third step lie at both sides of either border.
    assert relative_error(found, previews(two / "transformer")[0]) <= 1e-5
    section = BaseSection(path=str(files["high"]), other_expert=str(two))
    with pytest.raises(BaseModelError, match=r"other_expert: .* has two denoisers(?s:.*)_expert\."):
        locate_second(section, FAMILY)
    wrong = {
        "for high noise, as": {"path": str(files["high"]), "other_expert": str(files["high"])},
        "nothing says which": {"path": str(two), "other_expert": str(files["low"])},
        "no such file": {"path": str(files["high"]), "other_expert": str(tmp_path / "low_noise")},
    }
    for why, values in wrong.items():
        with pytest.raises(BaseModelError, match=why):
            FAMILY.prediction.second_of(BaseSection(**values))


def test_one_of_two_models_without_the_other_and_a_file_in_its_folder(two, tmp_path):
    alone = tmp_path / "a14b"
    (alone / "transformer_2").mkdir(parents=True)
    for name in ("model_index.json", "transformer_2/config.json"):
        (alone / name).write_text((two / name).read_text())
    section = BaseSection(path=str(alone / "transformer_2"))
    assert FAMILY.prediction.levels_of(section) == (0.0, 0.889)
    with pytest.raises(BaseModelError, match=r"a14b/transformer is not there"):
        FAMILY.prediction.second_of(section)
    for part, levels in (("transformer", (BORDER, 1.0)), ("transformer_2", (0.0, 0.889))):
        file = BaseSection(path=str(two / part / "diffusion_pytorch_model.safetensors"))
        assert FAMILY.prediction.levels_of(file) == levels
        second = FAMILY.prediction.second_of(file)
        folder = FAMILY.prediction.second_of(BaseSection(path=str(two / part)))
        assert (second.base.path, second.border) == (folder.base.path, BORDER)


def test_a_hub_id_names_one_of_two_models():
    for part, name in (("transformer", "high"), ("transformer_2", "low")):
        for kind, starts in (("T2V", None), ("I2V", StartFrames(always=True, end=True))):
            section = BaseSection(path=f"Wan-AI/Wan2.2-{kind}-A14B-Diffusers/{part}")
            assert FAMILY.of_base(section).starts == starts
            border = 0.875 if starts is None else 0.9
            high, low = (min(border, 0.889), 1.0), (0.0, max(border, 0.889))
            assert FAMILY.prediction.levels_of(section) == (high if name == "high" else low)
            assert section.path.rpartition("/")[0] in FAMILY.prediction.second_of(section).base.path
    with pytest.raises(BaseModelError, match="two models"):
        FAMILY.prediction.levels_of(BaseSection(path="Wan-AI/Wan2.2-T2V-A14B-Diffusers"))
    older = BaseSection(path="Wan-AI/Wan2.1-I2V-14B-480P-Diffusers")
    assert FAMILY.of_base(older).starts == StartFrames(always=True, end=True)
    assert FAMILY.prediction.levels_of(older) == (0.0, 1.0)


def test_a_hub_id_that_holds_another_model_than_its_name_says_is_refused(
    two, folder, tmp_path, monkeypatch
):
    def holding(base):
        monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(base))
        cached = str(base / "model_index.json")
        monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: cached)

    holding(two)
    for name in ("Wan2.2-T2V-14B/transformer_2", "wan22/transformer", "wan-5b/transformer_2"):
        with pytest.raises(BaseModelError, match="text-to-video, for noise levels"):
            locate(f"me/{name}")
        with pytest.raises(BaseModelError, match="text-to-video, for noise levels"):
            locate_local_base(BaseSection(path=f"me/{name}"), FAMILY, has_controls=False)
    begins = make_wan_base(tmp_path / "begins", reads=4 + start_channels(4))
    for base, name in ((begins, "wan21"), (folder, "wan2.1-i2v"), (folder, "wan2.2-5b")):
        holding(base)
        with pytest.raises(BaseModelError, match="its name was taken for"):
            locate(f"me/{name}")
    # The name alone says which of two this one denoiser is.
    assert locate("me/wan2.2-t2v-high-noise-14B").folder == folder
    holding(shutil.copytree(two, tmp_path / "known"))
    index = json.loads((two / "model_index.json").read_text()) | {"boundary_ratio": 0.875}
    (tmp_path / "known" / "model_index.json").write_text(json.dumps(index))
    for part in ("transformer", "transformer_2"):
        assert locate(f"Wan-AI/Wan2.2-T2V-A14B-Diffusers/{part}").part == part


LEVELS = {
    "wan2.1_t2v_14B_fp16.safetensors": (0.0, 1.0),
    "wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors": (0.875, 1.0),
    "Wan2.2-T2V-A14B-LowNoise-Q4_K_M.gguf": (0.0, 0.889),
    "wan2.2_i2v_high_noise_14B_fp16.safetensors": (0.889, 1.0),
    "wan2.2_i2v_low_noise_14B_fp16.safetensors": (0.0, 0.9),
    "Wan22_T2V_14B_High_fp8.safetensors": (0.875, 1.0),
    "high_noise_model/diffusion_pytorch_model.safetensors": (0.875, 1.0),
    "wan2.2_t2v_14B_highnoise_and_lownoise_merged.safetensors": (0.0, 1.0),
}


@pytest.mark.parametrize("name", LEVELS)
def test_one_of_two_models_is_trained_at_its_own_levels_and_not_sampled(name):
    values = {"family": "wan", "base": {"path": name}, "preview": {"prompts": ["x"], "every": 1}}
    config = RunConfig.model_validate(values)
    sigma = FAMILY.with_noise(config).training.sigma
    assert (sigma.min, sigma.max) == LEVELS[name]
    one = SingleProcess(torch.device("cpu"))
    if LEVELS[name] == (0.0, 1.0):
        require_possible(config, FAMILY, one)
        return
    with pytest.raises(ConfigError, match="previews"):
        require_possible(config, FAMILY, one)
    # Each bound by itself, as a MODEL of the graph has them.
    other = {**values, "training": {"sigma": {"min": 0.5}}}
    bounds = FAMILY.with_noise(RunConfig.model_validate(other)).training.sigma
    assert (bounds.min, bounds.max) == (0.5, LEVELS[name][1])
    # The note says what is trained.
    filled = FAMILY.with_noise(RunConfig.model_validate(other))
    assert FAMILY.prediction.levels_note(filled).endswith(f"levels 0.5 to {bounds.max:g}.")
    for held in ({"preservation": {"share": 0.2}}, {"slider": {"positive": "old"}}):
        trained = {**values, "preview": {}, "dataset": held}
        with pytest.raises(ConfigError, match="trained on images of the base"):
            require_possible(RunConfig.model_validate(trained), FAMILY, one)


def test_the_levels_of_the_other_model_are_refused():
    """As of a run file that was copied from the run of the other one."""
    names = ["wan2.2_t2v_high_noise_14B.safetensors", "wan2.2_t2v_low_noise_14B.safetensors"]
    for name, other in (names, names[::-1]):
        config = RunConfig.model_validate({"family": "wan", "base": {"path": name}})
        filled = FAMILY.with_noise(config)
        assert FAMILY.with_noise(filled) == filled
        exchanged = filled.model_copy(update={"base": BaseSection(path=other)})
        with pytest.raises(ConfigError, match="is one of two models, for noise levels"):
            FAMILY.with_noise(exchanged)


def test_a_model_that_may_be_one_of_two_is_noted():
    notes = {
        name: FAMILY.prediction.levels_note(RunConfig(base=BaseSection(path=name)))
        for name in ("wan2.2_t2v_14B.safetensors", "wan2.1_t2v_14B.safetensors", "wan_1.3B.gguf")
    }
    assert [bool(note) for note in notes.values()] == [True, False, False]


FILES = {
    "Fun Control": {"patch_embedding.weight": torch.zeros(256, 48, 1, 2, 2)},
    "VACE": {"vace_blocks.0.before_proj.weight": torch.zeros(256, 256)},
    "first and last": {"img_emb.emb_pos": torch.zeros(1, 514, 8)},
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_given_more_than_a_text_is_refused(what, tmp_path):
    path = tmp_path / "wan.safetensors"
    state = {
        name: each.contiguous() for name, each in wan_to_native(make_wan().state_dict()).items()
    }
    save_file({**state, **FILES[what]}, path)
    with pytest.raises(BaseModelError, match="given more than a text and a start frame"):
        detect_base(path)


BEGINNING = {
    "a14b": {"reads": 4 + start_channels(4)},
    "a14b with an end": {"reads": 4 + start_channels(4)},
    "seen": {"reads": 4 + start_channels(4), "vision": 32},
    "ti2v 5b": {"of_5b": True},
}


@pytest.mark.parametrize("kind", BEGINNING)
def test_start_frames_are_those_of_the_pipeline(kind, tmp_path):
    """What is stored of them, the steps that read it, and how a generation ends."""
    from diffusers import WanImageToVideoPipeline
    from PIL import Image

    own = BEGINNING[kind]
    ends, of_5b = kind.endswith("end"), own.get("of_5b", False)
    made = make_wan_pipeline(**own)
    pipeline = WanImageToVideoPipeline(**made.components, expand_timesteps=of_5b)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(tmp_path)
    encoders = FAMILY.load_encoders(locate(tmp_path), torch.float32, "cpu")
    calls = RecordedCalls().watch(pipeline.transformer)
    text = encoders.encode_text(CAPTIONS[1])
    rows = text["text_embeddings"]
    # Of the size that the vision model sees, so that both cut off nothing.
    wide, high = (28, 28) if "vision" in own else (64, 32)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, 3, high, wide), generator=generator, dtype=torch.uint8)
    shown = [Image.fromarray(each.movedim(0, 2).numpy()) for each in images]
    size = (32, 32) if "vision" in own else (wide, high)
    drawn = pipeline(
        image=shown[0],
        last_image=shown[1] if ends else None,
        prompt_embeds=torch.nn.functional.pad(rows, (0, 0, 0, 512 - len(rows)))[None],
        width=size[0],
        height=size[1],
        num_frames=FRAMES,
        num_inference_steps=2,
        guidance_scale=1.0,
        generator=torch.Generator().manual_seed(0),
        output_type="latent",
    ).frames
    frames = [pipeline.video_processor.preprocess(each, *size[::-1])[0] for each in shown]
    whole = [((each + 1) * 127.5).round().to(torch.uint8) for each in frames]
    found = encoders.encode_endpoints(whole[0], whole[1] if ends else None, FRAMES)
    given = {f"{'ends' if ends else 'start'}.{name}": each for name, each in found.items()}
    if encoders.vision is not None:
        seen = encoders.vision.encode(images[0])
        torch.testing.assert_close(
            seen, calls.inputs[0]["encoder_hidden_states_image"][0], rtol=1e-4, atol=1e-5
        )
        given["start.vision"] = seen
        # The pipeline has resized the image, too, before the VAE.
        given["start.channels"] = calls.inputs[0]["hidden_states"][0, 4:]
    predict = FAMILY.prediction.predict
    for inputs, output in list(zip(calls.inputs, calls.outputs, strict=True)):
        noisy, read = inputs["hidden_states"], pipeline.vae.config.z_dim
        if not of_5b:
            noisy, channels = noisy[:, :read], noisy[0, read:]
            torch.testing.assert_close(
                given[f"{'ends' if ends else 'start'}.channels"], channels, rtol=1e-5, atol=1e-5
            )
        sigma = inputs["timestep"].float().flatten()[-1:] / 1000
        velocity = predict(pipeline.transformer, noisy, sigma, [{**text, **given}], [], 1.0)
        # What is given is predicted by nobody.
        assert relative_error(velocity[:, :, of_5b:], output[:, :, of_5b:]) <= 1e-5
        if encoders.vision is None:
            without = predict(pipeline.transformer, noisy, sigma, [text], [], 1.0)
            assert relative_error(without[:, :, 1:], output[:, :, 1:]) > 1e-3
            both = predict(
                pipeline.transformer,
                *(torch.cat([x, x]) for x in (noisy, sigma)),
                [text, {**text, **given}],
                [],
                1.0,
            )
            assert relative_error(both, torch.cat([without, velocity])) <= 1e-5
        if of_5b:
            clean = found["frames"][:, 0]
            ended = noisy[0, :, 0] - sigma * velocity[0, :, 0]
            torch.testing.assert_close(ended, clean, rtol=1e-4, atol=1e-4)
    if of_5b:
        torch.testing.assert_close(found["frames"][:, 0], drawn[0, :, 0], rtol=1e-4, atol=1e-4)
        assert found["clean"].tolist() == [1.0, 0.0, 0.0]
    starts = FAMILY.of_base(BaseSection(path=str(tmp_path))).starts
    assert starts == StartFrames(always=not of_5b, end=not of_5b)


def test_frames_that_are_seen_differ_in_number_within_a_batch(tmp_path):
    base = make_wan_base(tmp_path, reads=4 + start_channels(4), vision=32)
    location = locate(base)
    transformer = FAMILY.load_transformer(location, torch.float32, "cpu")
    encoders = FAMILY.load_encoders(location, torch.float32, "cpu")
    text = encoders.encode_text(CAPTIONS[1])
    first, last = torch.randint(0, 256, (2, 3, 32, 64), dtype=torch.uint8)
    one, two = (encoders.encode_endpoints(first, each, FRAMES) for each in (None, last))
    assert (one["vision"].shape, two["vision"].shape) == ((5, 32), (10, 32))
    given = [
        {**text, **{f"start.{name}": each for name, each in one.items()}},
        {**text, **{f"ends.{name}": each for name, each in two.items()}},
    ]
    noisy, sigma = torch.randn(2, 4, 3, 4, 8), torch.tensor([0.3, 0.8])
    predict = FAMILY.prediction.predict
    found = predict(transformer, noisy, sigma, given, [], 1.0)
    rows = [
        predict(transformer, noisy[n : n + 1], sigma[n : n + 1], [given[n]], [], 1.0)
        for n in (0, 1)
    ]
    torch.testing.assert_close(found, torch.cat(rows))
    with pytest.raises(BaseModelError, match="without a start frame"):
        predict(transformer, noisy, sigma, [given[0], text], [], 1.0)
    # It knows all levels of noise, and the cache's keys know what has seen the frames.
    assert FAMILY.prediction.levels_of(BaseSection(path=str(base))) == (0.0, 1.0)
    config = base / "image_processor" / "preprocessor_config.json"
    config.write_text(config.read_text().replace("0.4", "0.5"))
    assert locate(base).identity != location.identity
    config.write_text(config.read_text().replace("image_mean", "other_mean"))
    with pytest.raises(BaseModelError, match="None of image_mean"):
        FAMILY.load_encoders(locate(base), torch.float32, "cpu")
    for part in ("image_processor", "image_encoder"):
        (base / part).rename(tmp_path / f"no_{part}")
        with pytest.raises(BaseModelError, match=part):
            locate(base)


BEGINS = "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers"


def test_a_preview_without_its_first_frame_is_refused_by_the_name_of_the_setting(tmp_path):
    family = FAMILY.of_base(BaseSection(path=BEGINS))
    preview = PreviewSection(prompts=["x"], frames=5)
    with pytest.raises(ConfigError, match=r"preview\.controls: no image") as refused:
        encode_prompts(preview, DatasetSection(), family, "generate", tmp_path, "", None, 16, 16)
    assert "in preview.controls" in refused.value.remedy


def test_previews_of_one_frame_are_refused_of_a_base_that_is_given_it():
    def require(path, every, **preview):
        preview |= {"prompts": ["x"], "every": every}
        values = {"family": "wan", "base": {"path": path}, "preview": preview}
        one = SingleProcess(torch.device("cpu"))
        require_possible(RunConfig.model_validate(values), FAMILY, one)

    for frames in (1, 4):
        with pytest.raises(ConfigError, match=f"frames is {frames}, which") as refused:
            require(BEGINS, 1, frames=frames)
        assert refused.value.expected == "5 frames or more"
        require(BEGINS, 0, frames=frames)
        require("wan2.1_t2v_14B.safetensors", 1, frames=frames)
    require(BEGINS, 1)
    require(BEGINS, 1, frames=5)
    # A generation without a run has no clips that would say how long it is.
    with pytest.raises(ConfigError, match="not set"):
        check_frames(PreviewSection(prompts=["x"]), FAMILY.of_base(BaseSection(path=BEGINS)), 1)


@pytest.mark.parametrize("kind", ["trajectory", "class", "output", "blank"])
def test_images_of_a_base_that_is_given_the_first_frame_are_not_trained_on(kind):
    word = {"class_word": "dog"} if kind in {"class", "output"} else {}

    def require(path):
        held = {"kind": kind, "share": 0.2, **word}
        dataset = {"preservation": held, "trigger_word": "ohwx"}
        values = {"family": "wan", "base": {"path": path}, "dataset": dataset}
        one = SingleProcess(torch.device("cpu"))
        require_possible(RunConfig.model_validate(values), FAMILY, one)

    require("wan2.1_t2v_14B.safetensors")
    if kind in {"output", "blank"}:
        require(BEGINS)
        return
    with pytest.raises(ConfigError, match=f"kind is {kind} and share is 0.2") as refused:
        require(BEGINS)
    assert "output or blank" in refused.value.remedy


def test_another_expert_of_a_family_without_one_is_refused():
    values = {"family": "flux", "base": {"path": "flux", "other_expert": "low_noise.safetensors"}}
    one = SingleProcess(torch.device("cpu"))
    with pytest.raises(ConfigError, match="has no second model"):
        require_possible(RunConfig.model_validate(values), get_family("flux"), one)
