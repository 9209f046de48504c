"""Latents of a clip and of its sound in one tensor."""

import torch

from trainer_core.diffusion.losses import FlowLoss
from trainer_core.diffusion.streams import join_streams, part_streams, stream_shapes, stream_weights


def drawn(seed):
    source = torch.Generator().manual_seed(seed)
    clip = torch.randn(2, 6, 3, 4, 5, generator=source)
    return clip, torch.randn(2, 2, 7, 4, generator=source)


def test_streams_are_parted_as_they_were_joined():
    clip, sound = drawn(0)
    joined = join_streams(clip, sound)
    assert joined.shape == (2, 1, clip[0].numel() + sound[0].numel())
    own, heard = part_streams(joined, stream_shapes(clip, sound))
    assert torch.equal(own, clip)
    assert torch.equal(heard, sound)
    assert part_streams(clip, {}) == (clip, None)


def test_the_loss_is_that_of_the_clip_plus_that_of_its_sound():
    (clip, sound), (other, heard), factors = drawn(0), drawn(1), torch.tensor([0.25, 0.75])
    masks = torch.rand(2, 1, 4, 5, generator=torch.Generator().manual_seed(2))
    for weights in (None, masks, masks[:, :, None].expand(2, 1, 3, 4, 5)):
        joined = stream_weights(clip, sound, weights, factors)
        found, _ = FlowLoss()(
            join_streams(clip, sound), join_streams(other, heard), torch.ones(2), joined
        )
        loss_of, sigma = FlowLoss(), torch.ones(2)
        apart = loss_of(clip, other, sigma, weights)[0], loss_of(sound, heard, sigma)[0]
        expected = apart[0] + factors * apart[1]
        assert torch.allclose(found, expected, rtol=1e-5)
