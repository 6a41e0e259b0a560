/** Colours for the canvas come from the style sheet; this file decides light or dark and reads the tokens. */
const TOKENS = [
  "surface",
  "sunken",
  "line",
  "line-strong",
  "text",
  "muted",
  "faint",
  "accent",
  "accent-soft",
  "up",
  "down",
  "edge",
  "box",
  "open",
  "hit",
  "on-strong",
  "c-matmul",
  "c-norm",
  "c-pointwise",
  "c-loss",
  "c-custom",
  "c-compiled",
  "c-view",
  "c-parameter",
  "c-none",
  "c-equal",
  "c-alarm",
  "q1",
  "q2",
  "q3",
  "q4",
  "d1",
  "d2",
  "d3",
  "tint",
  "ui",
  "mono",
];

/** Calls `changed(theme)` now and whenever the host or the system changes; returns a function that stops it. */
export function followTheme(el, changed) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const read = () => {
    if (!el.isConnected) return; // a notebook renders first and attaches later; without a document there are no styles to read
    const host = getComputedStyle(el).getPropertyValue("--jp-layout-color1").trim();
    const dark = host ? luminance(toRgb(host)) < 0.4 : (pageTheme() ?? system.matches);
    el.dataset.theme = dark ? "dark" : "light";
    const style = getComputedStyle(el);
    const theme = { name: el.dataset.theme };
    for (const t of TOKENS) theme[t] = style.getPropertyValue(`--${t}`).trim();
    for (const t of TOKENS.slice(0, -3))
      if (!/^#[0-9a-f]{6}$/i.test(theme[t])) theme[t] = `rgb(${toRgb(theme[t]).join(",")})`; // color-mix() and the like
    theme.tint = Number(theme.tint);
    theme.rgb = Object.fromEntries(TOKENS.slice(0, -3).map((t) => [t, toRgb(theme[t])]));
    changed(theme);
  };
  const observer = new MutationObserver(read);
  for (const page of [document.body, document.documentElement]) observer.observe(page, { attributes: true });
  const attached = new ResizeObserver(() => {
    if (el.isConnected) {
      attached.disconnect();
      read();
    }
  });
  attached.observe(el);
  system.addEventListener("change", read);
  read();
  return () => {
    observer.disconnect();
    attached.disconnect();
    system.removeEventListener("change", read);
  };
}

/** Whether the page says that it is dark, as VS Code, Colab and marimo do, each in its own way; null where it says nothing. */
function pageTheme() {
  const words = [document.documentElement, document.body]
    .map((el) => `${el.className} ${el.dataset.vscodeThemeKind ?? ""} ${el.getAttribute("theme") ?? ""}`)
    .join(" ");
  const match = /(?:^|[\s-])(dark|light)(?![\w-])/.exec(words);
  return match ? match[1] === "dark" : /\bvscode-high-contrast\b/.test(words) || null;
}

let probe;
function toRgb(colour) {
  const hex = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(colour);
  if (hex) return hex.slice(1).map((v) => parseInt(v, 16));
  probe ??= Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", {
    willReadFrequently: true,
  });
  probe.clearRect(0, 0, 1, 1);
  probe.fillStyle = colour || "#000";
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

const luminance = ([r, g, b]) => (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;

/** `a` over `b` at `t`, as a CSS colour. */
export function mix(a, b, t) {
  return `rgb(${a.map((v, i) => Math.round(v * t + b[i] * (1 - t))).join(",")})`;
}
