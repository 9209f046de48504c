import { afterEach, expect, test, vi } from "vitest";
import { filesOf, isUsable, notRead, send, suggestedName } from "../../js/dataset/files.js";
import { DatasetServer } from "../../js/dataset/server.js";
import { Strip } from "../../js/dataset/strip.js";
import { addStrip } from "../../js/dataset/attach.js";
import { Dialog } from "../../js/dataset/dialog.js";

const ITEM = { version: "1", width: 64, height: 64, captioned: true, left_out: false, problems: [], controls: [] };
const settled = () => new Promise((done) => setTimeout(done, 5));

/** A report of so many images. */
function report(total, given = {}) {
  const first = given.first ?? 0;
  const items = Array.from({ length: Math.min(60, total - first) }, (_, index) => ({
    ...ITEM, name: `${first + index}.png`,
  }));
  return {
    total, left_out: 0, uncaptioned: 0, paired: false, listed: false, problems: [], others: [], first, items,
    editable: true, edits: 0, skipped: [],
    ...given,
  };
}

/** The pack's routes, answered by the last part of their name. */
function serverWith(answers) {
  const asked = [];
  const fetchApi = async (route, options) => {
    const url = new URL(route, "http://x");
    const name = url.pathname.split("/").at(-1);
    const query = Object.fromEntries(url.searchParams);
    asked.push([name, query, options.body]);
    if (options.signal?.aborted) throw new DOMException("stopped", "AbortError");
    const answer = answers[name]?.(query, options.body) ?? {};
    return answer instanceof Response ? answer : new Response(JSON.stringify(answer));
  };
  return { asked, server: new DatasetServer({ fetchApi, apiURL: (route) => route }) };
}

const refused = (status, found) => new Response(JSON.stringify({ found, remedy: "Do." }), { status });
const named = (...names) => names.map((path) => ({ path, file: new File(["x"], path) }));

afterEach(() => {
  document.body.replaceChildren();
  sessionStorage.clear();
});

test("what may belong to a dataset is told from the rest", () => {
  const yes = ["a.png", "in/B.JPEG", "a.txt", "a.json", "set.zip", "phone.HEIC", "in/metadata.csv", "a.jfif", "b.avif"];
  const no = [".DS_Store", ".hidden/a.png", "__MACOSX/a.png", "a.csv", "a", "in/.a.png"];
  expect(yes.filter(isUsable)).toEqual(yes);
  expect(no.filter(isUsable)).toEqual([]);
});

test("a folder is suggested by what was dropped, and never one that is there", () => {
  expect(suggestedName(named("a.png", "b.png"), [])).toBe("my_images");
  expect(suggestedName(named("a.png"), ["my_images", "my_images_2"])).toBe("my_images_3");
  expect(suggestedName(named("Mein Kätzchen/a.png", "Mein Kätzchen/b.png"), [])).toBe("Mein Kätzchen");
  expect(suggestedName(named("set.zip"), ["set"])).toBe("set_2");
  expect(suggestedName(named("..x/a.png"), [])).toBe("my_images");
  expect(suggestedName(named("a:b?/c.png"), [])).toBe("a_b_");
});

test("files in dropped folders are found, with their paths", async () => {
  const file = (name) => ({ name, isDirectory: false, file: (done) => done(new File(["x"], name)) });
  const folder = (name, entries) => ({
    name, isDirectory: true, createReader: () => ({ readEntries: (done) => done(entries.splice(0, 1)) }),
  });
  const entry = folder("cats", [file("a.png"), file(".DS_Store"), folder("in", [file("b.txt"), file("c.psd")])]);
  const transfer = { files: [], items: [{ kind: "file", webkitGetAsEntry: () => entry }] };
  const found = await filesOf(transfer);
  expect(found.map(({ path }) => path).filter(isUsable)).toEqual(["cats/a.png", "cats/in/b.txt"]);
  expect(notRead(found)).toMatchObject([{ name: "cats/in/c.psd" }]);
});

