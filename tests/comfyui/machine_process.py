"""Runs inside ComfyUI's interpreter: what a run is told of the computer, beside what ComfyUI says.

Prints a line of JSON.

What is free is given in the place of the computer's own memory, which other programs share. A
computer without a GPU pins nothing, so the limit is given to ComfyUI's variables as it sets them
for NVIDIA, and in place of CUDA's driver something says that it has pinned.
"""

import importlib
import json
import sys
import types

import comfy.memory_management
import comfy.model_management as management
import comfy.model_patcher
import comfy_aimdo.control
import comfy_aimdo.host_buffer
import psutil
import torch
from loaded_pack import part
from torch import nn

CPU = torch.device("cpu")
MOST, BEFORE, OURS = 10_000_000_000.0, 3_000_000_000, 2_000_000_000
MEMORY = types.SimpleNamespace(total=64 << 30, available=48 << 30)


def device_facts(machine):
    """ComfyUI's reserve and free memory, and our numbers beside them."""
    found = []
    usual = management.EXTRA_RESERVED_VRAM
    # The others as --reserve-vram sets them: 5 GiB, and more than there is.
    for reserve in (usual, 5.0 * (1 << 30), float(1 << 45)):
        management.EXTRA_RESERVED_VRAM = reserve
        ours = machine.free_memory(CPU), machine.missing_memory(CPU)
        theirs = management.extra_reserved_memory(), management.get_free_memory(CPU)
        found.append([*theirs, *ours])
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
    transfer = part("trainer_core.offload.transfer").make_transfer(CPU)
    errors = part("trainer_core.errors")

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
    with comfy_host.cleared_device() as device:
        cleared = [str(device), listed, len(management.current_loaded_models)]
        free = machine.free_memory(device)
        theirs = management.extra_reserved_memory(), management.get_free_memory(device)
    numbers = [*theirs, free, 0]
    return {"asked": asked, "cleared": cleared, "numbers": numbers}


def main():
    comfy_machine, comfy_host = part("nodes.host.comfy_machine"), part("nodes.host.comfy_host")
    offload = [part(f"trainer_core.offload.{each}") for each in ("host_weights", "streamed_blocks")]
    psutil.virtual_memory = lambda: MEMORY
    machine = comfy_machine.ComfyMachine()
    facts = {
        "previews": comfy_machine.PREVIEWS,
        "device": device_facts(machine),
        "limits": limits(machine, part("trainer_core.offload.machine").Machine()),
        "held": held(machine, *offload),
        "dynamic": dynamic(machine, comfy_host),
    }
    sys.stdout.write(f"FACTS {json.dumps(facts)}\n")


main()
