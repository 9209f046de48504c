"""Flow matching on tensors: sigma sampling, interpolation, loss, the preview sampler.

One convention everywhere: ``x_sigma = (1 - sigma) x_0 + sigma eps`` with sigma from 0 (the image)
to 1 (pure noise), and the velocity ``eps - x_0`` that a denoiser predicts.
"""