test("what one file is refused for is kept, and the others go on", async () => {
  const { server, asked } = serverWith({
    begin: () => ({ drop: "d" }),
    file: ({ name }) => (name === "b.zip" ? new Response("", { status: 413 }) : { taken: 1 }),
  });
  const seen = [];
  const place = { folder: "x", add: true };
  const signal = new AbortController().signal;
  const sent = await send(server, named("a.png", "b.zip"), place, (n) => seen.push(n), signal);
  expect(asked.map(([name]) => name)).toEqual(["begin", "file", "file"]);
  expect(asked[0][1]).toEqual({ folder: "x", add: "1" });
  expect([seen, sent.drop]).toEqual([[0, 1, 2], "d"]);
  expect(sent.refused[0].reason).toContain("--max-upload-size");
  await expect(send(server, named("b.zip"), place, () => {}, signal)).rejects.toThrow("--max-upload-size");
  expect(asked.at(-1)[0]).toBe("cancel");
});

test.each([
  ["a cancel", 200, true],
  ["a full disk", 507, false],
])("%s takes everything back", async (_, status, cancel) => {
  const stop = new AbortController();
  const { server, asked } = serverWith({
    begin: () => ({ drop: "d" }),
    file: () => {
      if (cancel) stop.abort();
      return status === 200 ? {} : refused(status, "the disk is full");
    },
  });
  const place = { folder: "x", add: false };
  await expect(send(server, named("a.png", "b.png"), place, () => {}, stop.signal)).rejects.toThrow();
  expect(asked.map(([name]) => name)).toEqual(["begin", "file", "cancel"]);
});

/** A strip over a server, and what it asked its node for. */
function stripWith(answers, folder = "input/cats", settings = {}) {
  const folders = ["demo/x", "input/cats"];
  const { server, asked } = serverWith({ report: () => report(2), look: () => report(1), begin: () => ({ drop: "d" }), ...answers });
  const told = [];
  const strip = new Strip(server, {
    folder: () => folder, settings: () => settings, folders: () => folders,
    choose: (name) => told.push(["choose", name]), open: (index) => told.push(["open", index]),
  });
  document.body.append(strip.element);
  return { strip, asked, told, line: () => strip.line.textContent };
}

test("the strip counts, shows, and leads to what is wrong", async () => {
  const problems = [{ kind: "missing_caption", count: 3, words: "no caption", first: 7 }];
  const first = { uncaptioned: 3, problems };
  const { strip, told, asked } = stripWith({
    report: (query) => report(70, { ...first, first: Number(query.first) }),
  });
  await strip.refresh();
  expect(strip.count.textContent).toBe("70 images, 3 without a caption");
  expect(strip.images.querySelectorAll("img").length).toBe(60);
  strip.line.querySelector("button").click();
  strip.images.children[2].click();
  strip.images.lastElementChild.click();
  await settled();
  expect(asked.at(-1)[1].first).toBe("60");
  expect(strip.images.querySelectorAll("img").length).toBe(70);
  strip.images.lastElementChild.click();
  expect(told).toEqual([["open", 7], ["open", 2], ["open", 69]]);
});

test("where no caption is needed, none is said to be missing", async () => {
  const { strip } = stripWith({ report: () => report(20, { uncaptioned: 20 }) });
  await strip.refresh();
  expect(strip.count.textContent).toBe("20 images");
});

test("a refused folder says why, and an answer that comes late is forgotten", async () => {
  const late = stripWith({ report: () => refused(409, "there is no cats") });
  await late.strip.refresh();
  expect(late.line()).toBe("there is no cats. Do.");
  const { strip } = stripWith({});
  const before = strip.refresh();
  strip.disconnect();
  await before;
  expect(strip.count.textContent).toBe("");
  const linked = stripWith({}, null);
  await linked.strip.refresh();
  expect([linked.asked, linked.line()]).toEqual([[], "The folder comes from another node."]);
  const none = stripWith({}, "");
  await none.strip.refresh();
  expect([none.asked, none.line()]).toEqual([[], "Choose a folder, or drop your images here."]);
});

