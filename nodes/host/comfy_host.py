"""All that the pack asks of ComfyUI: folders, device, memory, progress, interrupts, messages.

The only file that imports ComfyUI's own modules (the schema classes of its node API apart).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import importlib
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import comfy.cli_args
import comfy.model_management as management
import comfy.utils
import folder_paths
from comfy_execution.graph_utils import ExecutionBlocker
from comfy_execution.utils import get_executing_context
from server import PromptServer

from ...trainer_core.errors import InputError, RunError
from ...trainer_core.training.checkpoints.run_names import RECORD
from .folders import ADD_ROOT, folders_below, resolve_below, saved_checkpoints
from .served_files import ServedFile, file_response

if TYPE_CHECKING:
    import torch
    from aiohttp import web

    from ...trainer_core.filesystem.allowed_folders import AllowedFolders

logger = logging.getLogger(__name__)

EMBEDDED = "embedded"
NEWEST = "newest"
_ASSETS = Path(__file__).parents[2] / "trainer_core" / "assets"
_DEMO_SETS = ("demo-generate", "demo-edit", "demo-own")
_RUN_DEPTH = 2
_BASE_FOLDERS = ("diffusion_models", "checkpoints", "diffusers")
_PINNED, _MOST_PINNED = "TOTAL_PINNED_MEMORY", "MAX_PINNED_MEMORY"
Interrupted = management.InterruptProcessingException
# Models that were unloaded before a work of ours. With --highvram "unloaded" leaves them where they
# are, as long as the graph holds them, and ComfyUI itself no longer lists them.
_unloaded: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def output_folder() -> Path:
    """Where runs are kept: ``<output>/adapter_trainer``."""
    return Path(folder_paths.get_output_directory()) / "adapter_trainer"


def cache_folder() -> Path:
    """Where encoded samples are kept: the run file's default in `output_folder`."""
    return output_folder() / "cache"


def data_roots() -> dict[str, list[Path]]:
    """The folders that datasets may lie in, by the name that a graph uses."""
    return {
        "demo": [_ASSETS],
        "datasets": _registered("datasets"),
        "input": [Path(folder_paths.get_input_directory())],
        "output": [Path(folder_paths.get_output_directory())],
    }


def allowed_folders() -> AllowedFolders:
    """What everything that a graph names really has to lie in; the folders of models are apart."""
    from ...trainer_core.filesystem.allowed_folders import AllowedFolders

    roots = [root for places in data_roots().values() for root in places]
    # Some move these two to another disk, and leave a link.
    return AllowedFolders([*roots, output_folder(), cache_folder()], ADD_ROOT)


def dataset_names() -> list[str]:
    """Dataset folders for a combo box; the bundled ones come first."""
    roots = data_roots()
    del roots["demo"]
    # Runs, caches and the images of Dataset From Images are ours, and no datasets to choose.
    found = folders_below(roots, skipped=output_folder())
    return [f"demo/{name}" for name in _DEMO_SETS] + found


_NO_FOLDER = (
    "Drop your images on the node, or choose a folder from its list (key R refreshes it). Other "
    "places: 'datasets' in extra_model_paths.yaml."
)


def dataset_path(name: str) -> Path:
    """The folder behind a name of `dataset_names`; `InputError` for one that is not allowed."""
    path = resolve_below(name, data_roots(), "folder", remedy=_NO_FOLDER)
    if not path.is_dir():
        raise InputError(
            f"folder: {name} is a file",
            "a folder with images and captions",
            "Choose the folder that it lies in.",
        )
    return path


def base_names() -> list[str]:
    """Base models for a combo box; the embedded one comes first."""
    names = [EMBEDDED]
    for kind in _BASE_FOLDERS:
        names += [f"{kind}/{name}".replace("\\", "/") for name in _files(kind)]
    return names


def base_path(name: str) -> str:
    """What the run file says for a name of `base_names`; `InputError` for no such base."""
    if name == EMBEDDED:
        return EMBEDDED
    roots = {kind: _registered(kind) for kind in _BASE_FOLDERS}
    return str(resolve_below(name, roots, "source", links=True))


def lora_names() -> list[str]:
    """Adapter files for a combo box."""
    return [name.replace("\\", "/") for name in folder_paths.get_filename_list("loras")]


