/** Making and finding elements. Text is always set as text: nothing here takes HTML. */

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  set(made, attributes);
  made.append(...children);
  return made;
}

export function drawing(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  set(made, attributes);
  made.append(...children);
  return made;
}

function set(target, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) target.addEventListener(name.slice(2), value);
    else target.setAttribute(name, value === true ? "" : value);
  }
}

/** The element inside `root` that carries this name in `data-part`; there must be one. */
export function part(root, name) {
  const found = root.querySelector(`[data-part="${name}"]`);
  if (!found) throw new Error(`the page has no part ${name}`);
  return found;
}

/** A copy of a <template> of the page. */
export function fromTemplate(id) {
  return document.getElementById(id).content.firstElementChild.cloneNode(true);
}
