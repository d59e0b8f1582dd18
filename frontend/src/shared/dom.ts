// Elements from code. Text from a capture goes in as text nodes only, so that a name is never markup.

/** What an element may hold; what is absent is left out. */
export type Child = Node | string | number | null | undefined | false;

type Handlers = { readonly [K in keyof HTMLElementEventMap]?: (event: HTMLElementEventMap[K]) => void };

/** Attributes by name; `true` sets one without a value, `false` and null leave it out. */
export interface Props {
  readonly class?: string;
  readonly on?: Handlers;
  readonly data?: Readonly<Record<string, string | number>>;
  /** Set through the style object: a page's policy may forbid style attributes. */
  readonly style?: Readonly<Record<string, string>>;
  readonly [attribute: string]: unknown;
}

/** Make an element: `el("button", { class: "copy", on: { click: copy } }, "Copy")`. */
export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: readonly Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) setProp(made, name, value);
  made.append(...present(children));
  return made;
}

/** Make an element of a drawing: `svg("path", { d: "M0 0h8" })`. */
export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Readonly<Record<string, string | number>> = {},
  ...children: readonly Child[]
): SVGElementTagNameMap[K] {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...present(children));
  return made;
}

/** Put these in place of what an element holds. */
export function fill(parent: Element, ...children: readonly Child[]): void {
  parent.replaceChildren(...present(children));
}

/** Text in which `names between backticks` are set as code. */
export function prose(text: string): DocumentFragment {
  const made = document.createDocumentFragment();
  const parts = text.split("`");
  const paired = parts.length % 2 === 1;
  parts.forEach((part, index) => {
    if (!paired) made.append(index ? "`" + part : part);
    else if (index % 2) made.append(el("code", {}, part));
    else made.append(part);
  });
  return made;
}

/** The element that the page has under this id; its absence is a mistake in the page. */
export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const element = document.getElementById(id);
  if (!element) throw new Error(`The page has no #${id}`);
  return element as T;
}

/** Copy text; returns whether that worked, as a page opened from disk may not be allowed to. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text: string): boolean {
  const area = el("textarea", { class: "visually-hidden", readonly: true, "aria-hidden": "true" });
  const before = document.activeElement;
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (before instanceof HTMLElement) before.focus();
  return copied;
}

function present(children: readonly Child[]): (Node | string)[] {
  return children.flatMap((child) => {
    if (child === null || child === undefined || child === false) return [];
    return [child instanceof Node ? child : String(child)];
  });
}

function setProp(made: HTMLElement, name: string, value: unknown): void {
  if (name === "on") listen(made, value as Handlers);
  else if (name === "data") Object.assign(made.dataset, strings(value as object));
  else if (name === "style") restyle(made, value as Record<string, string>);
  else if (value === true) made.setAttribute(name, "");
  else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, String(value));
}

function listen(made: HTMLElement, handlers: Handlers): void {
  for (const [event, handler] of Object.entries(handlers)) {
    made.addEventListener(event, handler as EventListener);
  }
}

function restyle(made: HTMLElement, styles: Readonly<Record<string, string>>): void {
  for (const [property, value] of Object.entries(styles)) made.style.setProperty(property, value);
}

function strings(values: object): Record<string, string> {
  return Object.fromEntries(Object.entries(values).map(([key, value]) => [key, String(value)]));
}
