"""Runs inside ComfyUI's interpreter: the run files of Train LoRA (Quick) and of its full graph.

REQUEST is a JSON list of answers. Prints a JSON list, for each of them the two run files as text,
the values that no node of the full graph says, and what was chosen; or the three parts of an error.
"""

import json
import runpy
import sys
from pathlib import Path

import folder_paths
from loaded_pack import part

# What the graph says in another way than by an input of this setting.
ELSEWHERE = {
    *("base.path", "base.adapters", "dataset.path", "preview.controls", "resume"),
    *("adapter.kind", "adapter.start_from", "output.dir"),
}


HEADERS = {
    "sd15": {
        "num_res_blocks": [2, 2, 2, 2], "channel_mult": [1, 2, 4, 4], "num_heads": 8,
        "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0], "transformer_depth_middle": 1,
        "transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0], "context_dim": 768,
    },
    "sdxl": {
        "num_res_blocks": [2, 2, 2], "channel_mult": [1, 2, 4], "num_head_channels": 64,
        "transformer_depth": [0, 0, 2, 2, 10, 10], "transformer_depth_middle": 10,
        "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10], "context_dim": 2048,
        "adm_in_channels": 2816, "num_classes": "sequential", "use_linear_in_transformer": True,
    },
}  # fmt: skip
"""UNets as published."""


def traits_of_header(name):
    """What the header of a checkpoint says, of which no weight is there."""
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    hollow = Path(__file__).parents[1] / "fixtures" / "hollow_files.py"
    write_hollow = runpy.run_path(str(hollow))["write_hollow"]
    unet = UNetModel(
        image_size=32, in_channels=4, out_channels=4, model_channels=320, device="meta",
        use_spatial_transformer=True, legacy=False, operations=comfy.ops.disable_weight_init,
        **HEADERS[name],
    )  # fmt: skip
    path = Path(folder_paths.get_input_directory(), f"{name}.safetensors")
    write_hollow(
        path, {f"model.diffusion_model.{k}": v.shape for k, v in unet.state_dict().items()}
    )
    return sorted(part("nodes.host.model_file_traits").traits_of_file(path))


def by_quick(parts):
    choices = part("nodes.services.socket_values")
    cache = choices.EncodedCache(Path("none"), parts.base, parts.dataset, parts.previews)
    given = (parts.base, cache, parts.adapter, parts.settings, parts.own, "output")
    return part("nodes.services.merged_run_config").training_config(*given, can_preview=True)


def by_graph(prompt, model=None):
    """As ComfyUI runs it, but for the nodes that encode and train."""
    choices = part("nodes.services.socket_values")
    classes = {
        node.define_schema().node_id: node
        for name, kind in (
            ("dataset_from_folder", "DatasetFolder"),
            ("load_base", "LoadBase"),
            ("base_from_model", "BaseFromModel"),
            ("preview_prompts", "PreviewPrompts"),
            ("adapter_settings", "AdapterSettings"),
            ("training_settings", "TrainingSettings"),
            ("train_adapter", "TrainAdapter"),
        )
        for node in [getattr(part(f"nodes.definitions.{name}"), kind)]
    }

    def output(node):
        kind, inputs = prompt[node]["class_type"], dict(prompt[node]["inputs"])
        nested = {name: inputs.pop(name) for name in list(inputs) if name.startswith("kind.")}
        if nested or kind == "AdapterTrainerAdapter":
            own = {name.partition(".")[2]: value for name, value in nested.items()}
            inputs["kind"] = {"kind": inputs["kind"], **own}
        if kind == "AdapterTrainerBaseFromModel":
            inputs["model"] = model
        (value,) = classes[kind].execute(**inputs).args
        return value

    train = prompt["7"]["inputs"]
    cached = {
        name: output(link[0]) for name, link in prompt["4"]["inputs"].items() if type(link) is list
    }
    cache = choices.EncodedCache(
        Path("none"), cached["base"], cached["dataset"], cached["previews"]
    )
    module = part("nodes.definitions.train_adapter")
    values = part("nodes.definitions.setting_inputs").section_values(module.RUN_SETTINGS, train)
    own = {**values, "resume": module._resume_setting(train["resume"], train["resume_from"])}
    given = (cached["base"], cache, output(train["adapter"][0]))
    given += (output(train["settings"][0]), own, "output")
    return part("nodes.services.merged_run_config").training_config(*given, can_preview=True)


