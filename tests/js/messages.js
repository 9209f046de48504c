/** Messages as the train node sends them. */

export function snapshot(values = {}) {
  return {
    node_id: "7", prompt_id: "p1", name: "my_adapter", status: "training", step: 0, steps: 100,
    points: [], samples: [], step_seconds: 0.5, seconds_left: 50, message: "", warnings: [], ...values,
  };
}

export function progress(values = {}) {
  const { samples, warnings, ...rest } = snapshot(values);
  return rest;
}

export function sampleAt(step, index = 0) {
  return { step, index, filename: `${index}.png`, subfolder: `adapter_trainer/my_adapter/v0/samples/${step}`, type: "output" };
}

export function losses(count) {
  return Array.from({ length: count }, (_, i) => [i + 1, 1 / (i + 1), 1e-4]);
}
