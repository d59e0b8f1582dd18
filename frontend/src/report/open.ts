// Parts that open and close: a link to a closed one opens it, and on paper all findings are open.

/** Open what the address or a link leads to, and findings before the page is printed. */
export function openTargets(): void {
  const open = (): void => {
    const target = document.getElementById(location.hash.slice(1));
    if (target instanceof HTMLDetailsElement) target.open = true;
  };
  window.addEventListener("hashchange", open);
  document.addEventListener("click", (event) => {
    const link = (event.target as Element).closest<HTMLAnchorElement>('a[href^="#"]');
    const target = link && document.getElementById(link.hash.slice(1));
    if (target instanceof HTMLDetailsElement) target.open = true;
  });
  window.addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll<HTMLDetailsElement>(".finding, .explained details, .tree details")) {
      part.open = true;
    }
  });
  open();
}
