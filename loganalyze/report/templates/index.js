// Sorting and filters for the table of runs. Without this script the table is complete.
"use strict";
(() => {
  const table = document.getElementById("runs");
  const form = document.getElementById("filters");
  if (!table || !form) return;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, text: row.textContent.toLowerCase() }));
  const shown = document.getElementById("shown");
  const more = document.getElementById("more");
  const FIRST = 100; // as many as are laid out at once; printed are all
  let limit = FIRST;

  const cut = () => {
    let count = 0;
    for (const { row } of rows) row.classList.toggle("later", !row.hidden && ++count > limit);
    more.hidden = count <= limit;
    more.textContent = `Show all ${count.toLocaleString("en")}`;
    const some = count > limit ? `, the first ${limit.toLocaleString("en")} shown` : "";
    shown.textContent = `${count.toLocaleString("en")} of ${rows.length.toLocaleString("en")}${some || " shown"}`;
  };

  const filter = () => {
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const picked = [...form.querySelectorAll("select")].filter((s) => s.value);
    for (const { row, text } of rows) {
      const fits = words.every((w) => text.includes(w)) && picked.every((s) => row.dataset[s.name] === s.value);
      row.hidden = !fits;
    }
    cut();
    const state = new URLSearchParams();
    for (const e of form.elements) if (e.name && e.value) state.set(e.name, e.value);
    try { history.replaceState(null, "", state.size ? `#${state}` : location.pathname + location.search); } catch { /* file pages may not */ }
  };

  const sort = (head) => {
    const by = head.dataset.sort;
    const up = head.getAttribute("aria-sort") === "descending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = ({ row }) => row.dataset[by] ?? "";
    const numeric = head.dataset.kind === "number";
    rows.sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === ""); // what is missing comes last
      const order = numeric ? x - y : x.localeCompare(y, "en", { numeric: true });
      return up ? order : -order;
    });
    body.append(...rows.map(({ row }) => row));
    cut();
  };

  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.title = "Sort by this column";
    head.replaceChildren(button);
    button.addEventListener("click", () => sort(head));
  }
  more.addEventListener("click", () => { limit = Infinity; cut(); });
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.querySelector("[type=reset]").addEventListener("click", () => setTimeout(filter));
  const read = () => {
    const asked = [...new URLSearchParams(location.hash.slice(1))].filter(([name]) => form.elements[name]);
    if (asked.length) form.reset();
    for (const [name, value] of asked) form.elements[name].value = value;
    filter();
    return asked.length;
  };
  form.hidden = false;
  read();
  addEventListener("hashchange", () => { if (read()) document.getElementById("all").scrollIntoView(); });
})();
