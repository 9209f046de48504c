"""What of a graph decides a run: every input has its weight, and a hostile graph costs nothing."""

import pytest
from fixtures.tables import table

SETTINGS = {
    "AdapterTrainerTrain": {
        "steps": "training.steps",
        "learning_rate": "training.optimizer.learning_rate",
    },
    "AdapterTrainerAdapter": {"rank": "adapter.rank"},
    "AdapterTrainerDatasetFolder": {"unreadable": "dataset.unreadable", "folder": "dataset.path"},
    "AdapterTrainerCache": {"verify": "cache.verify"},
    "AdapterTrainerSettings": {"every": "preview.every"},
}
WORDS = {
    "AdapterTrainerQuick": "steps, a.txt, rank of Adapter. “Open as full graph” lays out Adapter.",
    "AdapterTrainerAdapter": "steps of Train, a.txt, rank.",
}
COURSE, DECIDES, NOTHING = "course", "decides", ""


def graph(**changes):
    inputs = table(__file__, "inputs of a graph")
    kinds = [*SETTINGS]
    kinds = dict(zip("12435", kinds, strict=True)) | {"9": "LoadImage"}
    for place, value in changes.items():
        node, name = place[1], place[3:].replace("__", ".")
        inputs[node] = {k: v for k, v in {**inputs[node], name: value}.items() if v is not None}
    return {node: {"class_type": kinds[node], "inputs": inputs[node]} for node in inputs}


@pytest.fixture
def asked(prompt_settings, monkeypatch):
    monkeypatch.setattr(prompt_settings, "settings_of", SETTINGS.get)
    return lambda nodes: prompt_settings.graph_settings(nodes, "1")


@pytest.mark.parametrize(
    ("place", "value", "weight"),
    [
        ("n1_name", "b", NOTHING),
        ("n1_steps", 9, NOTHING),
        ("n1_resume", False, NOTHING),
        ("n1_vae", ["2", 0], NOTHING),
        ("n1_learning_rate", 1e-4, COURSE),
        ("n1_seed", 3, DECIDES),
        ("n1_settings", None, DECIDES),
        ("n2_kind__rank", 8, DECIDES),
        ("n2_another", 8, NOTHING),
        ("n3_clip", ["2", 0], NOTHING),
        ("n3_verify", True, NOTHING),
        ("n4_folder", "b", DECIDES),
        ("n4_unreadable", "skip", NOTHING),
        ("n5_every", 9, NOTHING),
        ("n9_file", "y", DECIDES),
    ],
)
def test_each_input_has_its_weight(asked, place, value, weight):
    before, now = asked(graph()), asked(graph(**{place: value}))
    found = [bool(now.differences(before, finished=done)) for done in (False, True)]
    assert found == {NOTHING: [False, False], COURSE: [False, True], DECIDES: [True, True]}[weight]


def test_a_difference_is_told_by_its_input(asked):
    found = asked(graph(n4_folder="")).differences(asked(graph()), finished=False)
    assert found == {"folder": "folder was a and is empty"}
    old, new = (asked(graph(n4_trigger_word=word)) for word in ("sks", "ohwx"))
    (said,) = new.differences(old, finished=False).values()
    assert said == "trigger_word was sks and is ohwx, and captions that have sks keep it"


@pytest.mark.parametrize(
    "nodes",
    [
        {},
        {"1": None},
        {"1": {"class_type": 5, "inputs": [1]}},
        graph(n2_kind=["1", 0]),
        {str(n): {"inputs": {k: [str(n + 1), 0] for k in "abcdefgh"}} for n in range(1, 60)},
    ],
    ids=["no node", "no mapping", "odd", "a circle", "a lattice"],
)
def test_whatever_is_sent_is_looked_at_within_bounds(asked, nodes):
    assert len(asked(nodes).decides) <= 5000


@pytest.mark.parametrize("node", WORDS)
def test_a_message_names_inputs_and_says_how_absent_ones_are_reached(
    graph_words, monkeypatch, node
):
    monkeypatch.setattr(graph_words, "_nodes", [])
    steps, rank = {"training.steps": "steps"}, {"adapter.rank": "rank"}
    for each in (("Train", steps), ("Quick", steps), ("Adapter", rank)):
        named = graph_words.NodeInputs(f"AdapterTrainer{each[0]}", *each)
        graph_words.register_inputs(lambda named=named: named)
    told = graph_words.in_graph_words("training.steps, a.txt, adapter.rank.", node, {"Train"})
    assert told == WORDS[node]
    told = graph_words.in_graph_words("Set adapter.rank: 4, not 'a set one: two'.", node)
    assert told.startswith("Set rank")
    assert " to 4, not 'a set one: two'" in told
