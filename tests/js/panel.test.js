import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { toLook } from "../../js/panel/controls.js";
import { TrainPanel } from "../../js/panel/panel.js";
import { fromSnapshot, NO_RUN } from "../../js/panel/run.js";
import { serverFrom } from "../../js/panel/server.js";
import { losses, memory, memoryRow, sampleAt, snapshot } from "./messages.js";

const { imageUrl } = serverFrom({ fetchApi: async () => new Response(), apiURL: (route) => `/api${route}` });

let panel;
let answer;
let asked;
let looks;
let gone;

beforeEach(() => {
  answer = { taken: true, reason: "" };
  asked = [];
  looks = [];
  gone = [];
  const goOn = async (more) => {
    gone.push(more);
    return { taken: true, reason: "Queued." };
  };
  const ask = async (request) => {
    asked.push(request);
    if (answer instanceof Error) throw answer;
    return answer;
  };
  panel = new TrainPanel({ ask, goOn, imageUrl, onLook: (look) => looks.push(look) });
  document.body.append(panel.element);
  Object.defineProperty(panel.plot, "clientWidth", { value: 400 });
  Object.defineProperty(panel.plot, "clientHeight", { value: 150 });
});

afterEach(() => {
  panel.disconnect();
  document.body.replaceChildren();
});

function show(values, offline = false) {
  panel.run = values === null ? NO_RUN : fromSnapshot(snapshot(values));
  panel.offline = offline;
  panel.draw();
}

const find = (selector) => panel.element.querySelector(selector);
const text = (selector) => find(`.adapter-trainer-${selector}`).textContent;
const actionButtons = () => [...panel.element.querySelectorAll("[data-request]")];
const settled = () => new Promise((resolve) => setTimeout(resolve, 0));

describe("losses on held-out images", () => {
  const held = [[0, 0.9, 0.8], [2, 0.4, 0.3], [4, 0.6, 0.1]];
  const points = [[1, 1, 1e-4], [2, 0.5, 1e-4], [3, 0.4, 1e-4], [4, 0.3, 1e-4]];

  test("are a line beside the curve, and the best step is marked", () => {
    show({ points, held_out: held });
    expect(find(".adapter-trainer-held-out").getAttribute("d").match(/[ML]/g)).toHaveLength(3);
    expect(find(".adapter-trainer-trained").getAttribute("d").match(/[ML]/g)).toHaveLength(3);
    const line = find(".adapter-trainer-held-out").getAttribute("d").split("L")[1].split(",").map(Number);
    const mark = find(".adapter-trainer-best-mark");
    expect(Number(mark.getAttribute("cx"))).toBeCloseTo(line[0], 0);
    expect(Number(mark.getAttribute("cy"))).toBeCloseTo(line[1], 0);
    expect(find(".adapter-trainer-chart title").textContent).toContain("lowest at step 2: 0.4");
    expect(text("readout")).toContain("held out 0.6");
    expect(text("readout")).toContain("trained 0.1");
    panel.readAt(1);
    expect(text("readout")).toContain("held out 0.4 (best)");
  });

  test("are no line where there are none", () => {
    show({ points });
    expect(find(".adapter-trainer-held-out").getAttribute("d")).toBe("");
    expect(find(".adapter-trainer-best-mark")).toBe(null);
    expect(text("readout")).not.toContain("held out");
  });
});

test("before the first run it says what will appear", () => {
  show(null);
  expect(text("word")).toBe("Not started");
  expect(text("empty")).toContain("loss curve");
  expect(find(".adapter-trainer-empty").hidden).toBe(false);
  expect(find(".adapter-trainer-samples").hidden).toBe(true);
  expect(actionButtons().every((button) => button.disabled)).toBe(true);
});

test("while training it shows step, loss, time, and the curve", () => {
  show({ step: 40, points: losses(40), step_seconds: 0.42, seconds_left: 25.2 });
  expect([...panel.element.querySelectorAll("dd")].map((e) => e.textContent)).toEqual(["40 / 100", "0.025", "0.42 s", "25 s"]);
  expect(find("progress").value).toBeCloseTo(0.4);
  expect(find(".adapter-trainer-empty").hidden).toBe(true);
  for (const line of ["raw", "smoothed", "rate"]) {
    expect(find(`path.adapter-trainer-${line}`).getAttribute("d")).toMatch(/^M[\d.]+,[\d.]+(L[\d.]+,[\d.]+)+$/);
  }
  expect(find("title").textContent).toContain("at step 40");
  expect(text("readout")).toContain("step 40");
});

