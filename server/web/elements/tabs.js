/** The tabs: arrow keys move between them, the address remembers which is open. */

export function installTabs(list, onShow) {
  const tabs = [...list.querySelectorAll('[role="tab"]')];
  const panelOf = (tab) => document.getElementById(tab.getAttribute("aria-controls"));

  function show(tab) {
    for (const other of tabs) {
      const isShown = other === tab;
      other.setAttribute("aria-selected", String(isShown));
      other.tabIndex = isShown ? 0 : -1;
      panelOf(other).hidden = !isShown;
    }
    onShow(panelOf(tab).id);
  }

  function fromAddress() {
    show(tabs.find((tab) => panelOf(tab).id === location.hash.slice(1)) ?? tabs[0]);
  }

  list.addEventListener("click", (event) => {
    const tab = event.target.closest('[role="tab"]');
    if (tab) choose(tab);
  });
  list.addEventListener("keydown", (event) => {
    const here = tabs.indexOf(document.activeElement);
    const there = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (there === undefined || here < 0) return;
    event.preventDefault();
    const tab = tabs[(there + tabs.length) % tabs.length];
    choose(tab);
    tab.focus();
  });

  function choose(tab) {
    history.replaceState(null, "", `#${panelOf(tab).id}`);
    show(tab);
  }

  addEventListener("hashchange", fromAddress);
  fromAddress();
}
