/** A picture as requests have it: a data: URL, of a file that is made smaller where it is large. */

const MOST_BYTES = 500_000; // of a file that is sent as it is: bodies, and the browser's store, have room for few larger ones
const LONGEST_SIDE = 1536; // pixels: models look at no picture much closer
const KNOWN = new Set(["image/png", "image/jpeg", "image/webp", "image/gif"]); // to the server
const QUALITY = 0.9;

/** Rejects for a file that is no picture which this browser can read. */
export async function pictureUrl(file) {
  const bitmap = await createImageBitmap(file); // turned as the file says
  const isSmall = file.size <= MOST_BYTES && KNOWN.has(file.type);
  const url = await dataUrl(isSmall ? file : await smaller(bitmap));
  bitmap.close();
  return url;
}

/** The content of a message: text, after its pictures if it has some. */
export function contentOf(text, pictures = []) {
  if (!pictures.length) return text;
  const parts = pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

function smaller(bitmap) {
  const share = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * share)));
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // where the picture is transparent
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0, width, height);
  return canvas.convertToBlob({ type: "image/jpeg", quality: QUALITY });
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}
