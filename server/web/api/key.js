/** The API key: for this tab only, or kept in the browser where its owner ticks so. */

const NAME = "gander.key";

export const apiKey = {
  get value() {
    return localStorage.getItem(NAME) ?? sessionStorage.getItem(NAME) ?? "";
  },
  get isKept() {
    return localStorage.getItem(NAME) !== null;
  },
  set(value, isKept) {
    localStorage.removeItem(NAME);
    sessionStorage.removeItem(NAME);
    if (value) (isKept ? localStorage : sessionStorage).setItem(NAME, value);
  },
};
