// Words and numbers as the page shows them, and elements that contain them.

// Characters that are invisible, or change how the text around them is read.
const unseen = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const shown = (text) => String(text).replace(unseen, (c) =>
    '\\u{' + c.codePointAt(0).toString(16) + '}');
const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
function size(bytes) {
  let unit = 0, value = bytes;
  while (value >= 1024 && unit < units.length - 1) value /= 1024, ++unit;
  return (unit === 0 ? value : value.toFixed(1)) + ' ' + units[unit];
}
const exact = (number) =>
    String(Math.round(number)).replace(/\B(?=(\d{3})+$)/g, '\u202f');
const both = (bytes) =>
    bytes < 1024 ? bytes + ' B' : `${size(bytes)} (${exact(bytes)} B)`;
const plural = (count, word) =>
    `${exact(count)} ${word}${count === 1 ? '' : 's'}`;
const hex = (bytes) => Array.from(bytes, (c) =>
    c.charCodeAt(0).toString(16).padStart(2, '0')).join('');
// Returns the largest power of two that divides the offset, up to a huge page.
function alignment(offset) {
  let unit = 1;
  while (unit < 1 << 21 && offset % (2 * unit) === 0) unit *= 2;
  return unit;
}
// Returns the part, of several files, that contains a byte, and the offset in
// it.
function partAt(at) {
  const parts = file.parts;
  const i = lastAtMost(parts.length, at, (k) => parts[k][1]);
  return i < 0 ? null : {name: parts[i][0], begin: parts[i][1]};
}
function place(at) {
  const part = partAt(at);
  const own = part === null ? at : at - part.begin;
  return exact(own) + ' = 0x' + own.toString(16) +
      (part === null ? '' : ' of ' + shown(part.name));
}
// Returns the last of `count` sorted rows whose `key` is at most `value`, or
// -1.
function lastAtMost(count, value, key) {
  let low = 0, high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(middle) <= value) low = middle + 1; else high = middle;
  }
  return low - 1;
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
function button(text, act, className) {
  const made = element('button', text, className);
  made.type = 'button';
  made.addEventListener('click', act);
  return made;
}
