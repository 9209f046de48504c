// Of every text in the tab the contrast to what lies behind it, as WCAG 2 has it.
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
function rgba(css) {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = css;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
}
const over = ([r, g, b, a], under) => [r, g, b].map((each, i) => each * a + under[i] * (1 - a));
function behind(element) {
  if (!element) return [255, 255, 255];
  const own = rgba(getComputedStyle(element).backgroundColor);
  return own[3] === 1 ? own.slice(0, 3) : over(own, behind(element.parentElement));
}
function light(color) {
  const [r, g, b] = color.map((each) => {
    const part = each / 255;
    return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const texts = document.createTreeWalker(document.querySelector(argument), NodeFilter.SHOW_TEXT);
const found = [];
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement;
  const shown = texts.currentNode.textContent.trim() && element.checkVisibility();
  if (!shown || element.disabled) continue;
  const under = behind(element);
  const style = getComputedStyle(element);
  const color = element instanceof SVGElement ? style.fill : style.color;
  const [low, high] = [light(over(rgba(color), under)), light(under)].sort((a, b) => a - b);
  found.push([(high + 0.05) / (low + 0.05), texts.currentNode.textContent.slice(0, 40)]);
}
return found;
