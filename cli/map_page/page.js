// The page of `haulway map`: it unpacks the columns that file_map.cc wrote,
// and draws them. Names come from files, so they reach the page as text only,
// with what would not be seen, or would turn text around, spelt out.
'use strict';

const $ = (id) => document.getElementById(id);
const packed = JSON.parse($('data').textContent);

// ---- Unpacking -----------------------------------------------------------

// A column of which all values are alike is sent as that value.
const column = (values, count) =>
    Array.isArray(values) ? values : new Array(count).fill(values);
// Differences to the value before; the first one's is to -1.
function summed(values, count) {
  let last = -1;
  return column(values, count).map((step) => (last += step));
}
// Names that begin as the one before, and how they go on.
function unfolded(kept, rest, count) {
  const out = new Array(count);
  kept = column(kept, count);
  rest = column(rest, count);
  for (let i = 0, last = ''; i < count; ++i) {
    out[i] = last = last.slice(0, kept[i]) + rest[i];
  }
  return out;
}

const file = {name: packed.file, format: packed.format, bytes: packed.bytes,
              parts: packed.parts};
const storages = unpackStorages(packed.storages);
const tensors = unpackTensors(packed.tensors);
const ranges = packed.ranges.map(([kind, begin, bytes, name]) =>
    ({kind, begin, end: begin + bytes, name}));
const cache = packed.cache;

function unpackStorages(from) {
  const n = from.count;
  const gap = column(from.gap, n), stored = column(from.stored, n);
  const before = column(from.before, n), after = column(from.after, n);
  const memory = column(from.memory, n), encoding = column(from.encoding, n);
  const crc32 = column(from.crc32, n), key = column(from.key, n);
  const unit = column(from.unit, n);
  const digests = from.sha256 ? atob(from.sha256) : '';
  const all = [];
  let at = 0;
  for (let i = 0; i < n; ++i) {
    at += gap[i];
    const begin = at + before[i], end = begin + stored[i];
    at = end + after[i];
    all.push({
      row: i, key: key[i], frame: begin - before[i], begin, end, after: at,
      memory: memory[i] === null ? stored[i] : memory[i],
      encoding: encoding[i], crc32: crc32[i], unit: unit[i],
      sha256: digests.slice(32 * i, 32 * i + 32), tensors: [],
    });
  }
  return all;
}

function unpackTensors(from) {
  const n = from.count;
  const names = unfolded(from.kept, from.rest, n);
  const kind = column(from.kind, n), storage = summed(from.storage, n);
  const offset = column(from.offset, n);
  return names.map((name, i) => {
    const [dtype, shape, bytes, reach, note] = from.kinds[kind[i]];
    const of = storages[storage[i]];
    const tensor = {row: i, name, dtype, shape, bytes, note, storage: of};
    if (of !== undefined) {
      of.tensors.push(tensor);
      const stored = of.encoding === 'raw';
      tensor.begin = stored ? of.begin + offset[i] : of.begin;
      tensor.end = stored ? tensor.begin + reach : of.end;
    }
    return tensor;
  });
}

// ---- Words ---------------------------------------------------------------

// What is not seen, or would change how the text around it is read.
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
// The largest power of two that divides, up to a huge page.
function alignment(offset) {
  let unit = 1;
  while (unit < 1 << 21 && offset % (2 * unit) === 0) unit *= 2;
  return unit;
}
// The part of several files that holds a byte, and where in it.
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
// The last of `count` sorted rows whose `key` is at most `value`, or -1.
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

// ---- What there is to draw -----------------------------------------------

const colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ['back', 'panel', 'line', 'text', 'quiet', 'accent',
                      'select', 'header', 'record', 'frame', 'payload',
                      'structure', 'hole', 'once', 'shared', 'encoded',
                      'misaligned', 'sha256', 'crc32', 'cached', 'd0', 'd1',
                      'd2', 'd3', 'd4', 'd5', 'd6', 'd7']) {
    colours[name] = style.getPropertyValue('--' + name).trim();
  }
}

