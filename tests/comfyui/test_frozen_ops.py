"""ComfyUI's ops, frozen: the same bits, the same gradients, and nothing kept of a weight."""

import pytest

pytestmark = pytest.mark.comfy

# Torch chooses a convolution's kernel by how the input lies, of which a frozen one has the shape.
ROUNDED = {"Conv2d, input by channels", "Conv2d of a place, input by channels"}


@pytest.fixture(scope="module")
def results(comfy_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen")
    return comfy_host.results("frozen_ops_process.py", folder)


@pytest.mark.parametrize(
    ("part", "count"),
    [
        ("plain_ops", 78),
        ("layouts", 6),
        ("eight_bit_ops", 6),
        ("quantized_ops", 14),
        ("packed_ops", 6),
        ("patched_ops", 3),
    ],
)
def test_an_op_gives_what_it_gives_and_keeps_nothing(results, part, count):
    found = results[part]
    assert len(found) == count
    for name, each in found.items():
        assert each["frozen"], name
        assert each["back"], name
        assert each["inference"], "the weights are not as ComfyUI's loaders make them"
        assert each["forward"], name
        assert each["as expected"] in (True, None), name
        assert not each["keeps"], name
        assert each["distance"] < 1e-6, name
        assert each["gradient"] or name in ROUNDED, name


def test_a_product_in_8_bits_leaves_its_input(results):
    assert all(each["input stays"] for each in results["eight_bit_ops"].values())


def test_a_table_is_read_without_a_graph(results):
    assert results["embeddings"] == {"plain": True, "cast": True}
