"""Every node as a real server describes it, against the run file's settings and its template."""

from __future__ import annotations

import copy
import dataclasses
import re
from typing import Any

import pytest
import yaml
from comfyui.server import PACK, ROOT

from scripts.build_help_pages import with_table
from trainer_core.config.run import find_setting, walk_settings
from trainer_core.config.section import choices_of, section_of
from trainer_core.families.registry import FAMILIES
from trainer_core.families.run_files import run_file_template, templates

pytestmark = pytest.mark.comfy

# Section 10 of the design: links in, links out, and which of the links need not be there.
SOCKETS = {
    "DatasetFolder": ([], ["dataset"]),
    "DatasetImages": (["IMAGE", "STRING", "IMAGE?", "MASK?"], ["dataset"]),
    # The datasets that it joins are one growing input.
    "DatasetCombine": ([], ["dataset"]),
    "ConceptSlider": ([], ["dataset"]),
    "DatasetReport": (["dataset", "base?"], ["STRING", "IMAGE"]),
    "Base": ([], ["base"]),
    "BaseFromModel": (["MODEL"], ["base"]),
    "PreviewPrompts": (["IMAGE?"], ["previews"]),
    "Cache": (["dataset", "base", "CLIP?", "VAE?", "previews?"], ["cache"]),
    "Adapter": ([], ["adapter"]),
    "Settings": ([], ["settings"]),
    "Train": (
        ["base", "cache", "adapter", "settings?", "VAE?"],
        ["LORA_MODEL", "LOSS_MAP", "IMAGE", "run"],
    ),
    "Apply": (["MODEL", "CLIP", "LORA_MODEL"], ["MODEL", "CLIP"]),
    "Preview": (["base", "previews", "LORA_MODEL?", "CLIP?", "VAE?"], ["IMAGE"]),
    "Compare": (["base", "previews", "run", "CLIP?", "VAE?"], ["IMAGE", "IMAGE", "STRING"]),
    "Save": (["run?", "LORA_MODEL?"], ["STRING"]),
    "Convert": (["LORA_MODEL?", "base?"], ["LORA_MODEL", "STRING"]),
    "Check": (["MODEL", "LORA_MODEL?"], ["STRING", "BOOLEAN"]),
    "SaveRunFile": (["base", "cache", "adapter", "settings?"], ["STRING"]),
    "LoadRun": ([], ["LORA_MODEL", "LOSS_MAP", "IMAGE", "run"]),
    "EmbeddedModel": ([], ["MODEL", "VAE"]),
    "EmbeddedText": (["IMAGE?"], ["CONDITIONING", "CONDITIONING"]),
    "Quick": (["CLIP?", "VAE?"], ["LORA_MODEL", "LOSS_MAP", "IMAGE", "run"]),
}
NODES = [f"AdapterTrainer{name}" for name in SOCKETS]
# Settings that the graph gives in another way, and why.
NOT_AN_INPUT = {
    "family": "Load Training Base reads it from the file, or takes it from its own list",
    "base.path": "the input source, a list of what is there",
    "base.encoders": "the graph's CLIP and VAE",
    "base.adapters": "the inputs training_adapter and base_adapters, lists of what is there",
    "dataset.path": "the input folder, a list of what is there",
    "dataset.folders": "Combine Datasets",
    "dataset.regularization.path": "the input regularization_folder, a list of what is there",
    "adapter.kind": "the choice that shows the inputs of a kind",
    "adapter.start_from": "the input start_from, a list of what is there",
    "adapter.tucker": "a smaller file where convolutions are adapted; run files have it",
    "cache.dir": "always in the output folder",
    "cache.manifest": "what Cache Embeddings hands on",
    "preview.controls": "the input controls",
    "preview.layers": "as many as most of the dataset's images have",
    "memory.device": "ComfyUI's device",
    "output.dir": "ComfyUI's output folder",
    "output.layouts": "Save Adapter and Convert Adapter",
    "resume": "on or off",
    "config_version": "nobody chooses it",
}
_WIDGETS = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"}
_NOTES = re.compile(
    r"( One per line\.| Several: one per line\.| One per line: pattern = number\."
    r"| 0: unset\.| Empty: unset\.| Left as it is: what suits the optimizer\.)$"
)
_BOUNDS = re.compile(r" \(([^()]*(?:at least|above|at most|below) [^()]*)\)$")
_NO_BOUND = {2**63 - 1, 1e6}
_LONGEST_HELP = 300
_MOST_VISIBLE = 8
_WHEN = {
    *("Leave", "Change", "Set", "Raise", "Lower", "Switch", "Take", "Use", "Choose", "Write"),
    "Connect",
}
"""How a help text begins: with when to touch an input, not with what it is called."""


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is said of a setting, wherever it is said."""

    help: str
    default: Any
    low: float | str | None
    high: float | None
    choices: tuple[str, ...]


def inputs(schema):
    """Every input of a node by name, also those that a choice shows."""
    found = {}
    for group in ("required", "optional"):
        found |= schema["input"].get(group, {})
    for kind, facts in list(found.values()):
        if kind == "COMFY_DYNAMICCOMBO_V3":
            for option in facts["options"]:
                for group in option["inputs"].values():
                    found |= group
    return found


def facts_of_input(spec):
    kind, facts = spec
    numbers = kind in {"INT", "FLOAT"}
    low, high = (facts.get("min"), facts.get("max")) if numbers else (None, None)
    choices = facts.get("options", []) if kind == "COMBO" else []
    default = facts["default"]
    text = facts["tooltip"]
    if text.endswith(("0: unset.", "Empty: unset.")):
        low, default = "0 is unset" if low == 0 else low, default or None
    return Facts(
        _NOTES.sub("", text),
        _plain(default),
        low,
        None if high in _NO_BOUND else high,
        tuple(choices),
    )


def _plain(value):
    # Lists and tables are texts in a node.
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    return "" if value == {} else value


def facts_of_config(field):
    found = {}
    for part in field.metadata:
        for name in ("ge", "gt", "le", "lt"):
            if getattr(part, name, None) is not None:
                found[name[0]] = getattr(part, name)
    high = found.get("l")
    return Facts(
        field.description,
        _plain(field.get_default(call_default_factory=True)),
        found.get("g"),
        None if high == 2**63 else high,
        tuple(choices_of(field)),
    )


def differences(spec, config):
    """Where an input says something else than its setting."""
    given = facts_of_input(spec)
    if given.low == "0 is unset":
        assert config.default is None
        given = dataclasses.replace(given, low=config.low)
    names = (each.name for each in dataclasses.fields(Facts))
    return [name for name in names if getattr(given, name) != getattr(config, name)]


def facts_of_template():
    """Every setting of a run file's template by YAML path, read from its text alone."""
    lines = iter(run_file_template("qwen_image", "generate").splitlines())
    found = {}
    for path, field in walk_settings():
        name, comment = path.rsplit(".", 1)[-1], []
        for line in lines:
            bare = line.strip().removeprefix("# ")
            if re.match(rf"{name}:( |$)", bare):
                break
            comment = [*comment, bare] if line.strip() else []
        if section_of(field) is None:
            value = yaml.safe_load(bare)[name]
            found[path] = _template_entry(path, " ".join(comment), value)
    return found


