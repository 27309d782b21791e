/** Finds which token wrote which piece of a rendered text. Pure.
 *
 * Rendering drops marks (`**`, `#`), so rendered text is the tokens' text with gaps. Words are searched in order, each
 * not far after the one before; a word that is not found belongs to the token at which the search stands.
 */

const REACH = 400; // characters of marks that may lie between two words, such as a table's rule or a link's address
const NEAR = 8; // for single characters, where a word was written another way, such as `&lt;`
const REASONING_END = "</think>";

/** For each of `texts` its pieces [{text, token}], which joined are the text. token: an index into `tokens`. */
export function align(texts, tokens) {
  const whole = tokens.join("");
  const owner = owners(tokens);
  const reasoning = whole.lastIndexOf(REASONING_END);
  let at = reasoning < 0 ? 0 : reasoning + REASONING_END.length;
  return texts.map((text) => {
    const pieces = [];
    for (const word of text.match(/\s+|\S+/g) ?? []) at = place(word, at, pieces);
    return pieces;
  });

  /** Adds the word's pieces; returns where the search for the next one starts. */
  function place(word, from, pieces) {
    const isSpace = /\s/.test(word);
    const found = whole.indexOf(word, from);
    if (found < 0 || found - from > (isSpace ? 0 : REACH)) return placeCharacters(word, from, isSpace ? 1 : NEAR, pieces);
    for (let index = 0; index < word.length; index++) add(pieces, word[index], owner[found + index]);
    return found + word.length;
  }

  function placeCharacters(word, from, reach, pieces) {
    let here = from;
    for (const character of word) {
      const near = whole.slice(here, here + reach).indexOf(character);
      add(pieces, character, owner[here + Math.max(0, near)] ?? tokens.length - 1);
      if (near >= 0) here += near + character.length;
    }
    return here;
  }
}

/** The token of every character of the joined tokens. */
function owners(tokens) {
  const owner = [];
  tokens.forEach((text, index) => {
    for (let count = text.length; count > 0; count--) owner.push(index);
  });
  return owner;
}

function add(pieces, text, token) {
  const previous = pieces.at(-1);
  if (previous?.token === token) previous.text += text;
  else pieces.push({ text, token });
}
