// Polls until a response is final.

import { hideFault, showFault, takenBack, unanswered } from "./faults";

const SOON_MS = 200;
const LATER_MS = 1000;
const SILENT_MS = 2000;
/** After so many responses the server is busy for longer, and is polled less often. */
const PATIENCE = 25;

/** Poll until `done`; passes every response to `seen`, and goes on when the server does not respond for a while. */
export async function poll<T>(
  ask: () => Promise<T>,
  seen: (answer: T) => void,
  done: (answer: T) => boolean,
): Promise<void> {
  let silent = false;
  for (let requests = 0; ; requests++) {
    try {
      const answer = await ask();
      if (silent) hideFault();
      silent = false;
      seen(answer);
      if (done(answer)) return;
      await pause(requests < PATIENCE ? SOON_MS : LATER_MS);
    } catch (error) {
      if (!takenBack(error)) showFault(error);
      if (!unanswered(error)) return;
      silent = true;
      await pause(SILENT_MS);
    }
  }
}

/** A call that waits; `cancel` drops the one that is waiting. */
export interface Rested<A extends unknown[]> {
  (...given: A): void;
  cancel(): void;
}

/** Run only the last of many calls, once they have rested. */
export function rested<A extends unknown[]>(wait_ms: number, run: (...given: A) => void): Rested<A> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const later = (...given: A): void => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...given), wait_ms);
  };
  return Object.assign(later, { cancel: () => clearTimeout(timer) });
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