def lora_path(name: str) -> Path:
    """The adapter file behind a name of `lora_names`; `InputError` where there is none."""
    roots = {"loras": _registered("loras")}
    remedy = "Choose from the list after a refresh (key R), or move the file to the loras folder."
    return resolve_below(f"loras/{name}", roots, "file", links=True, remedy=remedy)


def loras_folder() -> Path:
    """The folder that Load LoRA lists and new adapters go to."""
    return _registered("loras")[0]


def run_names() -> list[str]:
    """Runs on disk for a combo box, the newest first."""
    records = [path for path in output_folder().glob(f"*/v*/{RECORD}") if path.is_file()]
    records.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    return [f"{path.parent.parent.name}/{path.parent.name}" for path in records]


def run_path(name: str, what: str = "run") -> Path:
    """The version folder behind a name of `run_names`; `what` is the input that names it.

    Raises:
        InputError: When there is no such run, or something in it is a link that leads out.
    """
    from ...trainer_core.filesystem.allowed_folders import AllowedFolders

    remedy = "Choose a run from the list after a refresh (key R); Train Adapter makes them."
    roots = {"runs": [output_folder()]}
    folder = resolve_below(f"runs/{name}/{RECORD}", roots, what, remedy=remedy).parent
    # Its adapters, losses and images are read as well.
    AllowedFolders([output_folder()]).require_all(folder, "run")
    return folder


def checkpoint_names() -> list[str]:
    """Checkpoints of the runs on disk for a combo box: ``<run>/<version>/<step>``."""
    return [
        f"{name}/{folder.name}"
        for name in run_names()
        for folder in reversed(saved_checkpoints(output_folder() / name))
    ]


def checkpoint_path(name: str) -> Path:
    """The folder behind a name of `checkpoint_names`, which may come from anybody.

    Without the step a name means the run's newest checkpoint.

    Raises:
        InputError: When there is no such checkpoint, or a link leads out of the runs' folder.
    """
    run, step = (name, "") if name.count("/") < _RUN_DEPTH else tuple(name.rsplit("/", 1))
    saved = saved_checkpoints(run_path(run, "resume_from"))
    found = [folder for folder in saved if not step or folder.name == step]
    if not found:
        raise InputError(
            f"resume_from: {name}",
            "a run with a checkpoint of that step",
            "Choose from the list after a refresh (key R).",
        )
    return found[-1]


def queued_graph(prompt: object, extra: object) -> dict[str, object]:
    """What ComfyUI says of the graph that runs, and what may be kept: JSON values by name.

    They are made of the hidden inputs ``prompt`` and ``extra_pnginfo``, the second None without a
    browser. Nothing is kept under ``--disable-metadata``.
    """
    if comfy.cli_args.args.disable_metadata:
        return {}
    found: dict[str, object] = {}
    if isinstance(extra, Mapping) and extra.get("workflow"):
        found["workflow"] = extra["workflow"]
    if isinstance(prompt, Mapping) and prompt:
        found["prompt"] = {name: _as_queued(node) for name, node in prompt.items()}
    return found


def _as_queued(node: object) -> object:
    # ComfyUI notes there whether a node has changed: stamps of files, or a number that JSON lacks.
    if not isinstance(node, Mapping):
        return node
    return {name: value for name, value in node.items() if name != "is_changed"}


def blocked() -> ExecutionBlocker:
    """An output that has nothing: the nodes behind it do not run, and nothing is an error."""
    return ExecutionBlocker(None)


def require_libraries() -> None:
    """Refuse to work without the libraries that training needs, and say how to install them."""
    from ...trainer_core import requirements

    requirements.require_libraries()


def _files(kind: str) -> list[str]:
    roots = [root for root in _registered(kind) if root.is_dir()]
    if kind == "diffusers":
        return sorted({path.parent.name for r in roots for path in r.glob("*/model_index.json")})
    names = folder_paths.get_filename_list(kind)
    found = [name for name in names if name.lower().endswith((".safetensors", ".sft"))]
    if kind == "diffusion_models":
        # ComfyUI itself reads no GGUF and does not list it.
        every = (name for r in roots for name in folder_paths.recursive_search(str(r), [".git"])[0])
        found = sorted({*found, *(name for name in every if name.lower().endswith(".gguf"))})
    return found


def _registered(kind: str) -> list[Path]:
    return [Path(path) for path in folder_paths.get_folder_paths(kind)]


def device() -> torch.device:
    """The device that ComfyUI computes on."""
    return management.get_torch_device()