// Dtypes by their bytes: the eighth colour is for all others.
const dtypes = (() => {
  const bytes = new Map();
  for (const tensor of tensors) {
    bytes.set(tensor.dtype, (bytes.get(tensor.dtype) || 0) + tensor.bytes);
  }
  const sorted = [...bytes.keys()].sort((a, b) => bytes.get(b) - bytes.get(a));
  return new Map(sorted.map((name, i) => [name, 'd' + Math.min(i, 7)]));
})();

const isShared = (storage) => storage.tensors.length > 1;
const isMisaligned = (storage) => {
  const part = partAt(storage.begin);
  return (storage.begin - (part === null ? 0 : part.begin)) % storage.unit !== 0;
};
function stateOf(storage) {
  if (storage.encoding !== 'raw') return 'encoded';
  if (isMisaligned(storage)) return 'misaligned';
  return isShared(storage) ? 'shared' : 'once';
}
const checkOf = (storage) => /[^\0]/.test(storage.sha256) ? 'sha256' :
    storage.crc32 !== null ? 'crc32' : null;

// A track is a row of things that do not overlap, sorted by where they begin.
const byPlace = (a, b) => a.begin - b.begin || a.end - b.end;
const stored = storages.filter((s) => s.end > s.begin).sort(byPlace);

const fileTrack = [];
for (const range of ranges) {
  fileTrack.push({begin: range.begin, end: range.end, colour: range.kind, range});
}
for (const storage of stored) {
  const {frame, begin, end, after} = storage;
  if (begin > frame) fileTrack.push({begin: frame, end: begin, colour: 'frame', storage});
  fileTrack.push({begin, end, colour: 'payload', storage});
  if (after > end) fileTrack.push({begin: end, end: after, colour: 'frame', storage});
}
fileTrack.sort(byPlace);

const storageTrack = stored.map((storage) =>
    ({begin: storage.begin, end: storage.end, colour: stateOf(storage), storage}));
const checkTrack = stored.filter(checkOf).map((storage) =>
    ({begin: storage.begin, end: storage.end, colour: checkOf(storage), storage}));

// Tensors that overlap go to tracks of their own; the last takes the rest.
const tensorTracks = [[], [], [], []];
{
  const ends = tensorTracks.map(() => 0);
  const placed = tensors.filter((t) => t.end > t.begin).sort(byPlace);
  for (const tensor of placed) {
    let level = ends.findIndex((end) => end <= tensor.begin);
    if (level < 0) level = ends.length - 1;
    ends[level] = Math.max(ends[level], tensor.end);
    tensorTracks[level].push({begin: tensor.begin, end: tensor.end,
                              colour: dtypes.get(tensor.dtype), tensor});
  }
}
const levels = Math.max(1, tensorTracks.filter((t) => t.length > 0).length);

// ---- State ---------------------------------------------------------------

const view = {begin: 0, end: Math.max(1, file.bytes)};
const least = 16;  // Bytes on the screen.
let selected = null;  // A tensor.
let order = [];       // Rows of the list.
let found = null;     // The set of tensors that were searched for.
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

// ---- Drawing -------------------------------------------------------------

function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const {width, height} = canvas.getBoundingClientRect();
  const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) {
    [canvas.width, canvas.height] = pixels;
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '12px system-ui, sans-serif';
  context.textBaseline = 'middle';
  return {context, width, height};
}

