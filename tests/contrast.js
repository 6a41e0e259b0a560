// WCAG's contrast of a text with what is behind it, for each element of ours that has a text of its own.
// eslint-disable-next-line no-unused-expressions -- Playwright evaluates the file, which is one expression
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const paint = (color) => {
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
  };
  const over = (color, below) => {
    paint(`rgb(${below})`);
    paint(color); // may be see-through
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const behind = (element) =>
    element ? over(getComputedStyle(element).backgroundColor, behind(element.parentElement)) : [255, 255, 255];
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = ([red, green, blue]) =>
    0.2126 * linear(red / 255) + 0.7152 * linear(green / 255) + 0.0722 * linear(blue / 255);
  const contrast = (element) => {
    const background = behind(element);
    const both = [background, over(getComputedStyle(element).color, background)].map(luminance);
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  };
  const hasText = (element) =>
    [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  return [...document.querySelectorAll(".cabw *")]
    .filter((element) => hasText(element) && !element.closest("svg, style") && element.checkVisibility())
    .map((element) => [contrast(element), `${element.tagName} ${element.textContent.slice(0, 60)}`]);
};
