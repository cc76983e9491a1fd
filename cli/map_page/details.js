// Shows the details of a place: a tensor, a storage, a byte.

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