// Neighbours of one colour are one rectangle. What is narrower than a pixel
// shares it: the pixel has the colour of which there is most, as strong as the
// share of it that is covered. `kept` kinds are seen however small they are.
const kept = new Set(['header', 'record', 'structure', 'misaligned']);
function drawTrack(context, track, from, to, width, top, height) {
  const scale = width / (to - from);
  // Things may end after the next begins where a file says so.
  const first = Math.max(0, lastAtMost(track.length, from, (i) => track[i].begin));
  const columns = new Map();  // By colour, how much of each pixel it covers.
  const small = [];
  let left = 0, right = -1, colour = null;
  const flush = () => {
    if (colour === null) return;
    context.fillStyle = colours[colour];
    context.fillRect(left, top, right - left, height);
    colour = null;
  };
  let last = first;
  for (; last < track.length && track[last].begin < to; ++last) {
    const item = track[last];
    if (item.end <= from) continue;
    const x0 = Math.max(0, (item.begin - from) * scale);
    const x1 = Math.min(width, (item.end - from) * scale);
    if (x1 - x0 < 1) {
      if (kept.has(item.colour)) small.push([item.colour, x0]);
      let column = columns.get(item.colour);
      if (column === undefined) {
        column = new Float32Array(Math.ceil(width) + 1);
        columns.set(item.colour, column);
      }
      column[Math.floor(x0)] += x1 - x0;
    } else if (colour === item.colour && x0 - right < 0.5) {
      right = Math.max(right, x1);
    } else {
      flush();
      left = x0; right = x1; colour = item.colour;
    }
  }
  flush();
  if (columns.size > 0) drawColumns(context, columns, width, top, height);
  for (const [name, x] of small) {
    context.fillStyle = colours[name];
    context.fillRect(Math.min(x, width - 1.5), top, 1.5, height);
  }
  // Where they are wide enough, things are told apart.
  context.strokeStyle = colours.panel;
  context.lineWidth = 1;
  context.beginPath();
  for (let i = first; i < last; ++i) {
    if ((track[i].end - track[i].begin) * scale < 5) continue;
    const x = Math.round((track[i].begin - from) * scale) + 0.5;
    context.moveTo(x, top);
    context.lineTo(x, top + height);
  }
  context.stroke();
}

function drawColumns(context, columns, width, top, height) {
  for (let x = 0; x < width; ++x) {
    let sum = 0, most = 0, colour = null;
    for (const [name, column] of columns) {
      sum += column[x];
      if (column[x] > most) most = column[x], colour = name;
    }
    if (colour === null) continue;
    context.globalAlpha = Math.min(1, Math.max(0.3, sum));
    context.fillStyle = colours[colour];
    context.fillRect(x, top, 1, height);
  }
  context.globalAlpha = 1;
}

function drawCache(context, from, to, width, top, height) {
  if (cache === null) return;
  const cellAt = (x) => cache.percent[
      Math.floor((from + (x + 0.5) * (to - from) / width) / cache.cell)] || 0;
  context.fillStyle = colours.cached;
  for (let x = 0, begin = 0; x < width; begin = x) {
    const percent = cellAt(x);
    do ++x; while (x < width && cellAt(x) === percent);
    if (percent === 0) continue;
    context.globalAlpha = 0.15 + 0.0085 * percent;
    context.fillRect(begin, top, x - begin, height);
  }
  context.globalAlpha = 1;
}

function drawMarks(context, from, to, width, top, height) {
  const scale = width / (to - from);
  const mark = (tensor, colour, least) => {
    if (tensor.begin === undefined || tensor.end < from || tensor.begin > to) return;
    context.fillStyle = colour;
    const x0 = Math.max(0, (tensor.begin - from) * scale);
    const x1 = Math.min(width, (tensor.end - from) * scale);
    context.fillRect(x0, top, Math.max(least, x1 - x0), height);
  };
  if (found !== null && found.size <= 20000) {
    for (const tensor of found) mark(tensor, colours.accent, 1);
  }
  if (selected !== null) mark(selected, colours.select, 2);
}

function drawOverview() {
  const {context, width, height} = prepare($('overview'));
  const whole = Math.max(1, file.bytes);
  context.fillStyle = colours.hole;
  context.fillRect(0, 5, width, height - 10);
  drawTrack(context, fileTrack, 0, whole, width, 5, height - 10);
  drawMarks(context, 0, whole, width, height - 9, 4);
  context.strokeStyle = colours.text;
  context.lineWidth = 2;
  const x0 = view.begin / whole * width, x1 = view.end / whole * width;
  context.strokeRect(Math.min(x0 + 1, width - 4), 2, Math.max(3, x1 - x0 - 2), height - 4);
}