test("files go to a new folder by default, and are added to one of the person's own", async () => {
  const finish = () => ({ folder: "input/my_images", added: 1, skipped: [] });
  const bundled = stripWith({ report: () => report(40, { editable: false }), finish }, "demo/x");
  await bundled.strip.refresh();
  bundled.strip.offer(named("a.png"));
  expect(bundled.strip.form.querySelector("input").value).toBe("my_images");
  expect(bundled.line()).toContain("new folder below ComfyUI's input");
  bundled.strip.form.querySelector("button").click();
  await settled();
  expect(bundled.asked.find(([name]) => name === "finish")[1]).toEqual({ drop: "d", folder: "my_images", add: "0" });
  expect(bundled.told).toEqual([["choose", "input/my_images"]]);
  expect(bundled.line()).toContain("1 file in input/my_images");

  const own = stripWith({ finish });
  await own.strip.refresh();
  own.strip.offer(named("a.png"));
  const name = own.strip.form.querySelector("input");
  expect([name.value, own.line()]).toEqual(["cats", "1 file, added to this folder below ComfyUI's input"]);
  name.value = "dogs";
  name.dispatchEvent(new Event("input"));
  expect(own.line()).toContain("new folder");
  name.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  await settled();
  expect([own.strip.form.hidden, own.asked.at(-2)[0]]).toEqual([true, "cancel"]);
  expect(own.line()).toContain("nothing was kept");
});

test("what is wrong with an upload is told before its folder is named, and a bad name can be mended", async () => {
  const skipped = [{ name: "c.heic", reason: "c.heic is HEIC. To read HEIC install pillow-heif." }];
  const problems = [
    { kind: "missing_caption", count: 3, words: "no caption", first: 0 },
    { kind: "small", count: 2, words: "smaller than the training size", first: 0 },
  ];
  let refusals = 1;
  const { strip, asked, line, told } = stripWith({
    look: () => report(3, { uncaptioned: 3, problems, others: ["x.txt has no image of the same name"], skipped }),
    finish: ({ folder }) => (refusals-- > 0 ? refused(409, `folder: ${folder}`) : { folder: "input/d", added: 2, skipped }),
  }, "demo/x", { resolution: 64 });
  await strip.refresh();
  strip.offer(named("a.png", "b.png", "c.heic", "d.psd"));
  await settled();
  for (const part of ["3 images, 3 without a caption", "2 × smaller", "x.txt has no image", "2 left out"]) {
    expect(line()).toContain(part);
  }
  expect(asked.find(([name]) => name === "look")[1]).toEqual({ drop: "d", settings: '{"resolution":64}' });
  const upload = strip.form.querySelector("button");
  upload.click();
  await settled();
  expect([line(), strip.form.hidden, told]).toEqual(["folder: my_images. Do.", false, []]);
  upload.click();
  await settled();
  expect([strip.form.hidden, told]).toEqual([true, [["choose", "input/d"]]]);
  const again = stripWith({}, "input/d");
  await again.strip.refresh();
  expect(again.line()).toContain("2 left out");
  const other = stripWith({});
  await other.strip.refresh();
  expect(other.line()).not.toContain("left out");
});

test("the trigger word is written where there is no caption, by one click", async () => {
  const problems = [{ kind: "missing_caption", count: 3, words: "no caption", first: 0 }];
  for (const settings of [{ trigger_word: " ohwx " }, { answers: { trigger_word: "ohwx" } }]) {
    const write = () => ({ changed: 3, unread: 0, edits: 1 });
    const { strip, asked, line } = stripWith({ report: () => report(3, { problems }), write }, "input/cats", settings);
    await strip.refresh();
    const button = [...strip.line.querySelectorAll("button")].find((each) => each.textContent.includes("ohwx"));
    button.click();
    await settled();
    const [, query, body] = asked.find(([name]) => name === "write");
    expect([query.folder, JSON.parse(body)]).toEqual(["input/cats", { way: "fill", text: "ohwx", find: "" }]);
    expect(line()).toContain("3 captions written");
    strip.host.folder = () => "input/dogs";
    await strip.refresh();
    expect(line()).not.toContain("captions written");
  }
  for (const given of [{ editable: false }, { listed: true }, { problems: [] }]) {
    const { strip, line } = stripWith({ report: () => report(3, { problems, ...given }) }, "x", { trigger_word: "ohwx" });
    await strip.refresh();
    expect(line()).not.toContain("ohwx");
  }
});

