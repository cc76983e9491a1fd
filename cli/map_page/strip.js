// The file's layout, with mouse and keyboard control.

function byteAt(event, canvas, from, to) {
  const box = canvas.getBoundingClientRect();
  const share = (event.clientX - box.left) / box.width;
  return Math.min(Math.max(0, file.bytes - 1), Math.max(0, Math.floor(from + share * (to - from))));
}
function levelAt(event) {
  const y = event.clientY - $('strip').getBoundingClientRect().top;
  const lane = strips.find((s) => s.name === 'tensors');
  if (y < lane.top || y >= lane.top + lane.height) return undefined;
  return Math.min(levels - 1, Math.floor((y - lane.top) / (lane.height / levels)));
}

function setUpStrip() {
  const strip = $('strip');
  let held = null;
  strip.addEventListener('wheel', (event) => {
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const by = (event.deltaX || event.deltaY) / strip.clientWidth * (view.end - view.begin);
      look(view.begin + by, view.end + by);
      return;
    }
    const box = strip.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) / 240),
         view.begin + share * (view.end - view.begin));
  }, {passive: false});
  strip.addEventListener('pointerdown', (event) => {
    held = {x: event.clientX, begin: view.begin, end: view.end, moved: false};
    strip.setPointerCapture(event.pointerId);
    strip.classList.add('held');
  });
  strip.addEventListener('pointermove', (event) => {
    if (held === null) {
      tellByte(byteAt(event, strip, view.begin, view.end), levelAt(event));
      return;
    }
    const dx = event.clientX - held.x;
    if (Math.abs(dx) > 3) held.moved = true;
    const by = -dx / strip.clientWidth * (held.end - held.begin);
    look(held.begin + by, held.end + by);
  });
  const release = (event) => {
    if (held === null) return;
    const clicked = !held.moved;
    held = null;
    strip.classList.remove('held');
    if (!clicked || event.type !== 'pointerup') return;
    const at = byteAt(event, strip, view.begin, view.end);
    const tensor = tensorAt(at, levelAt(event));
    if (tensor !== null) select(tensor, false); else tellByte(at);
  };
  strip.addEventListener('pointerup', release);
  strip.addEventListener('pointercancel', release);
  strip.addEventListener('pointerleave', () => {
    if (selected !== null && held === null) tellTensor(selected);
  });
  strip.addEventListener('dblclick', (event) => {
    const at = byteAt(event, strip, view.begin, view.end);
    const item = itemAt(fileTrack, at);
    if (item !== null) lookAt(item.begin, item.end);
  });
  strip.addEventListener('keydown', (event) => {
    const width = view.end - view.begin;
    const act = {
      ArrowLeft: () => look(view.begin - width / 8, view.end - width / 8),
      ArrowRight: () => look(view.begin + width / 8, view.end + width / 8),
      PageUp: () => look(view.begin - width, view.end - width),
      PageDown: () => look(view.begin + width, view.end + width),
      Home: () => look(0, width),
      End: () => look(file.bytes - width, file.bytes),
      '+': () => zoom(0.5, middle()),
      '=': () => zoom(0.5, middle()),
      '-': () => zoom(2, middle()),
      '0': () => look(0, file.bytes),
      Enter: () => tellByte(Math.floor(middle())),
    }[event.key];
    if (act === undefined || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  });

  const overview = $('overview');
  const jump = (event) => {
    if (event.buttons === 0) return;
    const at = byteAt(event, overview, 0, file.bytes);
    const half = (view.end - view.begin) / 2;
    look(at - half, at + half);
  };
  overview.addEventListener('pointerdown', (event) => {
    overview.setPointerCapture(event.pointerId);
    jump(event);
  });
  overview.addEventListener('pointermove', jump);

  $('zoom-in').addEventListener('click', () => zoom(0.5, middle()));
  $('zoom-out').addEventListener('click', () => zoom(2, middle()));
  $('zoom-all').addEventListener('click', () => look(0, file.bytes));
  $('go').addEventListener('change', () => {
    const at = Number($('go').value.replace(/[\s_,\u202f]/g, ''));
    const known = $('go').value.trim() !== '' && Number.isInteger(at) && at >= 0 && at < file.bytes;
    $('go').setCustomValidity(known ? '' : `a byte from 0 to ${file.bytes - 1}`);
    $('go').reportValidity();
    if (!known) return;
    look(at - 32, at + 32);
    tellByte(at);
  });
}
