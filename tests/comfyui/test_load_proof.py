"""The load proof says of every name and every form of a layer what ComfyUI itself does with it."""

import pytest
import torch
from comfyui.readings import relative
from comfyui.selection import selected
from fixtures.combinations import some
from fixtures.host_cases import FORMS, make_tensors
from fixtures.peer_files import PEERS
from safetensors.torch import load_file, save_file

from trainer_core.adapter_files.names.key_map import ComfyuiPlace, comfyui_table
from trainer_core.adapter_files.verify.comfyui_loader_rules import (
    comfyui_scale,
    find_fault,
    plan_reading,
)
from trainer_core.adapters.kernels.convolution import as_matrices
from trainer_core.adapters.kinds.registry import KINDS
from trainer_core.bases.base_weights import published_shapes
from trainer_core.families.registry import FAMILIES

pytestmark = pytest.mark.comfy

PREFIX = "diffusion_model."
TABLE = {name: ComfyuiPlace("layer.weight") for name in ("diffusion_model.layer", "other.layer")}
COUNTS = {
    "qwen_image": (6281, 1933),
    "flux": (4520, 780),
    "flux2": (3314, 299),
    "flux2 FLUX.2 klein 4B": (1602, 149),
    "flux2 FLUX.2 klein 9B": (2134, 201),
    "krea2": (1878, 430),
    "z_image": (2524, 453),
    "chroma": (4317, 643),
}


@pytest.fixture(scope="module")
def shapes(request):
    """Of the families that a test of this run looks at, and of those of other trainers' files."""
    wanted = {"flux", *(peer.family for peer in PEERS.values())}
    wanted |= {name for (name,) in selected(request, "family")}
    named = ((name, name.partition(" ")) for name in COUNTS if name in wanted)
    return {name: published_shapes(FAMILIES[family], base) for name, (family, _, base) in named}


@pytest.fixture(scope="module")
def host(comfy_host, tmp_path_factory, shapes):
    """Both tables at full size and what every form becomes, from ComfyUI."""
    folder = tmp_path_factory.mktemp("proof")
    cases = []
    for number, form in enumerate(FORMS):
        path = folder / f"{number}.safetensors"
        save_file(make_tensors(form), path)
        cases.append((str(path), FORMS[form][0]))
    both = {**make_tensors("lora"), **make_tensors("lokr", "other.layer")}
    save_file(both, folder / "twice.safetensors")
    cases.append((str(folder / "twice.safetensors"), FORMS["lora"][0]))
    files = []
    for number, peer in enumerate(PEERS.values()):
        path = folder / f"peer_{number}.safetensors"
        save_file(peer.tensors, path)
        files.append((peer.family, str(path)))
    jobs = {"bases": shapes, "cases": cases, "files": files}
    found = comfy_host.results("proof_process.py", folder, jobs=jobs)
    found["files"] = dict(zip(PEERS, found["files"], strict=True))
    weights = load_file(folder / "results.safetensors")
    found["cases"] = {
        form: {**facts, "before": weights[f"{number}/before"], "after": weights[f"{number}/after"]}
        for number, (form, facts) in enumerate(zip((*FORMS, "twice"), found["cases"], strict=True))
    }
    return found


def own_table(family, shapes):
    return {
        name: [
            PREFIX + place.tensor,
            None if place.rows is None else [0, *place.rows],
            place.swapped,
        ]
        for name, place in comfyui_table(FAMILIES[family.split()[0]].layers.key_map, shapes).items()
    }


def by_place(table):
    """Each place's names in order: of two for one place ComfyUI takes the later."""
    found = {}
    for name, place in table:
        found.setdefault(str(place), []).append(name)
    return found


@pytest.mark.parametrize("family", some(COUNTS, "flux", "qwen_image"))
def test_the_table_of_names_is_comfyuis_own_at_full_size(family, host, shapes):
    theirs = host["bases"][family]["table"]
    ours = own_table(family, shapes[family])
    assert ours == dict(theirs)
    assert by_place(ours.items()) == by_place(theirs)
    assert (len(ours), len(shapes[family])) == COUNTS[family]
    published = {
        name.removeprefix(PREFIX): tuple(shape)
        for name, shape in host["bases"][family]["tensors"].items()
        if name.startswith(PREFIX)
    }
    assert shapes[family] == published


def make_reading(tensors, shape):
    """Patches, keys that are ignored, and faults, as the proof finds them."""
    plan = plan_reading(tensors, TABLE)
    sizes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    return plan, [(patch, find_fault(patch, sizes, shape)) for patch in plan.patches]


def change_of_glora(given, weight):
    """``W A + B`` times alpha / rank; files of before have the factors in the other order."""
    a1, a2, b1, b2 = (given[f"{name}.weight"] for name in ("a1", "a2", "b1", "b2"))
    if a1.shape[0] != weight.shape[1]:
        a1, a2, b1, b2 = a2, a1, b2, b1
    rank = a1.shape[1]
    return (weight @ a1 @ a2 + b1 @ b2) * float(given.get("alpha", torch.tensor(rank))) / rank


