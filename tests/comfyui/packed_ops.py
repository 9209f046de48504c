"""A pack's own ops with packed weights, as ComfyUI-GGUF's are; ComfyUI's interpreter imports it.

Written from what is known of them: a tensor class that says another shape than it has, whose copies
are itself; a layer that reads it in ``cast_bias_weight(input)`` and answers two values; ops of
ComfyUI's whose casting forward pass it takes over.
"""

import comfy.ops
import torch

_BLOCK = 32


class PackedTensor(torch.Tensor):
    """Blocks of 32 numbers in 8 bits with one scale each, Q8_0."""

    def __new__(cls, packed, shape):
        made = torch.Tensor._make_subclass(cls, packed)
        made.tensor_shape = torch.Size(shape)
        return made

    def __init__(self, packed, shape):
        super().__init__()

    def to(self, *args, **options):
        return PackedTensor(super().to(*args, **options).as_subclass(torch.Tensor), self.shape)

    def clone(self, *args, **options):
        return self

    def detach(self, *args, **options):
        return self

    @property
    def shape(self):
        return self.tensor_shape


def packed(weight):
    """Pack a weight whose rows are multiples of 32."""
    blocks = weight.detach().float().view(-1, _BLOCK)
    scale = (blocks.abs().amax(dim=1, keepdim=True) / 127).half()
    content = (blocks / scale.float()).round().to(torch.int8)
    raw = torch.cat([scale.view(torch.uint8), content.view(torch.uint8)], dim=1)
    return PackedTensor(raw, weight.shape)


def unpacked(tensor, dtype):
    """The numbers of a packed weight."""
    raw = tensor.as_subclass(torch.Tensor)
    scale = raw[:, :2].contiguous().view(torch.float16).to(dtype)
    return (raw[:, 2:].contiguous().view(torch.int8).to(dtype) * scale).view(tensor.shape)


class PackedLayer(torch.nn.Module):
    comfy_cast_weights = True

    def get_weight(self, tensor, dtype):
        if isinstance(tensor, PackedTensor):
            return unpacked(tensor, dtype)
        return None if tensor is None else tensor.to(dtype)

    def cast_bias_weight(self, input=None, dtype=None, device=None, bias_dtype=None):
        dtype = dtype or input.dtype
        bias = self.get_weight(self.bias, bias_dtype or dtype)
        return self.get_weight(self.weight.to(device or input.device), dtype), bias

    def forward_comfy_cast_weights(self, input, *args, **options):
        weight, bias = self.cast_bias_weight(input)
        if isinstance(self, torch.nn.Linear):
            return torch.nn.functional.linear(input, weight, bias)
        return self._conv_forward(input, weight, bias)


class PackedOps(comfy.ops.manual_cast):
    class Linear(PackedLayer, comfy.ops.manual_cast.Linear):
        pass

    class Conv2d(PackedLayer, comfy.ops.manual_cast.Conv2d):
        pass
