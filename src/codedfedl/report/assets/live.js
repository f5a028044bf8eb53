/* The page of a run in progress: it asks its own server for the state every second, and for the page
   when there is a later one. What is folded out, sorted or hidden stays so. */
(() => {
  "use strict";
  const SECONDS = 1, PATIENCE = 10;
  const page = () => document.querySelector("main");
  let failures = 0;

  const summaries = () => [...page().querySelectorAll("details")].map(one => [one.querySelector("summary").textContent, one]);
  const sorted = () => [...page().querySelectorAll("table")].flatMap((table, at) =>
    [...table.rows[0].cells].map((cell, column) => [at, column, cell.getAttribute("aria-sort")])).filter(([, , how]) => how);

  function replace(text) {
    const next = new DOMParser().parseFromString(text, "text/html");
    const folds = new Map(summaries().map(([name, one]) => [name, one.open]));
    const orders = sorted(), above = scrollY;
    document.title = next.title;
    page().replaceWith(document.adoptNode(next.querySelector("main")));
    summaries().forEach(([name, one]) => { one.open = folds.get(name) ?? one.open; });
    document.dispatchEvent(new Event("changed"));
    orders.forEach(([at, column, how]) => {
      const heading = page().querySelectorAll("table")[at]?.rows[0].cells[column];
      for (let clicks = 0; heading?.classList.contains("sorts") && clicks < 2 && heading.getAttribute("aria-sort") !== how; clicks++) heading.click();
    });
    scrollTo(0, above);
  }

  function tell(text, updated) {
    const place = page().querySelector(".state");
    if (!place) return;
    place.querySelector(".text").textContent = text;
    const seconds = Math.max(0, Math.round((Date.now() - Date.parse(updated)) / 1000));
    place.querySelector(".age").textContent = updated ? `${seconds} s ago` : "";
  }

  async function got(path) {
    const answer = await fetch(path, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    return answer.text();
  }

  async function look() {
    let over = false;
    try {
      const state = JSON.parse(await got("state"));
      if (state.page !== page().dataset.page) replace(await got("./"));
      tell(state.text, state.updated);
      over = state.state !== "running" && state.page === page().dataset.page;
      failures = 0;
    } catch {
      failures += 1;
      if (failures >= PATIENCE) tell("The command that served this page has ended: this is the last state it showed.", "");
    }
    if (!over && failures < PATIENCE) setTimeout(look, 1000 * SECONDS);
  }
  setTimeout(look, 1000 * SECONDS);
})();