test("encoding has a progress of its own, and the training's begins at nothing", () => {
  const bar = () => [find("progress").value, find("progress").ariaLabel, find("dl").hidden];
  show({ status: "caching", encoded: [24, 96], step: 0, steps: 50 });
  expect(bar()).toEqual([0.25, "Encoding progress", true]);
  show({ status: "training", encoded: [96, 96], step: 10, steps: 50 });
  expect(bar()).toEqual([0.2, "Training progress", false]);
  for (const encoded of [[], [1, 0], ["1", 2], null]) {
    show({ status: "caching", encoded, step: 0, steps: 50 });
    expect(bar()).toEqual([0, "Training progress", false]);
  }
});

test("a run with one point and a run of constant loss draw finite paths", () => {
  for (const points of [[[1, 0.5, 1e-4]], [[1, 0, 0], [2, 0, 0], [3, 0, 0]]]) {
    show({ points });
    expect(panel.element.innerHTML).not.toMatch(/NaN|Infinity/);
  }
});

test("the smoothing slider and the learning rate box change the curve and are told", () => {
  show({ points: [[1, 1, 1e-4], [2, 0, 1e-4], [3, 1, 1e-4], [4, 0, 1e-4]] });
  const before = find("path.adapter-trainer-smoothed").getAttribute("d");
  const slider = find("input[type=range]");
  slider.value = "0.5";
  slider.dispatchEvent(new Event("input"));
  const box = find("input[type=checkbox]");
  box.checked = false;
  box.dispatchEvent(new Event("change"));
  panel.draw();
  expect(looks).toEqual([{ smoothing: 0.5, showRate: true, large: false }, { smoothing: 0.5, showRate: false, large: false }]);
  expect(find("path.adapter-trainer-smoothed").getAttribute("d")).not.toBe(before);
  expect(find("path.adapter-trainer-rate").getAttribute("d")).toBe("");
});

test.each([[null], [{}], [{ smoothing: NaN, showRate: "yes" }], ["x"]])("a stored look of %j is the default", (stored) => {
  expect(toLook(stored)).toEqual({ smoothing: 0.9, showRate: true, large: false });
});

test("a stored look is kept within its bounds", () => {
  expect(toLook({ smoothing: 7, showRate: false, large: true })).toEqual({ smoothing: 0.99, showRate: false, large: true });
});

describe("what a preset chose", () => {
  const rows = () => [...panel.element.querySelectorAll(".adapter-trainer-choices tbody tr")];

  test("is a folded line with a row for each, and nothing where nothing was chosen", () => {
    show({});
    expect(find(".adapter-trainer-choices").hidden).toBe(true);
    show({ choices: [{ setting: "steps", value: "2000", why: "For 20 images." }, { value: "lost" }, 7] });
    expect(find(".adapter-trainer-choices").hidden).toBe(false);
    expect(find(".adapter-trainer-choices").open).toBe(false);
    expect(rows().map((row) => [...row.children].map((cell) => cell.textContent))).toEqual([["steps", "2000", "For 20 images."]]);
  });
});

test("layers with an adapter are listed behind one click, and not before they are known", () => {
  show({});
  expect(find(".adapter-trainer-layers").hidden).toBe(true);
  show({ layers: ["5 x to_q: 64 x 64, rank 4, 512 (lora_up 64 x 4)", 7], notes: ["a note"] });
  expect([find(".adapter-trainer-layers").hidden, find(".adapter-trainer-layers").open]).toEqual([false, false]);
  expect([...find(".adapter-trainer-layers ul").children].map((each) => each.textContent)).toEqual(["5 x to_q: 64 x 64, rank 4, 512 (lora_up 64 x 4)"]);
});

