// @ts-check
/** An image large, what of it is trained, which can be moved, and its caption, which can be edited. */

import { html, setText } from "../panel/dom.js";
import { Bulk } from "./bulk.js";
import { Proposed } from "./proposed.js";
import { button, triggerWord } from "./strip.js";

/**
 * @typedef {import("./server.js").DatasetServer} DatasetServer
 * @typedef {import("./server.js").Item} Item
 * @typedef {import("./server.js").Report} Report
 */

/** Shares of a side below which nothing of it is cut off. */
const HARDLY = 0.001;

export class Dialog {
  /**
   * @param {DatasetServer} server
   * @param {{ folder: () => string | null, settings: () => Record<string, unknown>,
   *   closed: () => void }} host
   */
  constructor(server, host) {
    this.server = server;
    this.host = host;
    this.folder = "";
    /** @type {Map<number, Item>} */
    this.items = new Map();
    this.total = 0;
    this.index = 0;
    this.editable = false;
    /** Whether a metadata file has the captions. */
    this.listed = false;
    this.token = "";
    /** The text as it is on the disk. */
    this.saved = "";
    /** @type {Promise<import("./server.js").Caption> | undefined} */
    this.saving = undefined;

    this.image = html("img", "dataset-large");
    this.frame = html("div", "dataset-frame", { title: "Drag to keep another part; double-click for the usual one" });
    this.mask = html("img", "dataset-mask", { alt: "" });
    this.framed = html("div", "dataset-framed", {}, [this.image, this.mask, this.frame]);
    this.controls = html("div", "dataset-controls");
    this.title = html("div", "dataset-title");
    this.size = html("div", "dataset-size");
    this.problems = html("ul", "dataset-problems");
    this.text = html("textarea", "dataset-text", { "aria-label": "Caption", placeholder: "What is to be seen" });
    this.text.disabled = true;
    this.status = html("div", "dataset-status", { "aria-live": "polite" });
    this.undoButton = button("dataset-button", "Undo", () => void this.undo());
    this.unwritten = button("dataset-button", "Next without caption", () => void this.goUnwritten());
    this.leave = button("dataset-button", "Leave out", () => void this.choose({ left_out: !this.items.get(this.index)?.left_out }));
    const ofFolder = () => /** @type {const} */ ([this.folder, this.host.settings()]);
    this.bulk = new Bulk((edit) => void this.write(edit), async () => (await this.server.tags(...ofFolder())).tags);
    this.problem = button("dataset-button", "Next problem", () => void this.goProblem());
    this.showMask = button("dataset-button", "Hide mask", () => this.toggleMask());
    this.looks = button("dataset-button", "Find images that look alike", () => void this.findAlike());
    /** Places of images that look alike. @type {number[][]} */
    this.groups = [];
    this.proposed = new Proposed({
      take: (text) => void this.takeProposal(text),
      write: (way) => void this.write({ way, text: "", find: "" }),
      dismiss: () => void this.dismiss(),
    });
    this.reload = button("dataset-button", "Show the file's text", () => void this.show(this.index));
    this.previous = button("previous", "‹", () => void this.go(-1));
    this.next = button("next", "›", () => void this.go(1));
    this.previous.title = "Previous image (left arrow, in the text Page Up)";
    this.next.title = "Next image (right arrow, in the text Page Down)";
    const close = button("close", "✕", () => void this.close());
    close.title = "Close";
    this.element = html("dialog", "lightbox adapter-trainer-dataset-dialog", { "aria-label": "Image and caption" }, [
      html("div", "dataset-shown", {}, [this.previous, this.framed, this.controls, this.next]),
      html("div", "dataset-side", {}, [
        this.title, this.size, this.problems, this.text, this.proposed.element, this.status,
        html("div", "dataset-buttons", {}, [this.undoButton, this.reload, this.problem, this.unwritten, this.leave, this.showMask, this.looks]),
        this.bulk.element,
      ]),
      close,
    ]);
    this.text.addEventListener("change", () => void this.save());
    this.frame.addEventListener("pointerdown", (event) => this.drag(event));
    this.frame.addEventListener("dblclick", () => void this.choose({ focus: null }));
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("cancel", (event) => {
      event.preventDefault();
      void this.close();
    });
    this.element.addEventListener("close", () => this.element.remove());
  }

