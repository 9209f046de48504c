"""The full-size bases that workflows are made for: their files, and what generates with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import sampling
from .figures import WORDS
from .graph import Node, Output, Subgraph, Workflow

_HUB = "https://huggingface.co"
_WHERE = {
    "qwen_image_2512_fp8_e4m3fn.safetensors": (
        "diffusion_models",
        "Comfy-Org/Qwen-Image_ComfyUI/resolve/main/split_files/diffusion_models",
    ),
    "qwen_image_edit_2511_fp8mixed.safetensors": (
        "diffusion_models",
        "Comfy-Org/Qwen-Image-Edit_ComfyUI/resolve/main/split_files/diffusion_models",
    ),
    "qwen_image_layered_bf16.safetensors": (
        "diffusion_models",
        "Comfy-Org/Qwen-Image-Layered_ComfyUI/resolve/main/split_files/diffusion_models",
    ),
    "qwen_image_layered_vae.safetensors": (
        "vae",
        "Comfy-Org/Qwen-Image-Layered_ComfyUI/resolve/main/split_files/vae",
    ),
    "qwen_2.5_vl_7b_fp8_scaled.safetensors": (
        "text_encoders",
        "Comfy-Org/Qwen-Image_ComfyUI/resolve/main/split_files/text_encoders",
    ),
    "qwen_image_vae.safetensors": (
        "vae",
        "Comfy-Org/Qwen-Image_ComfyUI/resolve/main/split_files/vae",
    ),
    "flux1-dev.safetensors": ("diffusion_models", "Comfy-Org/flux1-dev/resolve/main"),
    "flux1-dev-kontext_fp8_scaled.safetensors": (
        "diffusion_models",
        "Comfy-Org/flux1-kontext-dev_ComfyUI/resolve/main/split_files/diffusion_models",
    ),
    "Chroma1-HD-fp8mixed.safetensors": (
        "diffusion_models",
        "Comfy-Org/Chroma1-HD_repackaged/resolve/main/split_files/diffusion_models",
    ),
    "clip_l.safetensors": ("text_encoders", "comfyanonymous/flux_text_encoders/resolve/main"),
    "t5xxl_fp8_e4m3fn_scaled.safetensors": (
        "text_encoders",
        "comfyanonymous/flux_text_encoders/resolve/main",
    ),
    "z_image_bf16.safetensors": (
        "diffusion_models",
        "Comfy-Org/z_image/resolve/main/split_files/diffusion_models",
    ),
    "qwen_3_4b.safetensors": (
        "text_encoders",
        "Comfy-Org/z_image_turbo/resolve/main/split_files/text_encoders",
    ),
    "krea2_raw_bf16.safetensors": (
        "diffusion_models",
        "Comfy-Org/Krea-2/resolve/main/diffusion_models",
    ),
    "qwen3vl_4b_fp8_scaled.safetensors": (
        "text_encoders",
        "Comfy-Org/Krea-2/resolve/main/text_encoders",
    ),
    "flux-2-klein-base-4b.safetensors": (
        "diffusion_models",
        "Comfy-Org/flux2-klein/resolve/main/split_files/diffusion_models",
    ),
    "flux2-vae.safetensors": ("vae", "Comfy-Org/flux2-dev/resolve/main/split_files/vae"),
    "sd_xl_base_1.0.safetensors": (
        "checkpoints",
        "stabilityai/stable-diffusion-xl-base-1.0/resolve/main",
    ),
    "anima-base-v1.0.safetensors": (
        "diffusion_models",
        "circlestone-labs/Anima/resolve/main/split_files/diffusion_models",
    ),
    "qwen_3_06b_base.safetensors": (
        "text_encoders",
        "circlestone-labs/Anima/resolve/main/split_files/text_encoders",
    ),
    "wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors": (
        "diffusion_models",
        "Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files/diffusion_models",
    ),
    "wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors": (
        "diffusion_models",
        "Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files/diffusion_models",
    ),
    "wan2.2_i2v_high_noise_14B_fp8_scaled.safetensors": (
        "diffusion_models",
        "Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files/diffusion_models",
    ),
    "wan2.2_i2v_low_noise_14B_fp8_scaled.safetensors": (
        "diffusion_models",
        "Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files/diffusion_models",
    ),
    "wan2.2_ti2v_5B_fp16.safetensors": (
        "diffusion_models",
        "Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files/diffusion_models",
    ),
    "wan_2.1_vae.safetensors": (
        "vae",
        "Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files/vae",
    ),
    "wan2.2_vae.safetensors": (
        "vae",
        "Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files/vae",
    ),
    "umt5_xxl_fp8_e4m3fn_scaled.safetensors": (
        "text_encoders",
        "Comfy-Org/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files/text_encoders",
    ),
    "hunyuanvideo1.5_720p_t2v_fp16.safetensors": (
        "diffusion_models",
        "Comfy-Org/HunyuanVideo_1.5_repackaged/resolve/main/split_files/diffusion_models",
    ),
    "hunyuanvideo15_vae_fp16.safetensors": (
        "vae",
        "Comfy-Org/HunyuanVideo_1.5_repackaged/resolve/main/split_files/vae",
    ),
    "byt5_small_glyphxl_fp16.safetensors": (
        "text_encoders",
        "Comfy-Org/HunyuanVideo_1.5_repackaged/resolve/main/split_files/text_encoders",
    ),
    "ltx-video-2b-v0.9.safetensors": (
        "checkpoints",
        "Lightricks/LTX-Video/resolve/main",
    ),
    "ltx-2.3-22b-dev-fp8.safetensors": ("checkpoints", "Lightricks/LTX-2.3-fp8/resolve/main"),
    "gemma_3_12B_it_fp4_mixed.safetensors": (
        "text_encoders",
        "Comfy-Org/ltx-2/resolve/main/split_files/text_encoders",
    ),
    "t5xxl_fp16.safetensors": (
        "text_encoders",
        "comfyanonymous/flux_text_encoders/resolve/main",
    ),
    "ae.safetensors": (
        "vae",
        "Comfy-Org/Lumina_Image_2.0_Repackaged/resolve/main/split_files/vae",
    ),
}


def model(name: str) -> dict[str, str]:
    """A model file as ComfyUI offers it for download when it is absent.

    Args:
        name: Its name, as in ComfyUI's own templates.
    """
    folder, place = _WHERE[name]
    return {"name": name, "url": f"{_HUB}/{place}/{name}", "directory": folder}


class Loaded(NamedTuple):
    """ComfyUI's loaders, and what they give."""

    nodes: Sequence[Node]
    model: Output
    clip: Output
    vae: Output


