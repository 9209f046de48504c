// @ts-check
/** The look of the runs tab; colours come from ComfyUI's theme. */

import { THEME, addOnce } from "../panel/theme.js";

const CSS = `
.adapter-trainer-runs {
  ${THEME}
  --at-run: var(--at-loss);
  box-sizing: border-box; display: flex; flex-direction: column; gap: 8px; height: 100%; min-height: 0; padding: 10px; overflow: hidden auto;
}
.adapter-trainer-runs [data-run="1"] { --at-run: var(--at-rate); }
.adapter-trainer-runs [data-run="2"] { --at-run: var(--at-held-out); }
.adapter-trainer-runs *, .adapter-trainer-runs { box-sizing: border-box; }
.adapter-trainer-runs [hidden] { display: none !important; }
.adapter-trainer-runs :is(input:not([type=checkbox], [type=range]), select, textarea, button) {
  font: inherit; color: inherit; background: var(--at-surface); border: 1px solid var(--at-line); border-radius: 5px; padding: 4px 6px; min-width: 0;
}
.adapter-trainer-runs a { color: inherit; text-decoration: none; border: 1px solid var(--at-line); border-radius: 5px; padding: 4px 6px; background: var(--at-surface); }
.adapter-trainer-runs :is(button, select) { cursor: pointer; }
.adapter-trainer-runs :focus-visible { outline: 2px solid var(--at-loss); outline-offset: 1px; }
.adapter-trainer-runs-head { display: flex; gap: 6px; flex: none; }
.adapter-trainer-runs-search { flex: 1; }
.adapter-trainer-runs-count { color: var(--at-quiet); font-size: 11px; flex: none; }
.adapter-trainer-runs-list { list-style: none; margin: 0; padding: 0; flex: 1 1 160px; min-height: 120px; overflow-y: auto; display: grid; gap: 4px; align-content: start; }
.adapter-trainer-runs-item { display: grid; grid-template-columns: auto 1fr auto; align-items: center; gap: 6px; }
.adapter-trainer-runs-row { display: grid; grid-template: auto auto / 34px 1fr; gap: 0 8px; text-align: left; width: 100%; }
.adapter-trainer-runs-item[data-run] .adapter-trainer-runs-row { border-color: var(--at-run); box-shadow: inset 3px 0 var(--at-run); }
.adapter-trainer-runs-image { grid-row: span 2; width: 34px; height: 34px; object-fit: cover; border-radius: 4px; background: var(--at-line); }
.adapter-trainer-runs-name { font-weight: 600; overflow-wrap: anywhere; }
.adapter-trainer-runs-facts { color: var(--at-quiet); font-size: 11px; overflow-wrap: anywhere; }
.adapter-trainer-runs-facts .adapter-trainer-light { display: inline-block; margin-right: 5px; }
.adapter-trainer-runs-star { border: 0 !important; background: none !important; font-size: 15px !important; }
.adapter-trainer-runs-detail { flex: none; display: grid; gap: 8px; align-content: start; border-top: 1px solid var(--at-line); padding-top: 8px; }
.adapter-trainer-runs-chosen { display: grid; gap: 8px; }
.adapter-trainer-runs-one { display: grid; gap: 4px; border-left: 3px solid var(--at-run); padding-left: 8px; }
.adapter-trainer-runs-title { font-weight: 600; overflow-wrap: anywhere; }
.adapter-trainer-runs-reason { font-weight: normal; white-space: pre-line; }
.adapter-trainer-runs-actions { display: flex; flex-wrap: wrap; gap: 4px; }
.adapter-trainer-runs-note { resize: vertical; }
.adapter-trainer-runs-chart { display: block; width: 100%; }
.adapter-trainer-runs-chart .adapter-trainer-grid { stroke: var(--at-line); }
.adapter-trainer-runs-chart .adapter-trainer-tick { fill: var(--at-quiet); font-size: 10px; }
.adapter-trainer-runs-chart path { fill: none; stroke: var(--at-run); stroke-width: 1.6; stroke-linecap: round; }
.adapter-trainer-runs-held-out { stroke-dasharray: 4 3; }
.adapter-trainer-runs-log { display: flex; align-items: center; gap: 4px; color: var(--at-quiet); font-size: 11px; }
.adapter-trainer-runs-curves { display: flex; align-items: center; justify-content: space-between; gap: 6px; }
.adapter-trainer-runs-none { color: var(--at-quiet); margin: 4px 0; }
.adapter-trainer-runs-heading { font-weight: 600; }
.adapter-trainer-runs-queue, .adapter-trainer-runs-trash { flex: none; display: grid; gap: 4px; padding-bottom: 6px; }
.adapter-trainer-runs-trash { border-top: 1px solid var(--at-line); padding-top: 8px; }
.adapter-trainer-runs-trash > button { justify-self: start; }
.adapter-trainer-runs-queued { list-style: none; margin: 0; padding: 0; display: grid; gap: 4px; max-height: 140px; overflow-y: auto; }
.adapter-trainer-runs-waiting { display: flex; align-items: center; justify-content: space-between; gap: 8px; overflow-wrap: anywhere; }
.adapter-trainer-runs-disk { display: grid; gap: 4px; }
.adapter-trainer-runs-disk summary { cursor: pointer; }
.adapter-trainer-runs-part { display: flex; align-items: center; gap: 6px; padding: 2px 0; }
.adapter-trainer-runs-size { margin-left: auto; color: var(--at-quiet); }
.adapter-trainer-runs-loss { margin: 2px 0 4px; color: var(--at-quiet); overflow-wrap: anywhere; }
.adapter-trainer-runs-more { width: 7em; }
.adapter-trainer-runs-actions { align-items: center; }
.adapter-trainer-runs button:disabled { opacity: .5; cursor: default; }
.adapter-trainer-runs-steps { display: flex; align-items: center; gap: 8px; }
.adapter-trainer-runs-slider { flex: 1; min-width: 0; }
.adapter-trainer-runs-step { color: var(--at-quiet); font-size: 11px; min-width: 8em; text-align: right; }
.adapter-trainer-runs-samples { display: grid; gap: 4px; }
.adapter-trainer-runs-images { display: grid; grid-template-columns: repeat(auto-fill, minmax(84px, 1fr)); gap: 4px; border-left: 3px solid var(--at-run); padding-left: 6px; }
.adapter-trainer-runs-thumbnail { padding: 0 !important; overflow: hidden; }
.adapter-trainer-runs-thumbnail img { display: block; width: 100%; height: auto; }
.adapter-trainer-runs-differ summary { cursor: pointer; color: var(--at-quiet); }
.adapter-trainer-runs-settings { border-collapse: collapse; font-size: 11px; width: 100%; }
.adapter-trainer-runs-settings :is(th, td) { text-align: left; padding: 2px 6px 2px 0; vertical-align: top; font-weight: 400; overflow-wrap: anywhere; }
.adapter-trainer-runs-settings td { box-shadow: inset 2px 0 var(--at-run); padding-left: 6px; }
`;

/** @param {Document} target */
export function addStyle(target) {
  addOnce(target, "adapter-trainer-runs-style", CSS);
}