describe("the memory plan", () => {
  const line = () => find(".adapter-trainer-memory summary").textContent;
  const cells = () => [...panel.element.querySelectorAll("tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent));

  test("is one line, with the ways behind it, the one that is taken first", () => {
    show({ memory: memory() });
    expect(find(".adapter-trainer-memory").open).toBe(false);
    expect(line()).toBe("Base in fp8, 20 of 60 blocks in pinned RAM; 11.2 of 12.0 GiB VRAM");
    expect(cells()).toEqual([
      ["✓", "fp8", "20 of 60, pinned RAM", "60", "11.2", "7.0", "2.3 s"],
      ["", "fp8", "40 of 60, pinned RAM", "60, inputs in RAM", "8.0", "14.0", "2.9 s"],
      ["", "nf4", "none", "60", "9.0", "0.0", "–"],
    ]);
    const heads = [...panel.element.querySelectorAll("thead th")].map((cell) => cell.textContent);
    expect(heads.slice(4, 6)).toEqual(["VRAM of 12.0 GiB", "RAM of 56.0 GiB"]);
    expect(panel.element.querySelectorAll(".adapter-trainer-taken")).toHaveLength(1);
    expect(find("tbody tr").className).toBe("adapter-trainer-taken");
  });

  test.each([
    [{ base_format: "dense", blocks_to_swap: 0 }, {}, "Base dense; 11.2 of 12.0 GiB VRAM"],
    [{ base_format: "file", blocks_to_swap: 1, master: "file" }, { blocks: 0 }, "Base in its file's format, 1 block in the file; 11.2 of 12.0 GiB VRAM"],
    [{ master: "pageable", device_bytes: 2 ** 24 }, {}, "Base in fp8, 20 of 60 blocks in RAM; 0.02 of 12.0 GiB VRAM"],
  ])("of %j and %j says so", (row, values, expected) => {
    show({ memory: memory({ rows: [memoryRow(row)], ...values }) });
    expect(line()).toBe(expected);
  });

  test("is not there when nothing was planned", () => {
    show({});
    expect(find(".adapter-trainer-memory").hidden).toBe(true);
    show(null);
    expect(find(".adapter-trainer-memory").hidden).toBe(true);
  });

  test("is drawn again only when it has changed", () => {
    show({ memory: memory() });
    const row = find("tbody tr");
    show({ memory: memory(), step: 7 });
    expect(find("tbody tr")).toBe(row);
    show({ memory: memory({ blocks: 61 }) });
    expect(find("tbody tr")).not.toBe(row);
  });
});

test("text from the server is text", () => {
  const evil = "<img src=x onerror=alert(1)>";
  show({ message: evil, warnings: [evil], memory: memory({ rows: [memoryRow({ base_format: evil })] }), samples: [{ ...sampleAt(1), filename: `${evil}.png` }] });
  expect(text("message")).toBe(evil);
  expect(panel.element.querySelectorAll("img")).toHaveLength(1);
  const { pathname, searchParams } = new URL(find("img").src, "http://localhost");
  expect(pathname).toBe("/api/view");
  expect(searchParams.get("filename")).toBe(`${evil}.png`);
});

test("screen refreshes are shared: many messages, one drawing", async () => {
  const draw = vi.spyOn(panel, "draw");
  for (let i = 0; i < 500; i++) panel.show(fromSnapshot(snapshot({ step: i })), false);
  expect(draw).not.toHaveBeenCalled();
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0)));
  expect(draw).toHaveBeenCalledTimes(1);
});

