// @ts-check
/**
 * An error in its three parts, with a button to the input that its remedy names. On a node without
 * a panel it is a box of its own; the panel shows the same.
 */

import { html, setText } from "../panel/dom.js";

/**
 * @typedef {object} NodeError
 * @property {string} found
 * @property {string} expected
 * @property {string} remedy
 * @property {string} input of the node, or empty
 *
 * @typedef {object} Inputs of the node that has the error
 * @property {(input: string) => boolean} has
 * @property {(input: string) => void} reveal brings one into sight
 */

/** @type {Inputs} */
const NONE = { has: () => false, reveal: () => {} };

export class ErrorView {
  /** @param {Inputs} [inputs] */
  constructor(inputs = NONE) {
    this.inputs = inputs;
    this.found = html("p", "error-found");
    this.expected = html("p", "error-part");
    this.remedy = html("p", "error-part");
    this.button = html("button", "action", { type: "button" });
    this.input = "";
    this.button.addEventListener("click", () => inputs.reveal(this.input));
    this.element = html("section", "error", { role: "alert" }, [
      this.found,
      this.expected,
      this.remedy,
      this.button,
    ]);
    this.draw(null);
  }

  /** @param {NodeError | null} error */
  draw(error) {
    this.element.hidden = error === null;
    if (!error) return;
    setText(this.found, error.found);
    setText(this.expected, `Expected: ${error.expected}`);
    setText(this.remedy, `To do: ${error.remedy}`);
    this.input = error.input;
    this.button.hidden = !this.inputs.has(error.input);
    setText(this.button, `Show ${error.input}`);
  }
}

/**
 * @param {unknown} value
 * @returns {NodeError | null} null where it says nothing
 */
export function toError(value) {
  const { found, expected, remedy, input } = /** @type {Record<string, unknown>} */ (value ?? {});
  if (typeof found !== "string" || !found) return null;
  return { found, expected: text(expected), remedy: text(remedy), input: text(input) };
}

/**
 * @param {unknown} value what the server answered
 * @returns {string | null} the three parts for a toast; null where it says nothing
 */
export function toldError(value) {
  const error = toError(value);
  return error && `${error.found}\nExpected: ${error.expected}\nTo do: ${error.remedy}`;
}

/** @param {unknown} value */
function text(value) {
  return typeof value === "string" ? value : "";
}
