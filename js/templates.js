// @ts-check
/**
 * Shows the pack's templates in the order of their numbers.
 *
 * The server lists them as the file system happens to, which on most is in no order at all. Only a style
 * is added, and it acts where no cards of others stand: search and ComfyUI's own lists stay as they are.
 */

import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";

const CARD = "data-testid^='template-workflow-'";

/**
 * @param {string[]} names
 * @returns {string} CSS
 */
export function inOrder(names) {
  const own = names.map((name) => `[data-testid='template-workflow-${name}']`);
  const alone = `:not(:has([${CARD}]:not(${own.join(", ")})))`;
  return [...own]
    .sort()
    .map((card, at) => `[data-testid='template-workflows-content']${alone} ${card} { order: ${at}; }`)
    .join("\n");
}

app.registerExtension({
  name: "AdapterTrainer.Templates",
  async setup() {
    const folder = new URL(import.meta.url).pathname.split("/").at(-2) ?? "";
    const response = await api.fetchApi("/workflow_templates");
    if (!response.ok) return;
    /** @type {Record<string, string[]>} */
    const listed = await response.json();
    const style = document.createElement("style");
    style.textContent = inOrder(listed[decodeURIComponent(folder)] ?? []);
    document.head.append(style);
  },
});