test("what has no room on the line is a list behind it", async () => {
  const others = ["one is alone", "two is alone", "three is alone"];
  const { strip, line } = stripWith({ report: () => report(1, { others }) });
  await strip.refresh();
  expect(line()).toBe("one is alonetwo is alone1 more");
  [...strip.line.querySelectorAll("button")].at(-1).click();
  expect([...document.querySelectorAll("dialog li")].map((each) => each.textContent)).toEqual(others);
});

test("an empty strip says where to drop, and images that are left out stay to be seen", async () => {
  const none = stripWith({ report: () => report(0, { others: ["There are no images here yet."] }) });
  await none.strip.refresh();
  expect(none.strip.images.textContent).toBe("Drop images or clips here");
  const items = [{ ...ITEM, name: "a.png" }, { ...ITEM, name: "b.png", left_out: true }];
  const { strip } = stripWith({ report: () => report(2, { items, left_out: 1 }) });
  await strip.refresh();
  expect(strip.count.textContent).toBe("1 of 2 images");
  expect([...strip.images.querySelectorAll(".adapter-trainer-out")].map((each) => each.title)).toEqual(["b.png\nLeft out"]);
});

test("names from outside stay text", async () => {
  const bad = "<img src=x onerror=alert(1)>.png";
  const { strip } = stripWith({
    report: () => report(1, { items: [{ ...ITEM, name: bad }], others: [bad] }),
    finish: () => ({ folder: "input/cats", added: 0, skipped: [{ name: bad, reason: bad }] }),
  });
  strip.offer(named("a.png"));
  strip.form.querySelector("button").click();
  await settled();
  strip.line.querySelector("button").click();
  expect(document.querySelectorAll("[onerror]").length).toBe(0);
  expect(document.querySelector("dialog").textContent).toContain(bad);
});

/** A dialog over captions that are kept here. */
function dialogWith(texts, given = {}, answers = {}) {
  const names = Object.keys(texts);
  const tokens = (name) => ({ text: texts[name], token: `t${texts[name]}`, file: `${name}.txt` });
  const { server, asked } = serverWith({
    report: () => report(names.length, { items: names.map((name) => ({ ...ITEM, name })), ...given }),
    caption: ({ name }) => tokens(name),
    save: ({ name }, body) => {
      const { text, token } = JSON.parse(body);
      if (token !== `t${texts[name]}`) return refused(409, "changed by another program");
      texts[name] = text;
      return { ...tokens(name), edits: 1 };
    },
    undo: () => ({ files: ["b.txt"], edits: 0 }),
    ...answers,
  });
  const told = [];
  const dialog = new Dialog(server, {
    folder: () => "input/cats", settings: () => ({ trigger_word: "ohwx" }), closed: () => told.push("closed"),
  });
  return { dialog, asked, told };
}

test("a caption is saved when another image is shown, and only when it differs", async () => {
  const texts = { "a.png": "one", "b.png": "two" };
  const { dialog, asked, told } = dialogWith(texts);
  await dialog.open(0);
  await dialog.go(1);
  expect(asked.some(([name]) => name === "save")).toBe(false);
  dialog.text.value = "three";
  await dialog.go(-1);
  expect([texts["b.png"], dialog.title.textContent, dialog.text.value]).toEqual(["three", "1 of 2: a.png", "one"]);
  dialog.element.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
  await settled();
  expect(dialog.text.value).toBe("three");
  await dialog.undo();
  expect(dialog.status.textContent).toBe("b.txt is as it was before");
  await dialog.close();
  expect([document.querySelector("dialog"), told]).toEqual([null, ["closed"]]);
});

test("what is typed while a caption is being saved stays, and is saved too", async () => {
  const texts = { "a.png": "one", "b.png": "two" };
  const { dialog, asked } = dialogWith(texts);
  await dialog.open(0);
  dialog.text.value = "first";
  const saved = dialog.save();
  dialog.text.value = "first and more";
  await Promise.all([saved, dialog.go(1)]);
  expect([texts["a.png"], dialog.title.textContent]).toEqual(["first and more", "2 of 2: b.png"]);
  expect(asked.filter(([name]) => name === "save").length).toBe(2);
});

