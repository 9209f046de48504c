// @ts-check
/** What is shown of the chosen runs: curves, images by step, settings that differ, and what can be done. */

import { html, setText } from "../panel/dom.js";
import { serverFrom } from "../panel/server.js";
import { NO_RUN } from "../panel/run.js";
import { openRun } from "../run_file/open.js";
import { loadWorkflow, telling } from "../run/workflow.js";
import { CurveStore } from "./curves.js";
import { diskView } from "./disk.js";
import { GoOn } from "./go_on.js";
import { Overlay } from "./overlay.js";
import { differences } from "./rows.js";
import { t } from "./texts.js";

/**
 * @typedef {import("../comfyui.js").Api} Api
 * @typedef {import("../comfyui.js").App} App
 * @typedef {import("./rows.js").Row} Row
 * @typedef {import("./rows.js").Notes} Notes
 * @typedef {import("./server.js").Detail} Detail
 * @typedef {import("../panel/run.js").Sample} Sample
 * @typedef {(row: Row, change: Partial<Notes>) => Promise<void>} Keep
 */

/** @type {[string, import("../panel/server.js").RunRequest, string][]} */
const LIVE = [
  [t("Stop and keep"), "stop", t("Ends the run after this step; its adapter is kept")],
  [t("Save now"), "save", t("Saves a checkpoint after this step")],
  [t("Sample now"), "preview", t("Generates the preview images after this step")],
];
/** Statuses of a run that can be let go on; one that is done can become longer. */
const BROKEN_OFF = new Set(["stopped", "cancelled", "failed", "lost"]);
const GO_ON = {
  continue: [t("Continue"), t("Opens its graph, and trains on to the planned end")],
  longer: [t("Train longer"), t("Opens its graph, and trains so many more steps from where it ended")],
  from: [t("Go on from here"), t("Opens its graph, and trains on from this checkpoint: the steps behind it are made again, and their checkpoints go")],
  again: [t("Same with other settings"), t("Opens its graph with resume off; what you change and run becomes a new run")],
};
const FOLDER = {
  open: [t("Open folder"), t("Shows the run's folder on this machine")],
  copy: [t("Copy folder's path"), ""],
};
const MORE_STEPS = t("Give a whole number of steps above 0.");
/** So many runs are compared at once. */
export const MOST = 3;
const LORA_CLASS = "LoraLoaderModelOnly";

/** @param {number} step */
function stepText(step) {
  return step === 0 ? t("before training") : t("step {step}", { step });
}

export class DetailView {
  /**
   * @param {object} parts
   * @param {Api} parts.api
   * @param {App} parts.app
   * @param {import("./server.js").RunsServer} parts.server
   * @param {import("../panel/lightbox.js").Lightbox} parts.lightbox
   * @param {(row: Row, parts: import("./disk.js").Part[]) => Promise<void>} parts.clean
   */
  constructor({ api, app, server, lightbox, clean }) {
    this.api = api;
    this.app = app;
    this.server = server;
    this.lightbox = lightbox;
    this.clean = clean;
    this.panelServer = serverFrom(api);
    this.goOn = new GoOn(app, api, this.panelServer);
    this.curves = new CurveStore(server);
    this.diskOpen = false;
    /** Whether what is known of the runs may be otherwise by now. */
    this.stale = false;
    /** @type {{ row: Row, detail: Detail }[]} */
    this.runs = [];
    /** @type {Keep} */
    this.keep = async () => {};
    this.asked = 0;
    this.overlay = new Overlay(() => void telling(app, t("Runs"), () => this.drawCurves()));
    this.slider = html("input", "runs-slider", { type: "range", min: "0", step: "1", "aria-label": t("Step of the images") });
    this.slider.addEventListener("input", () => this.drawSamples());
    this.step = html("output", "runs-step");
    this.images = html("div", "runs-samples");
    this.samples = html("div", "runs-by-step", {}, [
      html("div", "runs-steps", {}, [this.slider, this.step]), this.images,
    ]);
    this.settings = html("table", "runs-settings");
    this.differ = html("details", "runs-differ", {}, [html("summary", "", {}, [t("Settings that differ")]), this.settings]);
    this.heads = html("div", "runs-chosen");
    this.element = html("div", "runs-detail", {}, [this.heads, this.overlay.element, this.samples, this.differ]);
    this.element.hidden = true;
  }

  /**
   * @param {readonly Row[]} rows the colour of each is that of its place
   * @param {Keep} [keep] keeps what is written about a run
   */
  async show(rows, keep = this.keep) {
    this.keep = keep;
    const asked = ++this.asked;
    const details = await Promise.all(rows.map((row) => this.detailOf(row)));
    if (asked !== this.asked) return; // others were chosen meanwhile
    this.stale = false;
    const [names, heads] = [this.names(), this.headKeys()];
    this.runs = rows.map((row, i) => ({ row, detail: details[i] }));
    this.element.hidden = rows.length === 0;
    const others = names !== this.names();
    // What is being written stays as it is.
    const writes = !others && this.heads.contains(document.activeElement?.closest(".adapter-trainer-runs-tags, .adapter-trainer-runs-note") ?? null);
    if (heads !== this.headKeys() && !writes) {
      this.heads.replaceChildren(...this.runs.map((each, i) => this.head(each, i)));
    }
    this.drawSettings();
    const last = Number(this.slider.value) >= Number(this.slider.max);
    this.slider.max = String(Math.max(0, this.sampleSteps().length - 1));
    if (last || others) this.slider.value = this.slider.max;
    this.drawSamples();
    await this.drawCurves();
  }

