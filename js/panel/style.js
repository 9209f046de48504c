// @ts-check
/** The panel's look. Colours come from ComfyUI's theme; every class begins with the pack's name. */

import { THEME, addOnce } from "./theme.js";

const ID = "adapter-trainer-style";

const CSS = `
.adapter-trainer-panel, .adapter-trainer-lightbox {
  ${THEME}
}
.adapter-trainer-panel {
  box-sizing: border-box;
  display: flex;
  flex-direction: column;
  gap: 6px;
  width: 100%;
  min-height: 480px;
  min-width: 0;
  overflow: hidden auto;
  contain: size layout;
  padding: 8px;
  border: 1px solid var(--at-line);
  border-radius: 8px;
  background: var(--at-surface);
}
.adapter-trainer-panel *, .adapter-trainer-lightbox * { box-sizing: border-box; }
.adapter-trainer-panel [hidden] { display: none !important; }
.adapter-trainer-status { flex: none; display: grid; gap: 6px; }
.adapter-trainer-headline { display: flex; align-items: baseline; gap: 6px; min-width: 0; }
.adapter-trainer-light { width: 8px; height: 8px; border-radius: 50%; background: var(--at-quiet); flex: none; }
[data-status="training"] .adapter-trainer-light, [data-status="caching"] .adapter-trainer-light, [data-status="loading"] .adapter-trainer-light { background: var(--at-loss); }
[data-status="done"] .adapter-trainer-light, [data-status="stopped"] .adapter-trainer-light { background: var(--at-good); }
[data-status="failed"] .adapter-trainer-light, [data-status="lost"] .adapter-trainer-light { background: var(--at-bad); }
.adapter-trainer-word { font-weight: 600; flex: none; }
.adapter-trainer-message { color: var(--at-quiet); min-width: 0; overflow-wrap: anywhere; max-height: 4.2em; overflow-y: auto; }
.adapter-trainer-version {
  display: flex; margin-left: auto; flex: none; max-width: 38%; font-size: 11px; color: var(--at-quiet); white-space: nowrap;
}
.adapter-trainer-run-name { min-width: 0; overflow: hidden; text-overflow: ellipsis; }
.adapter-trainer-bar {
  appearance: none; width: 100%; height: 4px; border: 0; border-radius: 2px; overflow: hidden; background: var(--at-line);
}
.adapter-trainer-bar::-webkit-progress-bar { background: var(--at-line); }
.adapter-trainer-bar::-webkit-progress-value { background: var(--at-loss); }
.adapter-trainer-bar::-moz-progress-bar { background: var(--at-loss); }
.adapter-trainer-stats { display: grid; grid-template-columns: repeat(4, minmax(0, auto)); justify-content: space-between; gap: 2px 10px; margin: 0; }
.adapter-trainer-stats dt { color: var(--at-quiet); font-size: 11px; }
.adapter-trainer-stats dd { margin: 0; font-variant-numeric: tabular-nums; white-space: nowrap; }
.adapter-trainer-warnings { color: var(--at-rate); max-height: 6em; overflow-y: auto; }
.adapter-trainer-advice { flex: none; display: grid; gap: 4px; margin: 0; padding: 6px 8px; list-style: none; max-height: 9em; overflow-y: auto; overflow-wrap: anywhere; border-left: 3px solid var(--at-rate); background: color-mix(in srgb, var(--at-rate) 10%, transparent); }
.adapter-trainer-advice .adapter-trainer-action { flex: none; margin: 2px 0; }
.adapter-trainer-advice-answer { color: var(--at-quiet); }
.adapter-trainer-warnings summary { cursor: pointer; }
/* Side by side as long as they are closed: the samples need the room. */
.adapter-trainer-folds { flex: none; display: flex; flex-wrap: wrap; gap: 2px 14px; }
.adapter-trainer-folds:not(:has(> :not([hidden]))) { display: none; }
.adapter-trainer-folds > [open] { flex-basis: 100%; }
:is(.adapter-trainer-notes, .adapter-trainer-layers) { flex: none; font-size: 11px; color: var(--at-quiet); max-height: 6em; overflow-y: auto; }
:is(.adapter-trainer-notes, .adapter-trainer-layers) summary { cursor: pointer; }
:is(.adapter-trainer-notes, .adapter-trainer-layers, .adapter-trainer-warnings) ul { margin: 2px 0 0; padding-left: 18px; overflow-wrap: anywhere; }
:is(.adapter-trainer-memory, .adapter-trainer-choices) { flex: 0 1 auto; min-width: 0; overflow-x: auto; font-size: 11px; color: var(--at-quiet); }
:is(.adapter-trainer-memory, .adapter-trainer-choices) summary { cursor: pointer; overflow-wrap: anywhere; }
:is(.adapter-trainer-memory, .adapter-trainer-choices) table { border-collapse: collapse; margin-top: 4px; width: 100%; font-variant-numeric: tabular-nums; }
:is(.adapter-trainer-memory, .adapter-trainer-choices) :is(th, td) {
  padding: 1px 6px 1px 0; text-align: left; vertical-align: top; font-weight: normal; border-bottom: 1px solid var(--at-line);
}
.adapter-trainer-memory td:nth-last-child(-n+3) { white-space: nowrap; }
.adapter-trainer-taken > :is(th, td) { color: var(--at-text); font-weight: 600; }
.adapter-trainer-choices th { white-space: nowrap; }
.adapter-trainer-choices :is(tbody th, td:nth-child(2)) { color: var(--at-text); overflow-wrap: anywhere; }
.adapter-trainer-plot { position: relative; flex: 3 1 0; min-height: 90px; }
.adapter-trainer-chart { position: absolute; inset: 0; width: 100%; height: 100%; cursor: crosshair; }
.adapter-trainer-empty {
  position: absolute; inset: 0; display: flex; align-items: center; justify-content: center; margin: 0; padding: 0 12%;
  text-align: center; color: var(--at-quiet); border: 1px dashed var(--at-line); border-radius: 6px;
}
.adapter-trainer-axes line { stroke: var(--at-line); stroke-width: 1; shape-rendering: crispEdges; }
.adapter-trainer-tick { font-size: 11px; fill: var(--at-quiet); font-variant-numeric: tabular-nums; }
.adapter-trainer-raw, .adapter-trainer-smoothed, .adapter-trainer-rate, .adapter-trainer-held-out, .adapter-trainer-trained { fill: none; stroke-linejoin: round; }
.adapter-trainer-raw { stroke: var(--at-loss); stroke-width: 1; opacity: 0.5; }
.adapter-trainer-smoothed { stroke: var(--at-loss); stroke-width: 2; }
.adapter-trainer-rate { stroke: var(--at-rate); stroke-width: 1.5; stroke-dasharray: 5 3; }
.adapter-trainer-held-out { stroke: var(--at-held-out); stroke-width: 2; }
.adapter-trainer-trained { stroke: var(--at-held-out); stroke-width: 1.5; stroke-dasharray: 2 2; }
.adapter-trainer-best-mark { fill: var(--at-surface); stroke: var(--at-held-out); stroke-width: 2; }
.adapter-trainer-cursor { stroke: var(--at-quiet); stroke-width: 1; }
.adapter-trainer-dot { fill: var(--at-loss); stroke: var(--at-surface); stroke-width: 1; }
.adapter-trainer-cursor, .adapter-trainer-dot { pointer-events: none; }
.adapter-trainer-readout {
  flex: none; display: flex; flex-wrap: wrap; gap: 0 12px; font-size: 11px; color: var(--at-quiet); font-variant-numeric: tabular-nums;
}
.adapter-trainer-key-raw::before, .adapter-trainer-key-smoothed::before, .adapter-trainer-key-rate::before,
.adapter-trainer-key-held-out::before, .adapter-trainer-key-trained::before {
  content: ""; display: inline-block; width: 12px; margin-right: 4px; vertical-align: middle; border-top: 2px solid var(--at-loss);
}
.adapter-trainer-key-raw::before { opacity: 0.4; }
.adapter-trainer-key-rate::before { border-top: 2px dashed var(--at-rate); }
.adapter-trainer-key-held-out::before { border-top: 2px solid var(--at-held-out); }
.adapter-trainer-key-trained::before { border-top: 2px dotted var(--at-held-out); }
.adapter-trainer-controls { flex: none; display: flex; flex-wrap: wrap; align-items: center; gap: 4px 16px; }
.adapter-trainer-controls label { display: inline-flex; align-items: center; gap: 6px; }
.adapter-trainer-controls input { margin: 0; accent-color: var(--at-loss); }
.adapter-trainer-slider { width: 110px; }
.adapter-trainer-controls output { min-width: 2.4em; font-variant-numeric: tabular-nums; color: var(--at-quiet); }
.adapter-trainer-samples { flex: 3 1 0; min-height: 120px; display: flex; flex-direction: column; gap: 4px; container-type: size; }
.adapter-trainer-samples[data-large="true"] { flex-grow: 8; min-height: 200px; }
.adapter-trainer-heading { display: flex; align-items: baseline; justify-content: space-between; flex: none; font-size: 11px; line-height: 14px; color: var(--at-quiet); }
.adapter-trainer-size { padding: 0 2px; font: inherit; line-height: 14px; color: inherit; background: none; border: 0; cursor: pointer; text-decoration: underline; }
.adapter-trainer-scroller { overflow: auto; min-height: 0; overscroll-behavior: contain; }
.adapter-trainer-grid { display: grid; gap: 4px; min-width: min-content; }
/* A cell is as large as the node's width allows, and never so large that no row is whole. */
.adapter-trainer-row {
  display: grid; grid-template-columns: max(52px, 4.6 * var(--adapter-trainer-far, 11px)) repeat(var(--adapter-trainer-columns, 1), minmax(72px, max(72px, calc(100cqh - 40px)))); gap: 4px; align-items: center;
}
.adapter-trainer-row[data-heading] { position: sticky; top: 0; z-index: 1; background: var(--at-surface); }
.adapter-trainer-prompt { font-size: 11px; line-height: 16px; color: var(--at-quiet); overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.adapter-trainer-row-label { color: var(--at-quiet); font-size: 11px; font-variant-numeric: tabular-nums; grid-column: 1; }
.adapter-trainer-thumbnail {
  width: 100%; aspect-ratio: 1; padding: 0; overflow: hidden; cursor: zoom-in; border: 1px solid var(--at-line); border-radius: 4px; background: var(--at-line);
}
.adapter-trainer-thumbnail img { display: block; width: 100%; height: 100%; object-fit: contain; color: var(--at-quiet); font-size: 11px; }
.adapter-trainer-missing img { visibility: hidden; }
.adapter-trainer-panel[data-far] :is(.adapter-trainer-readout, .adapter-trainer-controls, .adapter-trainer-folds, .adapter-trainer-version, .adapter-trainer-heading) { display: none; }
.adapter-trainer-panel[data-far] :is(.adapter-trainer-headline, .adapter-trainer-stats dd, .adapter-trainer-empty, .adapter-trainer-action) { font-size: calc(1.2 * var(--adapter-trainer-far)); line-height: 1.2; }
.adapter-trainer-panel[data-far] :is(.adapter-trainer-stats dt, .adapter-trainer-warnings, .adapter-trainer-error, .adapter-trainer-tick, .adapter-trainer-row-label) { font-size: var(--adapter-trainer-far); }
.adapter-trainer-panel[data-far] :is(.adapter-trainer-headline, .adapter-trainer-message) { flex-wrap: wrap; max-height: none; }
.adapter-trainer-panel[data-far] .adapter-trainer-row[data-heading], .adapter-trainer-panel[data-far="very"]:has(.adapter-trainer-samples:not([hidden])) :is(.adapter-trainer-message, .adapter-trainer-plot) { display: none; }
.adapter-trainer-panel[data-far="very"] .adapter-trainer-stats { grid-template-columns: repeat(2, minmax(0, auto)); }
.adapter-trainer-panel[data-far] .adapter-trainer-bar { height: 12px; }
/* The buttons stay in sight when an opened table makes the panel scroll; 8px are its padding. */
.adapter-trainer-actions {
  flex: none; position: sticky; bottom: -8px; z-index: 2; margin: auto 0 -8px; padding: 2px 0 8px; background: var(--at-surface);
}
.adapter-trainer-buttons { display: flex; flex-wrap: wrap; align-items: center; gap: 6px; margin: 0; }
.adapter-trainer-more { width: 68px; min-height: 26px; font: inherit; color: inherit; background: var(--at-surface); border: 1px solid var(--at-line); border-radius: 6px; padding: 2px 6px; }
.adapter-trainer-total { color: var(--at-quiet); font-variant-numeric: tabular-nums; }
.adapter-trainer-action {
  flex: 1 1 auto; min-height: 28px; padding: 3px 10px; font: inherit; color: inherit; cursor: pointer; white-space: nowrap;
  border: 1px solid color-mix(in srgb, var(--at-text) 35%, transparent); border-radius: 6px;
  background: color-mix(in srgb, var(--at-text) 8%, transparent);
}
.adapter-trainer-action:hover:enabled { background: color-mix(in srgb, var(--at-text) 18%, transparent); }
.adapter-trainer-action:disabled { cursor: default; opacity: 0.5; }
.adapter-trainer-feedback { color: var(--at-quiet); overflow-wrap: anywhere; }
.adapter-trainer-feedback:not(:empty) { margin-top: 4px; }
.adapter-trainer-panel :focus-visible, .adapter-trainer-lightbox :focus-visible { outline: 2px solid var(--at-loss); outline-offset: 1px; }
.adapter-trainer-lightbox {
  max-width: 94vw; max-height: 94vh; margin: auto; padding: 16px; overflow: hidden;
  border: 1px solid var(--at-line); border-radius: 10px; background: var(--comfy-menu-bg, #222);
}
.adapter-trainer-lightbox::backdrop { background: rgb(0 0 0 / 65%); }
.adapter-trainer-stage { display: flex; align-items: center; justify-content: center; gap: 12px; }
.adapter-trainer-large { min-width: min(512px, 70vw); max-width: calc(94vw - 140px); max-height: calc(94vh - 190px); object-fit: contain; }
.adapter-trainer-frame { display: grid; position: relative; }
.adapter-trainer-frame > * { grid-area: 1 / 1; }
.adapter-trainer-overlay { position: absolute; inset: 0; cursor: ew-resize; touch-action: none; user-select: none; }
.adapter-trainer-other { width: 100%; height: 100%; object-fit: contain; clip-path: inset(0 calc(100% - var(--adapter-trainer-split, 50%)) 0 0); }
.adapter-trainer-divider { position: absolute; top: 0; bottom: 0; left: var(--adapter-trainer-split, 50%); width: 2px; margin-left: -1px; background: #fff; box-shadow: 0 0 3px #000; }
.adapter-trainer-tag-left, .adapter-trainer-tag-right { position: absolute; top: 6px; padding: 1px 6px; font-size: 11px; border-radius: 4px; color: #fff; background: rgb(0 0 0 / 60%); }
.adapter-trainer-tag-left { left: 6px; }
.adapter-trainer-tag-right { right: 6px; }
.adapter-trainer-compare { display: flex; flex-wrap: wrap; align-items: center; justify-content: center; gap: 4px 10px; margin-top: 8px; }
.adapter-trainer-compare label { display: inline-flex; align-items: center; gap: 6px; }
.adapter-trainer-compare input { accent-color: var(--at-loss); margin: 0; }
.adapter-trainer-steps { font: inherit; color: inherit; background: var(--at-surface); border: 1px solid var(--at-line); border-radius: 6px; padding: 2px 6px; }
.adapter-trainer-split { width: min(320px, 50vw); }
.adapter-trainer-prompt-text { max-width: 70ch; max-height: 5.6em; margin: 2px auto 0; overflow-y: auto; text-align: center; color: var(--at-quiet); overflow-wrap: anywhere; }
.adapter-trainer-lightbox [hidden] { display: none !important; }
.adapter-trainer-caption { margin-top: 8px; text-align: center; font-size: 13px; }
.adapter-trainer-previous, .adapter-trainer-next, .adapter-trainer-close {
  flex: none; width: 36px; height: 36px; padding: 0; font: inherit; font-size: 18px; line-height: 1; color: inherit; cursor: pointer;
  border: 1px solid var(--at-line); border-radius: 50%; background: var(--at-surface);
}
.adapter-trainer-previous:disabled, .adapter-trainer-next:disabled { opacity: 0.35; cursor: default; }
.adapter-trainer-close { position: absolute; top: 8px; right: 8px; font-size: 14px; }
`;

/** Adds the style once. @param {Document} target */
export function addStyle(target) {
  addOnce(target, ID, CSS);
}
