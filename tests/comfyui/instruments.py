"""A node pack for tests alone: measures the server's process and disturbs a training in it.

The tests copy this file into ``custom_nodes``; ComfyUI's interpreter runs it.
"""

import gc
import os
import random
import sys
import threading
from collections import Counter
from pathlib import Path

import comfy.cli_args
import comfy.model_management as management
import comfy.model_patcher
import numpy
import torch
from aiohttp import web
from comfy_api.latest import ComfyExtension, io
from server import PromptServer
from torch.nn.modules import module as torch_module

import nodes


def end_with_the_tests() -> None:
    """End this server when nobody holds the other end of its input: a killed pytest, too."""
    sys.stdin.buffer.read()
    os._exit(1)


threading.Thread(target=end_with_the_tests, daemon=True).start()


class Disturbance:
    """Does something at the n-th call of modules of one class, once.

    ``hold`` waits there until it is released, ``memory`` raises the device's error, ``poison``
    makes a weight of the module infinite, ``worse`` turns its sign around. ``count`` disturbs
    nothing and counts the calls of all.
    """

    def __init__(self) -> None:
        self.handle = None
        self.released = threading.Event()
        self.clear()

    def clear(self) -> None:
        if self.handle is not None:
            self.handle.remove()
        self.handle, self.calls, self.holding, self.fired = None, 0, False, False
        self.counts = Counter()
        self.released.set()

    def arm(self, what: str, where: str, at: int) -> None:
        self.clear()
        self.what, self.where, self.at = what, where, at
        self.released.clear()
        self.handle = torch_module.register_module_forward_pre_hook(self.before)

    def before(self, module, inputs) -> None:
        if self.what == "count":
            self.counts[type(module).__name__] += 1
            return
        if type(module).__name__ != self.where:
            return
        self.calls += 1
        if self.fired or self.calls < self.at:
            return
        self.fired = True
        if self.what == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 12.00 GiB")
        if self.what in {"poison", "worse"}:
            next(module.parameters()).data.mul_(float("inf") if self.what == "poison" else -1)
            return
        self.holding = True
        self.released.wait(60)
        self.holding = False


DISTURBANCE = Disturbance()
STATES = []


def tensors() -> list[torch.Tensor]:
    gc.collect()
    return [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)]


def census() -> dict:
    """Live tensors: how many, and the bytes of their memory, each counted once."""
    found = tensors()
    storages = {}
    for tensor in found:
        if tensor.device.type != "meta":
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return {"count": len(found), "bytes": sum(storages.values())}


def owners() -> list[str]:
    """The largest tensors and what refers to them, for whoever looks for a leak."""
    largest = sorted(tensors(), key=lambda each: each.numel(), reverse=True)[:10]
    return [
        f"{tuple(each.shape)} <- " + ", ".join(type(r).__name__ for r in gc.get_referrers(each)[:6])
        for each in largest
    ]


def globals_now() -> dict:
    """What a guest must leave as it was, seen from the thread that runs prompts."""
    hooks = [name for name in vars(torch_module) if name.startswith("_global_")]
    return {
        "threads": torch.get_num_threads(),
        "default dtype": str(torch.get_default_dtype()),
        "inference mode": torch.is_inference_mode_enabled(),
        "gradients": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": [torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic],
        "matmul": torch.get_float32_matmul_precision(),
        "random state": hash(torch.get_rng_state().numpy().tobytes()),
        "python's random state": hash(random.getstate()),
        "numpy's random state": hash(numpy.random.get_state()[1].tobytes()),
        "hooks": {
            name: len(value)
            for name in hooks
            if hasattr(value := getattr(torch_module, name), "__len__")
        },
        "folder": str(Path.cwd()),
        "path": sys.path,
        "environment": hash(tuple(sorted(os.environ.items()))),
        "threads of python": sorted(
            each.name for each in threading.enumerate() if "asyncio" not in each.name
        ),
    }


class NoteState(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="InstrumentsNoteState",
            category="tests",
            inputs=[io.Int.Input("number"), io.AnyType.Input("after", optional=True)],
            outputs=[],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, number, after=None):
        STATES.append(globals_now())
        return io.NodeOutput()


class Instruments(ComfyExtension):
    async def get_node_list(self):
        return [NoteState]


async def comfy_entrypoint():
    return Instruments()


routes = PromptServer.instance.routes


@routes.get("/instruments/settled")
async def get_settled(request):
    queue = PromptServer.instance.prompt_queue
    return web.json_response(not queue.flags and queue.get_tasks_remaining() == 0)


@routes.get("/instruments/census")
async def get_census(request):
    return web.json_response(census())


@routes.get("/instruments/owners")
async def get_owners(request):
    return web.json_response(owners())


@routes.get("/instruments/states")
async def get_states(request):
    return web.json_response(STATES)


@routes.get("/instruments/now")
async def get_now(request):
    return web.json_response(globals_now())


@routes.get("/instruments/flags")
async def get_flags(request):
    """What was asked with POST /free and is not done yet."""
    return web.json_response(PromptServer.instance.prompt_queue.flags)


@routes.get("/instruments/disturbance")
async def get_disturbance(request):
    state = {name: getattr(DISTURBANCE, name) for name in ("calls", "holding", "counts")}
    return web.json_response(state)


@routes.get("/instruments/settings")
async def get_settings(request):
    """Of each of the pack's nodes: its inputs that stand for a setting of the run file."""
    found = {
        name: {each.id: each.path for each in getattr(node, "SETTINGS", ())}
        for name, node in nodes.NODE_CLASS_MAPPINGS.items()
        if name.startswith("AdapterTrainer")
    }
    return web.json_response(found)


@routes.get("/instruments/pinned")
async def get_pinned(request):
    return web.json_response([management.TOTAL_PINNED_MEMORY, management.MAX_PINNED_MEMORY])


@routes.post("/instruments/forget_panel")
async def forget_panel(request):
    """What a restart does to the panel, without the time of one."""
    panel = next(
        sys.modules[name] for name in sys.modules if name.endswith("services.panel.run_states")
    )
    panel.PANEL.__init__()
    return web.json_response({})


@routes.post("/instruments/settle")
async def settle(request):
    """Leave what is there by now out of the rounds of the garbage collector, which end each run."""
    gc.collect()
    gc.freeze()
    return web.json_response({})


@routes.post("/instruments/metadata")
async def metadata(request):
    """What --disable-metadata sets."""
    asked = await request.json()
    comfy.cli_args.args.disable_metadata = not asked["kept"]
    return web.json_response({})


@routes.post("/instruments/disturb")
async def disturb(request):
    asked = await request.json()
    if asked["what"] == "nothing":
        DISTURBANCE.clear()
    elif asked["what"] == "release":
        DISTURBANCE.released.set()
    else:
        DISTURBANCE.arm(asked["what"], asked["where"], asked["at"])
    return web.json_response({})
