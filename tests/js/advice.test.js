import { beforeEach, describe, expect, test } from "vitest";
import { AdviceView } from "../../js/panel/advice_view.js";
import { remedies } from "../../js/panel/remedy.js";
import { fromSnapshot } from "../../js/panel/run.js";
import { snapshot } from "./messages.js";

const raise = { name: "hardly_moves", message: "It hardly moves.", step: 100, setting: "training.optimizer.learning_rate", value: 0.0004 };
const best = { name: "held_out_rises", message: "It rises.", step: 900, setting: "checkpoint", value: 800 };

const runOf = (values) => fromSnapshot(snapshot({ run: "mine/v0", ...values }));
const settled = () => new Promise((resolve) => setTimeout(resolve, 0));

describe("the list", () => {
  let view;
  let pressed;
  beforeEach(() => {
    pressed = [];
    view = new AdviceView(async (advice) => {
      pressed.push(advice.name);
      return `done: ${advice.value}`;
    });
    document.body.replaceChildren(view.element);
  });
  const buttons = () => [...view.element.querySelectorAll("button")];

  test("has one row and one button for each fault, whatever comes twice or is none", async () => {
    const alone = { ...raise, name: "alone", message: "See the layers.", setting: "", value: 0 };
    const evil = { ...raise, name: "evil", message: "<img src=x onerror=alert(1)>" };
    const none = [null, 3, { ...raise, name: "x", value: "1" }, { ...raise, name: "" }];
    view.draw(runOf({ advice: [raise, best, raise, evil, alone, ...none] }));
    expect(buttons().map((each) => each.textContent)).toEqual(["Set learning_rate to 0.0004", "Use step 800", "Set learning_rate to 0.0004"]);
    expect(view.element.querySelector("img")).toBe(null);
    expect(view.element.textContent).toContain("See the layers.");
    buttons()[1].click();
    await settled();
    expect(pressed).toEqual(["held_out_rises"]);
    expect(view.element.textContent).toContain("done: 800");
    // What is drawn again, as with each step, keeps focus and answer.
    const row = buttons()[1];
    view.draw(runOf({ advice: [raise, best, evil, alone], step: 7 }));
    expect(buttons()[1]).toBe(row);
    view.draw(runOf({ advice: [best] }));
    expect(view.element.textContent).toContain("done: 800");
    view.draw(runOf({}));
    expect(view.element.hidden).toBe(true);
  });

  test("no longer names a step that was the best one", () => {
    view.draw(runOf({ advice: [best], held_out: [[800, 0.5, null], [1500, 0.6, null]] }));
    expect(buttons()).toHaveLength(1);
    view.draw(runOf({ advice: [best], held_out: [[800, 0.5, null], [1500, 0.4, null]] }));
    expect(buttons()).toHaveLength(0);
  });
});

describe("a remedy", () => {
  const widget = { name: "learning_rate", value: 1e-6 };
  const node = { widgets: [widget], inputs: [] };
  const app = { canvas: null };
  const binding = { node, ask: async (...given) => ({ taken: true, reason: JSON.stringify(given) }) };

  test("sets the input of the node, and says when it counts", async () => {
    const apply = remedies(binding, app, {});
    expect(await apply(raise, runOf({ status: "training" }))).toContain("Cancel, then Run");
    expect(widget.value).toBe(0.0004);
    expect(await apply(raise, runOf({ status: "done" }))).toContain("from the next Run on");
  });

  test("says so where the input comes over a link", async () => {
    const linked = { widgets: [{ ...widget, value: 1e-6 }], inputs: [{ name: "learning_rate", link: 3 }] };
    const said = await remedies({ ...binding, node: linked }, app, {})(raise, runOf({}));
    expect(said).toContain("comes over a link");
    expect(linked.widgets[0].value).toBe(1e-6);
  });

  test("asks for the checkpoint of the run that is shown", async () => {
    const said = await remedies(binding, app, {})(best, runOf({}));
    expect(JSON.parse(said)).toEqual(["use", { run: "mine/v0", step: 800 }]);
  });
});