describe("samples", () => {
  const samples = [sampleAt(10, 0), sampleAt(10, 2), sampleAt(20, 0)];

  test("have a row for each step, newest first, and a column for each prompt", () => {
    show({ samples });
    const rows = [...panel.element.querySelectorAll(".adapter-trainer-row[role]")];
    expect(rows.map((row) => row.firstChild.textContent)).toEqual(["step 20", "step 10"]);
    const columns = [...rows[1].querySelectorAll("button")].map((button) => button.style.gridColumn);
    expect(columns).toEqual(["2", "4"]);
    expect(find("button img").alt).toBe("Step 20, prompt 1");
  });

  test("are not loaded again when one is added", () => {
    show({ samples });
    const first = panel.element.querySelectorAll("button img")[0];
    show({ samples: [...samples, sampleAt(30)] });
    expect([...panel.element.querySelectorAll("button img")]).toContain(first);
    expect(panel.element.querySelectorAll(".adapter-trainer-thumbnail")).toHaveLength(4);
  });

  test("open large, go by keys, and close without the graph hearing a key", () => {
    show({ samples });
    const heard = [];
    const listen = (event) => heard.push(event.key);
    document.addEventListener("keydown", listen);
    find("button.adapter-trainer-thumbnail").click();
    const dialog = document.querySelector("dialog");
    expect(dialog.open).toBe(true);
    const caption = () => dialog.querySelector(".adapter-trainer-caption").textContent;
    const key = (name) => dialog.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
    expect(caption()).toBe("Step 20, prompt 1");
    key("ArrowRight");
    expect(caption()).toBe("Step 20, prompt 1");
    key("ArrowLeft");
    expect(caption()).toBe("Step 10, prompt 1");
    key("ArrowDown");
    expect(caption()).toBe("Step 10, prompt 3");
    expect(dialog.querySelector("img.adapter-trainer-large").getAttribute("src")).toBe(imageUrl(samples[1], false));
    key("Escape");
    expect(document.querySelector("dialog")).toBeNull();
    document.removeEventListener("keydown", listen);
    expect(heard).toEqual([]);
  });

  test("are headed by their prompts, which the tooltips and the large view say too", () => {
    show({ samples: [sampleAt(0, 0, "a cat"), sampleAt(0, 1, "a dog"), sampleAt(9, 1, "<b>a bird</b>")] });
    const heads = [...panel.element.querySelectorAll(".adapter-trainer-prompt")];
    expect(heads.map((head) => [head.textContent, head.title])).toEqual([["a cat", "a cat"], ["<b>a bird</b>", "<b>a bird</b>"]]);
    const [newest, ...others] = panel.element.querySelectorAll(".adapter-trainer-thumbnail");
    expect([newest, ...others].map((button) => button.title)).toEqual(["Step 9, prompt 2: <b>a bird</b>", "Step 0, prompt 1: a cat", "Step 0, prompt 2: a dog"]);
    expect(find("[role] .adapter-trainer-row-label").textContent).toBe("step 9");
    newest.click();
    expect(document.querySelector("dialog .adapter-trainer-prompt-text").textContent).toBe("<b>a bird</b>");
  });

  test("may have most of the panel, which is kept with the node", () => {
    show({ samples, points: losses(3) });
    find(".adapter-trainer-size").click();
    panel.draw();
    expect(looks).toEqual([{ smoothing: 0.9, showRate: true, large: true }]);
    expect([find(".adapter-trainer-samples").dataset.large, text("size"), find(".adapter-trainer-controls").hidden]).toEqual(["true", "Smaller", true]);
  });

  describe("compared", () => {
    const three = [sampleAt(0), sampleAt(10), sampleAt(20), sampleAt(20, 1)];
    const part = (name) => document.querySelector(`dialog .adapter-trainer-${name}`);
    const key = (name) => document.querySelector("dialog").dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));

    beforeEach(() => {
      show({ samples: three });
      find("button.adapter-trainer-thumbnail").click();
    });

    function compare() {
      const box = part("compare").querySelector("input[type=checkbox]");
      box.checked = true;
      box.dispatchEvent(new Event("change"));
    }

    test("show the base on the left and the step on the right of a line that keys and the pointer move", () => {
      expect(part("overlay").hidden).toBe(true);
      compare();
      expect([part("overlay").hidden, part("tag-left").textContent, part("tag-right").textContent]).toEqual([false, "before training", "step 20"]);
      expect(part("other").getAttribute("src")).toBe(imageUrl(three[0], false));
      key("ArrowRight");
      key("ArrowRight");
      key("ArrowLeft");
      expect(part("overlay").style.getPropertyValue("--adapter-trainer-split")).toBe("55%");
      part("frame").getBoundingClientRect = () => ({ left: 100, width: 200 });
      part("frame").dispatchEvent(new PointerEvent("pointerdown", { clientX: 120, buttons: 1 }));
      expect(part("split").value).toBe("10");
      for (let i = 0; i < 5; i++) key("ArrowLeft");
      expect(part("split").value).toBe("0");
    });

    test("take any two steps", () => {
      part("steps").value = "10";
      part("steps").dispatchEvent(new Event("change"));
      expect([part("tag-left").textContent, part("tag-right").textContent]).toEqual(["step 10", "step 20"]);
      part("previous").click();
      expect([part("tag-left").textContent, part("tag-right").textContent]).toEqual(["before training", "step 10"]);
    });

    test("are not offered for a prompt with one image", () => {
      compare();
      key("ArrowDown");
      expect([part("compare").hidden, part("overlay").hidden]).toEqual([true, true]);
      key("ArrowUp");
      expect(part("overlay").hidden).toBe(false);
    });
  });

  test("in the large view follow the run, and go with the node", () => {
    show({ samples });
    find("button.adapter-trainer-thumbnail").click();
    const next = document.querySelector("dialog .adapter-trainer-next");
    expect(next.disabled).toBe(true);
    show({ samples: [...samples, sampleAt(30)] });
    expect(next.disabled).toBe(false);
    panel.disconnect();
    expect(document.querySelector("dialog")).toBeNull();
  });
});

