/** The sources of tokens: their names in the API and for people, in the order of legends and bars. Colours are in CSS. */

export const SOURCES = [
  { id: "context", name: "context", words: "copied from an earlier match in the prompt or the reply" },
  { id: "adjacency", name: "adjacency", words: "from the table of what the model has written after this token" },
  { id: "ngram", name: "n-gram", words: "from the store of short runs this session has seen" },
  { id: "draft_model", name: "draft model", words: "proposed by the small draft model" },
  { id: "prediction", name: "prediction", words: "from the predicted reply the request brought" },
  { id: "grammar", name: "grammar", words: "the only thing the grammar allowed" },
  { id: "bonus", name: "bonus", words: "the model's own token after the accepted draft" },
];

const BY_ID = new Map(SOURCES.map((source) => [source.id, source]));

/** The entry of a source; one this page does not know yet is shown under its own name. */
export function sourceOf(id) {
  return BY_ID.get(id) ?? { id, name: id.replaceAll("_", " "), words: id.replaceAll("_", " ") };
}

/** A source's colour in the current theme, for canvases. */
export function colourOf(id) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${id.replaceAll("_", "-")}`).trim() || "gray";
}
