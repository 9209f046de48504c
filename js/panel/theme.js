// @ts-check
/** What every part of the pack looks alike in: ComfyUI's colours under short names, and its font. */

/** Declarations for the outermost element of a part. */
export const THEME = `
  --at-text: var(--input-text, #ddd);
  --at-quiet: color-mix(in srgb, var(--at-text) 72%, transparent);
  --at-line: color-mix(in srgb, var(--at-text) 18%, transparent);
  --at-surface: var(--component-node-widget-background, var(--comfy-input-bg, #222));
  --at-loss: color-mix(in srgb, #2f81f7 82%, var(--at-text));
  --at-rate: color-mix(in srgb, #d97706 82%, var(--at-text));
  --at-held-out: color-mix(in srgb, #a371f7 82%, var(--at-text));
  --at-good: color-mix(in srgb, #2ea043 82%, var(--at-text));
  --at-bad: color-mix(in srgb, #e5534b 82%, var(--at-text));
  font: 12px/1.4 system-ui, sans-serif;
  color: var(--at-text);
`;

/**
 * Adds a style once.
 *
 * @param {Document} target
 * @param {string} id
 * @param {string} css
 */
export function addOnce(target, id, css) {
  if (target.getElementById(id)) return;
  const style = target.createElement("style");
  style.id = id;
  style.textContent = css;
  target.head.append(style);
}
