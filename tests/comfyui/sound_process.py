"""Runs inside ComfyUI's interpreter: clips with their sound, on a tiny LTX-2 or MiniMax-H3.

Arguments: FOLDER MODEL JOB .... MODEL is a name of a tiny one. FOLDER gets ``results.json``: what a
prediction is beside ComfyUI's own sampler, what a sound is encoded to, and runs.
"""

import contextlib
import itertools
import sys
from pathlib import Path

import torch
from clip_files import write_clip
from graph_model_process import CAPTION, losses, run_config, write_found
from graph_model_process import trained as of_model
from loaded_pack import part

SIDE, STEPS, SEED = 64, 3, 7
TONE = 880


class Tiny:
    """A tiny MODEL that makes video and sound, with what belongs to it."""

    def __init__(self, name):
        from tiny_models.denoisers import tiny_model
        from tiny_models.sizes import SOUNDING, TINY
        from tiny_models.texts import tiny_clip
        from tiny_models.vaes import tiny_vae

        sizes, self.packed = {**TINY, **SOUNDING}[name], name in SOUNDING
        self.model, self.clip = tiny_model(name), tiny_clip(sizes.text)
        self.vae = tiny_vae(sizes.vae)
        self.audio = tiny_vae("minimax_h3_audio" if self.packed else "ltx_audio")
        self.frames, self.fps = (5, 24.0) if self.packed else (9, 25.0)
        self.shape = (1, 24, 2, 4, 4) if self.packed else (1, 128, 2, 2, 2)
        # What ComfyUI's sampler multiplies latents of sound by: the shifts 12 and 3.
        self.scale = 4.0 if self.packed else 1.0

    def family(self, rate=None):
        make = part("nodes.host.graph_family").graph_family
        return make(self.model, audio=self.audio, rate=rate)

    def source(self):
        make = part("nodes.host.graph_family").encoders_of
        return make(self.model, self.clip, self.vae, audio=self.audio)

    def encoders(self, family):
        locate = part("trainer_core.bases.locate").locate_base
        base = part("trainer_core.config").BaseSection()
        return self.source()(family, locate(base, family, False, to_train=False))

    def length(self):
        """Latents of sound, as ComfyUI's own node makes an empty one."""
        from comfy_extras.nodes_lt_audio import LTXVEmptyLatentAudio
        from comfy_extras.nodes_minimax_h3 import EmptyMiniMaxH3LatentAV

        if self.packed:
            whole = EmptyMiniMaxH3LatentAV.execute(SIDE, SIDE, self.frames).args[0]["samples"]
            return whole.unbind()[1]
        node = LTXVEmptyLatentAudio.execute(self.frames, self.fps, 1, self.audio)
        return node.args[0]["samples"]


def predicted(tiny, begins):
    """How far the trainer's prediction is from KSampler's after some steps, of clip and sound."""
    import comfy.sample
    import comfy.samplers
    from comfy_extras import nodes_lt

    import nodes

    streams = part("trainer_core.diffusion.streams")
    family = tiny.family()
    encoders = tiny.encoders(family)
    text = nodes.CLIPTextEncode().encode(tiny.clip, CAPTION)[0]
    held, latent = encoders.encode_text(CAPTION), {"samples": torch.zeros(tiny.shape)}
    if begins:
        frame = torch.arange(3 * SIDE * SIDE, dtype=torch.uint8).reshape(3, SIDE, SIDE)
        shown = frame.movedim(0, -1)[None].float() / 255
        words = (text, text, tiny.vae, SIDE, SIDE, tiny.frames, 1)
        text, _, latent = nodes_lt.LTXVImgToVideo.execute(*words[:2], shown, *words[2:], 1.0).args
        ends = part("trainer_core.data.cache.encoder_protocols").encode_endpoints
        held |= {
            n: e for n, e in ends(encoders, frame, None, tiny.frames).items() if "clean" not in n
        }
    sound = {"samples": tiny.length()}
    (both,) = nodes_lt.LTXVConcatAVLatent.execute(latent, sound).args
    words = (SEED, STEPS, 1.0, "euler", "simple", text, text, both, 1.0)
    theirs = nodes.common_ksampler(tiny.model, *words)[0]["samples"].unbind()
    noise = comfy.sample.prepare_noise(both["samples"], SEED).unbind()
    sampling = tiny.model.get_model_object("model_sampling")
    sigmas = comfy.samplers.calculate_sigmas(sampling, "simple", STEPS)
    held |= streams.stream_shapes(latent["samples"], sound["samples"])
    with torch.inference_mode(False), torch.no_grad(), contextlib.ExitStack() as at_end:
        denoiser = family.lent.open(torch.float32, torch.device("cpu"), at_end)
        x = streams.join_streams(*(each.clone() for each in noise)) * sigmas[0]
        for now, after in itertools.pairwise(sigmas):
            output = family.prediction.predict(denoiser, x, now[None].clone(), [held], [], 1.0)
            x = x + (after - now) * output
    clip, sound = streams.part_streams(x, held)
    ours = clip, sound / tiny.scale
    return [float((a - b).norm() / b.norm()) for a, b in zip(ours, theirs, strict=True)]


