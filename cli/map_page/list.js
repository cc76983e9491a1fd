// The list of tensors: search, sorting, and drawing of the visible rows.

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