// What the rows of the strip are called, and where they stand.
const axis = 22;
function lanes() {
  const all = [
    {name: 'file', tracks: [fileTrack], height: 34},
    {name: 'storages', tracks: [storageTrack], height: 30},
    {name: 'tensors', tracks: tensorTracks.slice(0, levels), height: 74},
    {name: 'checksums', tracks: [checkTrack], height: 22},
    {name: 'page cache', tracks: [], height: 22},
  ];
  let top = axis;
  for (const lane of all) {
    lane.top = top;
    top += lane.height + 6;
  }
  return all;
}
const strips = lanes();

function step(span, width) {
  const wanted = span / Math.max(2, width / 120);
  return Math.max(1, 2 ** Math.ceil(Math.log2(wanted)));
}

function drawAxis(context, width, height) {
  const {begin, end} = view;
  const by = step(end - begin, width);
  const scale = width / (end - begin);
  context.fillStyle = colours.quiet;
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = Math.ceil(begin / by) * by; at <= end; at += by) {
    const x = Math.round((at - begin) * scale) + 0.5;
    context.moveTo(x, 14);
    context.lineTo(x, height);
    const text = by < 1024 ? exact(at) : at === 0 ? '0' : short(at);
    if (x + 4 + context.measureText(text).width < width) context.fillText(text, x + 4, 8);
  }
  context.stroke();
}
// An address on the axis: exact in the unit that divides it.
function short(bytes) {
  let unit = 0;
  while (bytes % 1024 === 0 && unit < 5) bytes /= 1024, ++unit;
  return exact(bytes) + ' ' + units[unit];
}

function drawNames(context, track, top, height, width, text) {
  const {begin, end} = view;
  const scale = width / (end - begin);
  if (height < 14) return;
  const first = Math.max(0, lastAtMost(track.length, begin, (i) => track[i].begin));
  for (let i = first; i < track.length && track[i].begin < end; ++i) {
    const x0 = Math.max(0, (track[i].begin - begin) * scale);
    const x1 = Math.min(width, (track[i].end - begin) * scale);
    if (x1 - x0 < 44) continue;
    context.save();
    context.beginPath();
    context.rect(x0 + 4, top, x1 - x0 - 8, height);
    context.clip();
    context.fillStyle = colours.text;
    context.fillText(text(track[i]), x0 + 6, top + height / 2);
    context.restore();
  }
}
const kindNames = {header: 'header', record: 'record', frame: 'frame',
                   payload: 'payload', structure: 'structure', hole: 'hole'};
function labelOf(item) {
  if (item.tensor) return shown(item.tensor.name);
  if (item.range) return item.range.name ? shown(item.range.name) : kindNames[item.range.kind];
  return item.colour === 'frame' ? 'frame' : shown(nameOf(item.storage));
}
function nameOf(storage) {
  if (storage.key !== '') return storage.key;
  return storage.tensors.length > 0 ? storage.tensors[0].name : '?';
}

function drawStrip() {
  const {context, width, height} = prepare($('strip'));
  drawAxis(context, width, height);
  const {begin, end} = view;
  for (const lane of strips) {
    context.fillStyle = colours.hole;
    context.globalAlpha = 0.5;
    context.fillRect(0, lane.top, width, lane.height);
    context.globalAlpha = 1;
    const each = lane.height / Math.max(1, lane.tracks.length);
    lane.tracks.forEach((track, i) => {
      const top = lane.top + i * each;
      drawTrack(context, track, begin, end, width, top, each);
      if (lane.name !== 'checksums') drawNames(context, track, top, each, width, labelOf);
    });
    if (lane.name === 'page cache') {
      drawCache(context, begin, end, width, lane.top, lane.height);
    }
    if (lane.name === 'tensors') {
      drawMarks(context, begin, end, width, lane.top + lane.height - 5, 5);
    }
    const text = lane.name === 'page cache' && cache === null ?
        'page cache: not known' : lane.name;
    const room = context.measureText(text).width;
    context.globalAlpha = 0.85;
    context.fillStyle = colours.back;
    context.fillRect(width - room - 12, lane.top + 2, room + 10, 16);
    context.globalAlpha = 1;
    context.fillStyle = colours.quiet;
    context.fillText(text, width - room - 7, lane.top + 10);
  }
}

