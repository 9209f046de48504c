// @ts-check
/** Making elements. Text only ever enters as a text node. */

const SVG = "http://www.w3.org/2000/svg";

/** Every class of the panel begins with this, so that its style meets nothing else. */
export const PREFIX = "adapter-trainer-";

/** Of a table that opens in the panel: with it a focused one keeps the mouse wheel in Nodes 2.0. */
export const TABLE = { "data-capture-wheel": "true", tabindex: "-1" };

/**
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {string} name class without the prefix, "" for none
 * @param {Record<string, string>} [attributes]
 * @param {(Node | string)[]} [children]
 * @returns {HTMLElementTagNameMap[T]}
 */
export function html(tag, name, attributes = {}, children = []) {
  const element = document.createElement(tag);
  if (name) element.className = PREFIX + name;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/**
 * @template {keyof SVGElementTagNameMap} T
 * @param {T} tag
 * @param {string} name class without the prefix, "" for none
 * @param {Record<string, string | number>} [attributes]
 * @param {(Node | string)[]} [children]
 * @returns {SVGElementTagNameMap[T]}
 */
export function svg(tag, name, attributes = {}, children = []) {
  const element = document.createElementNS(SVG, tag);
  if (name) element.setAttribute("class", PREFIX + name);
  setAll(element, attributes);
  element.append(...children);
  return element;
}

/**
 * @param {Element} element
 * @param {Record<string, string | number>} attributes
 */
export function setAll(element, attributes) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
}

/**
 * Sets a text only when it differs, so that screen readers and layout are left alone.
 *
 * @param {Node} node
 * @param {string} value
 */
export function setText(node, value) {
  if (node.textContent !== value) node.textContent = value;
}
