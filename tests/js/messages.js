/** Messages as the train node sends them. */

export function snapshot(values = {}) {
  return {
    node_id: "7", prompt_id: "p1", name: "my_adapter", workflow: "", run: "", resumable: false, status: "training", step: 0, steps: 100,
    points: [], samples: [], step_seconds: 0.5, seconds_left: 50, message: "", warnings: [], memory: null, returns: 0, ...values,
  };
}

export function progress(values = {}) {
  const { samples, warnings, memory, resumable, ...rest } = snapshot(values);
  return rest;
}

export function sampleAt(step, index = 0, prompt = "") {
  return { step, index, prompt, filename: `${index}.png`, subfolder: `adapter_trainer/my_adapter/v0/samples/${step}`, type: "output" };
}

export function losses(count) {
  return Array.from({ length: count }, (_, i) => [i + 1, 1 / (i + 1), 1e-4]);
}

const GIB = 2 ** 30;

export function memoryRow(values = {}) {
  return {
    base_format: "fp8", blocks_to_swap: 20, master: "pinned", blocks_to_checkpoint: 60, checkpoint_inputs: "device",
    device_bytes: Math.round(11.2 * GIB), ram_bytes: 7 * GIB, seconds: 2.34, ...values,
  };
}

export function memory(values = {}) {
  const rows = [
    memoryRow(),
    memoryRow({ blocks_to_swap: 40, checkpoint_inputs: "ram", device_bytes: 8 * GIB, ram_bytes: 14 * GIB, seconds: 2.9 }),
    memoryRow({ base_format: "nf4", blocks_to_swap: 0, master: "none", device_bytes: 9 * GIB, ram_bytes: 0, seconds: 0 }),
  ];
  return { rows, device_free: 12 * GIB, ram_free: 56 * GIB, blocks: 60, ...values };
}
