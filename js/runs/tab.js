// @ts-check
/**
 * The list of all runs, and below it the run that is chosen, or several beside each other. It follows
 * what trains for as long as it is open.
 */

import { Lightbox } from "../panel/lightbox.js";
import { html, setText } from "../panel/dom.js";
import { formatNumber, formatStep } from "../panel/format.js";
import { serverFrom } from "../panel/server.js";
import { addStyle as addPanelStyle } from "../panel/style.js";
import { telling } from "../run/workflow.js";
import { DetailView, MOST } from "./detail.js";
import { TrashView, formatBytes } from "./disk.js";
import { QueueView } from "./queue.js";
import { STATUSES, matching, sorted } from "./rows.js";
import { RunsServer } from "./server.js";
import { addStyle } from "./style.js";
import { t } from "./texts.js";

/**
 * @typedef {import("../comfyui.js").Api} Api
 * @typedef {import("../comfyui.js").App} App
 * @typedef {import("./rows.js").Row} Row
 * @typedef {import("./rows.js").Order} Order
 */

/** Milliseconds between two looks at what trains. */
const PACE = 2000;
const EVENTS = ["adapter_trainer.state", "adapter_trainer.progress", "execution_success", "execution_error", "status"];
/** So many rows are drawn; a search finds the others. */
const SHOWN = 200;
/** @type {[Order, string][]} */
const ORDERS = [["newest", t("Newest first")], ["name", t("By name")], ["loss", t("Lowest loss first")], ["size", t("Largest first")]];

export class RunsTab {
  /** @param {Api} api @param {App} app */
  constructor(api, app) {
    addPanelStyle(document);
    addStyle(document);
    this.app = app;
    this.server = new RunsServer(api);
    this.imageUrl = serverFrom(api).imageUrl;
    /** @type {Row[]} */
    this.rows = [];
    /** Runs that are shown below, in the order of their colours. @type {string[]} */
    this.chosen = [];
    this.isOpen = false;
    /** What is drawn of each run, and what it was drawn from. @type {Map<string, { key: string, element: HTMLElement }>} */
    this.drawn = new Map();
    /** @type {Record<string, number>} */
    this.sizes = {};
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.waiting = undefined;
    this.search = html("input", "runs-search", { type: "search", placeholder: t("Search runs"), title: t("Search name, status, tag or note"), "aria-label": t("Search runs") });
    this.search.addEventListener("input", () => this.drawList());
    this.order = html("select", "runs-order", { "aria-label": t("Order of runs") },
      ORDERS.map(([value, label]) => html("option", "", { value }, [t(label)])));
    this.order.addEventListener("change", () => void this.reorder());
    this.count = html("div", "runs-count", { "aria-live": "polite" });
    this.list = html("ul", "runs-list", { "aria-label": t("Runs") });
    this.detail = new DetailView({
      api, app, server: this.server, lightbox: new Lightbox(this.imageUrl),
      clean: (row, parts) => this.change(() => this.server.clean(row.run, parts)),
    });
    this.queue = new QueueView((id) => void this.change(() => this.server.cancel(id)));
    this.trash = new TrashView({
      restore: (id) => void this.change(async () => this.showRestored(await this.server.restore(id))),
      empty: () => void this.change(() => this.server.empty()),
    });
    this.element = html("section", "runs", { "aria-label": t("Runs") }, [
      this.queue.element,
      html("div", "runs-head", {}, [this.search, this.order]),
      this.count,
      this.list,
      this.detail.element,
      this.trash.element,
    ]);
    this.element.addEventListener("keydown", (event) => event.stopPropagation());
    for (const type of EVENTS) api.addEventListener(type, () => this.refreshSoon());
  }

  open() {
    this.isOpen = true;
    void this.refresh();
  }

  close() {
    this.isOpen = false;
    clearTimeout(this.waiting);
    this.waiting = undefined;
    this.element.remove();
  }

  /** Looks again in a moment; many events are one look. */
  refreshSoon() {
    if (this.isOpen) this.waiting ??= setTimeout(() => void this.refresh(), PACE);
  }

  async refresh() {
    clearTimeout(this.waiting);
    this.waiting = undefined;
    let read = false;
    await telling(this.app, t("Runs"), async () => {
      const [rows, queue, trash] = await Promise.all([this.server.list(), this.server.queue(), this.server.trash()]);
      this.queue.draw(queue);
      this.trash.draw(trash);
      this.rows = rows;
      this.chosen = this.chosen.filter((run) => this.rows.some((row) => row.run === run));
      this.drawList();
      await this.detail.show(this.chosenRows());
      read = true;
    });
    // A server that is gone is asked again when it sends something, or the tab is opened.
    if (read && this.rows.some((row) => row.status === "running")) this.refreshSoon();
  }

  /** Does something to runs or the queue, and looks what has become of them. @param {() => Promise<unknown>} work */
  async change(work) {
    await telling(this.app, t("Runs"), async () => void (await work()));
    this.detail.stale = true;
    await this.refresh();
  }

  /** @param {string} run as it is called now */
  showRestored(run) {
    this.app.extensionManager.toast.add({ severity: "info", summary: t("Runs"), detail: t("{run} has it back.", { run }), life: 8000 });
  }

