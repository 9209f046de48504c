// @ts-check
/** The look of an error; colours come from ComfyUI's theme. */

const ID = "adapter-trainer-error-style";

const STYLE = `
.adapter-trainer-error {
  --at-text: var(--input-text, #ddd);
  --at-bad: color-mix(in srgb, #e5534b 82%, var(--at-text));
  box-sizing: border-box; position: relative; width: 100%; flex: none; padding: 8px 10px; overflow: hidden auto;
  display: flex; flex-direction: column; gap: 4px; align-items: flex-start;
  font: 12px/1.4 system-ui, sans-serif; color: var(--at-text); overflow-wrap: anywhere; user-select: text;
  border: 1px solid var(--at-bad); border-left-width: 4px; border-radius: 6px;
  background: color-mix(in srgb, var(--at-bad) 12%, var(--component-node-widget-background, var(--comfy-input-bg, #222)));
}
.adapter-trainer-error[hidden], .adapter-trainer-error [hidden] { display: none !important; }
.adapter-trainer-error p { margin: 0; white-space: pre-line; }
.adapter-trainer-error-found { font-weight: 600; }
.adapter-trainer-error .adapter-trainer-action {
  min-height: 24px; padding: 2px 10px; font: inherit; color: inherit; cursor: pointer; border-radius: 6px; flex: none;
  border: 1px solid color-mix(in srgb, var(--at-text) 35%, transparent); background: color-mix(in srgb, var(--at-text) 8%, transparent);
}
`;

/** Adds the style once. @param {Document} target */
export function addErrorStyle(target) {
  if (target.getElementById(ID)) return;
  const style = target.createElement("style");
  style.id = ID;
  style.textContent = STYLE;
  target.head.append(style);
}
