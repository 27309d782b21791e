/** Ids nobody else has. (crypto.randomUUID is missing where the page is not served over TLS or from localhost.) */

export function freshId(prefix) {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return `${prefix}-${[...bytes].map((byte) => byte.toString(36).padStart(2, "0")).join("")}`;
}