def _template_entry(path, text, value):
    match = _BOUNDS.search(text)
    words = match[1] if match else ""
    low = re.search(r"(?:at least|above) ([-\d.e+]+)\b(?! long)", words)
    high = re.search(r"(?:at most|below) ([-\d.e+]+)\b(?! long)", words)
    text = text[: match.start()] if match else text
    listed = re.search(r" One of ([^.]*)\.$", text)
    default = templates()["qwen_image"]["generate"].get(path, "not preset")
    return Facts(
        text[: listed.start()] if listed else text,
        _plain(value) if default == "not preset" else default,
        float(low[1]) if low else None,
        float(high[1]) if high and float(high[1]) != 2**63 else None,
        tuple(listed[1].split(", ")) if listed else (),
    )


@pytest.fixture(scope="module")
def schemas(shared_server):
    found = shared_server.get("/object_info")
    return {name: found[name] for name in found if name.startswith("AdapterTrainer")}


@pytest.fixture(scope="module")
def settings(shared_server):
    return shared_server.get("/instruments/settings")


def test_the_nodes_are_those_of_the_design(schemas):
    assert sorted(schemas) == sorted(NODES)
    assert {schema["category"] for schema in schemas.values()} == {"Adapter Trainer"}
    assert not any(schema["experimental"] or schema["deprecated"] for schema in schemas.values())


