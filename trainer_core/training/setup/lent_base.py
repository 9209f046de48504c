"""What a run may ask of a base that its host lends (`families.lent`)."""

from __future__ import annotations

from ...config import MemorySection, RunConfig
from ...errors import ConfigError
from ...families.lent import OF_FILES
from ..step.processes import Processes


def require_hosts_way(config: RunConfig, processes: Processes) -> None:
    """Refuse settings that only a base has which the run loads by itself.

    Raises:
        ConfigError: When the weights are to be kept otherwise than the host keeps them, the base is
            to have adapters of its own, or several processes share the run.
    """
    fields = MemorySection.model_fields
    for name in OF_FILES:
        value = getattr(config.memory, name)
        if value not in {fields[name].default, 0}:
            raise _refused(f"memory.{name} is {value}", f"Leave memory.{name} out.")
    if config.memory.plan not in {"auto", "off"}:
        raise _refused(f"memory.plan is {config.memory.plan}", "Leave memory.plan out.")
    if config.base.adapters:
        raise _refused(
            "base.adapters names an adapter",
            "Put it on the model in the graph, with Load LoRA before Base From Model.",
        )
    if processes.count > 1:
        raise _refused(f"{processes.count} processes", "Train in one process.")


def _refused(found: str, remedy: str) -> ConfigError:
    return ConfigError(
        f"{found}, and the base is a model of the graph",
        "a model that stays as ComfyUI has loaded it",
        f"{remedy} Or name the model's file in Load Training Base.",
    )
