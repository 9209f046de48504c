// @ts-check
/** The look of the strip and its dialog; colours come from ComfyUI's theme. */

import { THEME, addOnce } from "../panel/theme.js";

const ID = "adapter-trainer-dataset-style";

export const HEIGHT = 140;

/** Space around it in the classic renderer, where the widget takes it from its height. */
export const MARGIN = 5;

const CSS = `
.adapter-trainer-dataset, .adapter-trainer-dataset-dialog, .adapter-trainer-dataset-list {
  ${THEME}
}
.adapter-trainer-dataset {
  box-sizing: border-box; display: flex; flex-direction: column; gap: 4px; width: 100%; min-width: 0;
  height: ${HEIGHT}px; min-height: ${HEIGHT}px; max-height: ${HEIGHT}px; overflow: hidden; contain: size layout;
  padding: 6px; border: 1px solid var(--at-line); border-radius: 8px; background: var(--at-surface);
}
.adapter-trainer-dataset * { box-sizing: border-box; }
.adapter-trainer-dataset [hidden], .adapter-trainer-dataset-dialog [hidden] { display: none !important; }
.adapter-trainer-dataset.adapter-trainer-over { outline: 2px dashed var(--at-loss); outline-offset: -3px; }
.adapter-trainer-dataset-head, .adapter-trainer-dataset-form { flex: none; display: flex; align-items: center; gap: 6px; min-width: 0; height: 24px; }
.adapter-trainer-dataset-count { flex: 1; min-width: 0; font-weight: 600; line-height: 12px; max-height: 24px; overflow: hidden; }
.adapter-trainer-dataset-button {
  flex: none; height: 24px; padding: 0 9px; font: inherit; color: inherit; cursor: pointer; white-space: nowrap;
  border: 1px solid color-mix(in srgb, var(--at-text) 35%, transparent); border-radius: 6px;
  background: color-mix(in srgb, var(--at-text) 8%, transparent);
}
.adapter-trainer-dataset-button:hover { background: color-mix(in srgb, var(--at-text) 18%, transparent); }
.adapter-trainer-dataset-button.adapter-trainer-main { border-color: var(--at-loss); background: color-mix(in srgb, var(--at-loss) 30%, transparent); }
.adapter-trainer-dataset-name {
  flex: 1; min-width: 0; height: 24px; padding: 0 6px; font: inherit; color: inherit;
  border: 1px solid var(--at-loss); border-radius: 6px; background: transparent;
}
.adapter-trainer-dataset-form .adapter-trainer-bar { flex: 1; }
.adapter-trainer-dataset-images {
  position: relative; flex: 0 1000 62px; min-height: 42px; display: flex; gap: 4px; overflow-x: auto; overflow-y: hidden; overscroll-behavior: contain; scrollbar-width: thin;
}
.adapter-trainer-dataset-image {
  flex: none; height: calc(100% - 8px); aspect-ratio: 1; padding: 0; overflow: hidden; cursor: zoom-in; border: 1px solid var(--at-line); border-radius: 4px; background: var(--at-line);
}
.adapter-trainer-dataset-image.adapter-trainer-grave { border: 2px solid var(--at-bad); }
.adapter-trainer-dataset-image.adapter-trainer-moves { position: relative; }
.adapter-trainer-moves::after { content: "▶"; position: absolute; right: 4px; bottom: 2px; font-size: 10px; color: #fff; text-shadow: 0 0 3px #000, 0 0 2px #000; }
.adapter-trainer-dataset-image :is(img, video) { display: block; width: 100%; height: 100%; object-fit: cover; font-size: 9px; color: var(--at-quiet); }
.adapter-trainer-dataset-more { flex: none; height: calc(100% - 8px); padding: 0 10px; font: inherit; color: inherit; cursor: pointer; border: 1px dashed var(--at-line); border-radius: 4px; background: none; }
.adapter-trainer-dataset-image.adapter-trainer-out img, .adapter-trainer-out .adapter-trainer-dataset-large { opacity: 0.3; filter: grayscale(1); }
.adapter-trainer-dataset-empty {
  flex: 1; display: flex; align-items: center; justify-content: center; height: calc(100% - 8px); margin: 0; font-size: 14px;
  color: var(--at-quiet); border: 1px dashed var(--at-line); border-radius: 6px;
}
/* Sentences take the room that they need from the images. */
.adapter-trainer-dataset-images:has(> .adapter-trainer-dataset-empty) { min-height: 26px; }
.adapter-trainer-dataset-line { flex: 1 1 auto; min-height: 0; color: var(--at-quiet); overflow: hidden auto; overflow-wrap: anywhere; line-height: 15px; }
.adapter-trainer-dataset-other { margin-right: 10px; }
.adapter-trainer-dataset-notice { margin-right: 10px; color: var(--at-text); }
.adapter-trainer-dataset-list { max-width: 640px; padding-right: 56px; }
.adapter-trainer-dataset-list li { margin: 4px 0; overflow-wrap: anywhere; }
.adapter-trainer-dataset-problem { margin: 0 10px 0 6px; padding: 0; font: inherit; color: var(--at-rate); cursor: pointer; border: 0; background: none; text-decoration: underline dotted; }
.adapter-trainer-dataset :focus-visible { outline: 2px solid var(--at-loss); outline-offset: -2px; }
.adapter-trainer-dataset-dialog[open] { display: flex; gap: 16px; width: 94vw; height: 90vh; }
.adapter-trainer-dataset-shown { flex: 1; display: flex; align-items: center; justify-content: center; gap: 10px; min-width: 0; min-height: 0; }
.adapter-trainer-dataset-framed { position: relative; min-width: 0; overflow: hidden; border-radius: 4px; line-height: 0; }
.adapter-trainer-dataset-large { max-width: 100%; max-height: calc(90vh - 40px); min-width: 128px; object-fit: contain; }
.adapter-trainer-dataset-frame { position: absolute; border: 2px solid var(--at-loss); box-shadow: 0 0 0 9999px rgb(0 0 0 / 55%); cursor: move; touch-action: none; }
.adapter-trainer-dataset-mask { position: absolute; inset: 0; width: 100%; height: 100%; mix-blend-mode: multiply; opacity: 0.65; pointer-events: none; }
.adapter-trainer-unmasked .adapter-trainer-dataset-mask { display: none; }
.adapter-trainer-dataset-proposed { display: flex; flex-direction: column; gap: 6px; min-height: 0; padding: 8px; border: 1px dashed var(--at-loss); border-radius: 6px; }
.adapter-trainer-dataset-proposal { max-height: 160px; overflow-y: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
.adapter-trainer-dataset-tags { display: flex; flex-wrap: wrap; gap: 4px; max-height: 120px; overflow-y: auto; }
.adapter-trainer-dataset-tag { padding: 1px 6px; font: inherit; color: inherit; cursor: pointer; border: 1px solid var(--at-line); border-radius: 9px; background: none; overflow-wrap: anywhere; text-align: left; }
.adapter-trainer-dataset-controls { display: flex; flex-direction: column; gap: 8px; max-height: 100%; overflow-y: auto; }
.adapter-trainer-dataset-controls:empty { display: none; }
.adapter-trainer-dataset-controls figure { margin: 0; text-align: center; color: var(--at-quiet); }
.adapter-trainer-dataset-controls img { display: block; max-width: 22vw; max-height: 40vh; }
.adapter-trainer-dataset-side { flex: 0 0 min(360px, 34vw); display: flex; flex-direction: column; gap: 8px; min-width: 0; padding-top: 36px; overflow-y: auto; }
.adapter-trainer-dataset-title { font-weight: 600; overflow-wrap: anywhere; }
.adapter-trainer-dataset-size, .adapter-trainer-dataset-status { color: var(--at-quiet); overflow-wrap: anywhere; }
.adapter-trainer-dataset-status.adapter-trainer-bad { color: var(--at-bad); }
.adapter-trainer-dataset-problems { margin: 0; padding-left: 18px; color: var(--at-rate); overflow-wrap: anywhere; }
.adapter-trainer-dataset-problems:empty { display: none; }
.adapter-trainer-dataset-problems .adapter-trainer-grave { color: var(--at-bad); }
.adapter-trainer-dataset-text {
  flex: 1 1 120px; max-height: 320px; padding: 8px; resize: none; font: inherit; font-size: 14px; color: inherit;
  border: 1px solid var(--at-line); border-radius: 6px; background: var(--at-surface);
}
/* From far the sentences count: the button and then the images, of which nothing is to be seen, give way. */
.adapter-trainer-dataset[data-far] :is(.adapter-trainer-dataset-count, .adapter-trainer-dataset-line, .adapter-trainer-dataset-empty) {
  font-size: var(--adapter-trainer-far); line-height: 1.15; max-height: none;
}
.adapter-trainer-dataset[data-far] .adapter-trainer-dataset-head .adapter-trainer-dataset-button { display: none; }
.adapter-trainer-dataset[data-far] .adapter-trainer-dataset-head { height: auto; }
.adapter-trainer-dataset[data-far="very"] .adapter-trainer-dataset-images:not(:has(.adapter-trainer-dataset-empty)) { display: none; }
.adapter-trainer-dataset-bulk summary { cursor: pointer; }
.adapter-trainer-dataset-bulk > * { margin-top: 6px; }
.adapter-trainer-dataset-bulk .adapter-trainer-dataset-name { width: 100%; }
.adapter-trainer-dataset-buttons { display: flex; flex-wrap: wrap; gap: 6px; }
`;

/** Adds the style once. @param {Document} target */
export function addStyle(target) {
  addOnce(target, ID, CSS);
}
