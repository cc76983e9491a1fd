// The head of the page, its legend, and the actions on loading.

function legend() {
  const entries = [];
  const swatch = (colour, text) => {
    const one = element('span');
    const box = element('i', undefined, 'swatch');
    box.style.background = `var(--${colour})`;
    one.append(box, text);
    entries.push(one);
  };
  const has = new Set(fileTrack.map((item) => item.colour));
  for (const kind of Object.keys(kindNames)) if (has.has(kind)) swatch(kind, kindNames[kind]);
  const states = new Set(storageTrack.map((item) => item.colour));
  const words = {once: 'of one tensor', shared: 'shared storage',
                 encoded: 'compressed or encrypted', misaligned: 'not aligned'};
  for (const state of Object.keys(words)) if (states.has(state)) swatch(state, words[state]);
  for (const [dtype, colour] of [...dtypes].slice(0, 7)) swatch(colour, dtype);
  if (dtypes.size > 7) swatch('d7', 'other dtypes');
  const checks = new Set(checkTrack.map((item) => item.colour));
  if (checks.has('sha256')) swatch('sha256', 'SHA-256');
  if (checks.has('crc32')) swatch('crc32', 'CRC-32');
  if (cache !== null) swatch('cached', 'in the page cache');
  $('legend').replaceChildren(...entries);
}

// Returns how many storages have which alignment, the most frequent first.
function alignments() {
  const counts = new Map();
  for (const storage of stored) {
    const part = partAt(storage.begin);
    const unit = alignment(storage.begin - (part === null ? 0 : part.begin));
    counts.set(unit, (counts.get(unit) || 0) + 1);
  }
  if (counts.size === 0) return null;
  const least = Math.min(...counts.keys());
  const misaligned = stored.filter(isMisaligned).length;
  return `all to ${size(least)}` + (misaligned === 0 ? '' :
      `, ${exact(misaligned)} less than their elements want`);
}

// Returns the bytes of unencoded storages that belong to no tensor.
function unused() {
  let bytes = 0;
  for (const storage of stored) {
    if (storage.encoding !== 'raw') continue;
    let at = storage.begin;
    for (const {begin, end} of storage.tensors.slice().sort(byPlace)) {
      if (begin > at) bytes += begin - at;
      at = Math.max(at, end);
    }
    bytes += Math.max(0, storage.end - at);
  }
  return bytes;
}

function totals() {
  const sum = (kind) => ranges.filter((r) => r.kind === kind)
      .reduce((bytes, r) => bytes + r.end - r.begin, 0);
  const payload = stored.reduce((bytes, s) => bytes + s.end - s.begin, 0);
  const frames = fileTrack.filter((item) => item.colour === 'frame')
      .reduce((bytes, item) => bytes + item.end - item.begin, 0);
  const shared = storages.filter(isShared).length;
  const left = unused();
  const facts = [
    ['tensors', `${exact(tensors.length)} in ${plural(storages.length, 'storage')}` +
        (shared === 0 ? '' : `, ${exact(shared)} shared`)],
    ['payload', size(payload)],
    ['header', sum('header') === 0 ? null : size(sum('header'))],
    ['records', sum('record') === 0 ? null : size(sum('record'))],
    ['frames', frames === 0 ? null : size(frames)],
    ['structure', sum('structure') === 0 ? null : size(sum('structure'))],
    ['holes', size(sum('hole'))],
    ['in no tensor', left === 0 ? null : size(left)],
    ['aligned', alignments()],
    ...packed.facts.map(([name, value]) => [shown(name), shown(value)]),
  ];
  $('totals').replaceChildren(...facts.filter((f) => f[1] !== null).map(([term, value]) => {
    const pair = element('div');
    pair.append(element('dt', term), element('dd', value));
    return pair;
  }));
}

document.title = shown(file.name) + ' \u2013 layout';
$('file').textContent = shown(file.name);
$('about').textContent = `${file.format}, ${both(file.bytes)}` +
    (file.parts.length > 1 ? `, ${plural(file.parts.length, 'file')}` : '') +
    `; made by ${packed.made}`;
readColours();
totals();
legend();
setUpStrip();
setUpList();
setUpTreemap();
look(0, file.bytes);
tell('Nothing is chosen', [
  ['mouse', 'point at the layout, or choose a tensor; the wheel zooms, dragging moves'],
  ['keys', 'with the layout in focus +, -, 0, arrows, Home and End; / searches'],
]);
const again = () => {
  readColours();
  drawTreemap();
  drawList();
  redraw();
};
window.addEventListener('resize', again);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', again);
