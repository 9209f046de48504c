// @ts-check
/** The strip on a node: how many images, small ones to click at, what is wrong, and the upload. */

import { html, setText } from "../panel/dom.js";
import { ACCEPTED, filesOf, holdsFiles, suggestedName, upload } from "./files.js";

/**
 * @typedef {import("./server.js").DatasetServer} DatasetServer
 * @typedef {import("./server.js").Report} Report
 * @typedef {import("./server.js").Item} Item
 * @typedef {import("./files.js").Dropped} Dropped
 *
 * @typedef {object} Host
 * @property {() => string | null} folder that is chosen, or empty; null when it comes from another node
 * @property {() => Record<string, unknown>} settings
 * @property {() => string[]} folders that can be chosen
 * @property {(folder: string) => void} choose
 * @property {(index: number) => void} open shows an image large
 */

const INPUT = "input/";
const NOTICE_SECONDS = 8;

export class Strip {
  /**
   * @param {DatasetServer} server
   * @param {Host} host
   */
  constructor(server, host) {
    this.server = server;
    this.host = host;
    /** @type {Report | null} */
    this.report = null;
    /** @type {Item[]} */
    this.items = [];
    this.asked = 0;
    /** What came of the last upload. */
    this.notice = "";
    /** @type {import("./files.js").LeftOut[]} */
    this.leftOut = [];
    this.fading = 0;
    this.failed = false;
    /** @type {AbortController | null} */
    this.uploading = null;

    this.message = "";
    this.count = html("span", "dataset-count", { "aria-live": "polite" });
    this.add = button("dataset-button", "Add images…", () => this.picker.click());
    this.add.title = "Choose images, captions or a .zip; or drop them on this node.";
    this.picker = html("input", "", { type: "file", multiple: "", accept: ACCEPTED, hidden: "" });
    this.picker.addEventListener("change", () => {
      const files = [...(this.picker.files ?? [])].map((file) => ({ path: file.name, file }));
      this.picker.value = "";
      this.offer(files);
    });
    this.head = html("div", "dataset-head", {}, [this.count, this.add, this.picker]);
    this.form = html("div", "dataset-form");
    this.form.hidden = true;
    this.images = html("div", "dataset-images", { "data-capture-wheel": "true", tabindex: "-1" });
    this.line = html("div", "dataset-line", { "aria-live": "polite" });
    this.element = html("section", "dataset", { "aria-label": "Dataset" }, [
      this.head, this.form, this.images, this.line,
    ]);
    this.element.addEventListener("keydown", (event) => event.stopPropagation());
    this.listen();
  }

  listen() {
    const { element } = this;
    const over = (/** @type {boolean} */ is) => element.classList.toggle("adapter-trainer-over", is);
    element.addEventListener("dragover", (event) => {
      if (!holdsFiles(event.dataTransfer)) return;
      event.preventDefault();
      over(true);
    });
    element.addEventListener("dragleave", () => over(false));
    element.addEventListener("drop", (event) => {
      over(false);
      if (!event.dataTransfer || !holdsFiles(event.dataTransfer)) return;
      // Else ComfyUI opens it as a workflow.
      event.preventDefault();
      void this.drop(event.dataTransfer);
    });
  }

  /** @param {DataTransfer} transfer @returns {Promise<boolean>} whether anything in it is used */
  async drop(transfer) {
    const files = await filesOf(transfer);
    if (files.length) this.offer(files);
    else this.say("There are no images, captions or .zip in what was dropped.");
    return files.length > 0;
  }

  /** Asks the server what the folder holds now. */
  async refresh() {
    const asked = ++this.asked;
    const folder = this.host.folder();
    if (!folder) {
      this.show(null, folder === null ? "The folder comes from another node." : "Choose a folder, or drop your images here.");
      return;
    }
    try {
      const report = await this.server.report(folder, this.host.settings());
      if (asked === this.asked) this.show(report, "");
    } catch (error) {
      if (asked === this.asked) this.show(null, told(error));
    }
  }

