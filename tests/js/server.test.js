import { expect, test } from "vitest";
import { serverFrom } from "../../js/panel/server.js";
import { sampleAt, snapshot } from "./messages.js";

/** The pack's routes asked through the real Response class. */
function setUp(status, body) {
  const calls = [];
  const fetchApi = async (route, options) => {
    calls.push({ route, ...options });
    return new Response(body, { status });
  };
  return { calls, server: serverFrom({ fetchApi, apiURL: (route) => `/api${route}` }) };
}

test("a state is asked for by node id, also inside a subgraph", async () => {
  const { server, calls } = setUp(200, JSON.stringify(snapshot()));
  const about = { name: "cats", workflow: "w", run: "cats/v1", exact: true };
  expect(await server.state("5:7&x", about)).toEqual(snapshot());
  const route = "/adapter_trainer/state?node_id=5%3A7%26x&name=cats&workflow=w&run=cats%2Fv1";
  expect(calls[0].route).toBe(`${route}&exact=1`);
  await server.state("5:7&x", { ...about, exact: false }, { 7: {} });
  expect(calls[1]).toMatchObject({ route, method: "POST", body: '{"prompt":{"7":{}}}' });
});

test("no state is null, a broken server an error", async () => {
  const about = { name: "", workflow: "", run: "", exact: false };
  expect(await setUp(404, "{}").server.state("7", about)).toBeNull();
  expect(await setUp(404, '{"reason": "new"}').server.state("7", about)).toEqual({ reason: "new" });
  await expect(setUp(500, "oops").server.state("7", about)).rejects.toThrow("500");
});

test("a request is posted, and the answer read", async () => {
  const { server, calls } = setUp(200, '{"taken": true}');
  expect(await server.request("7", "save")).toEqual({ taken: true, reason: "" });
  expect(calls[0]).toMatchObject({ route: "/adapter_trainer/wish", method: "POST" });
  expect(JSON.parse(calls[0].body)).toEqual({ node_id: "7", wish: "save" });
  const refused = setUp(409, '{"taken": false, "reason": "not training"}').server;
  expect(await refused.request("7", "stop")).toEqual({ taken: false, reason: "not training" });
});

test("an image's address cannot leave /view", () => {
  const { server } = setUp(200, "{}");
  const url = new URL(server.imageUrl({ ...sampleAt(1), filename: "a&type=input/../b.png", subfolder: "../x" }, true), "http://h");
  expect(url.pathname).toBe("/api/view");
  expect(Object.fromEntries(url.searchParams)).toEqual({
    filename: "a&type=input/../b.png", subfolder: "../x", type: "output", preview: "webp;80",
  });
});

test("a clip is small by its place alone: of a copy nothing would move", () => {
  const { server } = setUp(200, "{}");
  const sample = { ...sampleAt(1), filename: "0.webp" };
  expect(server.imageUrl(sample, true)).toBe(server.imageUrl(sample, false));
});