// ---- Words about a place -------------------------------------------------

function rows(pairs) {
  const list = element('dl');
  for (const [term, value, className] of pairs) {
    if (value === null || value === undefined) continue;
    const pair = element('div');
    pair.append(element('dt', term), element('dd', value, className));
    list.append(pair);
  }
  return list;
}
function encodingOf(storage) {
  return {raw: 'as in memory', deflate: 'compressed', encrypted: 'encrypted',
          zeros: 'zeros that are not stored'}[storage.encoding];
}
function cachedAt(at) {
  if (cache === null) return 'not known';
  const cell = Math.min(cache.percent.length - 1, Math.floor(at / cache.cell));
  if (cell < 0) return null;
  return `${cache.percent[cell]} % of these ${size(cache.cell)}, when the page was made`;
}
function aboutStorage(storage) {
  const part = partAt(storage.begin);
  const own = storage.begin - (part === null ? 0 : part.begin);
  const others = storage.tensors.length;
  return [
    ['storage', storage.key === '' ? null : shown(storage.key)],
    ['payload', `${place(storage.begin)}, ${both(storage.end - storage.begin)}`],
    ['in memory', storage.memory === storage.end - storage.begin ? null : both(storage.memory)],
    ['stored', encodingOf(storage)],
    ['aligned to', `${size(alignment(own))}` + (isMisaligned(storage) ?
        `; its elements want ${storage.unit}, so that they are copied to be used` : '')],
    ['shared', others > 1 ? `by ${exact(others)} tensors` : null],
    ['CRC-32', storage.crc32 === null ? null :
        storage.crc32.toString(16).padStart(8, '0'), 'digest'],
    ['SHA-256', checkOf(storage) === 'sha256' ? hex(storage.sha256) : null, 'digest'],
  ];
}
function aboutTensor(tensor) {
  const facts = [
    ['dtype, shape', `${tensor.dtype} [${tensor.shape.join(', ')}], ${both(tensor.bytes)}`],
    ['note', tensor.note === '' ? null : tensor.note],
  ];
  const of = tensor.storage;
  if (of === undefined) return [...facts, ['place', 'nothing of it is stored']];
  const within = tensor.begin - of.begin;
  return [
    ...facts,
    ['in its storage', within === 0 && tensor.end === of.end ? null :
        `from byte ${exact(within)}, ${both(tensor.end - tensor.begin)}`],
    ...aboutStorage(of),
    ['in page cache', cachedAt(tensor.begin)],
  ];
}

function tell(name, facts, more) {
  const box = $('what');
  box.replaceChildren(element('div', name, 'name'), rows(facts), ...(more || []));
}
function tellTensor(tensor) {
  const others = tensor.storage ?
      tensor.storage.tensors.filter((t) => t !== tensor).slice(0, 8) : [];
  const more = others.map((t) => button(shown(t.name), () => select(t, true)));
  if (more.length > 0) more.unshift(element('div', 'The same storage:'));
  tell(shown(tensor.name), aboutTensor(tensor), more);
}
const kindWords = {
  header: 'The header: what the format keeps before everything else',
  record: 'A record that is no tensor',
  structure: 'What the format keeps between and behind its tensors',
  hole: 'A hole: nothing is kept here',
  frame: 'The frame of a tensor: what the format keeps about it, around it',
};
const itemAt = (track, at) => {
  const i = lastAtMost(track.length, at, (k) => track[k].begin);
  return i >= 0 && at < track[i].end ? track[i] : null;
};
const tensorAt = (at, level) => {
  const tracks = level === undefined ? tensorTracks : [tensorTracks[level]];
  for (const track of tracks) {
    const item = itemAt(track, at);
    if (item !== null) return item.tensor;
  }
  return null;
};
function tellByte(at, level) {
  const tensor = tensorAt(at, level);
  if (tensor !== null) {
    tellTensor(tensor);
    return;
  }
  const item = itemAt(fileTrack, at);
  if (item === null) {
    tell('Between two files', [['byte', exact(at)]]);
    return;
  }
  const facts = [['byte', place(at)],
                 ['from', `${place(item.begin)}, ${both(item.end - item.begin)}`]];
  if (item.range) {
    tell(item.range.name ? shown(item.range.name) : kindWords[item.range.kind],
         [...facts, ['what', kindWords[item.range.kind]], ['in page cache', cachedAt(at)]]);
  } else if (item.colour === 'frame') {
    tell(kindWords.frame, [...facts, ['of', shown(nameOf(item.storage))],
                           ['in page cache', cachedAt(at)]]);
  } else {
    tell('Bytes of a storage that no tensor uses', [...facts, ...aboutStorage(item.storage)]);
  }
}

