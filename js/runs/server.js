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
 * @property {string} folder its path on the server
 * @property {boolean} opens whether the server can show the folder to whoever asks
 * @property {number[]} checkpoints their steps
 * @property {import("./disk.js").Disk | null} disk
 *
 * @typedef {import("./disk.js").Part} Part
 */

import { fromSnapshot } from "../panel/run.js";
import { toDisk, toTrash } from "./disk.js";
import { toQueue } from "./queue.js";
import { toNotes, toRows } from "./rows.js";
import { t } from "./texts.js";

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
    if (!found) throw new Error(t("{run} cannot be read.", { run }));
    const { settings = {}, adapter = "", node = "", folder = "", opens, checkpoints } = answer;
    return {
      run: found, settings, adapter: String(adapter), node: String(node), folder: String(folder), opens: opens === true,
      checkpoints: Array.isArray(checkpoints) ? checkpoints.filter(Number.isInteger) : [], disk: toDisk(answer.disk),
    };
  }

  /** @param {string} run @param {Notes} notes @returns {Promise<Notes>} */
  async note(run, notes) {
    return toNotes(await this.ask("note", { run, ...notes }));
  }

  /** Copies the adapter into the loras folder. @param {string} run @returns {Promise<string>} its name there */
  async use(run) {
    return String((await this.ask("use", { run })).lora);
  }

  /**
   * @param {string} run
   * @param {string} name of `CURVES`
   * @param {number} after the last step that is known
   * @param {string} course what was said with it
   * @returns {Promise<{ points: unknown, course: string, follows: boolean }>} whether they follow on what is known
   */
  async curve(run, name, after, course) {
    const answer = await this.ask(`curve?${new URLSearchParams({ run, name, after: String(after), course })}`);
    return { points: answer?.points, course: String(answer?.course ?? ""), follows: answer?.new === true };
  }

  /** @returns {Promise<Record<string, number>>} bytes of each run */
  async sizes() {
    return (await this.ask("sizes")) ?? {};
  }

  async queue() {
    return toQueue(await this.ask("queue"));
  }

  async trash() {
    return toTrash(await this.ask("trash"));
  }

  /** @param {string} run @param {Part[]} parts */
  async clean(run, parts) {
    return toTrash(await this.ask("clean", { run, parts }));
  }

  /** @param {string} id @returns {Promise<string>} the run as it is called now */
  async restore(id) {
    return String((await this.ask("restore", { id })).run);
  }

  async empty() {
    return toTrash(await this.ask("empty", {}));
  }

  /** Shows the folder on the server's own screen. @param {string} run */
  async openFolder(run) {
    await this.ask("open", { run });
  }

  /** Takes a prompt that waits out of ComfyUI's queue. @param {string} promptId */
  async cancel(promptId) {
    const headers = { "Content-Type": "application/json" };
    await this.api.fetchApi("/queue", { method: "POST", headers, body: JSON.stringify({ delete: [promptId] }) });
  }

  /** @param {string} route @param {object} [content] */
  async ask(route, content) {
    const headers = { "Content-Type": "application/json" };
    const posted = content && { method: "POST", headers, body: JSON.stringify(content) };
    const response = await this.api.fetchApi(`/adapter_trainer/runs/${route}`, { cache: "no-store", ...posted });
    const answer = await response.json().catch(() => null);
    if (!response.ok) throw new Error(answer?.reason || t("The server answered {status}.", { status: response.status }));
    return answer;
  }
}
