"""ComfyUI's Qwen2.5-VL at a small size; ComfyUI's interpreter imports it."""

import torch
from comfy.text_encoders import llama, qwen_image, qwen_vl


def small_qwen(vision):
    """The class for the loader's option ``qwen25_7b_class``.

    Args:
        vision: Sizes of the vision tower, which ComfyUI fixes: the only part rebuilt here.
    """

    class SmallQwen(llama.Qwen25_7BVLI):
        def __init__(self, config, dtype, device, operations):
            torch.nn.Module.__init__(self)
            settings = llama.Qwen25_7BVLI_Config(**config)
            self.num_layers, self.dtype = settings.num_hidden_layers, dtype
            self.model = llama.Llama2_(settings, device=device, dtype=dtype, ops=operations)
            self.visual = qwen_vl.Qwen2VLVisionTransformer(
                output_hidden_size=settings.hidden_size,
                **vision,
                device=device,
                dtype=dtype,
                ops=operations,
            )
            self.visual.fullatt_block_indexes = [1]

    class SmallQwenModel(qwen_image.Qwen25_7BVLIModel):
        def __init__(self, device="cpu", dtype=None, model_options=None, **_):
            qwen_image.sd1_clip.SDClipModel.__init__(
                self,
                device=device,
                textmodel_json_config={},
                dtype=dtype,
                special_tokens={"pad": 151643},
                layer_norm_hidden_state=False,
                model_class=SmallQwen,
                enable_attention_masks=True,
                return_attention_masks=True,
                model_options=model_options,
            )

    return SmallQwenModel
