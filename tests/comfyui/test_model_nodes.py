"""Each node of ComfyUI that changes a MODEL: trained as KSampler samples it, or refused by name."""

import json

import pytest
from comfyui.selection import selected

pytestmark = pytest.mark.comfy

MODELS = ("sdxl", "flux", "z_image", "wan21")
UNETS = ("sdxl", "sd15")
LORA, MERGED = {"lora_name": "loras"}, {"out.": 0.5, "head.": 0.5, "final_layer.": 0.5}
TRAINED = [
    ("no node", {}, (*MODELS, "chroma", "anima", "qwen_image_edit_2511")),
    ("forwards", {}, (*MODELS, "chroma")),
    ("no node", {"precision": "fp16 cast"}, ("sdxl", "flux")),
    ("no node", {"precision": "fp8 cast"}, ("sdxl", "wan21")),
    ("by block", {}, ("sdxl", "flux")),
    ("by block", {"checkpointing": False}, ("sdxl", "flux")),
    ("weighted", {}, (*MODELS, "chroma", "qwen_image")),
    ("FreeU", {}, UNETS),
    ("FreeU_V2", {}, UNETS),
    ("HyperTile", {"tile_size": 32, "max_depth": 1}, ("sd15", "z_image")),
    ("TomePatchModel", {"ratio": 0.8}, ("sd15", "z_image")),
    ("PatchModelAddDownscale", {"end_percent": 1.0, "downscale_factor": 1.3}, UNETS),
    ("HypernetworkLoader", {"hypernetwork_name": "hypernetworks"}, UNETS),
    ("QwenImageDiffsynthControlnet", {"model_patch": "CONTROL", "image": "IMAGE"}, ("qwen_image",)),
    ("LoraLoader", LORA, ("sdxl", "flux")),
    ("LoraLoaderModelOnly", LORA, MODELS),
    ("LoraModelLoader", {"lora": "LORA"}, ("sdxl", "wan21")),
    ("ModelAttentionBackend", {}, MODELS),
    ("ModelComputeDtype", {"dtype": "bf16"}, MODELS),
    ("ModelMergeSimple", {"ratio": 0.5}, MODELS),
    ("ModelMergeAdd", {}, ("flux", "wan21")),
    ("ModelMergeSubtract", {"multiplier": 0.5}, ("sdxl", "wan21")),
    ("ModelMergeBlocks", {"input": 0.3}, ("sdxl", "z_image")),
    ("ModelMergeSDXL", MERGED, ("sdxl",)),
    ("ModelMergeFlux1", MERGED, ("flux",)),
    ("ModelMergeWAN2_1", MERGED, ("wan21",)),
    ("ModelNoiseScale", {"noise_scale": 2.0}, ("z_image", "wan21")),
    ("ModelSamplingContinuousEDM", {"sampling": "edm"}, ("sdxl", "wan21")),
    ("ModelSamplingContinuousEDM", {"sampling": "edm_playground_v2.5"}, ("sdxl",)),
    ("ModelSamplingContinuousEDM", {"sampling": "cosmos_rflow"}, ("sdxl", "wan21")),
    ("ModelSamplingContinuousEDM", {"sampling": "eps"}, ("sdxl", "flux")),
    ("ModelSamplingContinuousV", {}, ("sdxl", "flux")),
    ("ModelSamplingDiscrete", {"sampling": "v_prediction", "zsnr": True}, MODELS),
    ("ModelSamplingDiscrete", {"sampling": "eps"}, ("sdxl", "flux")),
    ("ModelSamplingSD3", {}, MODELS),
    *(
        (f"ModelSampling{name}", {}, ("sdxl", "z_image"))
        for name in ("AuraFlow", "Flux", "LTXV", "StableCascade")
    ),
    ("MultiGPU_WorkUnits", {}, ("sdxl", "flux")),
    ("SelectModelDevice", {"device": "cpu"}, ("sdxl", "flux")),
    ("ScaleROPE", {"scale_x": 1.5, "shift_y": 2.0}, MODELS),
    ("TorchCompileModel", {"backend": "eager"}, MODELS),
    ("UNetCrossAttentionMultiply", {"q": 1.2, "out": 0.8}, UNETS),
    ("UNetSelfAttentionMultiply", {"k": 1.2}, UNETS),
    ("UNetTemporalAttentionMultiply", {"cross_structural": 1.2}, UNETS),
    ("FluxKVCache", {}, ("flux", "z_image")),
    ("ChromaRadianceOptions", {}, ("sdxl", "flux")),
    ("MiniMaxH3SigmaShift", {}, ("sdxl", "flux")),
    ("WanAnimate2Cache", {}, ("wan21",)),
    ("wanBlockSwap", {}, ("wan21",)),
]
"""Node or patch, its inputs but those that are its defaults, and tiny MODELs."""