def encoded(tiny, folder):
    """What a clip's sound is encoded to, beside ComfyUI's own nodes on the same part."""
    from comfy_extras.nodes_lt_audio import LTXVAudioVAEEncode
    from comfy_extras.nodes_minimax_h3 import _encode_ref_audio

    sounds, types = part("trainer_core.data.sounds"), part("trainer_core.types")
    write_clip(folder, SIDE, 2 * tiny.frames, tiny.fps, tone=TONE)
    path, seconds = folder / "0.mp4", tiny.frames / tiny.fps
    sound = sounds.read_sound(path, types.ClipPart(seconds, tiny.frames, tiny.fps))
    ours = tiny.encoders(tiny.family()).encode_sound(sound, seconds)
    # ComfyUI's node, of a sound whose length it does not cut.
    from torchaudio.functional import resample

    own, every = (32000, 800) if tiny.packed else (44100, 4096)
    wave = resample(sound.waveform, sound.rate, own)
    whole = torch.nn.functional.pad(wave, (0, -wave.shape[1] % every))
    audio = {"waveform": whole[None], "sample_rate": own}
    if tiny.packed:
        theirs = tiny.scale * _encode_ref_audio(tiny.audio, audio)[0][0]
    else:
        theirs = LTXVAudioVAEEncode.execute(audio, tiny.audio).args[0]["samples"][0]
    return {
        "shape": list(ours.shape),
        "empty": list(tiny.length().shape[1:]),
        "apart": float((ours - theirs[tuple(map(slice, ours.shape))]).abs().max()),
    }


def alone(tiny):
    """How far predictions of clips without sound, in one batch, are from those with silence.

    And from those with another sound, of which the model makes other frames.
    """
    streams = part("trainer_core.diffusion.streams")
    vae = part("nodes.host.audio_vae").AudioVae(tiny.audio, tiny.scale)
    family = tiny.family()
    held = tiny.encoders(family).encode_text(CAPTION)
    silence = vae.silence(tiny.frames / tiny.fps)[None]
    source = torch.Generator().manual_seed(SEED)
    noisy = torch.randn(2, *tiny.shape[1:], generator=source)
    levels = torch.tensor([0.25, 0.75])
    beside = part("nodes.host.graph_predict").Silence(family.clips, lambda _: silence[0])
    sounds = beside.noisy(noisy, levels)
    found = []
    with torch.inference_mode(False), torch.no_grad(), contextlib.ExitStack() as at_end:
        denoiser = family.lent.open(torch.float32, torch.device("cpu"), at_end)

        def predicted(x, level, text):
            return family.prediction.predict(denoiser, x, level, [text] * len(x), [], 1.0)

        ours = predicted(noisy, levels, held)
        for sound in (sounds, 1.0 - sounds):
            text = {**held, **streams.stream_shapes(noisy, sound)}
            rows = zip(noisy.split(1), sound.split(1), levels.split(1), strict=True)
            pairs = [(streams.join_streams(x, own), level) for x, own, level in rows]
            joined = torch.cat([predicted(*pair, text) for pair in pairs])
            theirs, _ = streams.part_streams(joined, text)
            found.append(float((ours - theirs).norm() / theirs.norm()))
        image = predicted(noisy[:, :, 0], levels, held)
    residue = (sounds - (1 - levels).view(-1, 1, 1, 1) * silence) / levels.view(-1, 1, 1, 1)
    return {"apart": found, "image": list(image.shape), "noise": float(residue.std())}


