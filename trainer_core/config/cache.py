"""Settings of the cache of encoded pictures and captions."""

from __future__ import annotations

from .section import Section, setting


class CacheSection(Section):
    """Where encoded pictures and captions are kept between runs."""

    dir: str | None = setting(
        None, "Folder of the cache. Unset: 'cache' in the output folder.", advanced=True
    )
    manifest: str | None = setting(
        None,
        "A finished cache: the file '*.cache.json' that Save Run File or the verb cache wrote. It "
        "is trained as it is, without the pictures and without text encoders.",
        advanced=True,
    )
    verify: bool = setting(
        False, "Read every cached file once at the start and encode damaged ones again."
    )