function select(tensor, go) {
  selected = tensor;
  tellTensor(tensor);
  if (go && tensor.begin !== undefined) lookAt(tensor.begin, tensor.end);
  showSelected();
  redraw();
}

// ---- The strip under mouse and keys --------------------------------------

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

// ---- The list ------------------------------------------------------------

const rowHeight = 26;
function setUpList() {
  const list = $('list');
  const search = $('search');
  const names = new Intl.Collator(undefined, {numeric: true});
  const lower = tensors.map((t) => t.name.toLowerCase());
  let sorted = null, sortedBy = '';
  const sort = () => {
    const by = $('order').value;
    if (by === sortedBy) return;
    sortedBy = by;
    sorted = tensors.slice();
    const begin = (t) => t.begin === undefined ? Infinity : t.begin;
    if (by === 'place') sorted.sort((a, b) => begin(a) - begin(b) || a.row - b.row);
    if (by === 'name') sorted.sort((a, b) => names.compare(a.name, b.name));
    if (by === 'size') sorted.sort((a, b) => b.bytes - a.bytes || a.row - b.row);
  };
  const filter = () => {
    sort();
    const words = search.value.toLowerCase().split(/\s+/).filter((w) => w !== '');
    order = words.length === 0 ? sorted :
        sorted.filter((t) => words.every((w) => lower[t.row].includes(w)));
    found = words.length === 0 ? null : new Set(order);
    const bytes = order.reduce((sum, t) => sum + t.bytes, 0);
    $('count').textContent = `${plural(order.length, 'tensor')}, ${size(bytes)}`;
    $('rows').style.height = order.length * rowHeight + 'px';
    list.scrollTop = 0;
    drawList();
    redraw();
  };
  search.addEventListener('input', filter);
  $('order').addEventListener('change', filter);
  list.addEventListener('scroll', drawList);
  list.addEventListener('keydown', (event) => {
    const at = order.indexOf(selected);
    const page = Math.max(1, Math.floor(list.clientHeight / rowHeight) - 1);
    const by = {ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page,
                Home: -order.length, End: order.length}[event.key];
    if (event.key === 'Enter' && selected !== null) select(selected, true);
    if (by === undefined || order.length === 0) return;
    event.preventDefault();
    select(order[Math.max(0, Math.min(order.length - 1, at + by))], false);
  });
  document.addEventListener('keydown', (event) => {
    if (event.key !== '/' || /INPUT|SELECT/.test(event.target.tagName)) return;
    event.preventDefault();
    search.focus();
  });
  filter();
}