  async drawCurves() {
    const { asked, runs } = this;
    const { name } = this.overlay.curve;
    this.overlay.element.hidden = runs.every(({ detail }) => detail.run.series.buckets.length === 0);
    const buckets = await Promise.all(runs.map(({ row, detail }) => this.curves.of(row, detail.run, name)));
    if (asked !== this.asked || name !== this.overlay.curve.name) return;
    this.overlay.draw(runs.map(({ row, detail }, i) => ({ run: row.run, buckets: buckets[i], heldOut: detail.run.heldOut })));
  }

  names() {
    return this.runs.map(({ row }) => row.run).join();
  }

  /** What the heads depend on. */
  headKeys() {
    return JSON.stringify(this.runs.map(({ row, detail: { node, adapter, reason, disk, checkpoints } }) =>
      [row.run, row.status, row.reason, node, adapter, reason, disk, checkpoints]));
  }

  /** A run that has ended and was read is not read again. @param {Row} row */
  async detailOf(row) {
    const known = this.runs.find((each) => each.row.run === row.run);
    if (known && !this.stale && known.row.changed === row.changed && row.status !== "running") return known.detail;
    try {
      return await this.server.one(row.run);
    } catch (error) {
      const reason = row.reason || (error instanceof Error ? error.message : String(error));
      return { run: NO_RUN, settings: {}, adapter: "", node: "", folder: "", opens: false, checkpoints: [], disk: null, reason };
    }
  }

  /** @returns {number[]} the steps at which any of the runs has images */
  sampleSteps() {
    const steps = this.runs.flatMap(({ detail }) => detail.run.samples.map((sample) => sample.step));
    return [...new Set(steps)].sort((a, b) => a - b);
  }

  /** The images of each run at the slider's step, or at its last one before. */
  drawSamples() {
    const step = this.sampleSteps()[Number(this.slider.value)] ?? -1;
    this.samples.hidden = step < 0;
    setText(this.step, step < 0 ? "" : stepText(step));
    this.slider.setAttribute("aria-valuetext", this.step.textContent ?? "");
    this.images.replaceChildren(...this.runs.map(({ detail }, place) => {
      const { samples } = detail.run;
      const at = Math.max(...samples.map((sample) => sample.step).filter((each) => each <= step));
      const row = html("div", "runs-images", { "data-run": String(place) });
      row.append(...samples.filter((sample) => sample.step === at).map((sample) => this.thumbnail(sample, samples)));
      return row;
    }));
  }

  /** @param {Sample} sample @param {readonly Sample[]} all */
  thumbnail(sample, all) {
    const name = `${stepText(sample.step)}, ${sample.prompt || t("prompt {number}", { number: sample.index + 1 })}`;
    const image = html("img", "", { src: this.panelServer.imageUrl(sample, true), alt: name });
    const button = html("button", "runs-thumbnail", { type: "button", title: name }, [image]);
    button.addEventListener("click", () => this.lightbox.open(sample, all));
    return button;
  }

  drawSettings() {
    const rows = this.runs.length > 1 ? differences(this.runs.map(({ detail }) => detail.settings)) : [];
    this.differ.hidden = rows.length === 0;
    this.settings.replaceChildren(...rows.map(([path, values]) => html("tr", "", {}, [
      html("th", "", { scope: "row" }, [path]), ...values.map((value, i) => html("td", "", { "data-run": String(i) }, [value])),
    ])));
  }