  /** @param {number} index */
  async open(index) {
    const folder = this.host.folder();
    if (folder === null) return;
    this.folder = folder;
    this.items.clear();
    this.groups = [];
    this.bulk.offer(triggerWord(this.host.settings()));
    document.body.append(this.element);
    if (!this.element.open) this.element.showModal();
    await this.show(index);
  }

  /** Closes when the caption is saved; what could not be saved stays to be seen. */
  async close() {
    if (!(await this.save())) return;
    this.discard();
    this.host.closed();
  }

  discard() {
    if (this.element.open) this.element.close();
    this.element.remove();
  }

  /** @param {1 | -1} direction */
  async go(direction) {
    const to = this.index + direction;
    if (to < 0 || to >= this.total || !(await this.save())) return;
    await this.show(to);
  }

  /** @param {number} index */
  async show(index) {
    try {
      const item = await this.item(index);
      if (!item) return;
      this.index = index;
      // That of the image before is none of this one's.
      this.proposed.element.hidden = true;
      this.draw(item);
      const caption = await this.server.caption(this.folder, item.name, this.extension());
      if (this.index === index) this.take(caption, "");
    } catch (error) {
      this.text.disabled = true;
      this.say(error);
    }
  }

  /** @param {number} index @param {boolean} [again] @returns {Promise<Item | undefined>} */
  async item(index, again = false) {
    if (again || !this.items.has(index)) {
      const settings = this.host.settings();
      const page = await this.server.report(this.folder, settings, Math.max(0, index - 20));
      for (const [at, item] of page.items.entries()) this.items.set(page.first + at, item);
      this.total = page.total;
      this.editable = page.editable;
      this.listed = page.listed;
      this.unwritten.hidden = !page.uncaptioned;
      this.leave.hidden = !page.editable;
      this.bulk.element.hidden = !page.editable || page.listed;
      this.countEdits(page.edits);
    }
    return this.items.get(index);
  }

  /** @param {Item} item */
  draw(item) {
    setText(this.title, `${this.index + 1} of ${this.total}: ${item.name}`);
    const url = this.server.imageUrl(this.folder, item, true);
    if (this.image.getAttribute("src") !== url) this.image.src = url;
    this.image.alt = item.name;
    this.element.classList.toggle("adapter-trainer-out", item.left_out);
    setText(this.leave, item.left_out ? "Take in again" : "Leave out");
    this.drawFrame(item);
    this.mask.hidden = this.showMask.hidden = !item.mask;
    if (item.mask) this.mask.src = this.server.imageUrl(this.folder, item.mask, true);
    this.problems.replaceChildren(
      ...this.others().map((at) => html("li", "", {}, ["Looks like ", button("dataset-problem", `image ${at + 1}`, () => void this.jump(at))])),
      ...item.problems.map(({ text, grave }) => html("li", grave ? "grave" : "", {}, [text])),
    );
    this.controls.replaceChildren(
      ...item.controls.map((control) => {
        const title = `Control image ${control.name}`;
        const image = html("img", "", { src: this.server.imageUrl(this.folder, control, true), alt: title });
        return html("figure", "", { title }, [image, html("figcaption", "", {}, ["control"])]);
      }),
    );
    this.previous.disabled = this.index === 0;
    this.next.disabled = this.index >= this.total - 1;
  }

  /** @param {Item} item */
  drawFrame(item) {
    const { bucket, crop, width, height } = item;
    this.frame.hidden = !crop;
    if (item.left_out) return setText(this.size, "Left out: it is not trained.");
    setText(
      this.size,
      bucket ? `${width} × ${height}, trained at ${bucket[0]} × ${bucket[1]} (the frame)` : "",
    );
    if (crop) this.place(...crop);
  }

  /**
   * @param {number} left
   * @param {number} top
   * @param {number} right
   * @param {number} bottom
   */
  place(left, top, right, bottom) {
    const [x, y, width, height] = [left, top, right - left, bottom - top].map((part) => `${part * 100}%`);
    Object.assign(this.frame.style, { left: x, top: y, width, height });
  }