@dataclass(frozen=True, slots=True)
class FullSize:
    """A base of full size.

    Attributes:
        file: What its workflow is called behind ``quick``.
        name: What people call it.
        base: File of the diffusion model, or of a checkpoint that has all in one.
        clip: Class and settings of the text encoders' loader; None for a checkpoint.
        vae: File of the VAE; empty for a checkpoint.
        sampling: Makes what generates with an adapter.
        run: The run's name.
        edits: Whether it learns an edit, from pairs of images.
        several: Said of control images, where an image may have several.
        layered: Whether it learns to take images apart, from images with their layers.
        note: What its note says in the place of the usual one.
        layout: Of the saved file, where other programs than ComfyUI read another one alone.
    """

    file: str
    name: str
    base: str
    clip: tuple[str, Mapping[str, Any]] | None
    vae: str
    sampling: Callable[[], Subgraph]
    run: str
    edits: bool = False
    several: str = ""
    layered: bool = False
    note: str = ""
    layout: str = ""

    @property
    def folder(self) -> str:
        """The dataset that its workflows name."""
        if self.layered:
            return "datasets/my_layers"
        return "datasets/my_pairs" if self.edits else "datasets/my_images"

    @property
    def files(self) -> Sequence[str]:
        """All model files."""
        if self.clip is None:
            return [self.base]
        texts = [name for key, name in self.clip[1].items() if key.startswith("clip_name")]
        return [*texts, self.vae, self.base]

    def about(self) -> Mapping[str, Any]:
        """What notes say of it."""
        files = WORDS[len(self.files)]
        return {"name": self.name, "files": files, "several": self.several}

    def loaders(self, flow: Workflow) -> Loaded:
        """Add ComfyUI's loaders."""
        if self.clip is None:
            values, files = {"ckpt_name": self.base}, [model(self.base)]
            one = flow.node("CheckpointLoaderSimple", values, models=files)
            return Loaded([one], one["MODEL"], one["CLIP"], one["VAE"])
        kind, values = self.clip
        texts = [model(name) for name in self.files[:-2]]
        clip = flow.node(kind, values, models=texts)
        vae = flow.node("VAELoader", {"vae_name": self.vae}, models=[model(self.vae)])
        unet = flow.node("UNETLoader", {"unet_name": self.base}, models=[model(self.base)])
        return Loaded([unet, clip, vae], unet["MODEL"], clip["CLIP"], vae["VAE"])

    def generating(
        self, flow: Workflow, lora: Any, loaded: Loaded, image: Any, prompt: str
    ) -> list[Node]:
        """Add what generates with the adapter and saves the image.

        Args:
            flow: The workflow.
            lora: The trained adapter.
            loaded: That of `loaders`.
            image: What is edited.
            prompt: What is generated, or how the image is edited.
        """
        given = {"clip": loaded.clip, "vae": loaded.vae, "prompt": prompt}
        if self.edits:
            given |= {"model": loaded.model, "lora": lora, "image": image, "strength_model": 1.0}
            does = "Take apart" if self.layered else "Edit"
            made = [flow.several(self.sampling(), given, title=f"{does} with the adapter")]
        else:
            loader = flow.node("LoraModelLoader", {"model": loaded.model, "lora": lora})
            given |= {"model": loader["model"]}
            made = [loader, flow.several(self.sampling(), given, title="Generate with the adapter")]
        prefix = f"adapter_trainer/{self.run}"
        image = made[-1]["IMAGE"]
        saved = flow.node("SaveImage", {"images": image, "filename_prefix": prefix}, tall=290)
        return [*made, saved]


