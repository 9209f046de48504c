import pytest
import torch

from trainer_core.errors import RESUME, RunError
from trainer_core.training.memory.device_errors import explain_device_errors

KIND = getattr(torch, "AcceleratorError", RuntimeError)
MORE = "\nCUDA kernel errors might be asynchronously reported at some other API call."


@pytest.mark.parametrize("kind", [KIND, RuntimeError])
@pytest.mark.parametrize(
    ("text", "found", "remedy"),
    [
        ("CUDA error: an illegal memory access was encountered", "has stopped", RESUME),
        ("CUDA error: uncorrectable ECC error encountered", "ECC", "Xid"),
        ("CUDA error: unspecified launch failure", "launch failure", "overclocking"),
        ("CUDA driver error: device not ready", "not ready", "driver"),
        ("HIP error: the operation cannot be performed", "has stopped", "driver"),
        ("CUDA error: no kernel image is available for execution on the device",
         f"torch ({torch.__version__}", "Install the build of torch"),
    ],
)  # fmt: skip
def test_what_a_gpu_says_of_itself_is_told_in_one_line(kind, text, found, remedy):
    with pytest.raises(RunError) as caught, explain_device_errors("a step", "Go on."):
        raise kind(text + MORE)
    error = caught.value
    assert found in error.found
    assert "\n" not in error.found
    assert remedy in error.remedy