test("what is typed while a caption is saved stays, and is saved too", async () => {
  const texts = { "a.png": "one" };
  const { dialog, told } = dialogWith(texts);
  await dialog.open(0);
  dialog.text.value = "two";
  const first = dialog.save();
  dialog.text.value = "two and more";
  await Promise.all([first, dialog.save(), dialog.close()]);
  expect([texts["a.png"], dialog.text.value, told]).toEqual(["two and more", "two and more", ["closed"]]);
});

test("an answer that is none of ours is told in words", async () => {
  const { strip, line } = stripWith({ report: () => new Response("<html>") });
  await strip.refresh();
  expect(line()).toContain("cannot be read");
});

test("a conflict keeps both texts, and the dialog open", async () => {
  const texts = { "a.png": "one" };
  const { dialog, told } = dialogWith(texts);
  await dialog.open(0);
  texts["a.png"] = "theirs";
  dialog.text.value = "mine";
  await dialog.close();
  expect([texts["a.png"], dialog.text.value, told]).toEqual(["theirs", "mine", []]);
  expect(dialog.status.textContent).toContain("changed by another program");
  dialog.reload.click();
  await settled();
  expect(dialog.text.value).toBe("theirs");
  await dialog.close();
  expect(told).toEqual(["closed"]);
});

test("the frame lies where the crop is, and what is bundled cannot be edited", async () => {
  const items = [{ ...ITEM, name: "a.png", bucket: [64, 32], crop: [0, 0.25, 1, 0.75] }];
  const { dialog } = dialogWith({ "a.png": "one" }, { items, editable: false });
  await dialog.open(0);
  const { left, top, width, height } = dialog.frame.style;
  expect([left, top, width, height]).toEqual(["0%", "25%", "100%", "50%"]);
  expect(dialog.text.disabled).toBe(true);
});

test("captions of all images are edited at once, and the next one without is found", async () => {
  const texts = { "a.png": "one", "b.png": "", "c.png": "three", "d.png": "" };
  const items = () => Object.keys(texts).map((name) => ({
    ...ITEM, name, captioned: Boolean(texts[name]), left_out: name === "d.png",
  }));
  const { dialog, asked } = dialogWith(texts, { uncaptioned: 2 }, {
    report: () => report(4, { items: items(), uncaptioned: 2 }),
    write: () => ({ changed: 1, unread: 2, edits: 1 }),
    undo: () => ({ files: ["a.txt", "b.txt"], edits: 0 }),
  });
  await dialog.open(2);
  dialog.unwritten.click();
  await settled();
  expect(dialog.title.textContent).toBe("2 of 4: b.png");
  const [fill, all, , replace] = dialog.bulk.element.querySelectorAll("button");
  dialog.bulk.find.value = "cat";
  for (const [button, way] of [[fill, "fill"], [all, "all"], [replace, "replace"]]) {
    button.click();
    await settled();
    const [, query, body] = asked.findLast(([name]) => name === "write");
    expect([query.folder, query.extension, JSON.parse(body)]).toEqual(["input/cats", ".txt", { way, text: "ohwx", find: "cat" }]);
    expect(dialog.status.textContent).toBe("1 caption changed; 2 that cannot be read or are JSON stay");
  }
  texts["b.png"] = "two";
  dialog.items.clear();
  await dialog.goUnwritten();
  expect(dialog.status.textContent).toBe("Every image has a caption.");
  await dialog.undo();
  expect(dialog.status.textContent).toBe("2 captions are as they were before");
  const listed = dialogWith({ "a.png": "" }, { listed: true });
  await listed.dialog.open(0);
  expect([listed.dialog.text.disabled, listed.dialog.bulk.element.hidden]).toEqual([true, true]);
  expect(listed.dialog.status.textContent).toContain("metadata file");
});