  /**
   * @param {Report | null} report
   * @param {string} message shown in its place
   */
  show(report, message) {
    this.report = report;
    this.items = report ? [...report.items] : [];
    setText(this.count, report ? counted(report) : "");
    this.images.replaceChildren();
    this.addImages(this.items, 0);
    this.message = message;
    this.drawLine();
  }

  drawLine() {
    if (this.uploading || !this.form.hidden) return;
    const { leftOut, notice, report } = this;
    const list = button("dataset-problem", this.failed ? "Why?" : `${leftOut.length} left out`, () => showLeftOut(leftOut));
    this.line.replaceChildren(
      ...(notice ? [html("span", "dataset-notice", {}, [notice])] : []),
      ...(leftOut.length ? [list] : []),
      ...(report ? this.problems(report) : [this.message]),
    );
    this.line.title = this.line.textContent ?? "";
  }

  /** @param {Report} report */
  problems(report) {
    const kinds = report.problems.map(({ count, words, first }) =>
      button("dataset-problem", `${count} × ${words}`, () => this.host.open(first)),
    );
    const rest = report.others.length ? [html("span", "", {}, [report.others[0]])] : [];
    if (kinds.length || rest.length || this.notice) return [...kinds, ...rest];
    return [report.editable ? "Click an image for its caption." : "A bundled example. Drop your own images here."];
  }

  /**
   * @param {Item[]} items
   * @param {number} first their place among all
   */
  addImages(items, first) {
    const folder = this.host.folder() ?? "";
    for (const [index, item] of items.entries()) {
      const source = this.server.imageUrl(folder, item, false);
      const image = html("img", "", { src: source, alt: item.name, loading: "lazy", draggable: "false" });
      const grave = item.problems.some((problem) => problem.grave);
      const name = `dataset-image${grave ? " adapter-trainer-grave" : ""}`;
      const title = [item.name, ...item.problems.map((problem) => problem.text)].join("\n");
      const cell = html("button", name, { type: "button", title }, [image]);
      image.addEventListener("error", () => cell.classList.add("adapter-trainer-missing"));
      cell.addEventListener("click", () => this.host.open(first + index));
      this.images.append(cell);
    }
    const left = (this.report?.total ?? 0) - first - items.length;
    if (left > 0) this.images.append(button("dataset-more", `${left} more`, () => void this.more()));
  }

  async more() {
    const folder = this.host.folder();
    if (folder === null) return;
    const first = this.items.length;
    const page = await this.server.report(folder, this.host.settings(), first).catch(() => null);
    if (!page || first !== this.items.length) return;
    this.images.lastElementChild?.remove();
    this.items.push(...page.items);
    this.addImages(page.items, first);
  }

  /**
   * Asks where the files are to go.
   *
   * @param {Dropped[]} files
   */
  offer(files) {
    if (!files.length || this.uploading) return;
    this.tell("", []);
    const folders = this.host.folders().filter((name) => name.startsWith(INPUT));
    const taken = folders.map((name) => name.slice(INPUT.length));
    const own = this.ownFolder();
    const name = html("input", "dataset-name", {
      type: "text", "aria-label": "Folder", maxlength: "80", spellcheck: "false",
    });
    name.value = own ?? suggestedName(files, taken);
    const count = `${files.length} file${files.length === 1 ? "" : "s"}`;
    const adds = () => name.value.trim() === own;
    const hint = () => {
      const exists = taken.includes(name.value.trim()) && !adds();
      const where = adds() ? "added to this folder" : exists ? "new folder with a number" : "new folder";
      this.say(`${count}, ${where} below ComfyUI's input`);
    };
    const send = () => void this.send(files, { folder: name.value.trim(), add: adds() });
    name.addEventListener("input", hint);
    name.addEventListener("keydown", (event) => {
      if (event.key === "Enter") send();
      if (event.key === "Escape") this.close();
    });
    this.ask([
      name,
      button("dataset-button adapter-trainer-main", "Upload", send),
      button("dataset-button", "Cancel", () => this.close()),
    ]);
    hint();
    name.focus();
    name.select();
  }