  /** Moves what is kept of the image as far as the image reaches. @param {PointerEvent} event */
  drag(event) {
    const { crop } = this.items.get(this.index) ?? {};
    if (!crop || !this.editable) return;
    const [left, top, right, bottom] = crop;
    const [width, height] = [right - left, bottom - top];
    if (Math.max(1 - width, 1 - height) < HARDLY) return;
    const box = this.framed.getBoundingClientRect();
    const within = (/** @type {number} */ at, /** @type {number} */ most) => Math.min(Math.max(at, 0), most);
    let [x, y] = [left, top];
    this.frame.setPointerCapture?.(event.pointerId);
    this.frame.onpointermove = (to) => {
      x = within(left + (to.clientX - event.clientX) / box.width, 1 - width);
      y = within(top + (to.clientY - event.clientY) / box.height, 1 - height);
      this.place(x, y, x + width, y + height);
    };
    this.frame.onpointerup = this.frame.onpointercancel = () => {
      this.frame.onpointermove = this.frame.onpointerup = this.frame.onpointercancel = null;
      if (x !== left || y !== top) void this.choose({ focus: [x + width / 2, y + height / 2] });
    };
  }

  /** @param {import("./server.js").Choice} choice for the image that is shown */
  async choose(choice) {
    const { index } = this;
    const item = this.items.get(index);
    if (!item || !this.editable || !(await this.save())) return;
    try {
      await this.server.choose(this.folder, item.name, choice);
      const fresh = await this.item(index, true);
      if (fresh && this.index === index) this.draw(fresh);
    } catch (error) {
      this.say(error);
    }
  }

  /** Places of the images that look like the one that is shown. */
  others() {
    const { index } = this;
    return (this.groups.find((group) => group.includes(index)) ?? []).filter((at) => at !== index);
  }

  /** @param {number} index */
  async jump(index) {
    if (await this.save()) await this.show(index);
  }

  async goProblem() {
    const alike = new Set(this.groups.flat());
    if (!(await this.goWhere((item, index) => !item.left_out && (item.problems.length > 0 || alike.has(index))))) {
      this.say("Nothing else is wrong.");
    }
  }

  async goUnwritten() {
    if (!(await this.goWhere((item) => !item.captioned && !item.left_out))) this.say("Every image has a caption.");
  }

  /**
   * Shows the next image of a kind, beginning anew behind the last one.
   *
   * @param {(item: Item, index: number) => boolean} is
   * @returns {Promise<boolean>} whether there is one; also where the present one cannot be left
   */
  async goWhere(is) {
    if (!(await this.save())) return true;
    for (let step = 1; step <= this.total; step += 1) {
      const index = (this.index + step) % this.total;
      const item = await this.item(index).catch(() => null);
      if (!item || !is(item, index)) continue;
      await this.show(index);
      return true;
    }
    return false;
  }

  /** Decodes all images once, which takes a while. */
  async findAlike() {
    this.looks.disabled = true;
    this.say("Looking at all images…");
    try {
      const { groups } = await this.server.alike(this.folder, this.host.settings());
      this.groups = groups;
      const item = this.items.get(this.index);
      if (item) this.draw(item);
      const count = groups.flat().length;
      this.say(count ? `${count} images look like others: Next problem leads to them.` : "No two images look alike.");
    } catch (error) {
      this.say(error);
    } finally {
      this.looks.disabled = false;
    }
  }

  toggleMask() {
    const hidden = this.framed.classList.toggle("adapter-trainer-unmasked");
    setText(this.showMask, hidden ? "Show mask" : "Hide mask");
  }

  /** Puts a proposal into the text, as if it was typed. @param {string} text */
  async takeProposal(text) {
    if (this.text.disabled) return;
    this.text.value = text;
    if (await this.save()) await this.show(this.index);
  }

  async dismiss() {
    try {
      await this.server.dismiss(this.folder);
      await this.show(this.index);
    } catch (error) {
      this.say(error);
    }
  }

