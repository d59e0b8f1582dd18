// Small choices of the reader, remembered where the browser allows it and until the page closes elsewhere.

/** What was kept under this name; null where nothing was. */
export function kept(name: string): string | null {
  try {
    return localStorage.getItem(`gpusight-${name}`);
  } catch {
    return null; // storage is switched off or denied: nothing was kept
  }
}

/** Keep a choice for the next time. */
export function keep(name: string, value: string): void {
  try {
    localStorage.setItem(`gpusight-${name}`, value);
  } catch {
    return; // as above: the choice holds for this page only
  }
}
