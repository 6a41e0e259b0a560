/** What PyTorch says of a cache miss, in words; other reasons as they are. */
const MISS = /new autograd node: (\S+) \(NodeCall (\d+)\) with key size (\d+), previous key sizes=\[(.*)\]/;
const SIZES = /Cache miss due to (\d+) changed tensor shapes/;

export function inPlainWords(reason) {
  const miss = MISS.exec(reason);
  if (miss) {
    const name = miss[1].split("::").pop();
    if (name === "AccumulateGrad")
      return `AccumulateGrad #${miss[2]} has another key, as when a .grad that was None is there now.`;
    return `${name} #${miss[2]} has another key: size ${miss[3]}, seen before ${miss[4] || "none"}.`;
  }
  const sizes = SIZES.exec(reason);
  if (sizes) return `${sizes[1]} sizes changed; from here on they are symbolic.`;
  return reason;
}
