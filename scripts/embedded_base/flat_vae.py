"""A two-dimensional twin of the Qwen-Image autoencoder, for fast training.

For a single frame the causal three-dimensional convolutions see two zero
frames in front of the picture, so only the last temporal slice of each kernel
matters. The twin holds just these slices in two-dimensional convolutions.
Its parameters carry the names of the real ones, so that weights can be copied
in both directions.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLQwenImage
from diffusers.models.autoencoders import autoencoder_kl_qwenimage as real
from torch import nn


class FlatNorm(nn.Module):
    """Channel-wise root-mean-square norm for ``[B, C, H, W]``."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = dim**0.5
        self.gamma = nn.Parameter(torch.ones(dim, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises ``x`` over its channels."""
        length = x.square().sum(dim=1, keepdim=True).sqrt().clamp_min(1e-12)
        return x * (self.scale / length) * self.gamma


class FlatVAE(nn.Module):
    """The twin: same modules, same parameter names, two dimensions.

    Attributes:
        z_dim: Number of latent channels.
    """

    def __init__(self, vae: AutoencoderKLQwenImage) -> None:
        super().__init__()
        self.z_dim = vae.z_dim
        for name in ("encoder", "quant_conv", "post_quant_conv", "decoder"):
            setattr(self, name, _flattened(copy.deepcopy(getattr(vae, name))))
        self.to(memory_format=torch.channels_last)
        self.pull(vae)

    def moments(self, images: torch.Tensor) -> torch.Tensor:
        """Encodes ``[B, 3, H, W]`` in -1..1 to means and log variances ``[B, 2z, h, w]``."""
        x = self.encoder.conv_in(images)
        for layer in self.encoder.down_blocks:
            x = _through(layer, x)
        return self.quant_conv(_middle_and_head(self.encoder, x))

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        """Encodes ``[B, 3, H, W]`` in -1..1 to latent means ``[B, z, h, w]``."""
        return self.moments(images)[:, : self.z_dim]

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Decodes ``[B, z, h, w]`` to pictures ``[B, 3, H, W]`` (not clamped)."""
        x = _middle(self.decoder.mid_block, self.decoder.conv_in(self.post_quant_conv(latents)))
        for block in self.decoder.up_blocks:
            for resnet in block.resnets:
                x = _residual(resnet, x)
            for layer in block.upsamplers or ():
                x = layer.resample(x)
        return _head(self.decoder, x)

    @torch.no_grad()
    def pull(self, vae: AutoencoderKLQwenImage) -> None:
        """Copies the weights of the real autoencoder into the twin."""
        source = vae.state_dict()
        for name, value in self.named_parameters():
            value.copy_(_flat(source[name], value))

    @torch.no_grad()
    def push(self, vae: AutoencoderKLQwenImage) -> None:
        """Copies the weights of the twin into the real autoencoder.

        Temporal slices that a single frame never uses become zero.
        """
        own = dict(self.named_parameters())
        for name, value in vae.named_parameters():
            value.zero_()
            if name in own:
                target = value[:, :, -1] if value.ndim == own[name].ndim + 1 == 5 else value
                target.copy_(own[name].reshape(target.shape))


def _flat(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if value.ndim == 5 and like.ndim == 4:
        value = value[:, :, -1]
    return value.reshape(like.shape)


def _flattened(module: nn.Module) -> nn.Module:
    if isinstance(module, real.QwenImageCausalConv3d):
        padding = module._padding
        return nn.Conv2d(
            module.in_channels,
            module.out_channels,
            module.kernel_size[1:],
            stride=module.stride[1:],
            padding=(padding[2], padding[0]),
        )
    if isinstance(module, real.QwenImageRMS_norm):
        return FlatNorm(module.gamma.numel())
    for name, child in list(module.named_children()):
        if name == "time_conv":
            # Skipped for the first (here: the only) chunk of frames.
            delattr(module, name)
        else:
            setattr(module, name, _flattened(child))
    return module


def _residual(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    h = block.conv1(F.silu(block.norm1(x)))
    return block.conv2(F.silu(block.norm2(h))) + block.conv_shortcut(x)


def _attention(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    batch, channels, height, width = x.shape
    qkv = block.to_qkv(block.norm(x)).flatten(2).transpose(1, 2)[:, None]
    q, k, v = qkv.chunk(3, dim=-1)
    mixed = F.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2)
    return x + block.proj(mixed.reshape(batch, channels, height, width))


def _through(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if isinstance(layer, real.QwenImageResample):
        return layer.resample(x)
    if isinstance(layer, real.QwenImageAttentionBlock):
        return _attention(layer, x)
    return _residual(layer, x)


def _middle(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = _residual(block.resnets[0], x)
    for attention, resnet in zip(block.attentions, block.resnets[1:], strict=True):
        x = _residual(resnet, _attention(attention, x))
    return x


def _head(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return part.conv_out(F.silu(part.norm_out(x)))


def _middle_and_head(encoder: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return _head(encoder, _middle(encoder.mid_block, x))
