// Shows what a picture's lines and areas stand for where the pointer is. The data was put into the
// page as JSON; its names are only ever set as text.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("figure-data").textContent);
  const picture = document.querySelector(".picture");
  const tip = picture.querySelector(".tip");
  let current = 0;

  // The last place whose x is not beyond `x`; the first place when all are.
  const place = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (xs[middle] <= x) low = middle; else high = middle - 1;
    }
    return low;
  };

  const nearest = (xs, x) => {
    const at = place(xs, x);
    return at + 1 < xs.length && xs[at + 1] - x < x - xs[at] ? at + 1 : at;
  };

  const element = (name, text, kind) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };

  const row = (name, value, slot, kind) => {
    const line = element("tr", undefined, kind);
    const cell = element("td");
    if (slot) cell.append(element("i", undefined, "key-" + slot));
    cell.append(name);
    line.append(cell, element("td", value));
    return line;
  };

  const fill = (heading, rows) => {
    const table = element("table");
    table.append(...rows);
    tip.replaceChildren(element("b", heading), table);
    tip.hidden = false;
  };

  const ends = (svg) => {
    const { left, right, low, high, log } = svg.dataset;
    return { left: +left, right: +right, low: +low, high: +high, log: log === "1" };
  };

  const toX = (svg, pixel) => {
    const e = ends(svg);
    const part = Math.min(Math.max((pixel - e.left) / (e.right - e.left), 0), 1);
    return e.log ? e.low * Math.pow(e.high / e.low, part) : e.low + part * (e.high - e.low);
  };

  const toPixel = (svg, x) => {
    const e = ends(svg);
    const part = e.log ? Math.log(x / e.low) / Math.log(e.high / e.low)
      : (x - e.low) / (e.high - e.low);
    return e.left + Math.min(Math.max(part, 0), 1) * (e.right - e.left);
  };

  const move = (svg, pixel, y) => {
    const box = svg.getBoundingClientRect();
    const cursor = svg.querySelector(".cursor");
    cursor.setAttribute("x1", pixel);
    cursor.setAttribute("x2", pixel);
    cursor.setAttribute("visibility", y === undefined ? "visible" : "hidden");
    const x = pixel / svg.viewBox.baseVal.width * box.width;
    const aside = x > box.width / 2 ? x - tip.offsetWidth - 14 : x + 14;
    const top = y === undefined ? box.height * 0.2 : y / svg.viewBox.baseVal.height * box.height - 24;
    tip.style.left = Math.min(Math.max(aside, 0), box.width - tip.offsetWidth) + "px";
    tip.style.top = Math.max(top, 0) + "px";
  };

  // A mark is where its target is: dots of a panel have no place on the x axis.
  const showMark = (svg, number) => {
    const mark = data.marks[number];
    const target = svg.querySelector(`[data-mark="${number}"]`);
    fill(mark.label, mark.rows.map(([name, value]) => row(name, value)));
    move(svg, +target.getAttribute("cx"), +target.getAttribute("cy"));
  };

  const showAt = (svg, x) => {
    const rows = [];
    for (const series of data.series) {
      const xs = data.xs[series.x];
      const value = series.values[(series.steps ? place : nearest)(xs, x)];
      if (value !== series.zero) rows.push(row(series.name, value, series.slot, series.kind));
    }
    current = (data.series[0] && data.series[0].steps ? place : nearest)(data.xs[0], x);
    fill(data.labels[current], rows);
    move(svg, toPixel(svg, x));
  };

  const hide = () => {
    tip.hidden = true;
    for (const line of picture.querySelectorAll(".cursor")) line.setAttribute("visibility", "hidden");
  };

  // Tables that are wider than the screen scroll, by the keyboard too.
  const reach = () => {
    for (const table of document.querySelectorAll(".report table")) {
      if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
      else table.removeAttribute("tabindex");
    }
  };
  reach();
  window.addEventListener("resize", reach);

  for (const svg of picture.querySelectorAll("svg")) {
    const follow = (event) => {
      const target = event.target.closest("[data-mark]");
      const mark = target && data.marks[+target.dataset.mark];
      if (mark && mark.rows.length) return showMark(svg, +target.dataset.mark);
      const box = svg.getBoundingClientRect();
      const pixel = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      if (data.xs.length) showAt(svg, toX(svg, pixel)); else hide();
    };
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || !(data.xs.length || data.marks.length)) return;
      event.preventDefault();
      if (!data.xs.length) {
        current = (current + by + data.marks.length) % data.marks.length;
        return showMark(svg, current);
      }
      const xs = data.xs[0];
      showAt(svg, xs[Math.min(Math.max(current + by, 0), xs.length - 1)]);
    });
  }
})();
