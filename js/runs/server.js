// @ts-check
/**
 * The routes of the runs tab; every one rejects with the server's reason.
 *
 * @typedef {import("./rows.js").Notes} Notes
 * @typedef {import("./rows.js").Row} Row
 *
 * @typedef {object} Detail
 * @property {import("../panel/run.js").Run} run
 * @property {Record<string, unknown>} settings by their path
 * @property {string} adapter the file, empty where there is none yet
 * @property {string} [reason] why it cannot be read
 * @property {string} node that trains it now, empty where none does
 */

import { fromSnapshot } from "../panel/run.js";
import { toNotes, toRows } from "./rows.js";

export class RunsServer {
  /** @param {{ fetchApi: (route: string, options?: RequestInit) => Promise<Response> }} api */
  constructor(api) {
    this.api = api;
  }

  /** @returns {Promise<Row[]>} */
  async list() {
    return toRows(await this.ask("list"));
  }

  /** @param {string} run @returns {Promise<Detail>} */
  async one(run) {
    const answer = await this.ask(`one?${new URLSearchParams({ run })}`);
    const found = fromSnapshot(answer?.run);
    if (!found) throw new Error(`${run} cannot be read.`);
    const { settings = {}, adapter = "", node = "" } = answer;
    return { run: found, settings, adapter: String(adapter), node: String(node) };
  }

  /** @param {string} run @param {Notes} notes @returns {Promise<Notes>} */
  async note(run, notes) {
    return toNotes(await this.ask("note", { run, ...notes }));
  }

  /** Copies the adapter into the loras folder. @param {string} run @returns {Promise<string>} its name there */
  async use(run) {
    return String((await this.ask("use", { run })).lora);
  }

  /** @param {string} route @param {object} [content] */
  async ask(route, content) {
    const headers = { "Content-Type": "application/json" };
    const posted = content && { method: "POST", headers, body: JSON.stringify(content) };
    const response = await this.api.fetchApi(`/adapter_trainer/runs/${route}`, { cache: "no-store", ...posted });
    const answer = await response.json().catch(() => null);
    if (!response.ok) throw new Error(answer?.reason || `The server answered ${response.status}.`);
    return answer;
  }
}
