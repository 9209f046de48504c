"""Every node as a real server describes it, against the run file's settings."""

import copy
import dataclasses
import re
from typing import Any

import pytest
from comfyui.server import PACK, ROOT

from scripts.build_generated import generated
from scripts.build_locales import LANGUAGES, english, memory
from tests.fixtures.tables import table
from trainer_core.adapter_files.names.video_model_names import VIDEO_MODELS
from trainer_core.config.run import find_setting, walk_settings
from trainer_core.config.section import choices_of, section_of
from trainer_core.families.registry import FAMILIES

pytestmark = pytest.mark.comfy

NODES = sorted(path.stem for path in (ROOT / "js" / "docs").glob("*.md"))
# Settings that the graph gives in another way, and why.
NOT_AN_INPUT = table(__file__, "settings without an input")
_WIDGETS = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"}
_NOTES = re.compile(
    r"( One per line\.| Several: one per line\.| One per line: pattern = number\."
    r"| 0: unset\.| Empty: unset\.| Left as it is: what suits the optimizer\.)$"
)
_NO_BOUND = {2**63 - 1, 1e6}
_LONGEST_HELP = 300
_MOST_VISIBLE = 8
_FOLDED = {
    *(
        "num_repeats",
        "bucketing",
        "control_area",
        "more_shapes",
        "sigma_density",
        "sigma_stratified",
    ),
    *("sigma_min", "sigma_max", "loss_weighting", "huber_schedule", "differential_guidance"),
    *("noises_per_latent", "ema_post_hoc", "swap_slots", "swap_master", "checkpoint_inputs"),
    *("recovery_skips", "recovery_returns", "norms_every", "sigma_bands"),
}
"""Inputs that hardly anybody should touch, on whatever node."""
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


@pytest.fixture(scope="module")
def schemas(shared_server):
    found = shared_server.get("/object_info")
    return {name: found[name] for name in found if name.startswith("AdapterTrainer")}


@pytest.fixture(scope="module")
def settings(shared_server):
    return shared_server.get("/instruments/settings")


def test_each_node_has_a_help_page(schemas):
    assert sorted(schemas) == NODES
    assert {schema["category"] for schema in schemas.values()} == {"Adapter Trainer"}
    assert not any(schema["experimental"] or schema["deprecated"] for schema in schemas.values())


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
    # ComfyUI's panel has no room for a third column.
    assert max((line.count(" | ") for line in page.splitlines() if line[:1] == "|"), default=0) <= 1
    texts = {name: facts["tooltip"] for name, (_, facts) in inputs(schema).items()}
    assert {name: text for name, text in texts.items() if late(text)} == {}
    assert schema["description"].count(". ") <= 1, "more than two sentences"
    assert visible(schema) <= _MOST_VISIBLE


def test_what_hardly_anybody_touches_is_folded_away(schemas):
    found = [
        (node, name, bool(facts.get("advanced")))
        for node, schema in schemas.items()
        for name, (_, facts) in inputs(schema).items()
        if name.rpartition(".")[2] in _FOLDED
    ]
    assert {name.rpartition(".")[2] for _, name, _ in found} == _FOLDED
    assert [each for each in found if not each[2]] == []


def test_what_is_generated_is_up_to_date(shared_server):
    """`make generated` writes it."""
    files = generated(shared_server.get("/object_info"))
    assert len(files) > 50
    assert [f"{path}" for path, text in files.items() if (ROOT / path).read_text() != text] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_translated_and_no_other(schemas, language):
    """In ``scripts/locales``, by the English text."""
    texts, known = english(schemas), set(memory(language))
    assert (texts - known, known - texts) == (set(), set())


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


def test_every_setting_is_an_input_or_is_known_not_to_be(settings):
    leaves = {path for path, field in walk_settings() if section_of(field) is None}
    given = {path for node in settings.values() for path in node.values()}
    assert given | set(NOT_AN_INPUT) == leaves
    assert not given & set(NOT_AN_INPUT)


def test_inputs_and_config_say_the_same(schemas, settings):
    compared = 0
    for node, paths in settings.items():
        for name, path in paths.items():
            config = facts_of_config(find_setting(path))
            assert differences(inputs(schemas[node])[name], config) == [], (node, name)
            compared += 1
    assert compared > 50


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


def test_choices_of_the_nodes_own_inputs_come_from_the_config(schemas):
    kind = inputs(schemas["AdapterTrainerAdapter"])["kind"][1]
    field = find_setting("adapter.kind")
    assert kind["tooltip"] == field.description
    keys = [option["key"] for option in kind["options"]]
    assert keys[0] == field.default
    assert sorted(keys) == sorted(choices_of(field))
    families = ["auto", *FAMILIES]
    for node, more in (("AdapterTrainerBase", ()), ("AdapterTrainerConvert", VIDEO_MODELS)):
        assert inputs(schemas[node])["family"][1]["options"] == [*dict.fromkeys((*families, *more))]
    source = inputs(schemas["AdapterTrainerBase"])["source"][1]
    assert source["default"] == source["options"][0] == find_setting("base.path").default


def test_numbers_of_saved_workflows_are_taken(schemas):
    """What a node shows at first is inside its own bounds: else the browser would change it."""
    for node, schema in schemas.items():
        for name, (kind, facts) in inputs(schema).items():
            if kind in {"INT", "FLOAT"}:
                assert facts["min"] <= facts["default"] <= facts["max"], (node, name)