  /** @param {import("./server.js").Edit} edit of all captions */
  async write(edit) {
    if (!(await this.save())) return;
    try {
      const { changed, unread } = await this.server.write(this.folder, this.host.settings(), edit);
      this.items.clear();
      await this.show(this.index);
      void this.bulk.refresh();
      const stay = unread ? `; ${unread} that cannot be read or are JSON stay` : "";
      const none = edit.find && !changed;
      this.say(none ? `No caption has “${edit.find}”${stay}` : `${changed} caption${changed === 1 ? "" : "s"} changed${stay}`);
    } catch (error) {
      this.say(error);
    }
  }

  /** @param {import("./server.js").Caption} caption @param {string} message */
  take(caption, message) {
    this.token = caption.token;
    this.saved = caption.text;
    this.text.value = caption.text;
    this.text.disabled = !this.editable || this.listed;
    this.reload.hidden = true;
    const where = this.listed ? "The captions stand in the metadata file." : message;
    this.say(this.editable ? where : "This folder can only be looked at.");
    this.proposed.draw(caption, !this.text.disabled);
    if (caption.edits !== undefined) this.countEdits(caption.edits);
  }

  /** @returns {Promise<boolean>} whether the text on the screen is that of the file */
  async save() {
    if (this.saving) {
      // A second request for the same text, as leaving the field and a click give it, finds it saved.
      await this.saving.catch(() => null);
      return this.save();
    }
    const item = this.items.get(this.index);
    if (!item || !this.editable || this.text.disabled || this.text.value === this.saved) return true;
    const { index, token } = this;
    const text = this.text.value;
    this.saving = this.server
      .save(this.folder, item.name, this.extension(), { text, token })
      .finally(() => { this.saving = undefined; });
    try {
      const caption = await this.saving;
      const typed = this.text.value;
      if (this.index === index) {
        this.take(caption, `Saved to ${caption.file}`);
        // What was typed meanwhile stays, and is saved next.
        if (typed !== text) {
          this.text.value = typed;
          return this.save();
        }
      }
      const fresh = await this.item(index, true);
      if (fresh && this.index === index) this.draw(fresh);
      return this.index !== index || this.text.value === this.saved || this.save();
    } catch (error) {
      this.reload.hidden = false;
      this.say(error);
      return false;
    }
  }

  async undo() {
    if (!(await this.save())) return;
    try {
      const { files } = await this.server.undo(this.folder);
      const [file] = files;
      const stem = (/** @type {string} */ name) => name.replace(/\.[^./]*$/, "").normalize("NFC");
      this.items.clear();
      await this.item(this.index, true);
      const at = [...this.items].find(([, item]) => files.length === 1 && stem(item.name) === stem(file));
      await this.show(at ? at[0] : this.index);
      const what = files.length > 1 ? `${files.length} captions are as they were` : `${file} is as it was`;
      this.say(file ? `${what} before` : "There is nothing to take back.");
    } catch (error) {
      this.say(error);
      await this.item(this.index, true).catch(() => {});
    }
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    // The graph behind the dialog has its own use for these keys.
    event.stopPropagation();
    const inText = event.target instanceof HTMLInputElement || event.target === this.text;
    /** @type {Record<string, 1 | -1>} */
    const moves = inText ? { PageUp: -1, PageDown: 1 } : { ArrowLeft: -1, ArrowRight: 1, PageUp: -1, PageDown: 1 };
    if (moves[event.key]) {
      event.preventDefault();
      void this.go(moves[event.key]);
    } else if ((event.ctrlKey || event.metaKey) && ["s", "Enter"].includes(event.key)) {
      event.preventDefault();
      void this.save();
    }
  }

  extension() {
    return String(this.host.settings().caption_extension ?? ".txt");
  }

  /** @param {number} edits */
  countEdits(edits) {
    this.undoButton.hidden = !edits;
  }

  /** @param {unknown} message */
  say(message) {
    this.status.classList.toggle("adapter-trainer-bad", message instanceof Error);
    setText(this.status, message instanceof Error ? message.message : String(message));
  }
}
