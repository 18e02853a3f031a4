// Writes what has changed, says whether the page is seen, exports figures, and keeps the theme.
"use strict";
window.malletrain = (() => {
  const model = (name) => window.Bokeh.documents[0].get_model_by_name(name);

  // A log is followed as long as its end is seen.
  const atEnd = (element) => element.scrollHeight - element.scrollTop - element.clientHeight < 30;
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
    if (theme() !== wanted) location.reload();
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
    if (button?.id === "theme") choose(theme() === "dark" ? "light" : "dark");
  });
  return { write, lost, ready };
})();
