/** What the panel uses of ComfyUI's frontend, and nothing more. */

export interface GraphNode {
  id: number | string;
  comfyClass?: string;
  title?: string;
  graph?: Graph | null;
  /** Set on nodes that stand for a subgraph. */
  subgraph?: Graph;
  size: [number, number];
  pos: [number, number];
  mode: number;
  properties: Record<string, unknown>;
  widgets?: Widget[];
  inputs?: { name: string; type?: unknown; link?: number | null }[];
  /** Whether it is of the page alone, and none of a prompt. */
  isVirtualNode?: boolean;
  outputs?: { links?: number[] | null }[];
  onAdded?: (...args: unknown[]) => void;
  onRemoved?: (...args: unknown[]) => void;
  onConfigure?: (...args: unknown[]) => void;
  onExecuted?: (output: unknown) => void;
  setDirtyCanvas?(foreground: boolean, background: boolean): void;
  /** Whether it is drawn red. */
  has_errors?: boolean;
  onDragOver?: (event: DragEvent) => boolean;
  onDragDrop?: (event: DragEvent) => Promise<boolean>;
  computeSize(): [number, number];
  setSize(size: [number, number]): void;
  findInputSlot(name: string): number;
  connect(output: number, target: GraphNode, input: number): unknown;
  removeWidget(widget: unknown): void;
  setDirtyCanvas?(foreground: boolean, background: boolean): void;
  addDOMWidget(
    name: string,
    type: string,
    element: HTMLElement,
    options: {
      serialize?: boolean;
      hideOnZoom?: boolean;
      margin?: number;
      getMinHeight?: () => number;
      getMaxHeight?: () => number;
    },
  ): unknown;
  addWidget(
    type: "button",
    label: string,
    value: null,
    pressed: () => void,
    options: { serialize?: boolean },
  ): { serialize?: boolean; tooltip?: string };
}

export interface Widget {
  name: string;
  value?: unknown;
  serialize?: boolean;
  options?: { values?: unknown; max?: number };
  serializeValue?: (...args: unknown[]) => unknown;
  callback?: (value: unknown) => unknown;
}

export interface Link {
  origin_id: number | string;
  origin_slot: number;
  target_id: number | string;
  target_slot: number;
}

export interface GraphGroup {
  pos: [number, number];
  size: [number, number];
}

export interface MenuItem {
  content: string;
  callback: () => void;
}

export interface Graph {
  id?: string;
  nodes: GraphNode[];
  groups?: GraphGroup[];
  add(item: GraphNode | GraphGroup): unknown;
  /** Counts nodes in the order in which they run; a link by itself does not. */
  updateExecutionOrder(): void;
  getLink(id: number): Link | null | undefined;
  getNodeById(id: number | string): GraphNode | null;
  setDirtyCanvas(front: boolean, back: boolean): void;
  isRootGraph?: boolean;
}

export interface Extension {
  setup?(): Promise<void>;
  name: string;
  init?(): void;
  nodeCreated?(node: GraphNode): void;
  afterConfigureGraph?(): void;
  commands?: { id: string; label: string; icon?: string; function: () => unknown }[];
  menuCommands?: { path: string[]; commands: string[] }[];
  /** Entries of the context menus; null is a line. */
  getCanvasMenuItems?(): (MenuItem | null)[];
  getNodeMenuItems?(node: GraphNode): (MenuItem | null)[];
}

export interface App {
  graph: Graph;
  rootGraph?: Graph;
  canvas?: {
    canvas: HTMLCanvasElement;
    /** What is shown: the workflow, or a subgraph of it. */
    graph?: Graph | null;
    setDirty(front: boolean, back: boolean): void;
    emitBeforeChange(): void;
    emitAfterChange(): void;
    selectItems(items: GraphNode[]): void;
    selectNode?(node: GraphNode): void;
  };
  extensionManager: {
    toast: { add(message: ToastMessage): void };
    command: { execute(id: string): Promise<void> };
    registerSidebarTab(tab: SidebarTab): void;
    setting?: { get(id: string): unknown };
  };
  /** What refused the last prompt, by node. */
  lastNodeErrors?: Record<string, { errors: { type?: string; extra_info?: { input_name?: string } }[] }> | null;
  /** Presses Run, for all or for some output nodes; says whether the server took it. */
  queuePrompt(number: number, batchCount?: number, queueNodeIds?: string[]): Promise<boolean>;
  /** What Run would send. */
  graphToPrompt(): Promise<{ output: Record<string, unknown> }>;
  registerExtension(extension: Extension): void;
  /** What the key R does, without its messages. */
  reloadNodeDefs?(): Promise<void>;
  /** Opens a workflow in a tab of this name. */
  loadGraphData(
    workflow: unknown,
    clean: boolean,
    restoreView: boolean,
    name: string,
  ): Promise<unknown>;
  loadApiJson(prompt: unknown, name: string): Promise<unknown>;
  /** Opens a file that was dropped on the canvas or chosen as a workflow. */
  handleFile(file: File, ...rest: unknown[]): Promise<unknown>;
}

export interface SidebarTab {
  id: string;
  icon: string;
  title: string;
  tooltip: string;
  type: "custom";
  render(element: HTMLElement): unknown;
  destroy?(): void;
}

export interface ToastMessage {
  severity: "info" | "warn" | "error";
  summary: string;
  detail: string;
  /** Milliseconds; a message without stays until it is closed. */
  life?: number;
}

export interface Api {
  fetchApi(route: string, options?: RequestInit): Promise<Response>;
  apiURL(route: string): string;
  addEventListener(type: string, listener: (event: CustomEvent) => void): void;
}

declare global {
  interface Window {
    LiteGraph: {
      createNode(type: string): GraphNode | null;
      LGraphGroup: new (title: string) => GraphGroup;
    };
  }
}
