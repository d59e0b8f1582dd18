// A button that copies text and confirms it.

import { smallButton } from "../../shared/buttons";
import { copyText } from "../../shared/dom";
import type { Shape } from "../../shared/icons";
import { announce } from "../app/announcer";

const SHOWN_MS = 1600;

/** `label` names what is copied, such as "Copy name". */
export function copyButton(label: string, text: () => string, shape: Shape = "copy"): HTMLButtonElement {
  const button = smallButton(label, () => void copyText(text()).then(confirm), shape);
  const words = button.querySelector("span");
  const confirm = (copied: boolean): void => {
    if (!words) return;
    words.textContent = copied ? "Copied" : "Not allowed";
    announce(copied ? "Copied" : "The browser does not allow copying");
    setTimeout(() => (words.textContent = label), SHOWN_MS);
  };
  return button;
}
