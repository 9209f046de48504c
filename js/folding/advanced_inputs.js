// @ts-check
/**
 * Folding of a node's advanced inputs, in both renderers by one state: ComfyUI's `showAdvanced`, which
 * it saves with the workflow. Nodes 2.0 has a button for it; the classic canvas gets one here.
 *
 * What is linked, or is not at its default, is never folded away: it counts as ordinary until the
 * node is folded again, so that nothing moves while somebody edits it.
 */

/**
 * @typedef {object} Widget
 * @property {string} name
 * @property {unknown} [value]
 * @property {string} [label]
 * @property {boolean} [hidden]
 * @property {boolean} [serialize]
 * @property {number} [y]
 * @property {{ advanced?: boolean, serialize?: boolean }} [options]
 * @property {Widget[]} [linkedWidgets]
 *
 * @typedef {object} FoldingNode the frontend's node, as far as folding uses it
 * @property {boolean} [showAdvanced]
 * @property {[number, number]} size
 * @property {Record<string, unknown>} properties
 * @property {Widget[]} [widgets]
 * @property {{ name: string, link?: unknown }[]} [inputs]
 * @property {(...args: any[]) => void} [onConfigure]
 * @property {(...args: any[]) => void} [onDrawForeground]
 * @property {() => [number, number]} computeSize
 * @property {(size: [number, number]) => void} setSize
 * @property {(foreground: boolean, background: boolean) => void} setDirtyCanvas
 * @property {(type: "button", label: string, value: null, pressed: () => void, options: object) => Widget} addWidget
 *
 * @typedef {[unknown, Record<string, any>?]} Spec
 * @typedef {{ required?: Record<string, Spec>, optional?: Record<string, Spec> }} Specs
 *
 * @typedef {object} Host what the page says
 * @property {() => boolean} showsAll whether ComfyUI is set to show advanced inputs of every node
 * @property {() => boolean} measuresItself whether the renderer finds a node's height by itself
 */

/** Says that a saved height is that of a node which could be folded. */
const PROPERTY = "adapter_trainer_folding";

/** @type {WeakMap<object, Folding>} */
const foldings = new WeakMap();

class Folding {
  /**
   * @param {FoldingNode} node
   * @param {Specs} specs the node's inputs by `/object_info`
   * @param {Host} host
   */
  constructor(node, specs, host) {
    this.node = node;
    this.specs = specs;
    this.host = host;
    /** Every advanced widget, also one that counts as ordinary now. @type {WeakSet<Widget>} */
    this.advanced = new WeakSet();
    /** Those that stay although the node is folded. @type {WeakSet<Widget>} */
    this.kept = new WeakSet();
    /** What a widget of ComfyUI beside an input says at first. @type {WeakMap<Widget, unknown>} */
    this.first = new WeakMap();
    this.button = this.addButton();
    node.properties[PROPERTY] = true;
    this.listen();
    this.keep();
    this.show();
    this.setHeight(node.computeSize()[1]);
  }

  get folded() {
    return !this.node.showAdvanced && !this.host.showsAll();
  }

  addButton() {
    const { node } = this;
    const pressed = () => {
      node.showAdvanced = !node.showAdvanced;
    };
    const options = { serialize: false, canvasOnly: true };
    const button = node.addWidget("button", "show_advanced", null, pressed, options);
    button.serialize = false;
    // Behind the last setting, before a panel: values are saved by their widgets' places.
    const widgets = node.widgets ?? [];
    widgets.splice(widgets.indexOf(button), 1);
    widgets.splice(widgets.findLastIndex(isSaved) + 1, 0, button);
    return button;
  }

  listen() {
    const { node } = this;
    const told = Object.getOwnPropertyDescriptor(node, "showAdvanced");
    let state = node.showAdvanced;
    Object.defineProperty(node, "showAdvanced", {
      configurable: true,
      enumerable: told?.enumerable ?? true,
      get: () => (told?.get ? told.get.call(node) : state),
      set: (value) => {
        const room = this.room();
        if (!value) this.keep();
        state = value;
        told?.set?.call(node, value);
        this.show();
        this.fit(room);
        node.setDirtyCanvas(true, true);
      },
    });
    const { onConfigure, onDrawForeground } = node;
    node.onConfigure = (...args) => {
      onConfigure?.apply(node, args);
      this.restore(args[0] ?? {});
    };
    node.onDrawForeground = (...args) => {
      this.watch();
      onDrawForeground?.apply(node, args);
    };
  }

  /** @returns {Widget[]} the advanced widgets that there are now */
  list() {
    const widgets = this.node.widgets ?? [];
    for (const widget of widgets) if (widget.options?.advanced) this.advanced.add(widget);
    return widgets.filter((widget) => this.advanced.has(widget));
  }

  /** Decides which advanced widgets stay. */
  keep() {
    this.kept = new WeakSet();
    for (const widget of this.list()) if (this.standsOut(widget)) this.kept.add(widget);
  }

