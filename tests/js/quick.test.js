import { expect, test } from "vitest";

import { loaderOf } from "../../js/quick/loader.js";

const LOADERS = {
  1: { comfyClass: "UNETLoader", widgets: [{ name: "unet_name", value: "flux1-dev.safetensors" }] },
  2: { comfyClass: "CheckpointLoaderSimple", widgets: [{ name: "ckpt_name", value: "sdxl.safetensors" }] },
  3: { comfyClass: "LoraLoader", widgets: [{ name: "lora_name", value: "a.safetensors" }] },
  4: { comfyClass: "Reroute", isVirtualNode: true, inputs: [{ name: "", type: "*", link: 5 }] },
  5: { comfyClass: "LoraLoader", mode: 4, inputs: [{ name: "clip", type: "CLIP", link: 2 }, { name: "model", type: "MODEL", link: 1 }] },
  6: { comfyClass: "Reroute", isVirtualNode: true, inputs: [{ name: "", type: "*", link: 6 }] },
  7: { comfyClass: "Reroute", isVirtualNode: true, inputs: [{ name: "", type: "*", link: null }] },
};

function quick(origin) {
  const link = origin || null;
  const graph = { getLink: (id) => ({ id, origin_id: id }), getNodeById: (id) => LOADERS[id] ?? null };
  return { inputs: [{ name: "clip", link: 4 }, { name: "model", link }], graph };
}

test("a model comes from a loader and its file, from another node, or from nowhere", () => {
  expect(loaderOf(quick(1))).toBe("UNETLoader/flux1-dev.safetensors");
  expect(loaderOf(quick(2))).toBe("CheckpointLoaderSimple/sdxl.safetensors");
  expect(loaderOf(quick(3))).toBe("LoraLoader/");
  expect(loaderOf(quick(4))).toBe("UNETLoader/flux1-dev.safetensors");
  for (const nowhere of [0, 6, 7]) expect(loaderOf(quick(nowhere))).toBe("");
  expect(loaderOf(quick(8))).toBe("");
});
