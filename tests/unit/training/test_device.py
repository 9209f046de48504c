import contextlib

import pytest
import torch

from trainer_core.config import MemorySection
from trainer_core.device import (
    borrowed_attention,
    borrowed_random_state,
    borrowed_threads,
    resolve_device,
    resolve_precision,
)
from trainer_core.errors import ConfigError

CPU = torch.device("cpu")
HAS_CUDA = torch.cuda.is_available()


@pytest.mark.parametrize(
    "setting",
    ["banana", "", "CPU", " cpu", "0", "-1", "cuda:-1", "cuda:x", "cuda:4096", "cuda:99999999999",
     "meta", "privateuseone", "hpu", "vulkan", "auto ", *([] if HAS_CUDA else ["cuda"])],
)  # fmt: skip
def test_a_device_that_is_unknown_or_not_there_is_refused_by_its_setting(setting):
    with pytest.raises(ConfigError) as caught:
        resolve_device(setting)
    assert caught.value.found.startswith(f"memory.device: {setting} (")
    assert "\n" not in caught.value.found
    assert str(resolve_device("auto")) in caught.value.expected
    assert "memory.device to auto" in caught.value.remedy


@pytest.mark.parametrize(
    ("setting", "device", "expected"),
    [
        ("fp32", "cpu", "fp32"),
        ("bf16", "cpu", "bf16"),
        ("auto", "cpu", "fp32"),
        ("auto", "mps", "fp32"),
        ("auto", "xpu", "bf16"),
        ("fp32", "cuda", "fp32"),
    ],
)
def test_precision_is_what_was_asked_or_what_the_device_does_best(setting, device, expected):
    assert resolve_precision(setting, torch.device(device)) == expected


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("threads", "embedded", "inside"),
    [(2, False, 2), (2, True, 2), (None, True, 1), (None, False, 3)],
)
def test_threads_are_set_inside_and_restored_after_an_error(
    three_threads, threads, embedded, inside
):
    memory = MemorySection(threads=threads)
    with contextlib.suppress(KeyError), borrowed_threads(memory, embedded=embedded):
        assert torch.get_num_threads() == inside
        torch.set_num_threads(1)
        raise KeyError
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("allowed", [True, False])
def test_cudnn_is_kept_from_attention_and_allowed_again_where_it_was(allowed):
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    before = enabled()
    torch.backends.cuda.enable_cudnn_sdp(allowed)
    try:
        with contextlib.suppress(KeyError), borrowed_attention():
            assert not enabled()
            raise KeyError
        assert enabled() == allowed
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize("fails", [False, True])
def test_the_global_generator_goes_on_as_if_nothing_was_drawn(fails):
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    try:
        with borrowed_random_state(CPU):
            torch.manual_seed(2)
            inside = torch.rand(4)
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert torch.equal(torch.rand(4), expected)
    assert not torch.equal(inside, expected)
