/** Light, dark, or as the system says. Loaded before anything is shown, so that nothing flashes; hence no module. */
"use strict";

(() => {
  const NAME = "gander.theme";
  const THEMES = ["system", "light", "dark"];
  const root = document.documentElement;
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const current = () => root.dataset.theme || "system";

  function apply(theme) {
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    root.dataset.scheme = theme === "system" ? (systemDark.matches ? "dark" : "light") : theme;
  }

  function describe(button) {
    const words = current() === "system" ? "as the system" : current();
    button.setAttribute("aria-label", `Colours: ${words}`);
    button.title = `Colours: ${words}`;
    button.dataset.state = current();
  }

  apply(localStorage.getItem(NAME) || "system");
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme-toggle");
    describe(button);
    button.addEventListener("click", () => {
      apply(THEMES[(THEMES.indexOf(current()) + 1) % THEMES.length]);
      localStorage.setItem(NAME, current());
      describe(button);
      document.dispatchEvent(new CustomEvent("theme-change"));
    });
    systemDark.addEventListener("change", () => {
      apply(current());
      document.dispatchEvent(new CustomEvent("theme-change"));
    });
  });
})();
