"""Subgraphs that generate with ComfyUI's own nodes: what each base needs around KSampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .graph import Given, Node, Output, Section, Subgraph, Workflow

MODEL, CLIP, VAE, IMAGE = (Given(name) for name in ("model", "clip", "vae", "image"))
_WIDTH = 340

FIRST = 201
"""Number of the first node inside."""


def before_and_after() -> Subgraph:
    """For the embedded base: the same with and without an adapter, as one image."""
    flow = Workflow("KSampler without and with the adapter", "", first=FIRST)
    size = flow.node("EmptyLatentImage", {"width": 64, "height": 64})
    sides = Given("positive"), Given("negative")
    seed = {"seed": Given("seed")}
    before = sampled(flow, MODEL, *sides, size["LATENT"], 4.0, VAE, **seed)
    after = sampled(flow, Given("with_adapter"), *sides, size["LATENT"], 4.0, VAE, **seed)
    images = {"image1": before[-1][0]["IMAGE"], "image2": after[-1][0]["IMAGE"]}
    both = flow.node("ImageStitch", {**images, "spacing_width": 4}, title="Side by side")
    # Two images of 64 pixels are too small to be seen on a node.
    scale = {"upscale_method": "lanczos", "scale_by": 6.0}
    large = flow.node("ImageScaleBy", {"image": both["IMAGE"], **scale})
    columns = [[*one, *other] for one, other in zip(before, after, strict=True)]
    flow.row(Section("", [[size], *columns, [both, large]]))
    inputs = ("model", "with_adapter", "positive", "negative", "vae", "seed")
    return Subgraph(flow, inputs, {"IMAGE": large["IMAGE"]}, (_WIDTH, 190))


def qwen_image() -> Subgraph:
    """For Qwen-Image."""
    return _shifted("ModelSamplingAuraFlow", {"shift": 3.1}, 4.0)


def z_image() -> Subgraph:
    """For Z-Image."""
    return _shifted("ModelSamplingAuraFlow", {"shift": 3.0}, 4.0)


def chroma() -> Subgraph:
    """For Chroma1."""
    return _shifted("ModelSamplingAuraFlow", {"shift": 1.0}, 3.5, "beta")


def krea2() -> Subgraph:
    """For Krea 2 raw.

    By itself ComfyUI moves the noise levels of raw as far as those of turbo, whose shift is fixed.
    That of raw follows the image's size: here as at 1024 x 1024.
    """
    size = {"width": 1024, "height": 1024}
    return _shifted("ModelSamplingFlux", {"max_shift": 0.91, "base_shift": 0.5, **size}, 5.5)


def _shifted(
    kind: str, values: Mapping[str, Any], guidance: float, scheduler: str = "simple"
) -> Subgraph:
    """For a base whose noise levels are moved, and that is guided by a second prompt."""
    flow = Workflow("Generate with KSampler", "", first=FIRST)
    shifted = flow.node(kind, {"model": MODEL, **values})
    positive = flow.node("CLIPTextEncode", {"clip": CLIP, "text": Given("prompt")}, title="Prompt")
    negative = flow.node("CLIPTextEncode", {"clip": CLIP, "text": ""}, title="Negative prompt")
    size = flow.node("EmptySD3LatentImage", {"width": 1024, "height": 1024})
    sides = positive["CONDITIONING"], negative["CONDITIONING"]
    cfg = {"scheduler": scheduler}
    shown = sampled(flow, shifted["MODEL"], *sides, size["LATENT"], guidance, VAE, **cfg)
    return _with_prompt(flow, [[shifted, size], [positive, negative]], shown)


def flux() -> Subgraph:
    """For FLUX.1."""
    flow = Workflow("Generate with KSampler", "", first=FIRST)
    prompt = flow.node("CLIPTextEncode", {"clip": CLIP, "text": Given("prompt")}, title="Prompt")
    size = flow.node("EmptySD3LatentImage", {"width": 1024, "height": 1024})
    guides, sides = guided(flow, prompt["CONDITIONING"], 3.5)
    shown = sampled(flow, MODEL, *sides, size["LATENT"], 1.0, VAE)
    return _with_prompt(flow, [[prompt, size], guides], shown)


def qwen_image_edit() -> Subgraph:
    """For Qwen-Image-Edit, with the adapter's loader."""
    flow = Workflow("Load LoRA Model and edit with KSampler", "", first=FIRST)
    lora = _loader(flow)
    scaled = flow.node("FluxKontextImageScale", {"image": IMAGE})
    shifted = flow.node("ModelSamplingAuraFlow", {"model": lora["model"], "shift": 3.0})
    norm = flow.node("CFGNorm", {"model": shifted["MODEL"], "strength": 1.0})
    shared = {"clip": CLIP, "vae": VAE, "image1": scaled["IMAGE"]}
    kind = "TextEncodeQwenImageEditPlus"
    positive = flow.node(kind, {**shared, "prompt": Given("prompt")}, title="Instruction")
    negative = flow.node(kind, {**shared, "prompt": ""}, title="Negative instruction")
    latent = flow.node("VAEEncode", {"pixels": scaled["IMAGE"], "vae": VAE})
    sides = positive["CONDITIONING"], negative["CONDITIONING"]
    shown = sampled(flow, norm["patched_model"], *sides, latent["LATENT"], 4.0, VAE)
    return _with_prompt(
        flow, [[lora, shifted, norm], [scaled, positive, negative], [latent]], shown
    )


