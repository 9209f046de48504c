// @ts-check
/** Numbers as people read them. A value that is not known is a dash. */

export const UNKNOWN = "–";

/**
 * @param {number | null | undefined} value
 * @param {number} [digits] significant digits
 * @returns {string} `0.1234`, `12.3`, `1.5e-5`
 */
export function formatNumber(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) {
    return value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  return String(Number(value.toPrecision(digits)));
}

/**
 * @param {number | null | undefined} seconds
 * @returns {string} `8 s`, `2 min 05 s`, `3 h 20 min`, `2 d 4 h`
 */
export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return UNKNOWN;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} min`;
  const hours = Math.round(whole / 3600);
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/**
 * @param {number | null | undefined} seconds
 * @returns {string} `0.42 s`, `85 ms`, `12 s`
 */
export function formatStepTime(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return UNKNOWN;
  if (seconds < 0.1) return `${Number((seconds * 1000).toPrecision(2))} ms`;
  if (seconds >= 60) return formatDuration(seconds);
  return `${Number(seconds.toPrecision(seconds < 10 ? 2 : 3))} s`;
}

/**
 * @param {number} step
 * @param {number} steps 0 when unknown
 * @returns {string}
 */
export function formatStep(step, steps) {
  return steps > 0 ? `${step} / ${steps}` : String(step);
}

/**
 * @param {number} bytes
 * @returns {string} `11.2`, `0.03`, without the unit
 */
export function formatGibibytes(bytes) {
  const size = bytes / 2 ** 30;
  return size.toFixed(size > 0 && size < 0.1 ? 2 : 1);
}

/** @param {number} value */
function pad(value) {
  return String(value).padStart(2, "0");
}
