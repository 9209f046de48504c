// @ts-check
/** Marks what the canvas shows very small, so that the style keeps the essential of it legible. */

const OURS = ".adapter-trainer-panel, .adapter-trainer-dataset";
/** Size on the screen, over that at 100 %, below which ordinary letters cannot be read. */
const FAR = 0.65;
/** Below it a small image shows nothing. */
const VERY_FAR = 0.5;
/** Pixels on the screen of a letter that can be read. */
const LEGIBLE = 8;
/** Milliseconds between two looks: no event tells that the canvas was zoomed. */
const LOOK = 400;

/** Looks for as long as the page lives. */
export function watchZoom() {
  setInterval(() => {
    for (const element of document.querySelectorAll(OURS)) {
      const { offsetWidth } = /** @type {HTMLElement} */ (element);
      const zoom = element.getBoundingClientRect().width / offsetWidth;
      if (zoom < FAR) element.setAttribute("data-far", zoom < VERY_FAR ? "very" : "");
      else element.removeAttribute("data-far");
      /** @type {HTMLElement} */ (element).style.setProperty("--adapter-trainer-far", `${Math.ceil(LEGIBLE / zoom)}px`);
    }
  }, LOOK);
}