  /** @returns {string | null} name of the chosen folder below input, when it is the person's own */
  ownFolder() {
    const folder = this.host.folder();
    const own = folder?.startsWith(INPUT) && this.report?.editable;
    const name = folder?.slice(INPUT.length) ?? "";
    return own && !name.includes("/") ? name : null;
  }

  /**
   * @param {Dropped[]} files
   * @param {{ folder: string, add: boolean }} place
   */
  async send(files, place) {
    if (this.uploading || !place.folder) return;
    const stop = new AbortController();
    this.uploading = stop;
    this.failed = false;
    const bar = html("progress", "bar", { max: String(files.length), value: "0" });
    this.ask([bar, button("dataset-button", "Cancel", () => stop.abort())]);
    const progress = (/** @type {number} */ done) => {
      bar.value = done;
      this.say(`${done} of ${files.length} uploaded`);
    };
    let message = "";
    /** @type {import("./files.js").LeftOut[]} */
    let left = [];
    try {
      const done = await upload(this.server, files, place, progress, stop.signal);
      left = done.skipped;
      message = `${done.added} file${done.added === 1 ? "" : "s"} ${place.add ? "added to" : "in"} ${done.folder}`;
      this.host.choose(done.folder);
    } catch (error) {
      message = stop.signal.aborted ? "Cancelled, nothing was kept." : "Nothing was uploaded.";
      this.failed = !stop.signal.aborted;
      if (this.failed) left = [{ name: "", reason: told(error) }];
    }
    this.uploading = null;
    this.tell(message, left);
    this.close();
    await this.refresh();
  }

  /**
   * Says what came of an upload, for a while; what was left out can be read until the next one.
   *
   * @param {string} message
   * @param {import("./files.js").LeftOut[]} left
   */
  tell(message, left) {
    clearTimeout(this.fading);
    this.notice = message;
    this.leftOut = left;
    this.fading = window.setTimeout(() => {
      this.notice = "";
      this.drawLine();
    }, NOTICE_SECONDS * 1000);
  }

  /** @param {Node[]} children */
  ask(children) {
    this.form.replaceChildren(...children);
    this.form.hidden = false;
    this.head.hidden = true;
  }

  close() {
    this.form.hidden = true;
    this.head.hidden = false;
    this.drawLine();
  }

  /** @param {string} message */
  say(message) {
    this.line.replaceChildren(message);
    this.line.title = message;
  }

  disconnect() {
    this.uploading?.abort();
    this.asked += 1;
    clearTimeout(this.fading);
  }
}

/** @param {import("./files.js").LeftOut[]} left */
function showLeftOut(left) {
  const lines = left.map(({ name, reason }) => html("li", "", {}, [told(reason, name)]));
  const close = button("close", "✕", () => dialog.remove());
  const dialog = html("dialog", "lightbox adapter-trainer-dataset-list", { "aria-label": "Left out" }, [
    html("div", "dataset-title", {}, ["What was not taken"]), html("ul", "", {}, lines), close,
  ]);
  dialog.addEventListener("keydown", (event) => event.stopPropagation());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** @param {Report} report */
function counted(report) {
  const { total, uncaptioned, paired } = report;
  const what = paired ? "pair" : "image";
  const number = `${total} ${what}${total === 1 ? "" : "s"}`;
  return uncaptioned ? `${number}, ${uncaptioned} without a caption` : number;
}

/**
 * @param {unknown} error
 * @param {string} [name] put in front, unless it is named already
 */
function told(error, name = "") {
  const text = error instanceof Error ? error.message : String(error);
  return !name || text.includes(name) ? text : `${name}: ${text}`;
}

/**
 * @param {string} name
 * @param {string} label
 * @param {() => void} pressed
 */
export function button(name, label, pressed) {
  const element = html("button", name, { type: "button" }, [label]);
  element.addEventListener("click", pressed);
  return element;
}