@contextlib.contextmanager
def cleared_device() -> Iterator[torch.device]:
    """Take the device for a while: other models are unloaded before, memory is given back after."""
    unload_models()
    try:
        yield device()
    finally:
        management.soft_empty_cache()


def unload_models() -> None:
    """Take every model of ComfyUI off the device; it loads them again when it needs them."""
    _unloaded.update(
        loaded.model.model for loaded in management.current_loaded_models if loaded.model
    )
    management.unload_all_models()
    management.cleanup_models()
    management.soft_empty_cache()


def free_memory(on: torch.device | None = None) -> int:
    """Free bytes of a device, what torch has at hand included; unset: of ComfyUI's device."""
    return int(management.get_free_memory(on or device()))


def total_vram() -> int | None:
    """Bytes of the memory of ComfyUI's device; None where that is the CPU."""
    on = device()
    return None if on.type in {"cpu", "mps"} else int(management.get_total_memory(on))


def rated_speed() -> float | None:
    """FLOPs a second of ComfyUI's device, as it is sold; None where that is not known."""
    from ...trainer_core import device as known

    return known.rated_speed(device())


def unclaimed_memory(on: torch.device) -> int:
    """Free bytes of a device that torch does not have at hand either."""
    free, at_hand = management.get_free_memory(on, torch_free_too=True)
    # Where torch keeps nothing ready, ComfyUI says the same number twice.
    return int(free if on.type in {"cpu", "mps", "privateuseone"} else free - at_hand)


def reserved_memory() -> int:
    """Bytes of a device that ComfyUI leaves to others, or as many as ``--reserve-vram`` says."""
    return int(management.extra_reserved_memory())


def pinned_left() -> int | None:
    """Bytes of RAM that ComfyUI would pin yet; None for a ComfyUI that does not count them."""
    most, now = (getattr(management, name, None) for name in (_MOST_PINNED, _PINNED))
    # Without pinning, as with --cpu and --disable-pinned-memory, the most is -1.
    return None if most is None or now is None else max(0, int(most) - int(now))


def count_pinned(change: int) -> None:
    """Have ComfyUI count so many more pinned bytes as if they were its own."""
    if pinned_left() is not None:
        setattr(management, _PINNED, getattr(management, _PINNED) + change)


def kept_models() -> dict[str, int]:
    """Bytes of the models that stay on the device although they were unloaded, by their class.

    Only under ``--highvram`` and ``--gpu-only``: otherwise models go to the CPU's memory.
    """
    if management.vram_state != management.VRAMState.HIGH_VRAM:
        return {}
    gc.collect()
    kind, found = device().type, dict[str, int]()
    for model in _unloaded:
        weights = (*model.parameters(), *model.buffers())
        size = sum(each.nbytes for each in weights if each.device.type == kind)
        if size:
            name = type(model).__name__
            found[name] = found.get(name, 0) + size
    return found


def out_of_memory(error: BaseException, room: str, remedy: str) -> RunError | None:
    """Explain an error of the device's memory; None for any other error."""
    if not isinstance(error, Exception) or not management.is_oom(error):
        return None
    text = str(error).strip().splitlines()
    return RunError(
        f"the device's memory is full ({text[0] if text else type(error).__name__})",
        f"room for {room}; {free_memory() / 2**30:.1f} GiB are free now",
        remedy,
    )


class ProgressBar:
    """ComfyUI's progress bar of one node, of so many steps."""

    def __init__(self, node_id: str, total: int) -> None:
        self._bar = comfy.utils.ProgressBar(total, node_id=node_id)
        self._total = total

    def show(self, done: int) -> bool:
        """Show how far the work is; true where the user has cancelled.

        ComfyUI asks at each update, and forgets the answer.
        """
        try:
            self._bar.update_absolute(done, self._total)
        except Interrupted:
            return True
        return False


def interrupted() -> bool:
    """Whether the user has cancelled the prompt; asking does not forget it."""
    return management.processing_interrupted()


def raise_interrupted() -> None:
    """End the prompt as ComfyUI's own nodes do it after a cancel."""
    management.interrupt_current_processing(False)
    raise Interrupted


def adapter_modules() -> tuple[Any, Any, Any, Any]:
    """ComfyUI's ``lora``, ``lora_convert``, ``weight_adapter`` and ``model_management``."""
    import comfy.lora
    import comfy.lora_convert
    import comfy.weight_adapter

    return comfy.lora, comfy.lora_convert, comfy.weight_adapter, management