test("an image is left out and taken in again, and what is kept of it is dragged", async () => {
  const item = { ...ITEM, name: "a.png", bucket: [64, 64], crop: [0, 0.25, 1, 0.75] };
  const { dialog, asked } = dialogWith({ "a.png": "one" }, {}, {
    report: () => report(1, { items: [{ ...item }] }),
    choose: (_, body) => {
      if ("left_out" in JSON.parse(body)) item.left_out = JSON.parse(body).left_out;
      return {};
    },
  });
  const chosen = () => JSON.parse(asked.findLast(([name]) => name === "choose")[2]);
  await dialog.open(0);
  for (const [out, label] of [[true, "Take in again"], [false, "Leave out"]]) {
    dialog.leave.click();
    await settled();
    expect([chosen(), dialog.leave.textContent]).toEqual([{ left_out: out }, label]);
    expect(dialog.element.classList.contains("adapter-trainer-out")).toBe(out);
  }
  dialog.framed.getBoundingClientRect = () => ({ width: 200, height: 100 });
  const pointer = (type, x, y) => dialog.frame.dispatchEvent(new MouseEvent(type, { clientX: x, clientY: y }));
  pointer("pointerdown", 50, 50);
  pointer("pointermove", 90, 65);
  pointer("pointerup", 90, 65);
  await settled();
  // Nothing of its width is cut off, so it moves down alone.
  expect(chosen().focus.map((share) => Math.round(share * 100))).toEqual([50, 65]);
  pointer("pointerdown", 50, 50);
  pointer("pointermove", 50, 900);
  expect(dialog.frame.style.top).toBe("50%");
  pointer("pointerup", 50, 900);
  dialog.frame.dispatchEvent(new MouseEvent("dblclick"));
  await settled();
  expect(chosen()).toEqual({ focus: null });
  const count = asked.filter(([name]) => name === "choose").length;
  pointer("pointerdown", 50, 50);
  pointer("pointerup", 50, 50);
  await settled();
  expect(asked.filter(([name]) => name === "choose").length).toBe(count);
});

test("a name follows the folder until somebody types one", () => {
  const { server } = serverWith({ report: () => report(1) });
  const node = {
    comfyClass: "AdapterTrainerQuick", size: [200, 100], properties: {}, inputs: [], graph: null,
    widgets: [{ name: "folder", value: "demo/x" }, { name: "name", value: "diamond" }],
    computeSize: () => [300, 400], setSize() {}, addDOMWidget() {},
  };
  addStrip(node, server, {});
  const [folder, name] = node.widgets;
  const names = [["folder"], ["name", "mine"], ["folder"], ["name", ""], ["folder"]].map(([which, value]) => {
    if (which === "name") name.value = value;
    (which === "name" ? name : folder).callback(value);
    return name.value;
  });
  expect(names).toEqual(["", "mine", "mine", "", ""]);
});

test("the node gets the strip, its drops, and a new folder in every list", async () => {
  vi.useFakeTimers();
  const { server, asked } = serverWith({ report: () => report(1) });
  const makeNode = (kind) => ({
    comfyClass: kind, size: [200, 100], properties: {}, inputs: [],
    widgets: [
      { name: "folder", value: "demo/x", options: { values: ["demo/x"] } },
      { name: "regularization_folder", value: "none", options: { values: ["none", "demo/x"] } },
      { name: "resolution", value: 512 },
    ],
    computeSize: () => [300, 400],
    setSize(size) { this.size = size; },
    addDOMWidget(name, type, element, options) { Object.assign(this, { element, options }); },
  });
  const [node, other] = [makeNode("AdapterTrainerQuick"), makeNode("AdapterTrainerDatasetFolder")];
  node.graph = { nodes: [node, other], getNodeById: () => node };
  addStrip(node, server, {});
  expect(node.size).toEqual([300, 400]);
  expect(node.options.getMinHeight()).toBeLessThanOrEqual(150);
  node.onAdded();
  node.widgets[0].callback("demo/x");
  await vi.runAllTimersAsync();
  expect(asked.length).toBe(1);
  expect(JSON.parse(asked[0][1].settings)).toEqual({ resolution: 512 });
  const files = { types: ["Files"], items: [{ kind: "file" }], files: [new File(["x"], "a.png")] };
  expect([node.onDragOver({ dataTransfer: files }), node.onDragOver({ dataTransfer: { items: [] } })]).toEqual([true, false]);
  expect(await node.onDragDrop({ dataTransfer: files })).toBe(true);
  expect(node.element.querySelector("input[type=text]").value).toBe("my_images");
  node.onRemoved();
  vi.useRealTimers();
});
