"""Runs inside ComfyUI's interpreter: what a run is told of the computer, beside what ComfyUI says.

Usage: python machine_process.py PACK, with ComfyUI on PYTHONPATH. Prints a line of JSON.

A computer without a GPU pins nothing, so the limit is given to ComfyUI's variables as it sets them
for NVIDIA, and in place of CUDA's driver something says that it has pinned.
"""

import importlib
import importlib.util
import json
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import comfy.memory_management
import comfy.model_management as management
import comfy.model_patcher
import comfy_aimdo.control
import comfy_aimdo.host_buffer
import folder_paths
import torch
from torch import nn

PACK = "adapter_trainer_pack"
CPU = torch.device("cpu")
MOST, BEFORE, OURS = 10_000_000_000.0, 3_000_000_000, 2_000_000_000


def load(pack, *names):
    # A module beside this file has the same name, and would be found first.
    place = Path(folder_paths.__file__).with_name("server.py")
    spec = importlib.util.spec_from_file_location("server", place)
    sys.modules["server"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["server"])
    for name, folder in ((PACK, pack), (f"{PACK}.nodes", pack / "nodes")):
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[name] = importlib.util.module_from_spec(spec)
    return [importlib.import_module(f"{PACK}.{name}") for name in names]


def device_facts(machine):
    """Free memory around each of our numbers, and the reserve that it was asked with."""
    found = []
    usual = management.EXTRA_RESERVED_VRAM
    # The others as --reserve-vram sets them: 5 GiB, and more than there is.
    for reserve in (usual, 5.0 * (1 << 30), float(1 << 45)):
        management.EXTRA_RESERVED_VRAM = reserve
        before = management.get_free_memory(CPU)
        ours = machine.free_memory(CPU), machine.missing_memory(CPU)
        after = management.get_free_memory(CPU)
        found.append([management.extra_reserved_memory(), before, *ours, after])
    management.EXTRA_RESERVED_VRAM = usual
    return found


def limits(machine, base):
    found = {"disabled": machine.pinned_limit()}
    management.MAX_PINNED_MEMORY, management.TOTAL_PINNED_MEMORY = MOST, BEFORE
    found["left"] = machine.pinned_limit()
    machine.count_pinned(OURS)
    found["counted"] = management.TOTAL_PINNED_MEMORY
    found["beside ours"] = machine.pinned_limit()
    # What ComfyUI asks itself before it pins: nothing of its own is there to be given up.
    found["ComfyUI may pin"] = [management.ensure_pin_registerable(n * 10**9) for n in (4, 6)]
    machine.count_pinned(-OURS)
    found["given back"] = management.TOTAL_PINNED_MEMORY
    found["may pin after"] = management.ensure_pin_registerable(6 * 10**9)
    del management.MAX_PINNED_MEMORY
    found["without a limit"] = machine.pinned_limit() == base.pinned_limit() > 0
    machine.count_pinned(OURS)
    found["uncounted"] = management.TOTAL_PINNED_MEMORY
    management.MAX_PINNED_MEMORY = MOST
    return found


def blocks_of(count):
    return [nn.Linear(256, 256).requires_grad_(False) for _ in range(count)]


def held(machine, host_weights, streamed):
    """The counter while blocks are held, while only some may be, after an error, and after all."""
    driver = types.SimpleNamespace(
        cudaHostRegister=lambda place, size, flags: 0, cudaHostUnregister=lambda place: 0
    )
    pinning = getattr(host_weights, "PinnedMemory", host_weights.PinnedMaster)
    sys.modules[pinning.__module__]._runtime = lambda: driver
    transfer = importlib.import_module(f"{PACK}.trainer_core.offload.transfer").make_transfer(CPU)
    errors = importlib.import_module(f"{PACK}.trainer_core.errors")

    def stream(blocks, required):
        master = host_weights.PinnedMaster(required, machine)
        return master, streamed.StreamedBlocks(blocks, CPU, 2, master, transfer)

    start, found = management.TOTAL_PINNED_MEMORY, {}
    master, blocks = stream(blocks_of(3), False)
    found["pinned"] = [master.pinned_bytes, management.TOTAL_PINNED_MEMORY - start]
    blocks.close()
    blocks.close()
    found["closed"] = management.TOTAL_PINNED_MEMORY - start
    management.MAX_PINNED_MEMORY = start + found["pinned"][0] - 1
    master, blocks = stream(blocks_of(3), False)
    found["two fit"] = [master.pinned_bytes, management.TOTAL_PINNED_MEMORY - start]
    blocks.close()
    try:
        stream(blocks_of(3), True)
    except errors.RunError as error:
        found["refused"] = type(error).__name__
    found["after the error"] = management.TOTAL_PINNED_MEMORY - start
    management.MAX_PINNED_MEMORY = MOST
    return found


def dynamic(machine, comfy_host):
    """With dynamic VRAM, switched on as ComfyUI's start does it where there is a GPU."""
    comfy_aimdo.control.init()
    # It was imported before there was a library.
    importlib.reload(comfy_aimdo.host_buffer)
    comfy.memory_management.aimdo_enabled = True
    kind = comfy.model_patcher.CoreModelPatcher = comfy.model_patcher.ModelPatcherDynamic
    usual = kind(nn.Linear(8, 8), CPU, CPU)
    management.load_models_gpu([usual])
    listed = len(management.current_loaded_models)
    # Of a GPU that is not there: ComfyUI asks such a model to give up what it has pinned.
    paged = kind(nn.Linear(8, 8), torch.device("cuda:0"), CPU)
    management.current_loaded_models.append(management.LoadedModel(paged))
    machine.count_pinned(OURS)
    asked = [paged.is_dynamic(), *map(management.ensure_pin_registerable, (4 * 10**9, 6 * 10**9))]
    machine.count_pinned(-OURS)
    management.current_loaded_models.pop()
    before = management.get_free_memory(CPU)
    with comfy_host.cleared_device() as device:
        cleared = [str(device), listed, len(management.current_loaded_models)]
        free = machine.free_memory(device)
    numbers = [management.extra_reserved_memory(), before, free, 0, before]
    return {"asked": asked, "cleared": cleared, "numbers": numbers}


def main():
    comfy_machine, host_weights, streamed, base, comfy_host = load(
        Path(sys.argv[1]),
        "nodes.host.comfy_machine",
        "trainer_core.offload.host_weights",
        "trainer_core.offload.streamed_blocks",
        "trainer_core.offload.machine",
        "nodes.host.comfy_host",
    )
    machine = comfy_machine.ComfyMachine()
    facts = {
        "previews": comfy_machine.PREVIEWS,
        "device": device_facts(machine),
        "limits": limits(machine, base.Machine()),
        "held": held(machine, host_weights, streamed),
        "dynamic": dynamic(machine, comfy_host),
    }
    sys.stdout.write(f"FACTS {json.dumps(facts)}\n")


if __name__ == "__main__":
    main()