def said(prompt):
    """The settings that an input of the full graph says."""
    inputs = part("nodes.definitions.full_graph")
    found = set()
    for node in (inputs.DatasetFolder, inputs.LoadBase, inputs.PreviewPrompts):
        found |= {each.path for each in node.SETTINGS}
    for node in (inputs.CacheEmbeddings, inputs.TrainingSettings, inputs.TrainAdapter):
        found |= {each.path for each in node.SETTINGS}
    kind = prompt["5"]["inputs"]["kind"]
    adapter = part("nodes.definitions.adapter_settings")
    return found | {each.path for each in (*adapter.SHARED, *adapter.settings_of(kind))}


def other_value(field):
    """A value of a setting that is not its default, or None where none is known."""
    inputs = part("nodes.definitions.setting_inputs")
    section = part("trainer_core.config.section")
    default = field.get_default(call_default_factory=True)
    kind, _ = inputs._kind(field.annotation)
    low, high = inputs._bound(field, "ge", "gt"), inputs._bound(field, "le", "lt")
    if kind == "choice":
        return next(each for each in section.choices_of(field) if each != default)
    if kind in {"int", "float"}:
        return next(each for each in (low, high, 7) if each and each != default)
    known = {"flag": not default, "text": "a.b", "lines": ["a b", "c"], "numbers": [256, 512]}
    return known.get(kind)


def lost_settings():
    """Settings of the dataset's nodes that an input does not give back as they were."""
    full = part("nodes.definitions.full_graph")
    images = part("nodes.definitions.dataset_from_images").DatasetImages
    section_values = part("nodes.definitions.setting_inputs").section_values
    lost = []
    for node in (full.DatasetFolder, images, full.CacheEmbeddings):
        for each in node.SETTINGS:
            for value in (
                other_value(each.field),
                each.field.get_default(call_default_factory=True),
            ):
                found = section_values([each], {each.id: each.written(value)})
                for name in each.path.split("."):
                    found = found[name]
                if found != value:
                    lost.append([each.path, value, found])
    return lost


def answer(given):
    quick = part("nodes.services.quick.plan")
    dump = part("trainer_core.config.read_run_file").dump_config
    model, connected = None, dict.fromkeys(given.pop("connected", ()), True)
    if name := given.pop("model", ""):
        from tiny_models.denoisers import tiny_model

        model = tiny_model(name)
    try:
        plan = quick.plan_run(quick.answers_of(given), model)
        parts = quick.as_node_values(plan, quick.Connected(model, **connected))
    except part("trainer_core.errors").TrainerError as error:
        return {"error": [error.found, error.expected, error.remedy]}
    prompt = part("nodes.definitions.full_graph").full_graph(plan)
    return {
        "quick": dump(by_quick(parts)),
        "graph": dump(by_graph(prompt, model)),
        "silent": sorted(set(plan.values) - said(prompt) - ELSEWHERE),
        "choices": list(plan.choices),
    }


def main():
    (request,) = sys.argv[1:]
    folder_paths.set_input_directory(str(Path(request).with_name("input")))
    folder_paths.add_model_folder_path("loras", str(Path(request).with_name("loras")))
    answers = [answer(given) for given in json.loads(Path(request).read_text())]
    answers.append(lost_settings())
    answers.append({name: traits_of_header(name) for name in HEADERS})
    Path(request).with_suffix(".answers").write_text(json.dumps(answers))


main()
