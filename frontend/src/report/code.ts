// Lines to paste, with a button that copies them.

import { copyText, el } from "../shared/dom";

const SHOWN_MS = 1600;

/** Give every block of code a button. */
export function copyButtons(): void {
  for (const block of document.querySelectorAll("pre")) {
    const around = el("div", { class: "code" });
    block.replaceWith(around);
    around.append(block, button(block));
  }
}

function button(block: HTMLElement): HTMLButtonElement {
  const made = el("button", { type: "button", "aria-live": "polite" }, "Copy");
  made.addEventListener("click", () => void copy(block.textContent ?? "", made));
  return made;
}

async function copy(text: string, pressed: HTMLButtonElement): Promise<void> {
  pressed.textContent = (await copyText(text)) ? "Copied" : "Select it";
  setTimeout(() => (pressed.textContent = "Copy"), SHOWN_MS);
}
