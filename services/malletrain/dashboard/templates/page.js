// Writes what has changed, says whether the page is seen, exports figures, and keeps the theme.
"use strict";
window.malletrain = (() => {
  const model = (name) => window.Bokeh.documents[0].get_model_by_name(name);

  // A log is followed as long as its end is seen.
  const atEnd = (element) => element.scrollHeight - element.scrollTop - element.clientHeight < 30;
  // Tables whose rows are sorted, searched and chosen by state. What was wanted is kept as long as the tab is open.
  const wanted = (id) => JSON.parse(sessionStorage.getItem(`table-${id}`) || "{}");
  const ended = ["completed", "failed", "cancelled"];
  const key = (cell) => {
    const text = cell?.textContent.trim() ?? "";
    const number = cell?.dataset.order ?? (/^-?[\d,]+(\.\d+)?$/.test(text) ? text.replaceAll(",", "") : NaN);
    return [Number.isNaN(Number(number)) ? (text && text !== "–" ? 1 : 2) : 0, Number(number), text.toLowerCase()];
  };
  const compare = ([kind, number, text], [otherKind, otherNumber, otherText], sign) => {
    if (kind === 2 || otherKind === 2 || kind !== otherKind) return kind - otherKind;  // what is not known comes last
    return sign * (kind === 0 ? number - otherNumber : text.localeCompare(otherText));
  };
  const arrange = (body) => {
    const { column, down, words = "", state = "" } = wanted(body.id);
    const rows = [...body.rows].filter((row) => row.id);
    rows.forEach((row, place) => { row.dataset.place ??= place; });
    const sought = words.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const its = row.querySelector("[data-state]")?.dataset.state;
      const chosen = !state || its === state || (state === "unended" && !ended.includes(its));
      row.hidden = !(chosen && sought.every((word) => text.includes(word)));
    }
    const keys = new Map(rows.map((row) => [row, column === undefined ? [0, Number(row.dataset.place), ""] : key(row.cells[column])]));
    const sorted = [...rows].sort((one, other) => compare(keys.get(one), keys.get(other), down ? -1 : 1)
      || one.dataset.place - other.dataset.place);
    if (sorted.some((row, place) => row !== rows[place])) {
      const focused = body.contains(document.activeElement) ? document.activeElement : null;
      body.append(...sorted);
      focused?.focus({ preventScroll: true });
    }
    const form = document.querySelector(`[data-table="${body.id}"]`);
    const shown = rows.filter((row) => !row.hidden).length;
    form.querySelector("output").textContent = shown < rows.length ? `${shown} of ${rows.length}` : "";
    for (const button of body.parentElement.querySelectorAll("[data-sort]")) {
      const here = column !== undefined && Number(button.dataset.sort) === column;
      button.parentElement.setAttribute("aria-sort", here ? (down ? "descending" : "ascending") : "none");
    }
  };
  const want = (id, changes) => {
    sessionStorage.setItem(`table-${id}`, JSON.stringify({ ...wanted(id), ...changes }));
    arrange(document.getElementById(id));
  };
  const arrangeAll = () => {
    for (const form of document.querySelectorAll("[data-table]")) {
      const { words = "", state = "" } = wanted(form.dataset.table);
      form.querySelector("input").value = words;
      form.querySelector("select").value = state;
      arrange(document.getElementById(form.dataset.table));
    }
  };
  document.addEventListener("DOMContentLoaded", arrangeAll);
  document.addEventListener("input", ({ target }) => {
    const id = target.closest?.("[data-table]")?.dataset.table;
    if (id) want(id, target.tagName === "SELECT" ? { state: target.value } : { words: target.value });
  });
  // Up, down, and back to the order of the page.
  const sortBy = (button) => {
    const { id } = button.closest("table").tBodies[0];
    const [before, column] = [wanted(id), Number(button.dataset.sort)];
    if (before.column !== column) want(id, { column, down: false });
    else if (!before.down) want(id, { down: true });
    else want(id, { column: undefined, down: false });
  };

  const write = ([, parts]) => {
    for (const [id, html] of parts) {
      const element = document.getElementById(id);
      if (!element) continue;
      const focused = element.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      const follows = element.tagName === "PRE" && atEnd(element);
      element.innerHTML = html;
      if (follows) element.scrollTop = element.scrollHeight;
      if (focused) element.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    }
    for (const body of document.querySelectorAll("tbody.arranged")) arrange(body);
  };

  const lost = () => {
    document.getElementById("lost").hidden = false;
    const again = async () => {
      try {
        if ((await fetch("/alive", { cache: "no-store" })).ok) { location.reload(); return; }
      } catch { /* still away */ }
      setTimeout(again, 1000);
    };
    again();
  };

  const tell = () => { model("visibility").tags = [document.hidden ? "hidden" : "shown"]; };
  const ready = () => {
    for (const log of document.querySelectorAll("pre.scroll")) log.scrollTop = log.scrollHeight;
    document.addEventListener("visibilitychange", tell);
    if (document.hidden) tell();
  };

  const theme = () => document.documentElement.dataset.theme;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  // What was chosen by the button, else what the system prefers. Figures are drawn in colours of the server.
  const adapt = () => {
    const wanted = localStorage.getItem("theme") || (dark.matches ? "dark" : "light");
    document.cookie = `theme=${wanted}; path=/; max-age=31536000; samesite=strict`;
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
    document.cookie = `zone=${zone}; path=/; max-age=31536000; samesite=strict`;
    // Once: a server that does not know the zone goes on in UTC.
    const otherZone = document.documentElement.dataset.zone !== zone && sessionStorage.getItem("zone") !== zone;
    sessionStorage.setItem("zone", zone);
    if (theme() !== wanted || otherZone) location.reload();
  };
  const choose = (wanted) => { localStorage.setItem("theme", wanted); adapt(); };
  adapt();
  dark.addEventListener("change", adapt);

  const png = async (name) => {
    const view = window.Bokeh.index.find_one(model(name));
    const blob = await view.export("png", true).to_blob();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${name}.png`;
    link.click();
    URL.revokeObjectURL(link.href);
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.dataset.png) png(button.dataset.png);
    if (button?.dataset.sort) sortBy(button);
    if (button?.id === "theme") choose(theme() === "dark" ? "light" : "dark");
  });
  return { write, lost, ready };
})();
