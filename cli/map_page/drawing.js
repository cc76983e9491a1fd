// Draws the visible part of the file.

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

// Adjacent items with the same colour are drawn as one rectangle. Items
// narrower than a pixel share it: the pixel gets the most frequent colour, with
// an opacity equal to the covered share. Kinds in `kept` are visible however
// small they are.
const kept = new Set(['header', 'record', 'structure', 'misaligned']);
function drawTrack(context, track, from, to, width, top, height) {
  const scale = width / (to - from);
  // A damaged file may have items that end after the next one begins.
  const first = Math.max(0, lastAtMost(track.length, from, (i) => track[i].begin));
  const columns = new Map();  // By colour, the covered share of each pixel.
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
  // Separate items by lines if they are wide enough.
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

// The names and positions of the strip's rows.
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
// Formats an address on the axis, exactly, in the largest unit that divides it.
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