function drawList() {
  const list = $('list');
  const first = Math.max(0, Math.floor(list.scrollTop / rowHeight) - 4);
  const last = Math.min(order.length, first + Math.ceil(list.clientHeight / rowHeight) + 8);
  const made = [];
  for (let i = first; i < last; ++i) {
    const tensor = order[i];
    const row = element('div', undefined, 'row');
    row.id = 'row-' + tensor.row;
    row.setAttribute('role', 'option');
    row.setAttribute('aria-selected', String(tensor === selected));
    row.setAttribute('aria-setsize', order.length);
    row.setAttribute('aria-posinset', i + 1);
    row.style.top = i * rowHeight + 'px';
    row.title = shown(tensor.name);
    row.append(element('span', shown(tensor.name), 'name'),
               element('span', `${tensor.dtype} [${tensor.shape.join(', ')}]`, 'quiet'),
               element('span', size(tensor.bytes), 'size'));
    row.addEventListener('click', () => select(tensor, true));
    made.push(row);
  }
  $('rows').replaceChildren(...made);
  if (selected !== null) list.setAttribute('aria-activedescendant', 'row-' + selected.row);
}

function showSelected() {
  const list = $('list');
  const at = order.indexOf(selected);
  if (at >= 0) {
    const top = at * rowHeight;
    if (top < list.scrollTop) list.scrollTop = top;
    if (top + rowHeight > list.scrollTop + list.clientHeight) {
      list.scrollTop = top + rowHeight - list.clientHeight;
    }
  }
  drawList();
}

// ---- The treemap ---------------------------------------------------------

// A module is what names that begin alike have in common.
const root = {name: '', bytes: 0, count: 0, parts: new Map(), above: null, tensor: null};
for (const tensor of tensors) {
  let at = root;
  root.bytes += tensor.bytes;
  ++root.count;
  for (const name of tensor.name.split('.')) {
    let part = at.parts.get(name);
    if (part === undefined) {
      part = {name, bytes: 0, count: 0, parts: new Map(), above: at, tensor: null};
      at.parts.set(name, part);
    }
    part.bytes += tensor.bytes;
    ++part.count;
    at = part;
  }
  at.tensor = tensor;
}
let module = root;
let tiles = [];

const partsOf = (one) => one.sorted ||
    (one.sorted = [...one.parts.values()].sort((a, b) => b.bytes - a.bytes));

// Squarified: rows of tiles whose sides differ as little as can be. What is
// left when a tile would be under a pixel is not drawn.
function squarify(parts, box, draw) {
  let {x, y, w, h} = box;
  let left = parts.reduce((sum, part) => sum + part.bytes, 0);
  let i = 0;
  while (i < parts.length && left > 0 && w > 1 && h > 1) {
    const side = Math.min(w, h), scale = w * h / left;
    let sum = 0, worst = Infinity, end = i;
    while (end < parts.length && parts[end].bytes > 0) {
      const next = sum + parts[end].bytes * scale;
      const thick = next / side;
      const long = parts[i].bytes * scale / thick, short = parts[end].bytes * scale / thick;
      const bad = Math.max(long / thick, thick / short);
      if (bad > worst) break;
      worst = bad;
      sum = next;
      ++end;
    }
    if (end === i || sum < 1) return;
    const thick = sum / side;
    let at = 0;
    for (; i < end; ++i) {
      const length = parts[i].bytes * scale / thick;
      draw(parts[i], w < h ? {x: x + at, y, w: length, h: thick}
                           : {x, y: y + at, w: thick, h: length});
      at += length;
      left -= parts[i].bytes;
    }
    if (w < h) { y += thick; h -= thick; } else { x += thick; w -= thick; }
  }
}

function mainDtype(one) {
  while (one.tensor === null || one.parts.size > 0) {
    const first = partsOf(one)[0];
    if (first === undefined) break;
    one = first;
  }
  return one.tensor === null ? 'd7' : dtypes.get(one.tensor.dtype);
}