  /** To look how large every run is takes a while, so it is done when it is asked for. */
  async reorder() {
    if (this.order.value === "size") {
      await telling(this.app, t("Runs"), async () => {
        this.sizes = await this.server.sizes();
      });
    }
    this.drawList();
  }

  chosenRows() {
    return this.chosen.flatMap((run) => this.rows.filter((row) => row.run === run));
  }

  /** @param {number} found */
  countText(found) {
    if (!this.rows.length) return t("No run yet. Train an adapter, and it appears here.");
    const values = { found, count: this.rows.length, shown: SHOWN };
    return found > SHOWN ? t("{found} of {count} runs, {shown} shown", values) : t("{found} of {count} runs", values);
  }

  drawList() {
    const order = /** @type {Order} */ (this.order.value);
    const sized = order === "size" ? this.rows.map((row) => ({ ...row, bytes: this.sizes[row.run] ?? null })) : this.rows;
    const found = sorted(matching(sized, this.search.value), order);
    setText(this.count, this.countText(found.length));
    const focused = document.activeElement?.getAttribute("data-run-key");
    const shown = found.slice(0, SHOWN);
    // A run that trains changes one row of hundreds.
    const drawn = new Map(shown.map((row) => {
      const key = JSON.stringify([row, this.chosen.indexOf(row.run)]);
      const known = this.drawn.get(row.run);
      return [row.run, known?.key === key ? known : { key, element: this.drawRow(row) }];
    }));
    this.drawn = drawn;
    const elements = [...drawn.values()].map(({ element }) => element);
    elements.forEach((element, i) => {
      const there = this.list.children[i];
      if (there === element) return;
      if (there && !elements.includes(/** @type {HTMLElement} */ (there))) there.replaceWith(element);
      else this.list.insertBefore(element, there ?? null);
    });
    while (this.list.children.length > elements.length) this.list.lastChild?.remove();
    if (focused && document.activeElement === document.body) {
      /** @type {HTMLElement | null} */ (this.list.querySelector(`[data-run-key="${CSS.escape(focused)}"]`))?.focus();
    }
  }

  /** @param {Row} row */
  drawRow(row) {
    const place = this.chosen.indexOf(row.run);
    const image = row.sample
      ? html("img", "runs-image", { src: this.imageUrl(row.sample, true), alt: "", loading: "lazy" })
      : html("span", "runs-image");
    const facts = [formatStep(row.step, row.steps), row.loss === null ? "" : t("loss {loss}", { loss: formatNumber(row.loss, 3) }),
      row.bytes === null ? "" : formatBytes(row.bytes), ...row.tags];
    const button = html("button", "runs-row", { type: "button", "aria-pressed": String(place >= 0), "data-run-key": row.run }, [
      image,
      html("span", "runs-name", {}, [row.run]),
      html("span", "runs-facts", {}, [html("span", "light"), `${t(STATUSES[row.status] ?? row.status)}, ${facts.filter(Boolean).join(", ")}`]),
    ]);
    button.dataset.status = row.status === "running" ? "training" : row.status;
    button.title = row.reason || row.note;
    button.addEventListener("click", (event) => this.choose(row.run, event.ctrlKey || event.metaKey || event.shiftKey));
    const star = html("button", "runs-star", {
      type: "button", "aria-pressed": String(row.favourite), title: row.favourite ? t("No favourite any more") : t("Favourite"),
      "aria-label": t("Favourite: {run}", { run: row.run }), "data-run-key": `${row.run} star`,
    }, [row.favourite ? "★" : "☆"]);
    star.addEventListener("click", () => void this.keep(row, { favourite: !row.favourite }));
    const compare = html("input", "runs-compare", { type: "checkbox", "aria-label": t("Compare {run}", { run: row.run }), title: t("Compare, up to {count}", { count: MOST }), "data-run-key": `${row.run} compare` });
    compare.checked = place >= 0;
    compare.addEventListener("change", () => this.choose(row.run, true));
    const item = html("li", "runs-item", {}, [compare, button, star]);
    if (place >= 0) item.dataset.run = String(place);
    return item;
  }

  /** @param {string} run @param {boolean} beside whether the others stay */
  choose(run, beside) {
    const rest = this.chosen.filter((each) => each !== run);
    if (!beside) this.chosen = [run];
    else this.chosen = rest.length < this.chosen.length ? rest : [...rest, run].slice(-MOST);
    this.drawList();
    void telling(this.app, t("Runs"), () => this.detail.show(this.chosenRows(), (row, change) => this.keep(row, change)));
  }

  /** @param {Row} row @param {Partial<import("./rows.js").Notes>} change */
  async keep(row, change) {
    await telling(this.app, t("Runs"), async () => {
      const { note, tags, favourite } = this.rows.find((each) => each.run === row.run) ?? row;
      const kept = await this.server.note(row.run, { note, tags, favourite, ...change });
      this.rows = this.rows.map((each) => (each.run === row.run ? { ...each, ...kept } : each));
      this.drawList();
    });
  }
}