@pytest.mark.parametrize("name", SOCKETS)
def test_sockets_are_those_of_the_design(schemas, name):
    schema, links = schemas[f"AdapterTrainer{name}"], []
    for group, mark in (("required", ""), ("optional", "?")):
        for kind, facts in schema["input"].get(group, {}).values():
            linked = kind not in _WIDGETS and not kind.startswith("COMFY_")
            if linked or facts.get("forceInput"):
                links.append(_short(kind) + mark)
    expected_in, expected_out = SOCKETS[name]
    assert sorted(links) == sorted(expected_in)
    assert [_short(kind) for kind in schema["output"]] == expected_out
    assert all(schema["output_name"])


def _short(kind):
    return kind.removeprefix("ADAPTER_TRAINER_").lower() if kind.startswith("ADAPTER") else kind


@pytest.mark.parametrize("node", NODES)
def test_everything_is_explained(server, schemas, node):
    schema = schemas[node]
    silent = [
        name
        for name, (_, facts) in inputs(schema).items()
        if len(facts.get("tooltip") or "") < 8 or not facts["tooltip"].endswith(".")
    ]
    assert silent == []
    assert len(schema["description"]) > 30
    assert schema["description"].endswith(".")
    assert len(schema["search_aliases"]) >= 2
    page = server.fetch(f"/extensions/{PACK}/docs/{node}.md").decode()
    assert page.startswith(f"# {schema['display_name']}\n")
    assert "(TODO)" not in page
    # The table of inputs is made from the schema; someone who forgets to do so sees it here.
    assert with_table(page, node, schema) == page
    texts = {name: facts["tooltip"] for name, (_, facts) in inputs(schema).items()}
    assert {name: text for name, text in texts.items() if late(text)} == {}
    assert schema["description"].count(". ") <= 1, "more than two sentences"
    assert visible(schema) <= _MOST_VISIBLE


def late(text):
    """Whether a help text begins with what an input is, or is too long for a tooltip."""
    return text.split(" ")[0] not in _WHEN or len(text) > _LONGEST_HELP


def visible(schema):
    """Settings that a node shows at first, with the choice that brings the most."""
    count = 0
    for group in ("required", "optional"):
        for kind, facts in schema["input"].get(group, {}).values():
            if kind == "COMFY_DYNAMICCOMBO_V3":
                count += 1 + max(visible({"input": each["inputs"]}) for each in facts["options"])
            elif kind in _WIDGETS and not facts.get("forceInput"):
                count += not facts.get("advanced")
    return count


def test_what_a_reader_would_have_to_look_for_is_noticed(schemas):
    assert late("Rank of the factors. Raise it when details are missing.")
    assert late("Leave it. " + "x" * _LONGEST_HELP)
    assert not late("Leave it at 1.")
    # Settings that a choice brings are counted.
    schema = schemas["AdapterTrainerAdapter"]
    assert visible(schema) == 7
    assert len(inputs(schema)) > 2 * _MOST_VISIBLE


def test_help_pages_belong_to_nodes():
    pages = {path.stem for path in (ROOT / "js" / "docs").glob("*.md")}
    assert pages == set(NODES)


