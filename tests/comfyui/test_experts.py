"""Wan 2.2's two experts: each is trained at its own levels, and previews are sampled with both."""

import pytest

pytestmark = pytest.mark.comfy

_NEAR = 1e-5


@pytest.fixture(scope="module")
def found(comfy_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts")
    (result,) = comfy_host.results("experts_process.py", folder, inside=True).values()
    assert "error" not in result, result
    return result


def test_each_expert_trains_its_own_levels_from_one_cache(found):
    # Two thirds of the steps at shift 8: 8 / 3 / (1 + 7 / 3) = 0.8, beyond the makers' 0.875.
    assert found["levels"] == [[0.8, 1.0], [0.0, 0.875]]
    assert not found["encoded_again"]
    assert found["alone"] == {
        "begins": True,
        "switch_at": pytest.approx(2 / 3),
        "levels": [0.8, 1.0],
        "config": "WAN21_T2V",
        "other": None,
    }


def test_previews_are_what_two_samplers_make_with_both_files(found):
    assert found["unread"] == []
    assert max(found["apart"]) < _NEAR
    assert found["change"] > 1e-3
    assert found["changed"] == []


def test_what_are_no_two_experts_is_refused(found):
    refused = found["refused"]
    assert set(refused) == {
        "two for high noise",
        "named otherwise",
        "of another class",
        "for images",
        "unnamed",
        "unnamed, from an image",
        "another shift",
        "the same",
        "no role",
    }
    assert "shift 8 and other_expert has 3" in refused["another shift"]
    assert "says high noise" in refused["named otherwise"]
