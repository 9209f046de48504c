// @ts-check
/** The look of an error; colours come from ComfyUI's theme. */

import { THEME, addOnce } from "../panel/theme.js";

const ID = "adapter-trainer-error-style";

const STYLE = `
.adapter-trainer-verdict { ${THEME} position: relative; width: 100%; overflow: hidden auto; user-select: text; }
.adapter-trainer-verdict p { margin: 0; padding: 4px; white-space: pre-line; overflow-wrap: anywhere; }
.adapter-trainer-error {
  ${THEME}
  box-sizing: border-box; position: relative; width: 100%; flex: none; padding: 8px 10px; overflow: hidden auto;
  display: flex; flex-direction: column; gap: 4px; align-items: flex-start;
  overflow-wrap: anywhere; user-select: text;
  border: 1px solid var(--at-bad); border-left-width: 4px; border-radius: 6px;
  background: color-mix(in srgb, var(--at-bad) 12%, var(--at-surface));
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
  addOnce(target, ID, STYLE);
}