_AROUND = (
    *("APG", "CFGNorm", "CFGOverride", "CFGZeroStar", "DifferentialDiffusion", "EasyCache"),
    *("Epsilon Scaling", "FreSca", "LazyCache", "LTXVModalityGuidance", "Mahiro", "NAGuidance"),
    *("LTXVSpatioTemporalGuidance", "PerturbedAttentionGuidance", "RenormCFG", "RescaleCFG"),
    *("SelfAttentionGuidance", "SkipLayerGuidanceDiT", "SkipLayerGuidanceDiTSimple", "TCFG"),
    *("TemporalScoreRescaling", "VideoLinearCFGGuidance"),
    "VideoTriangleCFGGuidance",
)
REFUSED = [
    *((name, {}, ("sdxl", "flux"), name.replace(" ", "")) for name in _AROUND),
    *(
        (f"{name}ContextWindows{end}", {}, ("sdxl", "wan21"), "ContextWindows")
        for name, end in (("", "Manual"), ("Wan", "Manual"), ("LTXV", ""))
    ),
    ("SkipLayerGuidanceSD3", {}, ("sdxl", "flux"), "SkipLayerGuidanceDiT"),
    ("PerpNeg", {"empty_conditioning": "TEXT"}, ("sdxl", "flux"), "PerpNeg"),
    (
        "LatentApplyOperationCFG",
        {"operation": "OPERATION"},
        ("sdxl", "flux"),
        "LatentApplyOperationCFG",
    ),
    ("LoraLoaderBypass", LORA, ("sdxl", "flux"), "bypass"),
    ("LoraLoaderBypassModelOnly", LORA, ("sdxl", "flux"), "bypass"),
    ("LoraModelLoader", {"lora": "LORA", "bypass": True}, ("sdxl", "flux"), "bypass"),
    ("ModelSamplingDiscrete", {"sampling": "x0"}, MODELS, "X0"),
    ("ModelSamplingDiscrete", {"sampling": "lcm"}, ("sdxl", "flux"), "LCM"),
    ("ModelSamplingContinuousEDM", {"sampling": "edm_playground_v2.5"}, MODELS[1:], "Playground"),
    ("PatchModelAddDownscale", {}, UNETS, "PatchModelAddDownscale"),
    ("HyperTile", {}, ("flux", "wan21"), "HyperTile"),
    ("TomePatchModel", {}, ("flux", "wan21"), "TomePatchModel"),
    (
        "HypernetworkLoader",
        {"hypernetwork_name": "hypernetworks"},
        ("flux", "wan21"),
        "hypernetwork",
    ),
    ("FluxKVCache", {}, ("sdxl", "wan21"), "FluxKVCache"),
]
"""The same, and what the message names."""

OF_ANOTHER_MODEL = {
    "ARVideoI2V": "needs a video of the autoregressive Wan",
    "HiDreamO1PatchSeamSmoothing": "reads the sampling of HiDream O1",
    "LTXVReferenceAudio": "needs the VAE of LTX's sound",
    "TripoSplatSamplingPreview": "needs the VAE of TripoSplat",
    "WanInfiniteTalkToVideo": "needs a file of audio layers",
    **dict.fromkeys(
        ("AnimaLLLiteApply", "SUPIRApply", "USOStyleReference", "WanUni3CControlnetApply"),
        "needs a file of patches at full size",
    ),
    "ZImageFunControlnet": "needs a file of patches at full size",
}
"""Nodes that are not tried, and why."""

QUICK = [("sdxl", "FreeU_V2"), ("sdxl", "NAGuidance"), ("sdxl", "by block"), ("flux", "weighted")]


def cases(table):
    return [
        pytest.param(
            *(model, node, json.dumps(given), *named),
            marks=() if (model, node) in QUICK else pytest.mark.exhaustive,
            id=f"{model}-{node}-{'-'.join(map(str, given.values()))}",
        )
        for node, given, models, *named in table
        for model in models
    ]


@pytest.fixture(scope="module")
def found(request, comfy_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    cells = sorted(selected(request, "model", "node", "given"))
    named = [(model, node, json.loads(given)) for model, node, given in cells]
    return comfy_host.results("model_nodes_process.py", folder, jobs=named)


@pytest.mark.parametrize(("model", "node", "given"), cases(TRAINED))
def test_what_is_trained_is_what_ksampler_samples(found, model, node, given):
    cell = found[f"{model} {node} {given}"]
    assert cell["error"] is None
    # Two kernels that round alike in float32 round in bfloat16 as that does.
    near = 1e-3 if node == "ModelComputeDtype" else 1e-5
    assert len(cell["by hand"]) == len(cell["losses"]) == 3
    for loss, orders in zip(cell["losses"], cell["by hand"], strict=True):
        by_hand, noise = min(orders, key=lambda each: abs(each[0] - loss))
        assert by_hand == pytest.approx(loss, rel=near)
        assert noise == pytest.approx(1.0, abs=0.1)
    # Nothing reads what the last block makes of Qwen-Image's text.
    assert [name for name in cell["still"] if "transformer_blocks.1" not in name] == []
    assert cell["layers"] > 20
    assert cell["left"] == {}
    assert cell["checks"] <= 2
    assert cell["unread"] == []


@pytest.mark.parametrize("model", ["sdxl", pytest.param("flux", marks=pytest.mark.exhaustive)])
def test_a_patch_of_one_block_is_that_blocks_when_it_is_computed_again(found, model):
    again, kept = (
        found[f"{model} by block {json.dumps(given)}"] for given in ({}, {"checkpointing": False})
    )
    assert again["adapter"] == kept["adapter"]


@pytest.mark.parametrize(("model", "node", "given", "named"), cases(REFUSED))
def test_what_would_be_trained_otherwise_is_named(found, model, node, given, named):
    cell = found[f"{model} {node} {given}"]
    said, expected, remedy = cell["error"]
    assert named.casefold() in said.casefold()
    assert "/" not in said, "a path of this machine"
    assert expected
    assert remedy
    assert cell["steps"] == 0
    assert cell["left"] == {}
    assert cell["checks"] <= 3


def test_the_table_has_every_node_of_comfyui(found):
    tried = {node for node, *_ in (*TRAINED, *REFUSED)} | OF_ANOTHER_MODEL.keys()
    merging = {name for name in found["nodes"] if name.startswith("ModelMerge")}
    assert [name for name in found["nodes"] if name not in tried | merging] == []
    assert len(found["nodes"]) > 80
