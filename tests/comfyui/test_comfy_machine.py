"""What a run may take of a computer that ComfyUI shares with it, by ComfyUI's own numbers."""

import json

import pytest

pytestmark = pytest.mark.comfy


@pytest.fixture(scope="module")
def facts(comfy_host):
    said = comfy_host.run("machine_process.py", folder=comfy_host.root)
    (line,) = [line for line in said.splitlines() if line.startswith("FACTS ")]
    return json.loads(line.removeprefix("FACTS "))


def assert_less_reserve(numbers, previews):
    reserve, memory, free, missing = numbers
    assert free == max(0, memory - reserve - previews)
    assert missing == max(0, reserve - memory)


def test_free_memory_is_comfyuis_less_its_reserve_and_previews(facts):
    usual, more, all_of_it = facts["device"]
    assert facts["previews"] == 300 * 1024**2
    for numbers in (usual, more, all_of_it):
        assert_less_reserve(numbers, facts["previews"])
    assert more[0] == 5 * 1024**3 > usual[0] > 0
    assert usual[2] - more[2] == more[0] - usual[0]
    assert usual[3] == 0
    # A reserve that nobody can leave: nothing may be taken, and almost all of it is missing.
    assert all_of_it[2] == 0
    assert all_of_it[3] > 1 << 44


def test_pinned_bytes_count_for_comfyui_too(facts):
    assert facts["limits"] == {
        "disabled": 0,
        "left": 7_000_000_000,
        "counted": 5_000_000_000,
        "beside ours": 5_000_000_000,
        "ComfyUI may pin": [True, False],
        "given back": 3_000_000_000,
        "may pin after": True,
        # As a ComfyUI of another version: our own limit, and nothing is counted.
        "without a limit": True,
        "uncounted": 3_000_000_000,
    }


def test_blocks_are_counted_while_they_are_pinned(facts):
    held = facts["held"]
    (ours, counted), two = held["pinned"], held["two fit"]
    assert ours == counted >= 3 * 256 * 256 * 4
    assert two[0] == two[1] == ours * 2 // 3
    assert (held["closed"], held["after the error"]) == (0, 0)
    assert held["refused"] == "RunError"


def test_dynamic_vram_changes_nothing(facts):
    found = facts["dynamic"]
    assert found["asked"] == [True, True, False]
    assert found["cleared"] == ["cpu", 1, 0]
    assert_less_reserve(found["numbers"], facts["previews"])
