// Sizes by module.

// A module is the common prefix of names.
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

// Squarified treemap: rows of tiles that are as square as possible. Tiles
// smaller than a pixel are not drawn.
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
    // A module with a single part is shown as that part.
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
  // Descend to the first module with several parts.
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
// Goes up to exactly this module.
function go(one) {
  if (one === root) enter(root); else enter(one);
}

function setUpTreemap() {
  const canvas = $('treemap');
  // Returns the tiles at the pointer, from the outermost to the innermost.
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
