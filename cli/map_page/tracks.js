// The items to draw: rows of adjacent items in the file, and their colours.

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

// Dtypes by their total bytes. The eighth colour stands for all others.
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

// A track is a row of items that do not overlap, sorted by their start.
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

// Overlapping tensors go to separate tracks; the last track takes the rest.
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
