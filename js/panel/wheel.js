// @ts-check
/** Over a DOM widget the mouse wheel would be lost to the canvas; this hands it on. */

/**
 * Only the classic renderer needs it, where the element lies over the canvas in a `.dom-widget`;
 * Nodes 2.0 hands the wheel on by itself. A list that can scroll keeps it.
 *
 * @param {HTMLElement} element
 * @param {() => HTMLCanvasElement | undefined} canvas
 */
export function handOnWheel(element, canvas) {
  element.addEventListener(
    "wheel",
    (event) => {
      const target = canvas();
      if (!target || !element.closest(".dom-widget")) return;
      if (!event.ctrlKey && scrolls(event, element)) return;
      event.preventDefault();
      const { clientX, clientY, deltaX, deltaY, ctrlKey, metaKey, shiftKey } = event;
      target.dispatchEvent(
        new WheelEvent("wheel", { clientX, clientY, deltaX, deltaY, ctrlKey, metaKey, shiftKey }),
      );
    },
    { passive: false },
  );
}

/**
 * @param {WheelEvent} event
 * @param {HTMLElement} root
 * @returns {boolean} whether something under the pointer can scroll, the root too
 */
function scrolls(event, root) {
  let element = event.target instanceof Element ? event.target : null;
  for (; element; element = element.parentElement) {
    const overflow = getComputedStyle(element).overflowY;
    const tall = element.scrollHeight > element.clientHeight + 1;
    if (tall && (overflow === "auto" || overflow === "scroll")) return true;
    if (element === root) return false;
  }
  return false;
}
