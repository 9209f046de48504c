import pytest
import torch

from trainer_core.device import resolve_device, resolve_precision
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