  /** @param {{ row: Row, detail: Detail }} chosen @param {number} place */
  head({ row, detail }, place) {
    const press = (/** @type {string} */ label, /** @type {string} */ title, /** @type {() => Promise<void>} */ work) => {
      const button = html("button", "runs-action", { type: "button", title: t(title) }, [t(label)]);
      button.addEventListener("click", () => void telling(this.app, t(label), work));
      return button;
    };
    /** @type {HTMLElement[]} */
    const actions = [
      press(t("Load workflow"), t("Opens the workflow that it was started from, in a tab of its own"), () =>
        loadWorkflow(row.run, this.panelServer, this.app)),
      press(t("Open as graph"), t("Puts the nodes of its settings below the others"), () => openRun(row.run, this.api, this.app)),
    ];
    const page = `/adapter_trainer/runs/page?${new URLSearchParams({ run: row.run })}`;
    const report = html("a", "runs-action", { href: this.api.apiURL(page), target: "_blank", title: t("One page to keep or to pass on; the settings on it have paths and prompts") }, [t("Report")]);
    actions.push(report);
    if (detail.node) {
      actions.push(...LIVE.map(([label, wish, title]) => press(label, title, async () => {
        const { taken, reason } = await this.panelServer.request(detail.node, wish);
        if (!taken) throw new Error(reason);
      })));
    }
    if (detail.adapter) {
      actions.push(
        press(t("Use in Load LoRA"), t("Copies the adapter into the loras folder, and adds the node"), () => this.use(row.run)),
        press(t("Copy path"), detail.adapter, () => this.copy(detail.adapter)),
      );
    }
    const [shown, hint] = detail.opens ? FOLDER.open : FOLDER.copy;
    actions.push(press(shown, hint || detail.folder, () => (detail.opens ? this.server.openFolder(row.run) : this.copy(detail.folder))));
    const title = html("div", "runs-title", {}, [row.run]);
    if (detail.reason) return html("div", "runs-one", { "data-run": String(place) }, [title, detail.reason]);
    const rest = html("div", "runs-actions", {}, actions);
    if (row.reason) title.append(html("div", "runs-reason", {}, [row.reason]));
    // Beside others there is room for what is compared alone.
    if (this.runs.length > 1) return html("div", "runs-one", { "data-run": String(place) }, [title, rest]);
    const tags = html("input", "runs-tags", { "aria-label": t("Tags of {run}", { run: row.run }), placeholder: t("Tags, with commas between") });
    tags.value = row.tags.join(", ");
    const note = html("textarea", "runs-note", { "aria-label": t("Note on {run}", { run: row.run }), placeholder: t("Note"), rows: "2", maxlength: "4000" });
    note.value = row.note;
    const written = () => {
      const words = tags.value.split(",").map((tag) => tag.trim()).filter(Boolean);
      void this.keep(this.runs[place]?.row ?? row, { tags: words, note: note.value });
    };
    for (const field of [tags, note]) field.addEventListener("change", written);
    const parts = [title, rest, ...this.goingOn(row, detail, press), tags, note];
    if (detail.disk && row.status !== "running") {
      const disk = diskView(detail.disk, this.diskOpen, (cleaned) => void this.clean(row, cleaned));
      disk.addEventListener("toggle", () => (this.diskOpen = disk.open));
      parts.push(disk);
    }
    return html("div", "runs-one", { "data-run": String(place) }, parts);
  }

  /**
   * How the run can go on, or be done once more.
   *
   * @param {Row} row
   * @param {Detail} detail
   * @param {(label: string, title: string, work: () => Promise<void>) => HTMLButtonElement} press
   * @returns {HTMLElement[]}
   */
  goingOn(row, { run, checkpoints }, press) {
    if (row.status === "running") return [];
    const rows = [press(GO_ON.again[0], GO_ON.again[1], () => this.goOn.again(run))];
    if (BROKEN_OFF.has(row.status) && checkpoints.length) {
      rows.unshift(press(GO_ON.continue[0], GO_ON.continue[1], () => this.goOn.start(run, {})));
    }
    const forms = [html("div", "runs-actions", { role: "group", "aria-label": t("Go on") }, rows)];
    if (row.status === "done" && checkpoints.length) {
      const more = html("input", "runs-more", { type: "number", min: "1", step: "1", "aria-label": t("How many more steps") });
      more.value = String(Math.max(1, Math.round(Math.max(run.step, run.steps) / 2)));
      forms.push(html("div", "runs-actions", {}, [more, t("more steps"), press(GO_ON.longer[0], GO_ON.longer[1], async () => {
        const steps = Number(more.value);
        if (!Number.isInteger(steps) || steps < 1) throw new Error(t(MORE_STEPS));
        await this.goOn.start(run, { more: steps });
      })]));
    }
    if (checkpoints.length) {
      const from = html("select", "runs-from", { "aria-label": t("Checkpoint") },
        [...checkpoints].reverse().map((step) => html("option", "", { value: String(step) }, [stepText(step)])));
      forms.push(html("div", "runs-actions", {}, [from, press(GO_ON.from[0], GO_ON.from[1], () => this.goOn.start(run, { step: Number(from.value) }))]));
    }
    return forms;
  }

  /** A page that came without encryption from another machine has no clipboard. @param {string} text */
  async copy(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    this.app.extensionManager.toast.add({ severity: "info", summary: t("Path"), detail: text });
  }

  /** @param {string} run */
  async use(run) {
    const name = await this.server.use(run);
    await this.app.reloadNodeDefs?.();
    const node = window.LiteGraph.createNode(LORA_CLASS);
    const graph = this.app.canvas?.graph;
    if (!node || !graph) throw new Error(t("There is no graph to put the node into."));
    const widget = node.widgets?.find((each) => each.name === "lora_name");
    if (widget) widget.value = name;
    const right = Math.max(0, ...graph.nodes.map((each) => each.pos[0] + each.size[0]));
    node.pos = [right + 60, graph.nodes[0]?.pos[1] ?? 80];
    this.app.canvas?.emitBeforeChange();
    graph.add(node);
    this.app.canvas?.emitAfterChange();
    this.app.canvas?.selectItems([node]);
  }
}