def qwen_image_layered() -> Subgraph:
    """For Qwen-Image-Layered, with the adapter's loader: the whole image, then its layers."""
    flow = Workflow("Load LoRA Model and take an image apart with KSampler", "", first=FIRST)
    lora, side = _loader(flow), {"width": 640, "height": 640}
    scaled = flow.node(
        "ImageScale", {"image": IMAGE, "upscale_method": "lanczos", "crop": "center", **side}
    )
    latent = flow.node("VAEEncode", {"pixels": scaled["IMAGE"], "vae": VAE})
    columns, sides = [], []
    for text, title in ((Given("prompt"), "Caption"), ("", "Negative prompt")):
        prompt = flow.node("CLIPTextEncode", {"clip": CLIP, "text": text}, title=title)
        given = {"conditioning": prompt["CONDITIONING"], "latent": latent["LATENT"]}
        reference = flow.node("ReferenceLatent", given)
        columns.append([prompt, reference])
        sides.append(reference["CONDITIONING"])
    frames = flow.node("EmptyQwenImageLayeredLatentImage", {**side, "layers": 4})
    positive, negative = sides
    values = sampler_values(lora["model"], positive, negative, frames["LATENT"], 4.0)
    sampler = flow.node("KSampler", values)
    cut = {"samples": sampler["LATENT"], "dim": "t", "slice_size": 1}
    apart = flow.node("LatentCutToBatch", cut)
    decoded = flow.node("VAEDecode", {"samples": apart["LATENT"], "vae": VAE})
    return _with_prompt(
        flow, [[lora, scaled, latent], *columns, [frames]], [[sampler, apart], [decoded]]
    )


def flux_kontext() -> Subgraph:
    """For FLUX.1 Kontext, with the adapter's loader."""
    flow = Workflow("Load LoRA Model and edit with KSampler", "", first=FIRST)
    lora = _loader(flow)
    scaled = flow.node("FluxKontextImageScale", {"image": IMAGE})
    text = {"clip": CLIP, "text": Given("prompt")}
    prompt = flow.node("CLIPTextEncode", text, title="Instruction")
    latent = flow.node("VAEEncode", {"pixels": scaled["IMAGE"], "vae": VAE})
    reference = flow.node(
        "ReferenceLatent", {"conditioning": prompt["CONDITIONING"], "latent": latent["LATENT"]}
    )
    guides, sides = guided(flow, reference["CONDITIONING"], 2.5)
    shown = sampled(flow, lora["model"], *sides, latent["LATENT"], 1.0, VAE)
    return _with_prompt(flow, [[lora, scaled, latent], [prompt, reference, *guides]], shown)


