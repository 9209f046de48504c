import pytest
import torch

from trainer_core import device
from trainer_core.device import resolve_device, resolve_precision, unused_gpu
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
    ("setting", "kind", "expected"),
    [
        ("fp32", "cpu", "fp32"),
        ("bf16", "cpu", "bf16"),
        ("auto", "cpu", "fp32"),
        ("auto", "mps", "fp32"),
        ("auto", "xpu", "bf16"),
        ("fp32", "cuda", "fp32"),
    ],
)
def test_precision_is_what_was_asked_or_what_the_device_does_best(setting, kind, expected):
    assert resolve_precision(setting, torch.device(kind)) == expected


@pytest.mark.skipif(HAS_CUDA, reason="it finds a GPU")
@pytest.mark.parametrize("shown", [None, "", "-1"])
def test_a_torch_for_gpus_says_why_it_takes_the_cpu(monkeypatch, shown):
    assert unused_gpu("auto") == ""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(device, "has_nvidia_gpu", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert unused_gpu("cpu") == ""
    reason = "Torch not compiled" if shown is None else f"CUDA_VISIBLE_DEVICES is {shown!r}"
    assert f"finds no GPU ({reason}" in unused_gpu("auto")
