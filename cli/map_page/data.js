// The page of `haulway map`: one script, joined from these files by
// embed.cmake. This file unpacks the columns that file_map.cc wrote; the others
// draw them. Names come from files, so they are inserted into the page as text
// only, and characters that are invisible or change the direction of text are
// escaped.
'use strict';

const $ = (id) => document.getElementById(id);
const packed = JSON.parse($('data').textContent);

// A column of equal values is sent as a single value.
const column = (values, count) =>
    Array.isArray(values) ? values : new Array(count).fill(values);
// Each value is the difference to the previous one; the first is relative to
// -1.
function summed(values, count) {
  let last = -1;
  return column(values, count).map((step) => (last += step));
}
// Each name is the length of the prefix shared with the previous name, and the
// rest.
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