def flux2() -> Subgraph:
    """For FLUX.2 klein base, which is guided by a second prompt."""
    return _plain("EmptyFlux2LatentImage", 4.0)


def sdxl() -> Subgraph:
    """For SDXL."""
    return _plain("EmptyLatentImage", 7.0)


def any_model() -> Subgraph:
    """For a model of which nothing but this is known: guided by a second prompt.

    KSampler gives an empty latent the channels of the model.
    """
    return _plain("EmptyLatentImage", 4.0)


def _plain(latent: str, guidance: float) -> Subgraph:
    """For a base that is sampled as it is loaded."""
    flow = Workflow("Generate with KSampler", "", first=FIRST)
    positive = flow.node("CLIPTextEncode", {"clip": CLIP, "text": Given("prompt")}, title="Prompt")
    negative = flow.node("CLIPTextEncode", {"clip": CLIP, "text": ""}, title="Negative prompt")
    size = flow.node(latent, {"width": 1024, "height": 1024})
    sides = positive["CONDITIONING"], negative["CONDITIONING"]
    shown = sampled(flow, MODEL, *sides, size["LATENT"], guidance, VAE)
    return _with_prompt(flow, [[positive, negative], [size]], shown)


def wan_experts() -> Subgraph:
    """For Wan 2.2 A14B: half of the steps by each expert."""
    flow = Workflow("Generate with both experts", "", first=FIRST)
    prompts, size = _video(flow, "EmptyHunyuanLatentVideo")
    sides = _sides(prompts)
    return _experts(flow, [prompts, [size]], sides, size["LATENT"], ())


def wan_experts_from_image() -> Subgraph:
    """For Wan 2.2 A14B whose clips begin with an image."""
    flow = Workflow("Generate from an image with both experts", "", first=FIRST)
    prompts = _prompts(flow)
    sides = _sides(prompts)
    size = {"width": 832, "height": 480, "length": 33}
    start = flow.node("WanImageToVideo", {**sides, "vae": VAE, **size, "start_image": IMAGE})
    sides = {name: start[name] for name in sides}
    return _experts(flow, [prompts, [start]], sides, start["latent"], ("image",))


def _experts(
    flow: Workflow,
    first: list[list[Node]],
    sides: Mapping[str, Output],
    latent: Output,
    more: Sequence[str],
) -> Subgraph:
    steps, half = 20, 10
    shared = {"steps": steps, "cfg": 3.5, "sampler_name": "euler", "scheduler": "simple", **sides}
    noisy = {"add_noise": "enable", "end_at_step": half, "return_with_leftover_noise": "enable"}
    values = {"model": MODEL, "latent_image": latent, **shared, **noisy}
    high = flow.node("KSamplerAdvanced", values)
    low = flow.node(
        "KSamplerAdvanced",
        {
            "model": Given("low_noise_model"),
            "latent_image": high["LATENT"],
            **shared,
            "add_noise": "disable",
            "start_at_step": half,
        },
    )
    decoded = flow.node("VAEDecode", {"samples": low["LATENT"], "vae": VAE})
    inputs = ("model", "low_noise_model", "clip", "vae", *more, "prompt")
    return _moving(flow, [*first, [high]], [[low], [decoded]], 16.0, inputs)


def wan_5b() -> Subgraph:
    """For Wan 2.2 5B."""
    values = {"vae": VAE, "width": 832, "height": 480}
    return _plain_video("Wan22ImageToVideoLatent", 5.0, values)


def hunyuan_video_15() -> Subgraph:
    """For HunyuanVideo 1.5."""
    return _plain_video("EmptyHunyuanVideo15Latent", 6.0, {"width": 848, "height": 480})


