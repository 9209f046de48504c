"""An adapter kind is known in its own files and in the registry, and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from architecture.source import Source, sources

_KINDS = "trainer_core/adapters/kinds/"
_WORD = re.compile(r"(?<![A-Za-z])(lora|loha|lokr|hada|oft|boft)(?![A-Za-z])")

NO_KIND = {
    "lora_unet_": "kohya's prefix of every adapter's names",
    "lora_transformer_": "OneTrainer's prefix of every adapter's names",
    "lora_prior_unet": "kohya's prefix of another model",
    "lora_controlnet": "kohya's prefix of another model",
    "lora_te": "kohya's prefix of a text encoder",
    "lora_(prior_)?te": "kohya's prefix of a text encoder",
    "lora_prior_te_": "kohya's prefix of a text encoder",
    "lora_adapter_metadata": "Diffusers' header key for every kind",
    "lora_magnitude_vector": "PEFT's name of a DoRA magnitude",
    "lora_E": "a factor of another method",
    "lora_weights": "a name of Diffusers' file, and of a field of PEFT's",
    "lora_bias": "a field of PEFT's configuration",
    "lora_plus_ratio": "LoRA+, a rule of learning rates, is a setting of the optimizer",
    "_lora1": "XLabs' name of a layer",
    "_lora2": "XLabs' name of a layer",
    "_lora[12]": "XLabs' name of a layer",
    "qkv_lora": "XLabs' name of a layer",
    "proj_lora": "XLabs' name of a layer",
    "lora.up": "XLabs' keys, by which ComfyUI knows its files",
    ".lora_down.weight": "what ComfyUI makes of XLabs' keys",
    ".lora_up.weight": "what ComfyUI makes of XLabs' keys",
    ".lora_A.weight": "a key in a message, which shows what a file may look like",
    "/lora": "ModelSpec's word for every adapter",
}
"""A piece of text to why it names no kind."""

EXCEPTIONS = {
    "trainer_core/config/adapter.py": "the setting adapter.kind and the help of its options",
    "trainer_core/config/problems.py": "which settings contradict a kind; config is below adapters",
    "trainer_core/config/optimizer_rules.py": "LoRA+ is of one kind; config is below adapters",
    "trainer_core/config/optimizer.py": "the help of LoRA+, which speaks of LoRA's factors",
    "trainer_core/weights/header.py": "tells an adapter from a base; weights lie beside adapters",
    "trainer_core/commands/__init__.py": "help texts",
    "trainer_core/commands/runs.py": "the demo's choice of kinds",
    "trainer_core/commands/adapter_tools.py": "the kind that is extracted when none is named",
    "trainer_core/demo/run.py": "ranks and rates of the demo, measured for each kind",
    "trainer_core/training/start.py": "advice to take the kind that every program reads",
    "trainer_core/families/flux/keys.py": "XLabs' names of layers",
    "trainer_core/bases/adapter_family.py": "names of foreign files, to tell their model",
    "trainer_core/adapter_files/names/key_parsing.py": "XLabs' factors, which are LoRA's",
    "trainer_core/adapters/kernels/convolution.py": "the Tucker cores; kernels lie below kinds",
    "trainer_core/adapters/init/decomposed.py": "initializations of LoRA's factors alone",
    "trainer_core/adapters/init/eva.py": "an initialization of LoRA's factors alone",
    "trainer_core/adapters/parameter_groups.py": "LoRA+ speaks of LoRA's factors",
    "trainer_core/adapters/peft_layers.py": "PEFT's own classes, one a kind",
    "trainer_core/foreign_runs/ai_toolkit.py": "another trainer's words for kinds, and its keys",
    "trainer_core/foreign_runs/ai_toolkit_keys.py": "another trainer's keys",
    "trainer_core/foreign_runs/musubi.py": "another trainer's words for kinds",
    "trainer_core/foreign_runs/one_trainer.py": "another trainer's words for kinds, and its keys",
    "trainer_core/foreign_runs/one_trainer_keys.py": "another trainer's keys",
    "trainer_core/foreign_runs/tsiendragon.py": "another trainer trains one kind alone",
    "trainer_core/foreign_runs/flymyai.py": "another trainer trains one kind alone",
    "nodes/definitions/adapter_settings.py": "a node's choice of kinds, with the settings of each",
    "nodes/definitions/convert_adapter.py": "a choice of approximations, kept in people's graphs",
    "nodes/definitions/train_adapter.py": "words that ComfyUI's search finds a node by",
}
"""File to why it names a kind."""


def texts(source: Source) -> Iterator[str]:
    """Identifiers and strings of a file, docstrings aside."""
    told = {
        id(node.value)
        for node in source.nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.value
        for field in ("id", "attr", "name", "arg", "module"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def named(source: Source) -> set[str]:
    """The texts of a file that name a kind.

    ComfyUI says lora for every adapter, and so do the nodes.
    """
    found = set()
    for text in texts(source):
        rest = text
        for piece in NO_KIND:
            rest = rest.replace(piece, "")
        words = set(_WORD.findall(rest)) - ({"lora"} if source.path.startswith("nodes/") else set())
        if words:
            found.add(text)
    return found


def _all() -> dict[str, set[str]]:
    files = (*sources("trainer_core"), *sources("nodes"))
    found = {each.path: named(each) for each in files if not each.path.startswith(_KINDS)}
    return {path: names for path, names in found.items() if names}


def test_no_file_names_a_kind_besides_its_own():
    assert {path: names for path, names in _all().items() if path not in EXCEPTIONS} == {}


def test_no_exception_is_out_of_use():
    assert set(EXCEPTIONS) - set(_all()) == set()
    code = " ".join(each.text for folder in ("trainer_core", "nodes") for each in sources(folder))
    assert [piece for piece in NO_KIND if piece not in code] == []


def test_a_kind_that_is_named_is_noticed():
    def of(text: str) -> set[str]:
        return named(Source("trainer_core/x.py", text))

    assert of('if kind == "lokr":\n    pass') == {"lokr"}
    assert of("def _lokr_rank(layer): ...") == {"_lokr_rank"}
    assert of('factors = tensors["hada_w1_a"]') == {"hada_w1_a"}
    assert of('x = f"{name}.lora_up"') == {".lora_up"}
    assert of('"""Of a lokr."""\nprefix = "lora_unet_"\nrslora = 1') == set()
