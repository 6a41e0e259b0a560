/** Reads what columns.py packed: facts and tables from a JSON header, everything per node from typed arrays over the buffer. */
const TYPES = {
  i1: Int8Array,
  i2: Int16Array,
  u1: Uint8Array,
  u2: Uint16Array,
  u4: Uint32Array,
  i4: Int32Array,
  f4: Float32Array,
  f8: Float64Array,
};
const MAGIC = 0x77626163; // "cabw"

/** `bytes` is a DataView (a traitlets.Bytes as anywidget hands it over), a typed array or an ArrayBuffer. */
export function unpack(bytes) {
  let buffer = bytes.buffer ?? bytes;
  let start = bytes.byteOffset ?? 0;
  if (start % 8) {
    buffer = buffer.slice(start, start + bytes.byteLength); // typed arrays want alignment; a websocket frame promises none
    start = 0;
  }
  const view = new DataView(buffer, start);
  const length = view.getUint32(4, true);
  if (view.getUint32(0, true) !== MAGIC) throw new Error("not a packed capture");
  const { facts, tables, columns } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, start + 8, length)));
  const read = {};
  for (const [name, [type, at, count, differences]] of Object.entries(columns)) {
    const column = new TYPES[type](buffer, start + 8 + length + at, count);
    read[name] = differences ? summed(column) : column;
  }
  return { facts, tables, columns: read };
}

/** The numbers of which these are the differences. */
function summed(steps) {
  const out = new Uint32Array(steps.length);
  let sum = 0;
  for (let i = 0; i < steps.length; i++) out[i] = sum += steps[i];
  return out;
}

/** Whether a part has been sent at all: an empty one stands for what was not computed. */
export const sent = (bytes) => Boolean(bytes?.byteLength);

/** Lists per row in compressed form: `at[i]` to `at[i + 1]` of `items` belong to row i. */
export function rowsOf(count, keys, values = null) {
  const at = new Uint32Array(count + 1);
  const items = new Uint32Array(keys.length);
  for (const k of keys) at[k + 1]++;
  for (let i = 0; i < count; i++) at[i + 1] += at[i];
  const next = at.slice();
  for (let i = 0; i < keys.length; i++) items[next[keys[i]]++] = values ? values[i] : i;
  return { at, items };
}
