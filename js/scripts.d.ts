/** The two modules that ComfyUI serves to its extensions. */

declare module "*/scripts/app.js" {
  export const app: import("./comfyui.js").App;
}

declare module "*/scripts/api.js" {
  export const api: import("./comfyui.js").Api;
}
