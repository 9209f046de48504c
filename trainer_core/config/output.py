"""Settings of what a run writes."""

from __future__ import annotations

from typing import Literal

from .section import Section, setting

LayoutName = Literal["comfyui", "diffusers", "peft", "kohya", "lycoris"]


class OutputSection(Section):
    """Folder, name and form of the result."""

    dir: str = setting("output", "Folder of all runs.")
    name: str = setting(
        "adapter",
        "Name of the run and of the adapter file.",
        min_length=1,
        max_length=100,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$",
        pattern_in_words="of letters without accents, digits, space, dot, underscore and hyphen, "
        "a letter or digit first",
    )
    layouts: list[LayoutName] = setting(
        ["comfyui"],
        "Layouts of the exported adapter files: 'comfyui', 'diffusers', 'peft' (a folder), 'kohya' "
        "(musubi's too), 'lycoris'.",
    )
    dtype: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32", "Number format of the exported adapter files."
    )
    metadata: Literal["full", "shareable", "none"] = setting(
        "shareable",
        "What the file says of its making: 'shareable' leaves out paths, names, captions and "
        "prompts; 'full' adds the whole run file and ComfyUI's workflow; 'none' writes only what "
        "loaders need.",
    )