def comfyui_class(path: str) -> Any:
    """A class or function of ComfyUI's by module and name."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def comfyui_module(name: str) -> Any:
    """One of ComfyUI's own modules, such as ``comfy.samplers``."""
    return importlib.import_module(name)


def patcher_modules() -> tuple[Any, Any]:
    """ComfyUI's ``model_patcher`` and ``model_management``."""
    import comfy.model_patcher

    return comfy.model_patcher, management


def show_text(node_id: str, text: str) -> None:
    """Write a line under a node."""
    PromptServer.instance.send_progress_text(text, node_id)


def send(event: str, payload: dict[str, Any], client: str | None = None) -> None:
    """Send an event to a browser, unset: the one that started the prompt; if any, it hears it."""
    client = client or PromptServer.instance.client_id
    if client is not None:
        PromptServer.instance.send_sync(event, payload, client)


def send_to_all(event: str, payload: dict[str, Any]) -> None:
    """Send an event to every browser."""
    PromptServer.instance.send_sync(event, payload)


def current_prompt() -> str:
    """The id of the prompt that runs."""
    context = get_executing_context()
    return "" if context is None else str(context.prompt_id)


def current_node() -> str:
    """The id of the node that runs, or that ComfyUI checks before a prompt is queued."""
    context = get_executing_context()
    return "" if context is None else str(context.node_id)


def running() -> dict[str, Any]:
    """What was sent with the prompt that runs, under ``extra_data``."""
    found, _ = PromptServer.instance.prompt_queue.get_current_queue_volatile()
    return {"extra_data": found[0][3]} if found else {}


class QueuedPrompt(NamedTuple):
    """What ComfyUI's queue holds: its id, whether it runs, what was sent, and the nodes to run."""

    prompt_id: str
    runs: bool
    prompt: Mapping[str, Any]
    extra: Mapping[str, Any]
    outputs: Sequence[str]


def queued_prompts() -> list[QueuedPrompt]:
    """What runs and what waits, in that order."""
    running, waiting = PromptServer.instance.prompt_queue.get_current_queue_volatile()
    ordered = [*((each, True) for each in running), *((each, False) for each in sorted(waiting))]
    return [QueuedPrompt(str(each[1]), runs, *each[2:5]) for each, runs in ordered]


def is_busy() -> bool:
    """Whether a prompt runs or waits."""
    return PromptServer.instance.prompt_queue.get_tasks_remaining() > 0


def add_prompt_listener(listener: Callable[[Any], None]) -> None:
    """Have what a browser sends to be queued heard, as it was sent, before ComfyUI checks it."""

    def hear(request: Any) -> Any:
        listener(request)
        return request

    PromptServer.instance.add_on_prompt_handler(hear)


def own_folders() -> set[Path]:
    """The folders that names of a graph lead to."""
    kinds = ("loras", *_BASE_FOLDERS)
    roots = [*data_roots().values(), *map(_registered, kinds)]
    return {root for places in roots for root in places}


def output_place(path: Path) -> dict[str, str]:
    """How the browser asks ComfyUI for an image below the output folder."""
    relative = path.relative_to(folder_paths.get_output_directory())
    folder = "" if relative.parent == Path() else relative.parent.as_posix()
    return {"filename": relative.name, "subfolder": folder, "type": "output"}


_asked_from: contextvars.ContextVar[str] = contextvars.ContextVar("asked_from", default="")


def is_asked_from_here() -> bool:
    """Whether the request that a route answers comes from the server's own machine."""
    return _asked_from.get() in {"127.0.0.1", "::1"}


def add_route(
    method: str, path: str, answer: Callable[[Mapping[str, str], bytes], tuple[Any, int]]
) -> None:
    """Add a route, such as ``/adapter_trainer/state``, to ComfyUI's server.

    `answer` makes JSON values or a `ServedFile`, and the HTTP status, of the query and the body of
    a request. It is called in a thread, and may wait for the disk.
    """
    from aiohttp import web

    @PromptServer.instance.routes.route(method, path)
    async def handle(request: web.Request) -> web.Response:
        _asked_from.set(request.remote or "")
        content, status = await asyncio.to_thread(answer, request.query, await request.read())
        if isinstance(content, ServedFile):
            return file_response(content, status)
        return web.json_response(content, status=status)