function drawTreemap() {
  const {context, width, height} = prepare($('treemap'));
  tiles = [];
  const label = (text, x, y, w) => {
    context.save();
    context.beginPath();
    context.rect(x, y, w, 16);
    context.clip();
    context.fillStyle = colours.text;
    context.fillText(text, x, y + 8);
    context.restore();
  };
  const draw = (parts, box, depth) => squarify(parts, box, (part, tile) => {
    if (tile.w < 1 || tile.h < 1) return;
    // A module of one thing is shown as that.
    let name = part.name;
    while (part.tensor === null && part.parts.size === 1) {
      [part] = part.parts.values();
      name += '.' + part.name;
    }
    tiles.push({...tile, part, depth});
    const {x, y, w, h} = tile;
    const isModule = part.parts.size > 0;
    context.fillStyle = isModule && w > 8 && h > 8 ? colours.back : colours[mainDtype(part)];
    context.fillRect(x, y, w, h);
    if (w > 8 && h > 8) {
      context.strokeStyle = isModule && depth === 0 ? colours.quiet : colours.panel;
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    }
    if (isModule && w >= 64 && h >= 44) {
      label(`${shown(name)}  ${size(part.bytes)}`, x + 5, y + 2, w - 9);
      draw(partsOf(part), {x: x + 3, y: y + 19, w: w - 6, h: h - 22}, depth + 1);
    } else if (isModule && w > 8 && h > 8) {
      draw(partsOf(part), {x: x + 2, y: y + 2, w: w - 4, h: h - 4}, depth + 1);
    } else if (w > 40 && h > 18) {
      label(shown(name), x + 5, y + 2, w - 9);
    }
  });
  draw(partsOf(module), {x: 0, y: 0, w: width, h: height}, 0);
}

function enter(one) {
  // Down to where there is a choice.
  while (one.tensor === null && one.parts.size === 1) {
    const only = partsOf(one)[0];
    if (only.parts.size === 0) break;
    one = only;
  }
  module = one;
  const steps = [];
  for (let at = one; at !== null; at = at.above) steps.unshift(at);
  $('path').replaceChildren(...steps.map((at) =>
      button(at === root ? 'all' : shown(at.name), () => go(at))));
  const parts = partsOf(one).slice(0, 500);
  $('children').replaceChildren(...parts.map((part) => {
    const item = element('li');
    const open = button('', () => part.parts.size > 0 ? enter(part) : select(part.tensor, true));
    open.append(element('span', shown(part.name), 'name'),
                element('span', plural(part.count, 'tensor'), 'quiet'),
                element('span', size(part.bytes), 'size'));
    item.append(open);
    return item;
  }));
  if (partsOf(one).length > parts.length) {
    $('children').append(element('li', `and ${exact(partsOf(one).length - parts.length)} more`));
  }
  drawTreemap();
}
// Up, to exactly there.
function go(one) {
  if (one === root) enter(root); else enter(one);
}

function setUpTreemap() {
  const canvas = $('treemap');
  // The innermost one, and the outermost that is a module.
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    return tiles.filter((t) => x >= t.x && x < t.x + t.w && y >= t.y && y < t.y + t.h);
  };
  canvas.addEventListener('pointermove', (event) => {
    const tile = at(event).at(-1);
    if (tile === undefined) return;
    const {part} = tile;
    if (part.tensor !== null && part.parts.size === 0) {
      tellTensor(part.tensor);
      return;
    }
    const names = [];
    for (let one = part; one !== root; one = one.above) names.unshift(shown(one.name));
    tell(names.join('.'), [['tensors', exact(part.count)], ['bytes', both(part.bytes)],
                           ['of all', (100 * part.bytes / root.bytes).toFixed(1) + ' %']]);
  });
  canvas.addEventListener('pointerleave', () => {
    if (selected !== null) tellTensor(selected);
  });
  canvas.addEventListener('click', (event) => {
    const hit = at(event);
    if (hit.length === 0) return;
    const inner = hit.at(-1).part;
    const outer = hit[0].part;
    if (outer.parts.size > 0) enter(outer); else select(outer.tensor, true);
    if (inner.parts.size === 0 && inner !== outer) select(inner.tensor, true);
  });
  enter(root);
}

// ---- The rest ------------------------------------------------------------

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

// How many storages are aligned to what, the most frequent first.
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

// Bytes of storages that are stored as they are, and in no tensor.
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
