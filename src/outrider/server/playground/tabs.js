// Tabs: one of several panels is shown. Arrow keys go from tab to tab, and only the chosen one is a tab stop.

/** `chosen` is told the id of the panel that is shown. */
export function attachTabs(list, chosen = () => {}) {
  const tabs = [...list.querySelectorAll("[role=tab]")];

  function choose(tab) {
    for (const each of tabs) {
      each.setAttribute("aria-selected", String(each === tab));
      each.tabIndex = each === tab ? 0 : -1;
      document.getElementById(each.getAttribute("aria-controls")).hidden = each !== tab;
    }
    chosen(tab.getAttribute("aria-controls"));
  }

  list.addEventListener("click", (event) => tabs.includes(event.target) && choose(event.target));
  list.addEventListener("keydown", (event) => {
    const here = tabs.indexOf(event.target);
    const goal = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (here < 0 || goal === undefined) return;
    event.preventDefault();
    const tab = tabs[(goal + tabs.length) % tabs.length];
    choose(tab);
    tab.focus();
  });
}
