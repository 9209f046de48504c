"""Flow matching on tensors: sigma sampling, interpolation, loss, the preview sampler.

One convention everywhere: ``x_sigma = (1 - sigma) x_0 + sigma eps`` with sigma from 0 (the image)
to 1 (pure noise), and the velocity ``eps - x_0`` that a denoiser predicts.
"""

from .flow import (
    SamplingStopped,
    ShiftSettings,
    flow_loss,
    flow_sigmas,
    interpolate,
    sample_euler,
    sigma_shift,
    velocity_target,
)
from .sigma import make_density, shift_sigma

__all__ = [
    "SamplingStopped",
    "ShiftSettings",
    "flow_loss",
    "flow_sigmas",
    "interpolate",
    "make_density",
    "sample_euler",
    "shift_sigma",
    "sigma_shift",
    "velocity_target",
]