  /** Shows and hides widgets as the state says. */
  show() {
    const { folded } = this;
    const widgets = this.list();
    for (const widget of widgets) {
      const kept = this.kept.has(widget);
      // For Nodes 2.0, which looks at this alone.
      if (widget.options) widget.options.advanced = !kept;
      setHidden(widget, folded && !kept);
    }
    const count = widgets.filter((widget) => !this.kept.has(widget)).length;
    this.button.hidden = !count || this.host.showsAll();
    this.button.label = folded
      ? `Show ${count} more setting${count === 1 ? "" : "s"}`
      : "Show fewer settings";
  }

  /** Before each drawing: a value may have been set from elsewhere, or a choice brought widgets. */
  watch() {
    const { folded } = this;
    const widgets = this.list();
    const late = widgets.filter((widget) => !this.kept.has(widget) && this.standsOut(widget));
    if (folded) for (const widget of late) this.kept.add(widget);
    const stale = widgets.some((each) => !!each.hidden !== (folded && !this.kept.has(each)));
    if (stale) {
      const room = this.room();
      this.show();
      this.fit(room);
    }
    // A link that is dragged over the node shows where it may end; of hidden inputs that is here.
    for (const widget of widgets) if (widget.hidden) widget.y = this.button.y;
  }

  /** @param {{ size?: [number, number], properties?: Record<string, unknown> }} saved */
  restore(saved) {
    const { node } = this;
    const height = saved.size?.[1] ?? 0;
    this.keep();
    const all = this.unfoldedHeight();
    this.show();
    const least = node.computeSize()[1];
    // A node that was saved when nothing could be folded is as much too high.
    const old = !saved.properties?.[PROPERTY] && height >= all;
    this.setHeight(Math.max(least, old ? height - all + least : height));
  }

  unfoldedHeight() {
    for (const widget of this.list()) setHidden(widget, false);
    return this.node.computeSize()[1];
  }

  /** How much higher than need be somebody made the node. */
  room() {
    return Math.max(0, this.node.size[1] - this.node.computeSize()[1]);
  }

  /** @param {number} room */
  fit(room) {
    if (!this.host.measuresItself()) this.setHeight(this.node.computeSize()[1] + room);
  }

  /** @param {number} height */
  setHeight(height) {
    const { node } = this;
    if (height !== node.size[1]) node.setSize([node.size[0], height]);
  }

  /** @param {Widget} widget */
  standsOut(widget) {
    const linked = this.node.inputs?.some((each) => each.name === widget.name && each.link != null);
    const usual = defaultOf(this.specs, widget.name);
    const others = (widget.linkedWidgets ?? []).filter((each) => {
      if (!this.first.has(each)) this.first.set(each, each.value);
      return each.value !== this.first.get(each);
    });
    return linked || (usual !== undefined && widget.value !== usual) || others.length > 0;
  }
}

/**
 * @param {Widget} widget
 * @param {boolean} hidden of it, and of what ComfyUI puts below it
 */
function setHidden(widget, hidden) {
  for (const each of [widget, ...(widget.linkedWidgets ?? [])]) each.hidden = hidden;
}

/**
 * @param {Specs} specs
 * @param {string} name of an input; behind a point, of one that a choice brings
 * @returns {unknown} its default, or undefined
 */
export function defaultOf(specs, name) {
  const [first, ...rest] = name.split(".");
  const spec = specs.required?.[first] ?? specs.optional?.[first];
  if (!rest.length) return spec?.[1]?.default;
  for (const option of spec?.[1]?.options ?? []) {
    const found = defaultOf(option.inputs ?? {}, rest.join("."));
    if (found !== undefined) return found;
  }
  return undefined;
}

/**
 * Folds a new node that has advanced inputs.
 *
 * @param {FoldingNode} node
 * @param {Specs} specs
 * @param {Host} host
 */
export function addFolding(node, specs, host) {
  const some = Object.values({ ...specs.required, ...specs.optional }).some(hasAdvanced);
  if (some && !foldings.has(node)) foldings.set(node, new Folding(node, specs, host));
}

/**
 * @param {Spec} spec
 * @returns {boolean}
 */
function hasAdvanced(spec) {
  const brought = (spec[1]?.options ?? []).flatMap((/** @type {any} */ option) =>
    Object.values({ ...option?.inputs?.required, ...option?.inputs?.optional }),
  );
  return !!spec[1]?.advanced || brought.some(hasAdvanced);
}

/**
 * Shows all inputs of a node, whichever renderer there is.
 *
 * @param {FoldingNode & { id?: unknown }} node
 */
export function unfold(node) {
  if (node.showAdvanced) return;
  // The button of Nodes 2.0 remembers by itself what it did last.
  const place = `[data-node-id="${node.id}"] [data-testid="advanced-inputs-button"]`;
  /** @type {HTMLElement | null} */ (document.querySelector(place))?.click();
  if (!node.showAdvanced) node.showAdvanced = true;
}

/**
 * A widget of the page's elements says it in its options alone.
 *
 * @param {Widget} widget
 */
function isSaved(widget) {
  return widget.serialize !== false && widget.options?.serialize !== false;
}
