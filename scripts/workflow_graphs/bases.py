"""The full-size bases that workflows are made for: their files, and what generates with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import sampling
from .figures import WORDS
from .graph import Node, Subgraph, Workflow

_HUB = "https://huggingface.co"
_WHERE = {
    "qwen_image_fp8_e4m3fn.safetensors": (
        "diffusion_models",
        "Comfy-Org/Qwen-Image_ComfyUI/resolve/main/split_files/diffusion_models",
    ),
    "qwen_image_edit_2509_fp8_e4m3fn.safetensors": (
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


@dataclass(frozen=True, slots=True)
class FullSize:
    """A base of full size.

    Attributes:
        file: What its workflows are called behind ``quick`` and ``advanced``.
        name: What people call it.
        family: As in a run file.
        base: File of the diffusion model.
        clip: Class and settings of the text encoders' loader.
        vae: File of the VAE.
        sampling: Makes what generates with an adapter.
        kind: Of the adapter that the full graph trains.
        guidance: Of the previews.
        run: The run's name.
        edits: Whether it learns an edit, from pairs of images.
        several: Said of control images, where an image may have several.
        layered: Whether it learns to take images apart, from images with their layers.
        sizes: Settings of the diffusion model that are not those of the bundled configuration.
    """

    file: str
    name: str
    family: str
    base: str
    clip: tuple[str, Mapping[str, Any]]
    vae: str
    sampling: Callable[[], Subgraph]
    kind: str
    guidance: float
    run: str
    edits: bool = False
    several: str = ""
    layered: bool = False
    sizes: tuple[tuple[str, Any], ...] = ()

    @property
    def layout(self) -> Mapping[str, str]:
        """How its dataset is laid out, where that is said."""
        if self.layered:
            return {"layout": "layered"}
        return {"layout": "paired"} if self.edits else {}

    @property
    def folder(self) -> str:
        """The dataset that its workflows name."""
        if self.layered:
            return "datasets/my_layers"
        return "datasets/my_pairs" if self.edits else "datasets/my_images"

    @property
    def texts(self) -> Sequence[str]:
        """Files of the text encoders."""
        return [name for key, name in self.clip[1].items() if key.startswith("clip_name")]

    def about(self) -> Mapping[str, Any]:
        """What notes say of it."""
        files = WORDS[len(self.texts) + 2]
        return {"name": self.name, "files": files, "several": self.several}

    def loaders(self, flow: Workflow) -> tuple[Node, Node, Node]:
        """Add ComfyUI's loaders: of text encoders, VAE and diffusion model."""
        kind, values = self.clip
        return (
            flow.node(kind, values, models=[model(name) for name in self.texts]),
            flow.node("VAELoader", {"vae_name": self.vae}, models=[model(self.vae)]),
            flow.node("UNETLoader", {"unet_name": self.base}, models=[model(self.base)]),
        )

    def generating(
        self, flow: Workflow, lora: Any, loaders: tuple[Node, Node, Node], image: Any, prompt: str
    ) -> list[Node]:
        """Add what generates with the adapter and saves the image.

        Args:
            flow: The workflow.
            lora: The trained adapter.
            loaders: Those of `loaders`.
            image: What is edited.
            prompt: What is generated, or how the image is edited.
        """
        clip, vae, unet = loaders
        given = {"clip": clip["CLIP"], "vae": vae["VAE"], "prompt": prompt}
        if self.edits:
            given |= {"model": unet["MODEL"], "lora": lora, "image": image, "strength_model": 1.0}
            does = "Take apart" if self.layered else "Edit"
            made = [flow.several(self.sampling(), given, title=f"{does} with the adapter")]
        else:
            loader = flow.node("LoraModelLoader", {"model": unet["MODEL"], "lora": lora})
            given |= {"model": loader["model"]}
            made = [loader, flow.several(self.sampling(), given, title="Generate with the adapter")]
        prefix = f"adapter_trainer/{self.run}"
        image = made[-1]["IMAGE"]
        saved = flow.node("SaveImage", {"images": image, "filename_prefix": prefix}, tall=290)
        return [*made, saved]


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
# transformer/config.json of black-forest-labs/FLUX.2-klein-base-4B.
_KLEIN_4B = (
    ("num_layers", 5),
    ("num_single_layers", 20),
    ("num_attention_heads", 24),
    ("joint_attention_dim", 7680),
    ("guidance_embeds", False),
)
FULL_SIZE = (
    FullSize(
        "qwen_image",
        "Qwen-Image",
        "qwen_image",
        "qwen_image_fp8_e4m3fn.safetensors",
        _QWEN,
        "qwen_image_vae.safetensors",
        sampling.qwen_image,
        "lokr",
        4.0,
        "my_qwen_image",
    ),
    FullSize(
        "qwen_image_edit",
        "Qwen-Image-Edit",
        "qwen_image",
        "qwen_image_edit_2509_fp8_e4m3fn.safetensors",
        _QWEN,
        "qwen_image_vae.safetensors",
        sampling.qwen_image_edit,
        "lokr",
        4.0,
        "my_qwen_edit",
        edits=True,
        several=" Several control images of one: *cat_0.png*, *cat_1.png*.",
    ),
    FullSize(
        "flux_dev",
        "FLUX.1-dev",
        "flux",
        "flux1-dev.safetensors",
        _FLUX,
        "ae.safetensors",
        sampling.flux,
        "lora",
        3.5,
        "my_flux",
    ),
    FullSize(
        "flux_kontext",
        "FLUX.1 Kontext",
        "flux",
        "flux1-dev-kontext_fp8_scaled.safetensors",
        _FLUX,
        "ae.safetensors",
        sampling.flux_kontext,
        "lora",
        2.5,
        "my_kontext",
        edits=True,
    ),
    FullSize(
        "qwen_image_layered",
        "Qwen-Image-Layered",
        "qwen_image",
        "qwen_image_layered_bf16.safetensors",
        _QWEN,
        "qwen_image_layered_vae.safetensors",
        sampling.qwen_image_layered,
        "lokr",
        4.0,
        "my_qwen_layers",
        edits=True,
        layered=True,
    ),
    FullSize(
        "flux2_klein",
        "FLUX.2 klein base 4B",
        "flux2",
        "flux-2-klein-base-4b.safetensors",
        _KLEIN,
        "flux2-vae.safetensors",
        sampling.flux2,
        "lora",
        4.0,
        "my_klein",
        sizes=_KLEIN_4B,
    ),
    FullSize(
        "flux2_klein_edit",
        "FLUX.2 klein base 4B",
        "flux2",
        "flux-2-klein-base-4b.safetensors",
        _KLEIN,
        "flux2-vae.safetensors",
        sampling.flux2_edit,
        "lora",
        4.0,
        "my_klein_edit",
        edits=True,
        sizes=_KLEIN_4B,
        several=" Several control images of one: *cat_0.png*, *cat_1.png*.",
    ),
    FullSize(
        "z_image",
        "Z-Image",
        "z_image",
        "z_image_bf16.safetensors",
        ("CLIPLoader", {"clip_name": "qwen_3_4b.safetensors", "type": "lumina2"}),
        "ae.safetensors",
        sampling.z_image,
        "lora",
        4.0,
        "my_z_image",
    ),
    FullSize(
        "krea2_raw",
        "Krea 2 raw",
        "krea2",
        "krea2_raw_bf16.safetensors",
        ("CLIPLoader", {"clip_name": "qwen3vl_4b_fp8_scaled.safetensors", "type": "krea2"}),
        "qwen_image_vae.safetensors",
        sampling.krea2,
        "lora",
        5.5,
        "my_krea2",
    ),
    FullSize(
        "chroma",
        "Chroma1-HD",
        "chroma",
        "Chroma1-HD-fp8mixed.safetensors",
        (
            "CLIPLoader",
            {"clip_name": "t5xxl_fp8_e4m3fn_scaled.safetensors", "type": "chroma"},
        ),
        "ae.safetensors",
        sampling.chroma,
        "lora",
        3.5,
        "my_chroma",
    ),
)
"""In the order of their workflows."""
