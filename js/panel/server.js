// @ts-check
/**
 * The pack's HTTP routes. Only same-origin requests, all through ComfyUI's own `api`.
 *
 * @typedef {"save" | "preview" | "stop" | "continue" | "leave" | "use"} RunRequest
 * @typedef {Record<string, unknown> | null} Prompt the graph as it would be queued now
 * @typedef {import("./run.js").Sample} Sample
 *
 * @typedef {object} About what a node knows of its run; empty texts where it does not
 * @property {string} name
 * @property {string} workflow
 * @property {string} run name and version
 * @property {boolean} exact whether it has to be this version
 *
 * @typedef {object} Server
 * @property {(nodeId: string, about: About, prompt: Prompt) => Promise<unknown>} state the snapshot;
 *   when there is none a `reason`, or null; rejects when the server cannot be asked
 * @property {(nodeId: string, request: RunRequest, more?: object) => Promise<{ taken: boolean, reason: string }>} request
 * @property {(sample: Sample, thumbnail: boolean) => string} imageUrl
 * @property {(run: string) => Promise<unknown>} workflow what a run was started from; rejects with
 *   the server's reason
 */

/**
 * @param {{ fetchApi: (route: string, options?: RequestInit) => Promise<Response>,
 *   apiURL: (route: string) => string }} api
 * @returns {Server}
 */
export function serverFrom(api) {
  return {
    async state(nodeId, { name, workflow, run, exact }, prompt) {
      const query = new URLSearchParams({ node_id: nodeId, name, workflow, run });
      if (exact) query.set("exact", "1");
      const response = await api.fetchApi(`/adapter_trainer/state?${query}`, {
        cache: "no-store",
        ...(prompt ? posted({ prompt }) : {}),
      });
      const none = response.status === 404 ? await response.json().catch(() => null) : null;
      if (response.status === 404) return typeof none?.reason === "string" ? none : null;
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      return response.json();
    },
    async request(nodeId, request, more = {}) {
      const asked = posted({ node_id: nodeId, wish: request, ...more });
      const response = await api.fetchApi("/adapter_trainer/wish", asked);
      const answer = await response.json();
      return {
        taken: response.ok && answer?.taken === true,
        reason: typeof answer?.reason === "string" ? answer.reason : "",
      };
    },
    async workflow(run) {
      const query = new URLSearchParams({ run });
      const route = `/adapter_trainer/workflow?${query}`;
      const response = await api.fetchApi(route, { cache: "no-store" });
      const answer = await response.json().catch(() => null);
      if (response.ok) return answer;
      const reason = typeof answer?.reason === "string" ? answer.reason : "";
      throw new Error(reason || `The server answered ${response.status}.`);
    },
    imageUrl(sample, thumbnail) {
      const { filename, subfolder, type } = sample;
      const query = new URLSearchParams({ filename, subfolder, type });
      // Of a clip ComfyUI would make a still.
      if (thumbnail && !filename.endsWith(".webp")) query.set("preview", "webp;80");
      return api.apiURL(`/view?${query}`);
    },
  };
}

/** @param {object} content */
function posted(content) {
  const headers = { "Content-Type": "application/json" };
  return { method: "POST", headers, body: JSON.stringify(content) };
}