def clips(tiny, folder, tones):
    for number, tone in enumerate(tones):
        write_clip(folder / "images", SIDE, tiny.frames, tiny.fps, str(number), CAPTION, tone)


def trained(tiny, folder, tones, steps=12, rate=2e-3):
    """A run on clips with tones; what it has changed, and what it generates."""
    train = part("trainer_core.training").train
    read = part("trainer_core.tensors.safetensors_reader").open_tensors
    clips(tiny, folder, tones)
    family = tiny.family(tiny.fps)
    job = {"name": folder.name, "kind": "lora", "frames": tiny.frames, "steps": steps, "rate": rate}
    config = run_config(folder, job | {"base": {"distilled": "train"}}, SIDE, family.name)
    preview = config.preview.model_copy(update={"every": steps})
    config = config.model_copy(update={"preview": preview})
    with torch.inference_mode(False):
        result = train(config, make_source=tiny.source(), family=family)
    with read(result.adapters[0]) as file:
        ups = {n: file.read(n) for n in file.tensors if n.endswith("lora_up.weight")}
    moved = {n for n, each in ups.items() if each.any()}
    return {
        "losses": losses(result.folder),
        "layers": len(ups),
        "moved": len(moved),
        "moved for sound": sum("audio" in n for n in moved),
        "errors": errors_of_sound(tiny, config, result.adapters[0], family),
    }


def whole(tiny, folder):
    """A run on a clip, beside what ComfyUI samples with its file, and the MODEL afterwards."""
    write_clip(folder / "images", SIDE, 2 * tiny.frames, tiny.fps, caption=CAPTION, tone=TONE)
    job = {"name": "whole", "kind": "lokr", "side": SIDE, "frames": tiny.frames, "steps": 6}
    job["base"] = {"distilled": "train"}
    return of_model(folder, job, tiny.model, tiny.clip, tiny.vae, audio=tiny.audio)


def previews(folder):
    """Rate and length of the sound of a run's first and last preview."""
    import av

    found = []
    for path in sorted((folder / "output").rglob("0.mp4")):
        with av.open(str(path)) as movie:
            (track,) = movie.streams.audio
            samples = sum(frame.samples for frame in movie.decode(track))
            found.append((track.rate, samples / track.rate))
    return {"rate": found[0][0], "seconds": [found[0][1], found[-1][1]]}


