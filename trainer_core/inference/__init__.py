"""Images from a base and an adapter: encoded prompts, the sampler, previews."""