describe("the buttons", () => {
  test.each([["caching", true], ["loading", true], ["training", false], ["failed", true]])(
    "while %s are disabled: %s",
    (status, disabled) => {
      show({ status });
      expect(actionButtons().map((button) => button.disabled)).toEqual([disabled, disabled, disabled]);
    },
  );

  test("are disabled without a connection", () => {
    show({}, true);
    expect(actionButtons().every((button) => button.disabled)).toBe(true);
    expect(text("word")).toBe("No connection");
  });

  test("ask, and say what was answered", async () => {
    show({});
    for (const button of actionButtons().slice(0, 2)) {
      button.click();
      expect(button.disabled).toBe(true);
      await settled();
      expect(button.disabled).toBe(false);
      expect(text("feedback")).toContain("after the step in progress");
    }
    expect(asked).toEqual(["save", "preview"]);
  });

  test("stay disabled from the stop to the end", async () => {
    show({});
    find("[data-request=stop]").click();
    await settled();
    show({ step: 5 });
    expect(actionButtons().every((button) => button.disabled)).toBe(true);
    show({ status: "stopped" });
    expect(text("feedback")).toBe("");
    show({ prompt_id: "p2" });
    expect(actionButtons().some((button) => button.disabled)).toBe(false);
  });

  test("give the reason of a refusal", async () => {
    show({});
    answer = { taken: false, reason: "this node is not training" };
    find("[data-request=stop]").click();
    await settled();
    expect(text("feedback")).toBe("this node is not training");
    expect(find("[data-request=stop]").disabled).toBe(false);
  });

  test("say that nobody answered", async () => {
    show({});
    answer = new Error("down");
    find("[data-request=save]").click();
    await settled();
    expect(text("feedback")).toBe("The server did not answer.");
    expect(find("[data-request=save]").disabled).toBe(false);
  });
});

describe("afterwards", () => {
  const goOnButtons = () => [...panel.element.querySelectorAll("[data-go-on]")].filter((e) => !e.closest("[hidden]")).map((e) => e.textContent);
  const rows = () => [...panel.element.querySelectorAll(".adapter-trainer-buttons")].filter((row) => !row.hidden);

  test.each([
    [{ status: "done" }, ["Train longer"]], [{ status: "stopped", resumable: true }, ["Continue"]],
    [{ status: "cancelled", resumable: true }, ["Continue"]], [{ status: "failed", resumable: true }, ["Continue"]],
    [{ status: "failed" }, []], [{ status: "lost" }, ["Continue"]], [{ status: "training" }, []],
  ])("%j offers %j, in one row of buttons", (values, expected) => {
    show(values);
    expect(goOnButtons()).toEqual(expected);
    expect(rows()).toHaveLength(1);
  });

  test("Continue goes on to the planned end", async () => {
    show({ status: "stopped", resumable: true, step: 14 });
    find("[data-go-on=continue]").click();
    await settled();
    expect(gone).toEqual([null]);
    expect(text("feedback")).toBe("Queued.");
  });

  test("Train longer asks for how long, half again at first", async () => {
    show({ status: "done", step: 60, steps: 60 });
    find("[data-go-on=longer]").click();
    expect(rows()).toHaveLength(1);
    const more = find(".adapter-trainer-more");
    expect([more.value, text("total")]).toEqual(["30", "to 90"]);
    for (const [typed, total] of [["0", ""], ["1.5", ""], ["", ""], ["40", "to 100"]]) {
      more.value = typed;
      more.dispatchEvent(new Event("input"));
      expect(text("total")).toBe(total);
      if (!total) find("form").dispatchEvent(new Event("submit", { cancelable: true }));
    }
    expect(gone).toEqual([]);
    find("form").dispatchEvent(new Event("submit", { cancelable: true }));
    await settled();
    expect(gone).toEqual([40]);
    expect(goOnButtons()).toEqual(["Train longer"]);
  });

  test("the version is shown, and only where there is one", () => {
    show({ run: "my_adapter/v2" });
    expect(text("version")).toBe("my_adapter/v2");
    show({});
    expect(find(".adapter-trainer-version").hidden).toBe(true);
  });
});

test("keys in the panel are not the graph's, shortcuts are", () => {
  const heard = [];
  const listen = (event) => heard.push(event.key);
  document.addEventListener("keydown", listen);
  const button = find("[data-request=save]");
  button.dispatchEvent(new KeyboardEvent("keydown", { key: "Delete", bubbles: true }));
  button.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", ctrlKey: true, bubbles: true }));
  document.removeEventListener("keydown", listen);
  expect(heard).toEqual(["Enter"]);
});