def heard(tiny, folder, run):
    """How far the sound of a run's first and last preview is from what the VAE makes of tones.

    Mean difference of the logarithms of magnitudes, by tone: with random weights the VAE makes
    noise of a tone, but of each another one.
    """
    import av

    def spectrum(wave):
        return torch.fft.rfft(wave.double().mean(0), n=4096).abs().clamp_min(1e-3).log()

    def of_file(path):
        with av.open(str(path)) as movie:
            parts = [torch.from_numpy(each.to_ndarray()) for each in movie.decode(audio=0)]
        return spectrum(torch.cat(parts, dim=1))

    vae = part("nodes.host.audio_vae").AudioVae(tiny.audio, tiny.scale)
    encoders, found = tiny.encoders(tiny.family()), {}
    previews = sorted((folder / run / "output").rglob("0.mp4"))
    for tone in (TONE, TONE // 4, 0):
        write_clip(folder / "tones", SIDE, tiny.frames, tiny.fps, str(tone), tone=tone)
        sound = sound_of(tiny, folder / "tones" / f"{tone}.mp4")
        own = spectrum(vae.decode(encoders.encode_sound(sound, tiny.frames / tiny.fps)).waveform)
        found[tone] = [float((of_file(previews[at]) - own).abs().mean()) for at in (0, -1)]
    return found


def sound_of(tiny, path):
    sounds, types = part("trainer_core.data.sounds"), part("trainer_core.types")
    return sounds.read_sound(path, types.ClipPart(0.0, tiny.frames, tiny.fps))


def errors_of_sound(tiny, config, adapter, family):
    """Mean squared error of a tone's prediction at one noise level, of the base and the adapter."""
    pipeline, streams = (
        part("trainer_core.inference.pipeline"),
        part("trainer_core.diffusion.streams"),
    )
    encoders, folder = tiny.encoders(family), Path(config.dataset.path).parent / "asked"
    write_clip(folder, SIDE, tiny.frames, tiny.fps, tone=TONE)
    sound = sound_of(tiny, folder / "0.mp4")
    own = encoders.encode_sound(sound, tiny.frames / tiny.fps)[None]
    source = torch.Generator().manual_seed(SEED)
    clip = torch.randn(tiny.shape, generator=source)
    noise = torch.randn(own.shape, generator=source)
    held = {**encoders.encode_text(CAPTION), **streams.stream_shapes(clip, own)}
    x = streams.join_streams(clip, (own + noise) / 2)
    found = []
    with torch.inference_mode(False), torch.no_grad():
        place = pipeline._locate(config, False, tiny.source(), None, family)
        with place.load() as opened:
            for strength in (0.0, 1.0):
                attached = opened.put_on(adapter)
                attached.strength = strength
                predict, denoiser = family.prediction.predict, opened.sampler.transformer
                output = predict(denoiser, x, torch.tensor([0.5]), [held], [], 1.0)
                _, heard = streams.part_streams(output, held)
                found.append(float((heard - (noise - own)).square().mean()))
                attached.detach()
    return found


def refused(tiny):
    """What is said of a MODEL and a VAE of sound that do not belong together."""
    from tiny_models.denoisers import tiny_model
    from tiny_models.vaes import tiny_vae

    base_of_model = part("nodes.services.graph_base").base_of_model
    found = []
    pairs = [(tiny_model("ltxv"), tiny.audio), (tiny.model, tiny.vae)]
    pairs += [(tiny.model, tiny_vae("ltx_audio")), (tiny.model, None)] if tiny.packed else []
    attempts = [
        *(lambda m=model, v=vae: base_of_model(m, "fp32", audio=v) for model, vae in pairs),
        *([lambda: tiny.family(16.0), lambda: located(tiny)] if tiny.packed else []),
    ]
    for attempt in attempts:
        try:
            attempt()
        except part("trainer_core.errors").InputError as error:
            found.append([error.found, error.expected, error.remedy])
    return found


def located(tiny):
    """The base of a run; with a LoRA on the MODEL, which may be its training adapter, it is."""
    locate, base = part("trainer_core.bases.locate").locate_base, part("trainer_core.config")
    patched = tiny.model.clone()
    name = "diffusion_model.blocks.0.mlp.fc1.weight"
    patched.add_patches({name: ("diff", (torch.zeros(128, 64),))})
    make = part("nodes.host.graph_family").graph_family
    for model in (patched, tiny.model):
        family = make(model, audio=tiny.audio)
        locate(base.BaseSection(), family, False)


def exchanged(tiny):
    """What is said of a cache that was made without the VAE of sound."""
    base_of_model = part("nodes.services.graph_base").base_of_model
    described = part("nodes.services.merged_run_config")
    with_sound, without = (base_of_model(tiny.model, "fp32", audio=e) for e in (tiny.audio, None))
    described._require_same_base(with_sound, with_sound)
    try:
        described._require_same_base(with_sound, without)
    except part("trainer_core.errors").RunError as error:
        return error.found
    return ""


def main(folder, name, *wanted):
    tiny = Tiny(name)
    jobs = {
        "predicted": lambda: predicted(tiny, begins=False),
        "begun": lambda: predicted(tiny, begins=True),
        "encoded": lambda: encoded(tiny, folder / "encoded"),
        "whole": lambda: whole(tiny, folder / "whole"),
        "alone": lambda: alone(tiny),
        "refused": lambda: refused(tiny),
        "exchanged": lambda: exchanged(tiny),
        "mixed": lambda: trained(tiny, folder / "mixed", [TONE, None], steps=2),
        "previews": lambda: previews(folder / "mixed"),
        "learned": lambda: trained(tiny, folder / "learned", [TONE], 100, 5e-3),
        "silent": lambda: trained(tiny, folder / "silent", [None, 0], 100, 5e-3),
        "heard": lambda: [heard(tiny, folder, run) for run in ("learned", "silent")],
    }
    write_found(folder, {name: (jobs[name],) for name in wanted}, lambda job: job())


main(Path(sys.argv[1]), *sys.argv[2:])