def test_every_setting_is_an_input_or_is_known_not_to_be(settings):
    leaves = {path for path, field in walk_settings() if section_of(field) is None}
    given = {path for node in settings.values() for path in node.values()}
    assert given | set(NOT_AN_INPUT) == leaves
    assert not given & set(NOT_AN_INPUT)


def test_all_of_the_memory_section_is_on_one_node(schemas, settings):
    name = "AdapterTrainerSettings"
    leaves = {path for path, _ in walk_settings() if path.startswith("memory.")}
    ids = {path: id for id, path in settings[name].items() if path in leaves}
    assert set(ids) == leaves - {"memory.device"}
    shown = {path for path, id in ids.items() if not inputs(schemas[name])[id][1].get("advanced")}
    assert shown == {"memory.plan"}


def test_inputs_config_and_template_say_the_same(schemas, settings):
    template = facts_of_template()
    compared = 0
    for node, paths in settings.items():
        for name, path in paths.items():
            config = facts_of_config(find_setting(path))
            assert differences(inputs(schemas[node])[name], config) == [], (node, name)
            assert_same_in_template(template[path], config, path)
            compared += 1
    assert compared > 50


def assert_same_in_template(written, config, path):
    if path in templates()["qwen_image"]["generate"]:
        written = dataclasses.replace(written, default=config.default)
    # Choices are listed behind the help text unless it names them, or one is shown as the value.
    assert set(config.choices) <= {*written.choices, *_words(written)}, path
    written = dataclasses.replace(written, choices=written.choices and config.choices)
    assert written == dataclasses.replace(config, choices=written.choices), path


def _words(written):
    return re.findall(r"\w+", f"{written.help} {written.default}")


CHANGES = {
    "default": ("rank", {"default": 17}),
    "lowest": ("rank", {"min": 2}),
    "highest": ("dropout", {"max": 0.5}),
    "help": ("rank", {"tooltip": "Something else."}),
    "another choice": ("schedule", {"options": ["constant"]}),
    "unset": ("alpha", {"default": 1.0}),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_difference_is_noticed(schemas, settings, case):
    name, change = CHANGES[case]
    node = next(node for node, paths in settings.items() if name in paths)
    kind, facts = copy.deepcopy(inputs(schemas[node])[name])
    config = facts_of_config(find_setting(settings[node][name]))
    assert differences((kind, facts), config) == []
    assert len(differences((kind, facts | change), config)) == 1


@pytest.mark.parametrize(("field", "value"), [("help", "x"), ("default", 0.25), ("low", 0.25)])
def test_a_difference_in_the_template_is_noticed(field, value):
    path = "adapter.rank_dropout"
    config, written = facts_of_config(find_setting(path)), facts_of_template()[path]
    assert_same_in_template(written, config, path)
    with pytest.raises(AssertionError):
        assert_same_in_template(dataclasses.replace(written, **{field: value}), config, path)


def test_choices_of_the_nodes_own_inputs_come_from_the_config(schemas):
    kind = inputs(schemas["AdapterTrainerAdapter"])["kind"][1]
    field = find_setting("adapter.kind")
    assert kind["tooltip"] == field.description
    keys = [option["key"] for option in kind["options"]]
    assert keys[0] == field.default
    assert sorted(keys) == sorted(choices_of(field))
    families = ["auto", *FAMILIES]
    for node in ("AdapterTrainerBase", "AdapterTrainerConvert"):
        assert inputs(schemas[node])["family"][1]["options"] == families
    source = inputs(schemas["AdapterTrainerBase"])["source"][1]
    assert source["default"] == source["options"][0] == find_setting("base.path").default


def test_numbers_of_saved_workflows_are_taken(schemas):
    """What a node shows at first is inside its own bounds: else the browser would change it."""
    for node, schema in schemas.items():
        for name, (kind, facts) in inputs(schema).items():
            if kind in {"INT", "FLOAT"}:
                assert facts["min"] <= facts["default"] <= facts["max"], (node, name)
