"""A node pack for tests alone: tiny MODELs of ComfyUI's own classes, with CLIP and VAE.

The tests copy this folder into ``custom_nodes``; scripts that run in ComfyUI's interpreter import
it too.
"""


async def comfy_entrypoint():
    from comfy_api.latest import ComfyExtension

    from .nodes import TinyModelForTests, WeightsHash

    class TinyModels(ComfyExtension):
        async def get_node_list(self):
            return [TinyModelForTests, WeightsHash]

    return TinyModels()