_CHECKPOINT = """
## Train SDXL, or any checkpoint made from it

1. Drop your images on **Train LoRA (Quick)**, or choose their *folder*.
2. Say in *goal* what you teach. *trigger_word* is a made-up word that calls it up: it stands in
   the *prompt* on the right as well.
3. Choose your checkpoint below: SDXL, or one of its kind such as Illustrious or Pony, also one of
   v-prediction, or SD1.5.
4. Press **Run**. The panel shows what was chosen for you, and why.

**Then** KSampler generates the *prompt* with your adapter, and **Save Adapter** has written the
file for *Load LoRA* (key R lists it), which Forge and A1111 read too.
"""
_ANY = """
## Train any model that ComfyUI loads

1. Exchange the three loaders below for those that you generate with, whatever they are. Anima
   stands here as an example. A LoRA on the model becomes a part of the base.
2. Drop your images on **Train LoRA (Quick)**, or choose their *folder*. Say in *goal* what you
   teach; *trigger_word* is a made-up word that calls it up.
3. Set size and steps in **Generate** to what your model wants.
4. Press **Run**. The panel shows what was chosen for you, and why.

A model that cannot be trained is refused by its name.
"""
_QWEN = ("CLIPLoader", {"clip_name": "qwen_2.5_vl_7b_fp8_scaled.safetensors", "type": "qwen_image"})
_FLUX = (
    "DualCLIPLoader",
    {
        "clip_name1": "clip_l.safetensors",
        "clip_name2": "t5xxl_fp8_e4m3fn_scaled.safetensors",
        "type": "flux",
    },
)
_KLEIN = ("CLIPLoader", {"clip_name": "qwen_3_4b.safetensors", "type": "flux2"})
FULL_SIZE = (
    FullSize(
        "qwen_image",
        "Qwen-Image",
        "qwen_image_2512_fp8_e4m3fn.safetensors",
        _QWEN,
        "qwen_image_vae.safetensors",
        sampling.qwen_image,
        "my_qwen_image",
    ),
    FullSize(
        "qwen_image_edit",
        "Qwen-Image-Edit",
        "qwen_image_edit_2511_fp8mixed.safetensors",
        _QWEN,
        "qwen_image_vae.safetensors",
        sampling.qwen_image_edit,
        "my_qwen_edit",
        edits=True,
        several=" Several control images of one: *cat_0.png*, *cat_1.png*.",
    ),
    FullSize(
        "flux_dev",
        "FLUX.1-dev",
        "flux1-dev.safetensors",
        _FLUX,
        "ae.safetensors",
        sampling.flux,
        "my_flux",
    ),
    FullSize(
        "flux_kontext",
        "FLUX.1 Kontext",
        "flux1-dev-kontext_fp8_scaled.safetensors",
        _FLUX,
        "ae.safetensors",
        sampling.flux_kontext,
        "my_kontext",
        edits=True,
    ),
    FullSize(
        "qwen_image_layered",
        "Qwen-Image-Layered",
        "qwen_image_layered_bf16.safetensors",
        _QWEN,
        "qwen_image_layered_vae.safetensors",
        sampling.qwen_image_layered,
        "my_qwen_layers",
        edits=True,
        layered=True,
    ),
    FullSize(
        "flux2_klein",
        "FLUX.2 klein base 4B",
        "flux-2-klein-base-4b.safetensors",
        _KLEIN,
        "flux2-vae.safetensors",
        sampling.flux2,
        "my_klein",
    ),
    FullSize(
        "flux2_klein_edit",
        "FLUX.2 klein base 4B",
        "flux-2-klein-base-4b.safetensors",
        _KLEIN,
        "flux2-vae.safetensors",
        sampling.flux2_edit,
        "my_klein_edit",
        edits=True,
        several=" Several control images of one: *cat_0.png*, *cat_1.png*.",
    ),
    FullSize(
        "z_image",
        "Z-Image",
        "z_image_bf16.safetensors",
        ("CLIPLoader", {"clip_name": "qwen_3_4b.safetensors", "type": "lumina2"}),
        "ae.safetensors",
        sampling.z_image,
        "my_z_image",
    ),
    FullSize(
        "krea2_raw",
        "Krea 2 raw",
        "krea2_raw_bf16.safetensors",
        ("CLIPLoader", {"clip_name": "qwen3vl_4b_fp8_scaled.safetensors", "type": "krea2"}),
        "qwen_image_vae.safetensors",
        sampling.krea2,
        "my_krea2",
    ),
    FullSize(
        "chroma",
        "Chroma1-HD",
        "Chroma1-HD-fp8mixed.safetensors",
        (
            "CLIPLoader",
            {"clip_name": "t5xxl_fp8_e4m3fn_scaled.safetensors", "type": "chroma"},
        ),
        "ae.safetensors",
        sampling.chroma,
        "my_chroma",
    ),
    FullSize(
        "sdxl",
        "SDXL",
        "sd_xl_base_1.0.safetensors",
        None,
        "",
        sampling.sdxl,
        "my_sdxl",
        note=_CHECKPOINT,
        layout="kohya",
    ),
    FullSize(
        "any_model",
        "Any model",
        "anima-base-v1.0.safetensors",
        ("CLIPLoader", {"clip_name": "qwen_3_06b_base.safetensors"}),
        "qwen_image_vae.safetensors",
        sampling.any_model,
        "my_model",
        note=_ANY,
    ),
)
"""In the order of their workflows."""
