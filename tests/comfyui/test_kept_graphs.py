"""Graphs of tests/fixtures/kept_files, against the nodes as a real server describes them."""

import json

import pytest
from comfyui.schema_check import faults
from comfyui.server import ROOT
from fixtures.kept_files.facts import node_shapes

pytestmark = pytest.mark.comfy

KEPT = ROOT / "tests" / "fixtures" / "kept_files" / "graphs"
NAMES = sorted(path.stem for path in (KEPT / "drawn").glob("*.json"))
NODES = json.loads((KEPT / "nodes.json").read_text(encoding="utf-8"))
FILES = ("source", "file", "start_from", "run", "folder")
"""Inputs that offer what lies in this machine's folders."""
BUNDLED = ("embedded", "demo/")
"""What they offer on every machine."""


def graph(form, name):
    return json.loads((KEPT / form / f"{name}.json").read_text(encoding="utf-8"))


def is_ours(kind):
    return kind.startswith("AdapterTrainer")


def is_of_a_machine(fault):
    name, said, value = fault.split(": ", 1)[1].partition(" offers no ")
    return bool(said) and name in FILES and not value.strip("'").startswith(BUNDLED)


@pytest.fixture(scope="module")
def schemas(shared_server):
    return shared_server.get("/object_info")


def inputs_of(shape):
    return [*shape["widgets"], *shape["sockets"]]


def shape_faults(then, now):
    """Where a node of a saved graph would lose a value or a link.

    A page gives a drawing's values to the widgets in their order, and a link counts the outputs:
    what is new has to stand behind what was there.
    """
    for part in ("widgets", "outputs"):
        names = [each[0] for each in then[part]]
        if [each[0] for each in now[part]][: len(names)] != names:
            yield f"{part} were {names}"
    for before, after in ((inputs_of(then), inputs_of(now)), (then["outputs"], now["outputs"])):
        types = {each[0]: each[1] for each in after}
        for name, kind, *_ in before:
            if types.get(name) != kind:
                yield f"{name} was {kind} and is {types.get(name)}"
    offered = {each[0]: each[2] for each in now["widgets"]}
    for name, _, options in then["widgets"]:
        lost = [each for each in options if each not in offered.get(name, ())]
        yield from (f"{name} offers no {each}" for each in lost)


def found_faults(node, schemas):
    now = node_shapes(schemas[node])
    return {
        choice: found
        for choice, then in NODES[node].items()
        if (found := list(shape_faults(then, now[choice])))
    }


@pytest.mark.parametrize("node", NODES)
def test_a_node_has_what_it_had_and_asks_for_nothing_else(node, schemas):
    assert found_faults(node, schemas) == {}
    known = {each[0] for shape in NODES[node].values() for each in inputs_of(shape)}
    assert schemas[node]["input"].get("required", {}).keys() <= known
    for name, (kind, facts) in schemas[node]["input"].get("required", {}).items():
        for option in facts["options"] if kind == "COMFY_DYNAMICCOMBO_V3" else ():
            if option["key"] in NODES[node]:
                asked = {f"{name}.{each}" for each in option["inputs"].get("required", {})}
                assert asked <= {each[0] for each in inputs_of(NODES[node][option["key"]])}


def test_the_check_finds_what_is_lost():
    widgets, outputs = [["n", "INT", []], ["m", "COMBO", ["a"]]], [["run", "RUN"]]
    then = {"widgets": widgets, "sockets": [["image", "IMAGE", []]], "outputs": outputs}
    for now, said in (
        ({}, []),
        ({"widgets": [widgets[0], ["new", "INT", []], widgets[1]]}, ["widgets were ['n', 'm']"]),
        ({"widgets": [widgets[0], ["m", "COMBO", ["b"]]]}, ["m offers no a"]),
        ({"sockets": []}, ["image was IMAGE and is None"]),
        ({"outputs": [["x", "RUN"], ["run", "RUN"]]}, ["outputs were ['run']"]),
        ({"outputs": [["run", "RUN"], ["x", "RUN"]]}, []),
    ):
        assert list(shape_faults(then, {**then, **now})) == said


@pytest.mark.parametrize("name", NAMES)
def test_a_queued_graph_is_taken(name, schemas):
    prompt = graph("queued", name)
    ours = {node for node in prompt if is_ours(prompt[node]["class_type"])}
    found = [fault for fault in faults(prompt, schemas) if fault[5:].split(":")[0] in ours]
    assert [fault for fault in found if not is_of_a_machine(fault)] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_drawing_is_opened_as_it_was_saved(name, schemas):
    drawing = graph("drawn", name)
    seen = 0
    for node in drawing["nodes"]:
        if not is_ours(node["type"]):
            continue
        shapes = node_shapes(schemas[node["type"]])
        now = shapes.get((node["widgets_values"] or [""])[0], shapes.get(""))
        widgets = [each for each in node["inputs"] if "widget" in each]
        sockets = [each for each in node["inputs"] if "widget" not in each]
        parts = {"widgets": widgets, "sockets": sockets, "outputs": node["outputs"]}
        then = {
            part: [[each["name"], each["type"], []] for each in entries]
            for part, entries in parts.items()
        }
        assert list(shape_faults(then, now)) == []
        seen += 1
    assert seen
