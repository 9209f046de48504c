"""The header of a file of weights: what it holds, by name, and why it cannot be a base."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import BaseModelError
from ..tensors.safetensors_reader import Wording, open_tensors
from ..tensors.safetensors_writer import TensorInfo

FILE_SUFFIXES = (".safetensors", ".sft")
# Endings that say "a file of weights" to a person, so that such a path is never taken for a hub id.
_WEIGHT_SUFFIXES = (*FILE_SUFFIXES, ".gguf", ".ckpt", ".pt", ".pth", ".bin")
# ComfyUI's names of the denoiser inside a file; the first that occurs is taken.
_PREFIXES = ("model.diffusion_model.", "diffusion_model.")
_ADAPTER = re.compile(
    r"[._](lora_(up|down|mid|A|B)\b|hada_(w[12]|t[12])|lokr_(w[12]|t2)|oft_blocks|dora_scale|diff(_b)?$)"
    r"|\.alpha$|lora_unet_"
)
_PACKED = {
    re.compile(r"\.(qweight|wscales|wzeros|qzeros)$"): "SVDQuant (nunchaku)",
    re.compile(r"\.(absmax|quant_map|nested_absmax)$|\.quant_state\."): "bitsandbytes (nf4)",
}
READABLE = "a bf16, fp16, fp32, fp8_e4m3fn or fp8_scaled .safetensors file"
OTHER_FILE = "Use the bf16 or the fp8_scaled file of the same model instead."


_BASE = Wording(
    BaseModelError,
    "base.path: ",
    "a readable file",
    READABLE,
    "Download the model's .safetensors file.",
    "Download or copy the file again; compare its size with the one at the source.",
)


@dataclass(frozen=True, slots=True)
class WeightFile:
    """The denoiser's part of a file; no weight has been read.

    Attributes:
        path: The file.
        prefix: What stands before the denoiser's names in the file; often empty.
        tensors: Name without prefix to the tensor.
        metadata: The header's strings.
    """

    path: Path
    prefix: str
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]

    @property
    def hints(self) -> str:
        """What the file's name and title say of the model, in lower case."""
        titles = [self.metadata.get(f"modelspec.{key}", "") for key in ("title", "architecture")]
        return " ".join([self.path.stem, *titles]).lower()

    def matrix(self, name: str) -> tuple[int, int]:
        """Rows and columns of a weight.

        Raises:
            BaseModelError: When the file lacks it, or it is no matrix.
        """
        shape = self._shape(name)
        if len(shape) != 2:
            raise self.broken(f"{name} has the shape {list(shape)}", "a matrix")
        return shape[0], shape[1]

    def length(self, name: str) -> int:
        """Number of values of a vector.

        Raises:
            BaseModelError: When the file lacks it, or it is no vector.
        """
        shape = self._shape(name)
        if len(shape) != 1:
            raise self.broken(f"{name} has the shape {list(shape)}", "a vector")
        return shape[0]

    def count(self, blocks: str) -> int:
        """Number of different blocks below ``<blocks>.``; at most as many as there are tensors."""
        start = f"{blocks}."
        names = (name[len(start) :] for name in self.tensors if name.startswith(start))
        return len({name.split(".", 1)[0] for name in names})

    def broken(self, found: str, expected: str, remedy: str | None = None) -> BaseModelError:
        """An error that names this file."""
        return BaseModelError(
            f"base.path: {self.path}: {found}",
            expected,
            remedy or "Download the file again, or name another one as base.path.",
        )

    def _shape(self, name: str) -> tuple[int, ...]:
        info = self.tensors.get(name)
        if info is None:
            raise self.broken(f"there is no {name}", "every weight of the denoiser")
        return info.shape


def looks_like_file(text: str) -> bool:
    """Whether a ``base.path`` names a file of weights by its ending."""
    return text.lower().endswith(_WEIGHT_SUFFIXES)


def open_weights(path: Path) -> WeightFile:
    """Read the header of a single file, and refuse what can never be a base.

    Args:
        path: A file that exists.

    Returns:
        What the denoiser's part holds. A whole checkpoint's other parts are left out.

    Raises:
        BaseModelError: When the file is of another format, damaged, an adapter, or packed in a
            way that is not read here.
    """
    _refuse_other_endings(path)
    tensors, metadata = read_header(path)
    prefix = next((p for p in _PREFIXES if any(key.startswith(p) for key in tensors)), "")
    own = {
        key[len(prefix) :]: info
        for key, info in tensors.items()
        if key.startswith(prefix) and len(key) > len(prefix)
    }
    file = WeightFile(path, prefix, own, metadata)
    if not own:
        raise file.broken("it holds no tensor", READABLE)
    for pattern, packing in _PACKED.items():
        packed = next((name for name in own if pattern.search(name)), None)
        if packed is not None:
            raise file.broken(f"{packed} is packed as {packing}", READABLE, OTHER_FILE)
    adapter = next((name for name in own if _ADAPTER.search(name)), None)
    if adapter is not None:
        raise file.broken(
            f"it is an adapter (it has {prefix}{adapter})",
            "the weights of a base model",
            "Name the base that the adapter is for as base.path.",
        )
    return file


def _refuse_other_endings(path: Path) -> None:
    suffix = path.suffix.lower()
    if suffix in FILE_SUFFIXES:
        return
    if suffix == ".gguf":
        raise BaseModelError(f"base.path: {path} is a GGUF file", READABLE, OTHER_FILE)
    raise BaseModelError(
        f"base.path: {path} is a file that ends in {suffix or 'nothing'}",
        "a .safetensors file (other formats can run code and are not read), or a Diffusers folder",
        "Name the .safetensors file of the model, or the folder that holds model_index.json.",
    )


def read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Read every tensor's place in a file, and its strings.

    Args:
        path: A file that exists.

    Returns:
        Key to the tensor, and the metadata.

    Raises:
        BaseModelError: When it is no whole safetensors file.
    """
    with open_tensors(path, _BASE, any_format=True) as file:
        return dict(file.tensors), dict(file.metadata)
