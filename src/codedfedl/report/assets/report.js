/* The report's own script: charts with values on hover, settings that toggle everywhere, tables that
   sort. It reads the JSON of #chart-data, asks nobody for anything, and the page is whole without it.
   An event "changed" at the document says that its content was replaced. */
(() => {
  "use strict";
  const hidden = new Set();
  const drawn = [];
  let charts = {}, places = [];
  const three = v => v === null ? "–" : Math.abs(v) >= 100 ? Math.round(v).toLocaleString("en") : String(+v.toPrecision(3));
  const score = (v, metric) => v === null ? "–" : metric === "accuracy" ? (100 * v).toFixed(2) + "%" : v.toFixed(4);
  const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // A line has its own places on the x axis; uPlot wants one axis for all.
  function joined(chart) {
    const tables = chart.lines.map(line => {
      const kept = line.x.map((x, i) => i).filter(i => line.x[i] !== null && (!chart.xLog || line.x[i] > 0));
      kept.sort((a, b) => line.x[a] - line.x[b]);
      const pick = values => kept.map(i => values === null ? null : values[i]);
      return [pick(line.x), pick(line.y), pick(line.high), pick(line.low)];
    });
    return uPlot.join(tables);
  }

  function options(chart, width) {
    const axis = { stroke: ink("--soft"), grid: { stroke: ink("--line"), width: 1 }, ticks: { stroke: ink("--line") }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" };
    const series = [{}], bands = [];
    chart.lines.forEach(line => {
      const show = !hidden.has(line.key), single = line.x.length === 1;
      const edge = { show, stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
      bands.push({ series: [series.length + 1, series.length + 2], fill: line.colour + "28" });
      series.push({ show, stroke: line.colour, width: 2, dash: line.dash, spanGaps: true, points: { show: single, size: 10, fill: line.colour } }, edge, { ...edge });
    });
    return {
      width, height: Math.max(220, Math.round(width * 0.66)), series, bands,
      legend: { show: false },
      cursor: { points: { show: false }, focus: { prox: -1 }, y: false, drag: { x: true, y: false, uni: 20 } },
      scales: {
        x: { time: false, distr: chart.xLog ? 3 : 1 },
        y: { range: (u, low, high) => {
          const floor = chart.yMin === null || high <= chart.yMin ? low : chart.yMin;
          const top = Math.max(high, chart.target ?? high);
          return [floor, top + 0.05 * Math.max(top - floor, 1e-9)];
        } },
      },
      axes: [
        { ...axis, ...(chart.xLog ? { grid: { ...axis.grid, filter: sparse }, ticks: { ...axis.ticks, filter: sparse } } : {}), label: chart.xLabel, labelSize: 20, size: 34, space: chart.xLog ? 34 : 50, values: (u, ticks) => ticks.map(t => t === null ? "" : three(t)), ...(chart.xLog ? { filter: sparse } : {}) },
        { ...axis, size: 52, values: (u, ticks) => ticks.map(t => chart.metric === "accuracy" ? +(100 * t).toFixed(1) + "%" : String(+t.toPrecision(3))) },
      ],
      hooks: { draw: [u => target(u, chart)], setCursor: [u => hover(u, chart)] },
    };
  }

  // Of the 1, 2, 3, … 9 of every decade, name as many as there is room for.
  function sparse(u, ticks) {
    const decades = Math.log10(u.scales.x.max / u.scales.x.min);
    const room = u.bbox.width / devicePixelRatio / decades;
    const named = room > 260 ? [1, 2, 3, 5, 7] : room > 110 ? [1, 2, 5] : [1];
    const step = room > 45 ? 1 : room > 22 ? 2 : 3;
    return ticks.map(t => {
      const power = Math.floor(Math.log10(t) + 1e-9), first = Math.round(t / 10 ** power);
      return named.includes(first) && power % step === 0 ? t : null;
    });
  }

  function target(u, chart) {
    if (chart.target === null) return;
    const y = Math.round(u.valToPos(chart.target, "y", true)) + 0.5, c = u.ctx;
    c.save();
    c.strokeStyle = ink("--soft"); c.setLineDash([2, 4]); c.lineWidth = devicePixelRatio;
    c.beginPath(); c.moveTo(u.bbox.left, y); c.lineTo(u.bbox.left + u.bbox.width, y); c.stroke();
    c.restore();
  }

  // The nearest point of any line that is shown, within reach of the pointer.
  function hover(u, chart) {
    const { left, top } = u.cursor, tip = u.tip, dot = u.dot;
    let best = null, reach = 40 ** 2;
    if (left >= 0) chart.lines.forEach(line => {
      if (hidden.has(line.key)) return;
      line.x.forEach((x, i) => {
        const y = line.y[i];
        if (x === null || y === null || (chart.xLog && x <= 0)) return;
        const dx = u.valToPos(x, "x") - left, dy = u.valToPos(y, "y") - top, far = dx * dx + dy * dy;
        if (far < reach) { reach = far; best = { line, i, px: dx + left, py: dy + top }; }
      });
    });
    tip.hidden = dot.hidden = best === null;
    if (best === null) return;
    const { line, i, px, py } = best, unit = chart.xUnit ? " " + chart.xUnit : "";
    const range = line.low && line.low[i] !== line.high[i] ? ` (${score(line.low[i], chart.metric)} to ${score(line.high[i], chart.metric)})` : "";
    tip.replaceChildren();
    for (const text of [line.name, `${score(line.y[i], chart.metric)}${range}`, chart.xUnit ? `after ${three(line.x[i])}${unit}` : `after ${three(line.x[i])} rounds`]) {
      tip.appendChild(document.createElement("div")).textContent = text;
    }
    tip.firstChild.style.color = line.colour;
    const room = u.over.clientWidth;
    tip.style.left = Math.min(Math.max(0, px + 12), Math.max(0, room - tip.offsetWidth)) + "px";
    tip.style.top = (py > tip.offsetHeight + 14 ? py - tip.offsetHeight - 10 : py + 14) + "px";
    dot.style.left = px + "px"; dot.style.top = py + "px"; dot.style.background = line.colour;
  }

  function draw(place) {
    const chart = charts[place.dataset.chart];
    const u = new uPlot(options(chart, place.clientWidth), joined(chart), place);
    u.tip = u.over.appendChild(Object.assign(document.createElement("div"), { className: "tip", hidden: true }));
    u.dot = u.over.appendChild(Object.assign(document.createElement("div"), { className: "here", hidden: true }));
    return u;
  }

  function redraw() {
    drawn.splice(0).forEach(u => u.destroy());
    places.forEach(place => drawn.push(draw(place)));
  }
  // In the dark and on paper, the ink is another, and on paper the width too.
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", redraw);
  new ResizeObserver(() => {
    if (places.some((place, i) => place.clientWidth && place.clientWidth !== drawn[i].width)) redraw();
  }).observe(document.body);

  // A setting is shown or hidden in all charts, and in the table of results, at once.
  function toggle(key, show) {
    show ? hidden.delete(key) : hidden.add(key);
    document.querySelectorAll("[data-line]").forEach(one => {
      if (one.dataset.line !== key) return;
      one.matches("button") ? one.setAttribute("aria-pressed", String(show)) : one.classList.toggle("off", !show);
    });
    drawn.forEach((u, i) => charts[places[i].dataset.chart].lines.forEach((line, at) => {
      if (line.key === key) for (const s of [0, 1, 2]) u.setSeries(1 + 3 * at + s, { show });
    }));
  }
  const wireButtons = () => document.querySelectorAll("button[data-line]").forEach(button => {
    button.addEventListener("click", () => toggle(button.dataset.line, hidden.has(button.dataset.line)));
    button.addEventListener("dblclick", () => {
      const keys = [...document.querySelectorAll("button[data-line]")].map(one => one.dataset.line);
      keys.forEach(key => toggle(key, key === button.dataset.line));
    });
  });
  const wireShowAll = () => document.querySelectorAll("button.all").forEach(button => button.addEventListener("click", () => [...hidden].forEach(key => toggle(key, true))));

  // Tables: a heading sorts, and on a narrow screen every cell carries its heading.
  const value = cell => {
    const text = cell.dataset.value ?? cell.textContent.trim();
    const number = parseFloat(text.replace(/,/g, ""));
    return Number.isNaN(number) ? text.toLowerCase() : number;
  };
  const order = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
  const wireTables = () => document.querySelectorAll("table").forEach(table => {
    const [head, ...rows] = table.rows;
    const headings = [...head.cells];
    rows.forEach(row => [...row.cells].forEach((cell, i) => { cell.dataset.label = headings[i]?.textContent.trim() ?? ""; }));
    if (rows.length < 2) return;
    headings.forEach((heading, i) => {
      if (!heading.textContent.trim()) return;
      heading.tabIndex = 0;
      heading.classList.add("sorts");
      const sort = () => {
        const up = heading.getAttribute("aria-sort") !== "ascending";
        headings.forEach(one => one.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", up ? "ascending" : "descending");
        const sorted = [...rows].sort((a, b) => (up ? 1 : -1) * order(value(a.cells[i]), value(b.cells[i])));
        sorted.forEach(row => row.parentNode.appendChild(row));
      };
      heading.addEventListener("click", sort);
      heading.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); } });
    });
  });

  function begin() {
    charts = JSON.parse(document.getElementById("chart-data").textContent);
    places = [...document.querySelectorAll("[data-chart]")];
    redraw();
    wireButtons();
    wireShowAll();
    wireTables();
    hidden.forEach(key => toggle(key, false));
  }
  begin();
  document.addEventListener("changed", begin);
})();
