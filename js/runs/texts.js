// @ts-check
/** The tab's texts in ComfyUI's language; one without a translation stays English. */

/** @type {Record<string, string>} */
let translations = {};

/**
 * Reads the translations that ComfyUI serves; English asks nothing. ComfyUI may have imported the
 * tab's modules long before, so that a constant is translated where it is shown.
 *
 * @param {import("../comfyui.js").Api} api
 * @param {import("../comfyui.js").App} app
 */
export async function loadTexts(api, app) {
  const language = String(app.extensionManager.setting?.get("Comfy.Locale") ?? "en");
  if (language === "en") return;
  const served = await api.fetchApi("/i18n").then((response) => response.json()).catch(() => null);
  translations = served?.[language]?.adapterTrainer ?? {};
}

/**
 * @param {string} english as a literal, which `scripts/build_locales.py` finds
 * @param {Record<string, string | number>} [values] of its places, such as `{run}`
 * @returns {string}
 */
export function t(english, values = {}) {
  const text = Object.hasOwn(translations, english) ? translations[english] : english;
  return text.replace(/\{(\w+)\}/g, (place, name) => String(values[name] ?? place));
}
