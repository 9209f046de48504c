import { expect, test } from "vitest";

import { loaderOf } from "../../js/quick/loader.js";

const LOADERS = {
  1: { comfyClass: "UNETLoader", widgets: [{ name: "unet_name", value: "flux1-dev.safetensors" }] },
  2: { comfyClass: "CheckpointLoaderSimple", widgets: [{ name: "ckpt_name", value: "sdxl.safetensors" }] },
  3: { comfyClass: "LoraLoader", widgets: [{ name: "lora_name", value: "a.safetensors" }] },
};

function quick(origin) {
  const link = origin ? 9 : null;
  const graph = { getLink: (id) => ({ id, origin_id: origin }), getNodeById: (id) => LOADERS[id] ?? null };
  return { inputs: [{ name: "clip", link: 4 }, { name: "model", link }], graph };
}

test("a model comes from a loader and its file, from another node, or from nowhere", () => {
  expect(loaderOf(quick(1))).toBe("UNETLoader/flux1-dev.safetensors");
  expect(loaderOf(quick(2))).toBe("CheckpointLoaderSimple/sdxl.safetensors");
  expect(loaderOf(quick(3))).toBe("LoraLoader/");
  expect(loaderOf(quick(0))).toBe("");
  expect(loaderOf(quick(8))).toBe("");
});
