// Asking again until an answer is final.

import { hideFault, showFault, takenBack, unanswered } from "./faults";

const SOON_MS = 200;
const LATER_MS = 1000;
const SILENT_MS = 2000;
/** After so many answers the server is busy for longer, and is asked less often. */
const PATIENCE = 25;

/** Ask until `done`; gives every answer to `seen`, and goes on when the server is silent for a while. */
export async function poll<T>(
  ask: () => Promise<T>,
  seen: (answer: T) => void,
  done: (answer: T) => boolean,
): Promise<void> {
  let silent = false;
  for (let asked = 0; ; asked++) {
    try {
      const answer = await ask();
      if (silent) hideFault();
      silent = false;
      seen(answer);
      if (done(answer)) return;
      await pause(asked < PATIENCE ? SOON_MS : LATER_MS);
    } catch (error) {
      if (!takenBack(error)) showFault(error);
      if (!unanswered(error)) return;
      silent = true;
      await pause(SILENT_MS);
    }
  }
}

/** Run only the last of many calls, once they have rested. */
export function rested<A extends unknown[]>(wait_ms: number, run: (...given: A) => void): (...given: A) => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...given), wait_ms);
  };
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