def _plain_video(latent: str, guidance: float, values: Mapping[str, Any]) -> Subgraph:
    flow = Workflow("Generate with KSampler", "", first=FIRST)
    prompts, size = _video(flow, latent, values)
    sides = [each["CONDITIONING"] for each in prompts]
    shown = sampled(flow, MODEL, *sides, size["LATENT"], guidance, VAE)
    return _moving(flow, [prompts, [size]], shown, 24.0)


def ltx_video() -> Subgraph:
    """For LTX-Video, whose noise levels follow the size of the clip."""
    flow = Workflow("Generate with LTX-Video's own levels", "", first=FIRST)
    first, latent, sampler = _ltx(flow)
    sampled_once = flow.node("SamplerCustom", {**sampler, "latent_image": latent["LATENT"]})
    decoded = flow.node("VAEDecode", {"samples": sampled_once["output"], "vae": VAE})
    return _moving(flow, first, [[sampled_once], [decoded]], 25.0)


def ltx_video_and_sound() -> Subgraph:
    """For LTX-2, which makes a clip and its sound together."""
    flow = Workflow("Generate a clip and its sound", "", first=FIRST)
    first, latent, sampler = _ltx(flow)
    audio = Given("audio_vae")
    silence = flow.node("LTXVEmptyLatentAudio", {"frames_number": 49, "audio_vae": audio})
    both = {"video_latent": latent["LATENT"], "audio_latent": silence["Latent"]}
    joined = flow.node("LTXVConcatAVLatent", both)
    sampled_once = flow.node("SamplerCustom", {**sampler, "latent_image": joined["latent"]})
    parts = flow.node("LTXVSeparateAVLatent", {"av_latent": sampled_once["output"]})
    decoded = flow.node("VAEDecode", {"samples": parts["video_latent"], "vae": VAE})
    sound = {"samples": parts["audio_latent"], "audio_vae": audio}
    heard = flow.node("LTXVAudioVAEDecode", sound)
    inputs = ("model", "clip", "vae", "audio_vae", "prompt")
    shown = [[sampled_once, parts], [decoded, heard]]
    return _moving(flow, [*first, [silence, joined]], shown, 25.0, inputs, heard["Audio"])


def _ltx(flow: Workflow) -> tuple[list[list[Node]], Node, dict[str, Any]]:
    """Columns of nodes, the empty latents of a clip, and what a sampler of LTX is given."""
    size = {"width": 768, "height": 512, "length": 49}
    prompts, latent = _video(flow, "EmptyLTXVLatentVideo", size)
    sides = _sides(prompts)
    rated = flow.node("LTXVConditioning", {**sides, "frame_rate": 25.0})
    levels = flow.node("LTXVScheduler", {"latent": latent["LATENT"], "steps": 30})
    euler = flow.node("KSamplerSelect", {"sampler_name": "euler"})
    values = {"positive": rated["positive"], "negative": rated["negative"], "cfg": 3.0}
    values |= {"model": MODEL, "sampler": euler["SAMPLER"], "sigmas": levels["SIGMAS"]}
    return [prompts, [latent, rated], [levels, euler]], latent, values


def _moving(
    flow: Workflow,
    first: list[list[Node]],
    shown: list[list[Node]],
    rate: float,
    inputs: Sequence[str] = ("model", "clip", "vae", "prompt"),
    audio: Output | None = None,
) -> Subgraph:
    """Make a video of the frames that the last column decodes, with their sound."""
    heard = {} if audio is None else {"audio": audio}
    video = flow.node("CreateVideo", {"images": shown[-1][0]["IMAGE"], "fps": rate, **heard})
    shown[-1].append(video)
    flow.row(Section("", [*first, *shown]))
    return Subgraph(flow, tuple(inputs), {"VIDEO": video["VIDEO"]}, (400, 160 + 20 * len(inputs)))


def _prompts(flow: Workflow) -> list[Node]:
    texts = {"Prompt": Given("prompt"), "Negative prompt": ""}
    return [
        flow.node("CLIPTextEncode", {"clip": CLIP, "text": text}, title=title)
        for title, text in texts.items()
    ]


