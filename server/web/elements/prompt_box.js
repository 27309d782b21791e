/** A text box: Enter sends its form, Shift+Enter starts a line, and it grows with its text. */

export function preparePrompt(box, { rows = 10 } = {}) {
  const grow = () => {
    box.style.height = "auto";
    const line = Number.parseFloat(getComputedStyle(box).lineHeight) || 20;
    box.style.height = `${Math.min(box.scrollHeight + 2, line * rows)}px`;
  };
  box.addEventListener("input", grow);
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    box.form.requestSubmit();
  });
  return { set: (text) => ((box.value = text), grow()), grow };
}
