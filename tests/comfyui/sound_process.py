"""Runs inside ComfyUI's interpreter: clips with their sound, on a tiny LTX-2.

Usage: sound_process.py FOLDER JOB ..., with ComfyUI's folder in PYTHONPATH. FOLDER gets
``results.json``: what a prediction is beside ComfyUI's own sampler, what a sound is encoded to, and
runs.
"""

import contextlib
import itertools
import sys
from pathlib import Path

import torch
from clip_files import write_clip
from graph_model_process import CAPTION, losses, run_config, write_found
from loaded_pack import part

FRAMES, FPS, SIDE, STEPS, SEED = 9, 25.0, 64, 3, 7
TONE = 880


class Tiny:
    """A tiny MODEL that makes video and sound, with what belongs to it."""

    def __init__(self):
        from tiny_models.denoisers import tiny_model
        from tiny_models.sizes import TINY
        from tiny_models.texts import tiny_clip
        from tiny_models.vaes import tiny_vae

        sizes = TINY["ltxav"]
        self.model, self.clip = tiny_model("ltxav"), tiny_clip(sizes.text)
        self.vae, self.audio = tiny_vae(sizes.vae), tiny_vae("ltx_audio")

    def family(self):
        return part("nodes.host.graph_family").graph_family(self.model, audio=self.audio)

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

        node = LTXVEmptyLatentAudio.execute(FRAMES, FPS, 1, self.audio)
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
    held, latent = encoders.encode_text(CAPTION), {"samples": torch.zeros(1, 128, 2, 2, 2)}
    if begins:
        frame = torch.arange(3 * SIDE * SIDE, dtype=torch.uint8).reshape(3, SIDE, SIDE)
        shown = frame.movedim(0, -1)[None].float() / 255
        words = (text, text, tiny.vae, SIDE, SIDE, FRAMES, 1)
        text, _, latent = nodes_lt.LTXVImgToVideo.execute(*words[:2], shown, *words[2:], 1.0).args
        ends = part("trainer_core.data.cache.encoders").encode_endpoints
        held |= {n: e for n, e in ends(encoders, frame, None, FRAMES).items() if "clean" not in n}
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
    ours = streams.part_streams(x, held)
    return [float((a - b).norm() / b.norm()) for a, b in zip(ours, theirs, strict=True)]


def encoded(tiny, folder):
    """What a clip's sound is encoded to, beside ComfyUI's own nodes on the same part."""
    from comfy_extras.nodes_lt_audio import LTXVAudioVAEEncode

    sounds, types = part("trainer_core.data.sounds"), part("trainer_core.types")
    write_clip(folder, SIDE, 2 * FRAMES, FPS, tone=TONE)
    path, seconds = folder / "0.mp4", FRAMES / FPS
    sound = sounds.read_sound(path, types.ClipPart(seconds, FRAMES, FPS))
    ours = tiny.encoders(tiny.family()).encode_sound(sound, seconds)
    # ComfyUI's node, of a sound whose length it does not cut.
    from torchaudio.functional import resample

    wave = resample(sound.waveform, sound.rate, 44100)
    whole = torch.nn.functional.pad(wave, (0, -wave.shape[1] % 4096))
    audio = {"waveform": whole[None], "sample_rate": 44100}
    theirs = LTXVAudioVAEEncode.execute(audio, tiny.audio).args[0]["samples"][0]
    return {
        "shape": list(ours.shape),
        "empty": list(tiny.length().shape[1:]),
        "apart": float((ours - theirs[:, : ours.shape[1]]).abs().max()),
    }


def clips(folder, tones):
    for number, tone in enumerate(tones):
        write_clip(folder / "images", SIDE, FRAMES, FPS, str(number), CAPTION, tone)


def trained(tiny, folder, tones, steps=12, rate=2e-3):
    """A run on clips with tones; what it has changed, and what it generates."""
    train = part("trainer_core.training").train
    read = part("trainer_core.tensors.safetensors_reader").open_tensors
    clips(folder, tones)
    family = part("nodes.host.graph_family").graph_family(tiny.model, audio=tiny.audio, rate=FPS)
    job = {"name": folder.name, "kind": "lora", "frames": FRAMES, "steps": steps, "rate": rate}
    config = run_config(folder, job, SIDE, family.name)
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


def sound_of(path):
    sounds, types = part("trainer_core.data.sounds"), part("trainer_core.types")
    return sounds.read_sound(path, types.ClipPart(0.0, FRAMES, FPS))


def errors_of_sound(tiny, config, adapter, family):
    """Mean squared error of a tone's prediction at one noise level, of the base and the adapter."""
    pipeline, streams = (
        part("trainer_core.inference.pipeline"),
        part("trainer_core.diffusion.streams"),
    )
    encoders, folder = tiny.encoders(family), Path(config.dataset.path).parent / "asked"
    write_clip(folder, SIDE, FRAMES, FPS, tone=TONE)
    own = encoders.encode_sound(sound_of(folder / "0.mp4"), FRAMES / FPS)[None]
    source = torch.Generator().manual_seed(SEED)
    clip = torch.randn(1, 128, 2, 2, 2, generator=source)
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
    """What is said of a MODEL that makes no sound, and of a VAE that has none."""
    from tiny_models.denoisers import tiny_model

    base_of_model = part("nodes.services.graph_base").base_of_model
    found = []
    for model, vae in ((tiny_model("ltxv"), tiny.audio), (tiny.model, tiny.vae)):
        try:
            base_of_model(model, "fp32", audio=vae)
        except part("trainer_core.errors").InputError as error:
            found.append([error.found, error.expected, error.remedy])
    return found


def exchanged(tiny):
    """What is said of a cache that was made without the VAE of sound."""
    base_of_model = part("nodes.services.graph_base").base_of_model
    choices = part("nodes.services.choices")
    with_sound, without = (base_of_model(tiny.model, "fp32", audio=e) for e in (tiny.audio, None))
    choices._require_same_base(with_sound, with_sound)
    try:
        choices._require_same_base(with_sound, without)
    except part("trainer_core.errors").RunError as error:
        return error.found
    return ""


def main(folder, *wanted):
    tiny = Tiny()
    jobs = {
        "predicted": lambda: predicted(tiny, begins=False),
        "begun": lambda: predicted(tiny, begins=True),
        "encoded": lambda: encoded(tiny, folder / "encoded"),
        "refused": lambda: refused(tiny),
        "exchanged": lambda: exchanged(tiny),
        "mixed": lambda: trained(tiny, folder / "mixed", [TONE, None], steps=2),
        "previews": lambda: previews(folder / "mixed"),
        "learned": lambda: trained(tiny, folder / "learned", [TONE], 100, 5e-3),
        "silent": lambda: trained(tiny, folder / "silent", [None, 0], 100, 5e-3),
    }
    write_found(folder, {name: (jobs[name],) for name in wanted}, lambda job: job())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
