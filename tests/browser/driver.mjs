// Drives a headless Chromium for the tests: one JSON command on a line in, one JSON answer out.
//   {"op": "open", "url", "width", "height"}      {"op": "evaluate", "body", "argument"}
//   {"op": "wait", "body", "argument", "ms"}
//   {"op": "click", "selector", "position"?}   {"op": "drop", "paths", "x", "y"}
//   {"op": "look", "selector"} gives a PNG in base 64
//   {"op": "press", "key"}   {"op": "fill", "selector", "value"}
//   {"op": "problems" | "forget"}
// "body" is the body of an async function of `argument`, run in the page.
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [executablePath] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath,
  args: ["--no-sandbox", "--disable-background-networking", "--disable-gpu"],
});
let page;
let problems = [];

function inPage(body) {
  return `async (argument) => { ${body} }`;
}

const OPERATIONS = {
  async open({ url, width = 1400, height = 1000 }) {
    await page?.context().close();
    problems = [];
    const context = await browser.newContext({ viewport: { width, height } });
    page = await context.newPage();
    page.on("console", (message) => {
      const { url: source } = message.location();
      if (message.type() === "error") problems.push(`console: ${message.text()} (${source})`);
      if (message.text().includes("Unknown message type")) problems.push(message.text());
    });
    page.on("pageerror", (error) => problems.push(`uncaught: ${error.stack ?? error}`));
    await page.goto(url, { waitUntil: "load" });
  },
  async reload() {
    await page.reload({ waitUntil: "load" });
  },
  evaluate: ({ body, argument }) => page.evaluate(`(${inPage(body)})(${JSON.stringify(argument ?? null)})`),
  async wait({ body, argument, ms = 30000 }) {
    const end = Date.now() + ms;
    for (;;) {
      const value = await OPERATIONS.evaluate({ body, argument });
      if (value) return value;
      if (Date.now() > end) throw new Error(`not within ${ms} ms: ${body}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  },
  click: ({ selector, position }) => page.click(selector, { timeout: 60000, position }),
  fill: ({ selector, value }) => page.fill(selector, value, { timeout: 60000 }),
  look: async ({ selector }) => (await page.locator(selector).first().screenshot()).toString("base64"),
  press: ({ key }) => page.keyboard.press(key),
  focus: ({ selector }) => page.focus(selector, { timeout: 60000 }),
  // Files from outside the page, which no script of a page could make up.
  async drop({ paths, x, y }) {
    const session = await page.context().newCDPSession(page);
    const data = { items: [], files: paths, dragOperationsMask: 1 };
    await page.evaluate(() => {
      window.dropSeen = false;
      window.addEventListener("drop", () => (window.dropSeen = true), { capture: true, once: true });
    });
    // A page that is busy says too late that it takes files, and the drop is then none.
    for (let tries = 0; tries < 20 && !(await page.evaluate(() => window.dropSeen)); tries++) {
      for (const type of ["dragEnter", "dragOver", "drop"]) {
        await session.send("Input.dispatchDragEvent", { type, x, y, data });
        await page.waitForTimeout(50 * (tries + 1));
      }
    }
    await session.detach();
  },
  problems: () => problems,
  forget() {
    problems = [];
  },
};

const lines = createInterface({ input: process.stdin });
// Also where who drives it was killed in the middle of a command.
lines.on("close", () => browser.close().finally(() => process.exit()));
for await (const line of lines) {
  const command = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await OPERATIONS[command.op](command)) ?? null };
  } catch (error) {
    answer = { error: String(error.message ?? error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
