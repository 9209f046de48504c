// @ts-check
/** The one place that listens to ComfyUI: every message goes to the nodes that are in a graph now. */

/** @typedef {import("./binding.js").Binding} Binding */

const PROMPT_ENDS = ["execution_success", "execution_error", "execution_interrupted"];
/** Milliseconds: a change seldom comes alone. */
const SOON = 300;
/** Milliseconds between two looks at runs that say nothing. */
const LOOKS = 1000;
/** Told to the window when images or captions may be others: the same graph may then mean another run. */
export const IMAGES_CHANGED = "adapter_trainer.images";

export class Hub {
  constructor() {
    /** @type {Set<Binding>} */
    this.bindings = new Set();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.waiting = undefined;
  }

  /** @param {Binding} binding */
  add(binding) {
    this.bindings.add(binding);
    this.restoreSoon();
  }

  /** @param {Binding} binding */
  delete(binding) {
    this.bindings.delete(binding);
  }

  /** After the settings may have changed, and with them the run that they mean. */
  restoreSoon() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      for (const binding of this.bindings) void binding.restoreChanged();
    }, SOON);
  }

  /** Asks the server for the state of every node's run. */
  restore() {
    for (const binding of this.bindings) void binding.restore();
  }

  /** Shows a run on disk at every node of its name. @param {string} run name and version */
  open(run) {
    for (const binding of this.bindings) binding.open(run);
  }

  /**
   * Listens for as long as the page lives: ComfyUI reports an event without a listener as an error.
   *
   * @param {{ addEventListener: (type: string, listener: (event: any) => void) => void }} api
   */
  listen(api) {
    this.on(api, "adapter_trainer.state", (binding, payload) => binding.onState(payload));
    this.on(api, "adapter_trainer.progress", (binding, payload) => binding.onProgress(payload));
    this.on(api, "adapter_trainer.sample", (binding, payload) => binding.onSample(payload));
    this.on(api, "adapter_trainer.changed", (binding, payload) => binding.onChanged(payload));
    this.on(api, "reconnecting", (binding) => binding.onConnection(true));
    this.on(api, "reconnected", (binding) => binding.onConnection(false));
    setInterval(() => {
      if (!document.hidden) for (const binding of this.bindings) void binding.catchUp();
    }, LOOKS);
    api.addEventListener("graphChanged", () => this.restoreSoon());
    window.addEventListener(IMAGES_CHANGED, () => {
      for (const binding of this.bindings) binding.meant = "";
      this.restoreSoon();
    });
    for (const type of PROMPT_ENDS) {
      this.on(api, type, (binding, payload) => binding.onPromptEnd(String(payload.prompt_id ?? "")));
      api.addEventListener(type, () => this.restoreSoon());
    }
  }

  /**
   * @param {{ addEventListener: (type: string, listener: (event: any) => void) => void }} api
   * @param {string} type
   * @param {(binding: Binding, payload: Record<string, unknown>) => void} handle
   */
  on(api, type, handle) {
    api.addEventListener(type, (event) => {
      const payload = event.detail ?? {};
      for (const binding of [...this.bindings]) handle(binding, payload);
    });
  }
}
