// @ts-check
/** The runs tab in ComfyUI's sidebar. It asks the server for nothing before it is opened. */

import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";

/** @type {import("./runs/tab.js").RunsTab | null} */
let tab = null;

app.registerExtension({
  name: "AdapterTrainer.Runs",
  async setup() {
    app.extensionManager.registerSidebarTab({
      id: "adapter-trainer-runs",
      icon: "pi pi-chart-line",
      title: "Runs",
      tooltip: "Runs of Adapter Trainer",
      type: "custom",
      async render(element) {
        const { loadTexts } = await import("./runs/texts.js");
        if (!tab) await loadTexts(api, app);
        const { RunsTab } = await import("./runs/tab.js");
        tab ??= new RunsTab(api, app);
        // As high as the sidebar, so that the list takes what is free.
        element.style.height = "100%";
        element.append(tab.element);
        tab.open();
      },
      destroy: () => tab?.close(),
    });
  },
});