def _sides(prompts: Sequence[Node]) -> dict[str, Output]:
    """What both prompts give, by the inputs that take it."""
    positive, negative = (each["CONDITIONING"] for each in prompts)
    return {"positive": positive, "negative": negative}


def _video(
    flow: Workflow, latent: str, values: Mapping[str, Any] | None = None
) -> tuple[list[Node], Node]:
    """Add both prompts, and the empty latents of a clip."""
    size = values or {"width": 832, "height": 480}
    return _prompts(flow), flow.node(latent, {"length": 33, **size})


def flux2_edit() -> Subgraph:
    """For FLUX.2 klein base with a reference image, with the adapter's loader."""
    flow = Workflow("Load LoRA Model and edit with KSampler", "", first=FIRST)
    lora = _loader(flow)
    values = {"image": IMAGE, "upscale_method": "area", "megapixels": 1.0, "resolution_steps": 16}
    scaled = flow.node("ImageScaleToTotalPixels", values)
    latent = flow.node("VAEEncode", {"pixels": scaled["IMAGE"], "vae": VAE})
    texts = {"Instruction": Given("prompt"), "Negative instruction": ""}
    prompts = [
        flow.node("CLIPTextEncode", {"clip": CLIP, "text": text}, title=title)
        for title, text in texts.items()
    ]
    references = [
        flow.node(
            "ReferenceLatent", {"conditioning": each["CONDITIONING"], "latent": latent["LATENT"]}
        )
        for each in prompts
    ]
    sides = [each["CONDITIONING"] for each in references]
    shown = sampled(flow, lora["model"], *sides, latent["LATENT"], 4.0, VAE)
    return _with_prompt(flow, [[lora, scaled, latent], prompts, references], shown)


def guided(
    flow: Workflow, conditioning: Output, guidance: float
) -> tuple[list[Node], tuple[Output, Output]]:
    """Add FLUX's guidance; the nodes, and both sides for a sampler."""
    guidance_node = flow.node("FluxGuidance", {"conditioning": conditioning, "guidance": guidance})
    # At cfg 1 the negative side is not computed, and the sampler only wants something there.
    nothing = flow.node("ConditioningZeroOut", {"conditioning": conditioning})
    sides = guidance_node["CONDITIONING"], nothing["CONDITIONING"]
    return [guidance_node, nothing], sides


def sampler_values(
    model: Any, positive: Any, negative: Any, latent: Any, cfg: float
) -> Mapping[str, Any]:
    """What KSampler is told, for every base."""
    return {
        "model": model,
        "positive": positive,
        "negative": negative,
        "latent_image": latent,
        "steps": 20,
        "cfg": cfg,
        "sampler_name": "euler",
        "scheduler": "simple",
    }


def sampled(
    flow: Workflow,
    model: Any,
    positive: Any,
    negative: Any,
    latent: Output,
    cfg: float,
    vae: Any,
    **more: Any,
) -> list[list[Node]]:
    """Add KSampler and VAE Decode, as two columns."""
    values = {**sampler_values(model, positive, negative, latent, cfg), **more}
    sampler = flow.node("KSampler", values)
    decoded = flow.node("VAEDecode", {"samples": sampler["LATENT"], "vae": vae})
    return [[sampler], [decoded]]


def _loader(flow: Workflow) -> Node:
    values = {"model": MODEL, "lora": Given("lora"), "strength_model": Given("strength_model")}
    return flow.node("LoraModelLoader", values)


def _with_prompt(flow: Workflow, first: list[list[Node]], shown: list[list[Node]]) -> Subgraph:
    flow.row(Section("", [*first, *shown]))
    image = {"IMAGE": shown[-1][0]["IMAGE"]}
    if any(node.type == "LoraModelLoader" for node in flow.nodes):
        inputs = ("model", "lora", "clip", "vae", "image", "prompt", "strength_model")
        return Subgraph(flow, inputs, image, (400, 300))
    return Subgraph(flow, ("model", "clip", "vae", "prompt"), image, (400, 220))