def turned(blocks, weight):
    """BOFT without a constraint: Cayley's rotations of rows that are further apart each turn."""
    size = blocks.shape[-1]
    for turn, each in enumerate(blocks):
        skew = each - each.mT
        eye = torch.eye(size, dtype=each.dtype)
        rotations = torch.block_diag(*((eye + skew) @ (eye - skew).inverse()))
        places = torch.arange(len(weight)).view(-1, 2, 2**turn * size // 2).mT.flatten()
        weight = weight.index_copy(0, places, rotations @ weight[places])
    return weight


def change_by_our_rules(patch, tensors, before):
    """What ComfyUI adds, where the proof finds no fault: textbook, dense."""
    given = {slot: tensors[key].double() for slot, key in patch.keys.items()}
    if patch.kind == "diff":
        return given["diff"]
    if patch.kind == "set":
        return given["diff"] - before
    if patch.kind == "glora":
        return change_of_glora(given, before)
    if "oft_blocks" in given and given["oft_blocks"].dim() == 4:
        return turned(given["oft_blocks"], before) - before
    alpha = given.pop("alpha", None)
    sizes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    scale = comfyui_scale(patch, sizes, None if alpha is None else float(alpha))
    lengths = given.pop("dora_scale", None)
    if {"lokr_w1", "lokr_w2"} <= set(given):
        given = {name: given[name] for name in ("lokr_w1", "lokr_w2")}
    delta = KINDS[patch.kind].delta(as_matrices(given), scale).reshape(before.shape)
    if lengths is None:
        return delta
    total = before + delta
    axes = [axis for axis in range(total.dim()) if axis != 1]
    return lengths * total / total.square().sum(dim=axes, keepdim=True).sqrt() - before


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_layer_is_read_as_the_proof_says(form, host):
    """Loaded is computed by our rules; what is not is ignored, refused, or something else."""
    shape, tensors = FORMS[form][0], make_tensors(form)
    facts = host["cases"][form]
    before, change = facts["before"].double(), (facts["after"] - facts["before"]).double()
    plan, patches = make_reading(tensors, shape)
    assert {*plan.ignored, *(key for patch in plan.patches for key in patch.keys.values())} == set(
        tensors
    )
    assert len(patches) <= 1
    fault = patches[0][1] if patches else None
    said = " ".join(facts["messages"])
    named = {key for key in tensors if f"lora key not loaded: {key}" in said}
    # What replaces something in the same layer, or has nothing beside it, ComfyUI does not name.
    unnamed = {key for key, why in plan.ignored.items() if "instead" in why or "beside" in why}
    if not facts["stopped"]:
        assert named <= set(plan.ignored) <= named | unnamed
    if not patches:
        assert not change.any()
    elif fault is None:
        expected = change_by_our_rules(patches[0][0], tensors, before)
        assert expected.norm() > 0.1 or form == "lora, alpha 0"
        assert (change - expected).norm() < 1e-5 * max(float(expected.norm()), 1.0)
        assert not facts["stopped"]
        assert "ERROR" not in said
        assert "MISMATCH" not in said
    elif "stops" in fault.reason:
        assert facts["stopped"]
    elif "leaves" in fault.reason:
        assert ("ERROR" in said) or ("MISMATCH" in said)
        assert not change.any()
    else:
        assert "ERROR" not in said
        assert change.any()
    assert bool(facts["stopped"]) == (fault is not None and "stops" in fault.reason)


@pytest.mark.parametrize("name", PEERS)
def test_of_each_trainers_file_the_proof_ignores_what_comfyui_does_not_load(name, host, shapes):
    peer = PEERS[name]
    table = comfyui_table(FAMILIES[peer.family].layers.key_map, shapes[peer.family])
    plan = plan_reading(peer.tensors, table)
    said = host["files"][name]
    assert all(text.startswith("lora key not loaded: ") for text in said)
    assert set(plan.ignored) == {text.removeprefix("lora key not loaded: ") for text in said}


def test_what_comfyui_reads_otherwise_is_really_another_change(host):
    """Else the proof would refuse what is right."""
    for form in ("dora, rows", "dora, rows of a square", "dora, columns of one row"):
        shape, tensors = FORMS[form][0], make_tensors(form)
        ((patch, fault),) = make_reading(tensors, shape)[1]
        facts = host["cases"][form]
        before = facts["before"].double()
        assert fault is not None
        given = {slot: tensors[key].double() for slot, key in patch.keys.items()}
        scale = float(given.get("alpha", torch.tensor(2.0))) / 2
        total = before + scale * given["lora_up"] @ given["lora_down"]
        axis = 1 if given["dora_scale"].shape[0] == shape[0] != 1 else 0
        ours = given["dora_scale"] * total / total.norm(dim=axis, keepdim=True)
        assert relative(facts["after"], ours) > 0.01
        assert given["dora_scale"].numel() in shape


def test_of_two_names_for_a_layer_the_later_is_taken(host):
    tensors = {**make_tensors("lora"), **make_tensors("lokr", "other.layer")}
    plan, patches = make_reading(tensors, FORMS["lora"][0])
    ((patch, fault),) = patches
    facts = host["cases"]["twice"]
    assert (patch.name, fault) == ("other.layer", None)
    assert set(plan.ignored) == set(make_tensors("lora"))
    change = facts["after"] - facts["before"]
    expected = change_by_our_rules(patch, tensors, facts["before"].double())
    assert relative(change, expected) < 1e-5
