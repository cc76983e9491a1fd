// The visible part of the file, and the selection.

const view = {begin: 0, end: Math.max(1, file.bytes)};
const least = 16;  // Minimum number of bytes on the screen.
let selected = null;  // A tensor.
let order = [];       // Rows of the list, in order.
let found = null;     // The set of tensors that match the search.
let pending = false;

function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    drawOverview();
    drawStrip();
    const {begin, end} = view;
    $('window').textContent =
        `${exact(begin)} \u2013 ${exact(end)}, ${size(Math.round(end - begin))}`;
    $('strip').dataset.begin = Math.round(begin);
    $('strip').dataset.end = Math.round(end);
  });
}

function look(begin, end) {
  const whole = Math.max(1, file.bytes);
  const width = Math.min(whole, Math.max(least, end - begin));
  view.begin = Math.max(0, Math.min(begin, whole - width));
  view.end = view.begin + width;
  redraw();
}
function zoom(factor, at) {
  look(at - (at - view.begin) * factor, at + (view.end - at) * factor);
}
const middle = () => (view.begin + view.end) / 2;
function lookAt(begin, end) {
  const room = Math.max(least, (end - begin) * 0.25);
  look(begin - room, end + room);
}
