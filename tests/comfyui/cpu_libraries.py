"""Lets torchvision and torchaudio import where their compiled libraries do not fit torch.

On a machine without a GPU their builds for CUDA can stand beside a torch without it, and then
ComfyUI does not start. Nothing that is tested here uses what those libraries hold: torchvision only
has to find two operators declared, torchaudio has to believe that it was built without a library.
Copied into the tests' own environment, and only where the plain import fails.
"""

import importlib.abc
import importlib.machinery
import sys

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared = []


class _WithoutLibrary(importlib.machinery.SourceFileLoader):
    """Runs torchaudio's module that loads libraries, and says that there is none to load."""

    def exec_module(self, module):
        super().exec_module(module)
        module._load_lib = lambda library: False


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname == "torchvision" and not _declared:
            _declare_operators()
        if fullname == "torchaudio._extension.utils":
            spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
            spec.loader = _WithoutLibrary(fullname, spec.origin)
            return spec
        return None


def _declare_operators():
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for operator in _OPERATORS:
        library.define(operator)
    _declared.append(library)


def install():
    """Stand before the other finders."""
    sys.meta_path.insert(0, _Finder())
