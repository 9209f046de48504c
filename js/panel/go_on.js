// @ts-check
/** "Continue" and "Train longer": let the run that is shown go on, and nothing else of its graph. */

import { isLiving } from "../living.js";

/** @typedef {import("./binding.js").Binding} Binding */

const ALONE = "Nodes behind it get the result with the next Run.";

/**
 * The server keeps what is asked, for one prompt. No input changes: the next dataset has its own
 * number of steps.
 *
 * @param {Binding} binding
 * @param {number | null} more steps beyond those that the run has, or null for its planned end
 * @param {(nodes: string[]) => Promise<boolean>} queue runs these nodes and what they need
 * @param {number | null} [step] of the checkpoint that it goes on from, null for the newest
 * @returns {Promise<{ taken: boolean, reason: string }>} the reason may be something to know
 */
export async function goOn(binding, more, queue, step = null) {
  const { node, run } = binding;
  const steps = more === null ? null : Math.max(run.step, run.steps) + more;
  const prompt = await binding.prompt();
  const answer = await binding.ask("continue", { run: run.version, steps, prompt, ...(step === null ? {} : { step }) });
  if (!answer.taken) return answer;
  // Meanwhile another tab may have been opened.
  if (isLiving(node) && (await queue([binding.askedId]))) return { taken: true, reason: `${answer.reason} ${ALONE}` };
  await binding.ask("leave");
  return { taken: false, reason: "ComfyUI did not take the graph; it says why." };
}
