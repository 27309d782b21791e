/** Sentences for screen readers: said once, when something ends; never for every token. */

export function announce(sentence) {
  document.getElementById("announcer").textContent = sentence;
}
