// The contents at the side: which part is being read, and a menu where there is no side.

import { el, svg } from "../shared/dom";

/** Put the tools next to the name, and mark the part that is on the screen. */
export function startContents(theme: HTMLButtonElement): void {
  const contents = document.querySelector<HTMLElement>(".contents");
  if (!contents) return;
  contents.querySelector(".tools")?.append(theme, menu(contents));
  followReading(contents);
}

function menu(contents: HTMLElement): HTMLButtonElement {
  const lines = svg("path", { d: "M2 4h12M2 8h12M2 12h12", stroke: "currentColor", "stroke-width": 1.6 });
  const picture = svg("svg", { viewBox: "0 0 16 16", width: 18, height: 18, "aria-hidden": "true" }, lines);
  const made = el("button", { type: "button", class: "menu", "aria-controls": "contents" });
  made.append(picture);
  const show = (open: boolean): void => {
    contents.classList.toggle("open", open);
    made.setAttribute("aria-expanded", String(open));
    made.setAttribute("aria-label", open ? "Close the contents" : "Open the contents");
  };
  made.addEventListener("click", () => show(!contents.classList.contains("open")));
  contents.addEventListener("click", (event) => {
    if ((event.target as Element).closest("a")) show(false);
  });
  contents.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !contents.classList.contains("open")) return;
    show(false);
    made.focus();
  });
  show(false);
  return made;
}

/** The part that is read is the last one whose heading is above the upper third of the screen. */
function followReading(contents: HTMLElement): void {
  const links = [...contents.querySelectorAll<HTMLAnchorElement>("ol a")];
  const parts = links.map((link) => document.getElementById(link.hash.slice(1)));
  let waiting = false;
  const mark = (): void => {
    waiting = false;
    const line = window.innerHeight / 3;
    const above = parts.map((part, at) => at === 0 || (part?.getBoundingClientRect().top ?? Infinity) <= line);
    const atEnd = window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 2;
    const now = atEnd && window.scrollY > 0 ? links.length - 1 : above.lastIndexOf(true);
    links.forEach((link, at) => {
      if (at === now) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    });
  };
  const later = (): void => {
    if (!waiting) requestAnimationFrame(mark);
    waiting = true;
  };
  window.addEventListener("scroll", later, { passive: true });
  window.addEventListener("resize", later, { passive: true });
  mark();
}
