// @ts-check
/** The strip on a node: how many images, small ones to click at, what is wrong, and the upload. */

import { html, setText } from "../panel/dom.js";
import { IMAGES_CHANGED } from "../panel/hub.js";
import {
  ACCEPTED, filesOf, holdsFiles, isUsable, keepLeftOut, keptLeftOut, notRead, previews, send, suggestedName,
} from "./files.js";

/**
 * @typedef {import("./server.js").DatasetServer} DatasetServer
 * @typedef {import("./server.js").Report} Report
 * @typedef {import("./server.js").Found} Found
 * @typedef {import("./server.js").Place} Place
 * @typedef {import("./server.js").Item} Item
 * @typedef {import("./files.js").Dropped} Dropped
 * @typedef {{ drop: string, refused: import("./files.js").LeftOut[], found: Found | null }} Staged
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
/** Sentences about the folder that the line has room for. */
const SHOWN = 2;
/** Images that are shown before they have a folder. */
const PREVIEWS = 20;

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
    /** What was asked last, and found. */
    this.found = ["", ""];
    /** What came of the last upload, and the folder that it is about. */
    this.notice = "";
    /** @type {string | null} */
    this.noticed = null;
    /** @type {import("./files.js").LeftOut[]} */
    this.leftOut = [];
    this.fading = 0;
    this.failed = false;
    /** @type {AbortController | null} */
    this.uploading = null;

    this.message = "";
    this.count = html("span", "dataset-count", { "aria-live": "polite" });
    this.add = button("dataset-button", "Add images…", () => this.picker.click());
    this.add.title = "Choose images, clips, captions or a .zip; or drop them on this node.";
    this.picker = html("input", "", { type: "file", multiple: "", accept: ACCEPTED, hidden: "" });
    this.picker.addEventListener("change", () => {
      const files = [...(this.picker.files ?? [])].map((file) => ({ path: file.name, file }));
      this.picker.value = "";
      if (files.length) this.offer(files);
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
    return this.offer(await filesOf(transfer));
  }

  /** Asks the server what the folder holds now. */
  async refresh() {
    const asked = ++this.asked;
    const folder = this.host.folder();
    if (folder !== this.noticed) this.notice = "";
    if (!folder) {
      this.show(null, folder === null ? "The folder comes from another node." : "Choose a folder, or drop your images here.");
      return;
    }
    try {
      const report = await this.server.report(folder, this.host.settings());
      if (asked !== this.asked) return;
      if (!this.failed) this.leftOut = keptLeftOut(folder);
      this.show(report, "");
    } catch (error) {
      if (asked === this.asked) this.show(null, told(error));
    }
    const [about, found] = [[folder, this.host.settings()], this.report].map((each) => JSON.stringify(each));
    // Where the same question has another answer, errors about what was there are over.
    const detail = about === this.found[0] && found !== this.found[1];
    window.dispatchEvent(new CustomEvent(IMAGES_CHANGED, { detail }));
    this.found = [about, found];
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
    if (!this.items.length) this.images.append(html("p", "dataset-empty", {}, ["Drop images or clips here"]));
    this.message = message;
    this.drawLine();
  }

  drawLine() {
    if (this.uploading || !this.form.hidden) return;
    const { notice, report } = this;
    this.line.replaceChildren(
      ...(notice ? [html("span", "dataset-notice", {}, [notice])] : []),
      ...this.list(),
      ...(report ? this.problems(report) : [this.message]),
    );
  }

  /** What leads to the files that an upload did not take. */
  list() {
    return whyNot(this.leftOut, this.failed ? "Why?" : `${this.leftOut.length} left out`);
  }

  /** @param {Report} report */
  problems(report) {
    const kinds = report.problems.map(({ count, words, first }) =>
      button("dataset-problem", `${count} × ${words}`, () => this.host.open(first)),
    );
    const word = triggerWord(this.host.settings());
    const silent = report.problems.findIndex(({ kind }) => kind === "missing_caption");
    if (silent >= 0 && word && report.editable && !report.listed) {
      const use = button("dataset-problem", `Use “${word}” there`, () => void this.fill(word));
      kinds.splice(silent + 1, 0, use);
    }
    /** @type {HTMLElement[]} */
    const rest = report.others.slice(0, SHOWN).map((text) => html("span", "dataset-other", {}, [text]));
    if (report.others.length > SHOWN) {
      const all = report.others.map((reason) => ({ name: "", reason }));
      rest.push(button("dataset-problem", `${all.length - SHOWN} more`, () => showList("What else was found", all)));
    }
    if (kinds.length || rest.length || this.notice) return [...kinds, ...rest];
    return [report.editable ? "Click an image for its caption." : "A bundled example. Drop your own images here."];
  }

  /** Writes a caption where there is none. @param {string} text */
  async fill(text) {
    const edit = { way: /** @type {const} */ ("fill"), text, find: "" };
    try {
      const { changed } = await this.server.write(this.host.folder() ?? "", this.host.settings(), edit);
      this.tell(`${changed} caption${changed === 1 ? "" : "s"} written`, this.leftOut);
      await this.refresh();
    } catch (error) {
      this.say(told(error));
    }
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
      const marks = [grave && "grave", item.left_out && "out", item.parts && "moves"].filter(Boolean);
      const name = ["dataset-image", ...marks].join(" adapter-trainer-");
      const told = item.left_out ? ["Left out"] : item.problems.map((problem) => problem.text);
      const title = [item.name, ...parts(item), ...told].join("\n");
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
   * Sends the files, and asks meanwhile where they are to go: what is wrong with them is known then.
   *
   * @param {Dropped[]} dropped
   * @returns {boolean} whether any of them is used
   */
  offer(dropped) {
    const files = dropped.filter(({ path }) => isUsable(path));
    const others = notRead(dropped);
    if (this.uploading) return true;
    if (!files.length) {
      this.line.replaceChildren(...whyNot(others), "There are no images, clips, captions or .zip in what was dropped.");
      return false;
    }
    this.tell("", others);
    this.failed = false;
    // Not those of the folder before, which these are not part of yet.
    this.images.replaceChildren(...previews(files, PREVIEWS));
    const folders = this.host.folders().filter((name) => name.startsWith(INPUT));
    const taken = folders.map((name) => name.slice(INPUT.length));
    const own = this.ownFolder();
    const name = html("input", "dataset-name", {
      type: "text", "aria-label": "Folder", maxlength: "80", spellcheck: "false",
    });
    name.value = own ?? suggestedName(files, taken);
    const place = () => ({ folder: name.value.trim(), add: name.value.trim() === own });
    const stop = new AbortController();
    this.uploading = stop;
    let what = `${files.length} file${files.length === 1 ? "" : "s"}`;
    /** @type {Found | null} */
    let found = null;
    const hint = () => {
      const { folder, add } = place();
      const where = add ? "added to this folder" : taken.includes(folder) ? "new folder with a number" : "new folder";
      const first = `${found ? counted(found) : what}, ${where} below ComfyUI's input`;
      this.line.replaceChildren(...this.list(), [first, ...(found ? wrongs(found, add) : [])].join(". "));
    };
    const sent = this.stage(files, others, place(), stop.signal, (done) => {
      what = `${done} of ${files.length} sent`;
      hint();
    }).then((staged) => {
      found = staged?.found ?? null;
      if (staged) hint();
      return staged;
    });
    let waits = false;
    const finish = async () => {
      if (waits || !place().folder) return;
      waits = true;
      const staged = await sent;
      const refusal = staged && (await this.finish(staged, place()));
      waits = false;
      if (refusal) this.say(refusal);
    };
    name.addEventListener("input", hint);
    name.addEventListener("keydown", (event) => {
      if (event.key === "Enter") void finish();
      if (event.key === "Escape") stop.abort();
    });
    stop.signal.addEventListener("abort", async () => {
      const staged = await sent;
      if (staged) await this.server.cancel(staged.drop).catch(() => {});
      this.end("Cancelled, nothing was kept.", []);
    });
    this.ask([
      name,
      button("dataset-button adapter-trainer-main", "Upload", () => void finish()),
      button("dataset-button", "Cancel", () => stop.abort()),
    ]);
    hint();
    name.focus();
    name.select();
    return true;
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
   * @param {import("./files.js").LeftOut[]} others
   * @param {Place} place
   * @param {AbortSignal} signal
   * @param {(done: number) => void} progress
   * @returns {Promise<Staged | null>} null where nothing of it can be used
   */
  async stage(files, others, place, signal, progress) {
    try {
      const sent = await send(this.server, files, place, progress, signal);
      const { drop } = sent;
      const refused = [...others, ...sent.refused];
      // What cannot be looked at as it lies there is told once it has its folder.
      const found = await this.server.look(drop, this.host.settings()).catch(() => null);
      this.leftOut = [...refused, ...(found?.skipped ?? [])];
      return { drop, refused, found };
    } catch (error) {
      this.failed = !signal.aborted;
      if (this.failed) this.end("Nothing was uploaded.", [{ name: "", reason: told(error) }, ...others]);
      return null;
    }
  }

  /**
   * @param {Staged} staged
   * @param {Place} place
   * @returns {Promise<string>} why not; empty when it is done
   */
  async finish({ drop, refused }, place) {
    try {
      const { folder, added, skipped } = await this.server.finish(drop, place);
      const left = [...refused, ...skipped];
      keepLeftOut(folder, left);
      this.host.choose(folder);
      this.end(`${added} file${added === 1 ? "" : "s"} ${place.add ? "added to" : "in"} ${folder}`, left);
      return "";
    } catch (error) {
      return told(error);
    }
  }

  /**
   * Takes the form away, and says what came of it.
   *
   * @param {string} message
   * @param {import("./files.js").LeftOut[]} left
   */
  end(message, left) {
    this.uploading = null;
    this.tell(message, left);
    this.close();
    void this.refresh();
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
    this.noticed = this.host.folder();
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
  }

  disconnect() {
    this.uploading?.abort();
    this.asked += 1;
    clearTimeout(this.fading);
  }
}

/** @param {Record<string, unknown>} settings of the node, which may be answers @returns {string} */
export function triggerWord(settings) {
  const { trigger_word } = /** @type {any} */ (settings.answers ?? settings);
  return String(trigger_word ?? "").trim();
}

/** What leads to files that were not taken. @param {import("./files.js").LeftOut[]} files */
function whyNot(files, label = "Why?") {
  return files.length ? [button("dataset-problem", label, () => showList("What was not taken", files))] : [];
}

/** @param {string} title @param {import("./files.js").LeftOut[]} found */
function showList(title, found) {
  const lines = found.map(({ name, reason }) => html("li", "", {}, [told(reason, name)]));
  const close = button("close", "✕", () => dialog.remove());
  const dialog = html("dialog", "lightbox adapter-trainer-dataset-list", { "aria-label": title }, [
    html("div", "dataset-title", {}, [title]), html("ul", "", {}, lines), close,
  ]);
  dialog.addEventListener("keydown", (event) => event.stopPropagation());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/**
 * What is wrong with an upload beside captions that are missing, which are counted already.
 *
 * @param {Found} found
 * @param {boolean} adds to a folder, in which the partner of a file may lie
 */
function wrongs({ problems, others }, adds) {
  const kinds = problems.filter(({ kind }) => kind !== "missing_caption");
  return [...kinds.map(({ count, words }) => `${count} × ${words}`), ...(adds ? [] : others)];
}

/** How a clip is cut. @param {Item} item @returns {string[]} */
function parts({ parts: lengths }) {
  if (!lengths) return [];
  const some = lengths.length === 1 ? "A clip" : `A clip in ${lengths.length} parts`;
  return [`${some} of ${lengths[0]} frames`];
}

/** @param {Found} found */
function counted({ total, clips, left_out, problems, paired }) {
  const what = paired ? "pair" : clips && clips === total ? "clip" : "image";
  const kept = left_out ? `${total - left_out} of ` : "";
  const beside = clips && clips < total ? ` (${clips} of them clips)` : "";
  const number = `${kept}${total} ${what}${total === 1 ? "" : "s"}${beside}`;
  // Where a trigger word or no text at all is enough, nothing is missing.
  const missing = problems.find(({ kind }) => kind === "missing_caption");
  return missing ? `${number}, ${missing.count} without a caption` : number;
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
