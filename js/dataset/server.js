// @ts-check
/**
 * The routes of datasets, all through ComfyUI's own `api`. A refusal rejects with what was found and
 * what to do.
 *
 * @typedef {{ kind: string, grave: boolean, text: string }} Problem
 * @typedef {{ name: string, version: string }} Named
 * @typedef {Named & { width: number, height: number, captioned: boolean, left_out: boolean,
 *   problems: Problem[], controls: Named[], mask?: Named, parts?: number[], bucket?: [number, number], crop?: [number, number, number, number] }} Item
 * @typedef {{ kind: string, count: number, words: string, first: number }} Kind
 * @typedef {{ total: number, clips: number, left_out: number, uncaptioned: number, paired: boolean, listed: boolean,
 *   problems: Kind[], others: string[], first: number, items: Item[] }} Found
 * @typedef {Found & { editable: boolean, edits: number }} Report
 * @typedef {{ way: "fill" | "all" | "replace" | "front" | "remove" | "propose" | "propose_fill", text: string, find: string }} Edit of all captions
 * @typedef {{ left_out: boolean } | { focus: [number, number] | null }} Choice
 * @typedef {{ folder: string, add: boolean }} Place
 * @typedef {{ text: string, token: string, file: string, edits?: number, proposal?: string, proposals?: number }} Caption
 * @typedef {{ skipped: { name: string, reason: string }[] }} Skipped
 * @typedef {Skipped & { folder: string, added: number }} Finished
 */

const ROUTE = "/adapter_trainer/dataset";
const TOO_LARGE = 413;
const UNREADABLE = "The server's answer cannot be read. See whether ComfyUI runs, and try again.";

export class DatasetServer {
  /** @param {{ fetchApi: import("../comfyui.js").Api["fetchApi"], apiURL: (route: string) => string }} api */
  constructor(api) {
    this.api = api;
  }

  /**
   * @param {string} folder
   * @param {Record<string, unknown>} settings the node's
   * @param {number} first
   * @returns {Promise<Report>} a page of the images
   */
  report(folder, settings, first = 0) {
    const query = { folder, settings: JSON.stringify(settings), first: String(first) };
    return this.ask("report", query);
  }

  /**
   * @param {string} folder
   * @param {Named} image
   * @param {boolean} large
   */
  imageUrl(folder, image, large) {
    const { name, version } = image;
    const query = new URLSearchParams({ folder, name, version, size: large ? "large" : "small" });
    return this.api.apiURL(`${ROUTE}/image?${query}`);
  }

  /**
   * @param {string} folder
   * @param {string} name
   * @param {string} extension
   * @returns {Promise<Caption>}
   */
  caption(folder, name, extension) {
    return this.ask("caption", { folder, name, extension });
  }

  /**
   * @param {string} folder
   * @param {string} name
   * @param {string} extension
   * @param {{ text: string, token: string }} edit
   * @returns {Promise<Caption>}
   */
  save(folder, name, extension, edit) {
    return this.ask("save", { folder, name, extension }, JSON.stringify(edit));
  }

  /**
   * @param {string} folder
   * @param {Record<string, unknown>} settings
   * @param {Edit} edit
   * @returns {Promise<{ changed: number, unread: number, edits: number }>}
   */
  write(folder, settings, edit) {
    const extension = String(settings.caption_extension ?? ".txt");
    const query = { folder, extension, settings: JSON.stringify(settings) };
    return this.ask("write", query, JSON.stringify(edit));
  }

  /**
   * @param {string} folder
   * @param {Record<string, unknown>} settings
   * @returns {Promise<{ tags: [string, number][] }>} between commas, with how many captions have each
   */
  tags(folder, settings) {
    const extension = String(settings.caption_extension ?? ".txt");
    return this.ask("tags", { folder, extension, settings: JSON.stringify(settings) });
  }

  /**
   * @param {string} folder
   * @param {Record<string, unknown>} settings
   * @returns {Promise<{ groups: number[][] }>} places of images that look alike
   */
  alike(folder, settings) {
    return this.ask("alike", { folder, settings: JSON.stringify(settings) });
  }

  /** Forgets what is proposed. @param {string} folder */
  dismiss(folder) {
    return this.ask("dismiss", { folder }, "");
  }

  /** @param {string} folder @param {string} name @param {Choice} choice */
  choose(folder, name, choice) {
    return this.ask("choose", { folder, name }, JSON.stringify(choice));
  }

  /** @param {string} folder @returns {Promise<{ files: string[], edits: number }>} */
  undo(folder) {
    return this.ask("undo", { folder }, "");
  }

  /** @param {Place} place @returns {Promise<{ drop: string }>} */
  begin({ folder, add }) {
    return this.ask("begin", { folder, add: add ? "1" : "0" }, "");
  }

  /**
   * @param {string} drop
   * @param {string} name
   * @param {Blob} content
   * @param {AbortSignal} signal
   * @returns {Promise<{ taken: number }>}
   */
  file(drop, name, content, signal) {
    return this.ask("file", { drop, name }, content, signal);
  }

  /**
   * @param {string} drop
   * @param {Record<string, unknown>} settings
   * @returns {Promise<Found & Skipped>} what would be trained of it
   */
  look(drop, settings) {
    return this.ask("look", { drop, settings: JSON.stringify(settings) }, "");
  }

  /** @param {string} drop @param {Place} place @returns {Promise<Finished>} */
  finish(drop, { folder, add }) {
    return this.ask("finish", { drop, folder, add: add ? "1" : "0" }, "");
  }

  /** @param {string} drop */
  cancel(drop) {
    return this.ask("cancel", { drop }, "");
  }

  /**
   * @param {string} name
   * @param {Record<string, string>} query
   * @param {BodyInit} [body] posts it
   * @param {AbortSignal} [signal]
   */
  async ask(name, query, body, signal) {
    const method = body === undefined ? "GET" : "POST";
    const route = `${ROUTE}/${name}?${new URLSearchParams(query)}`;
    const response = await this.api.fetchApi(route, { method, body, signal, cache: "no-store" });
    const answer = await response.json().catch(() => null);
    if (response.ok && answer !== null) return answer;
    // A proxy may answer with a page of its own.
    throw response.ok ? new Error(UNREADABLE) : new Refusal(response.status, answer);
  }
}

/** What the server refused, in words; `ofFile` when it is about one file and the rest may go on. */
export class Refusal extends Error {
  /**
   * @param {number} status
   * @param {{ found?: unknown, remedy?: unknown } | null} answer
   */
  constructor(status, answer) {
    const parts = [answer?.found, answer?.remedy].filter((part) => typeof part === "string" && part);
    super(status === TOO_LARGE ? LARGER : parts.join(". ") || `The server answered ${status}.`);
    this.ofFile = status === TOO_LARGE || status === 409;
  }
}

const LARGER =
  "larger than this ComfyUI takes (--max-upload-size). Drop the images themselves, not a .zip";
