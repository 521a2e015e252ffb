'use strict';
// Adds the live figures to a page that is complete without them: zoom, hover, toggles.
// Any failure leaves the still figures in place.
(async () => {
  const page = JSON.parse(document.getElementById('page-data').textContent);
  const main = document.getElementById('live-timeline');
  if (!main || typeof DecompressionStream === 'undefined') return;

  const unpack = async (packed) => {
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
    return new Response(stream).text();
  };
  const element = (tag, props, ...children) => {
    const node = Object.assign(document.createElement(tag), props);
    node.append(...children);
    return node;
  };

  const figures = JSON.parse(await unpack(page.figures));
  for (const id of page.ids) document.head.append(element('meta', { id }));
  document.head.append(element('script', { textContent: await unpack(page.plotly) }));
  const Plotly = window.Plotly;
  if (!Plotly) return;

  const stamp = (ms) => new Date(ms).toISOString().slice(0, -1);
  const at = figures.byTime ? stamp : (x) => x;

  // Plotly reads a few tags in its texts. Ours carry words from a log: no tag survives.
  const text = (value) => String(value).replace(/&/g, '＆').replace(/</g, '‹').replace(/>/g, '›');
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const alpha = (hex, a) => `${hex}${Math.round(a * 255).toString(16).padStart(2, '0')}`;
  const narrow = () => main.clientWidth < 600;
  const hidden = new Set(figures.lines.flatMap((line, i) => (line.shown ? [] : [i])));
  const whole = () => [at(figures.range[0]), at(figures.range[1])];
  let range = null;

  // Curves as Plotly wants them: gaps become nulls, bands become closed outlines.
  const unfold = (c) => {
    const list = (i) => figures.lists[i];
    let row = 0;
    const rows = list(c.rows).map((d) => (row += d));
    const x = list(c.x).map((i) => at(c.x0 + i * c.dx));
    const mean = list(c.mean).map((v) => v * c.quantum);
    const low = list(c.low).map((d, i) => mean[i] - d * c.quantum);
    const high = list(c.high).map((d, i) => mean[i] + d * c.quantum);
    const line = { x: [], y: [], data: [] };
    const band = { x: [], y: [] };
    for (const [a, b] of c.parts) {
      for (let i = a; i < b; i++) {
        line.x.push(x[i]); line.y.push(mean[i]); line.data.push([low[i], high[i], rows[i]]);
        band.x.push(x[i]); band.y.push(high[i]);
      }
      for (let i = b - 1; i >= a; i--) { band.x.push(x[i]); band.y.push(low[i]); }
      line.x.push(x[b - 1]); line.y.push(null); line.data.push([null, null, null]);
      band.x.push(null); band.y.push(null);
    }
    return { ...c, line, band, alone: c.parts.some(([a, b]) => b - a === 1), index: c.line };
  };
  const curves = figures.curves.map(unfold);
  const axis = (i) => (i ? `y${i + 1}` : 'y');
  const panelAxis = Object.fromEntries(figures.panels.map((p, i) => [p.id, axis(i + 1)]));
  const digits = (unit) => (unit === 'fraction' ? '.2f' : ',.1~f');

  const traces = () => {
    const out = [];
    const many = figures.lines.length > 1;
    figures.lanes.forEach((lane, i) => {
      const x = [], y = [];
      const event = lane.severity === 'event';
      // Points along a bar, so that hovering and clicking work anywhere on it.
      const pace = (figures.range[1] - figures.range[0]) / 120;
      const finding = [], sizes = [];
      lane.spans.forEach(([a, b], span) => {
        const n = event ? 0 : Math.ceil((b - a) / pace);
        for (let k = 0; k <= n; k++) { x.push(at(n ? a + ((b - a) * k) / n : a)); y.push(-i); }
        x.push(null); y.push(null);
        // A short episode is a mark of its own: its bar would have no width.
        while (finding.length < x.length) { finding.push(lane.findings[span]); sizes.push(n > 1 ? 4 : 9); }
      });
      out.push({
        x, y, yaxis: 'y', mode: event ? 'markers' : 'lines+markers', name: text(lane.label),
        line: { color: color(lane.severity), width: 5 }, customdata: finding,
        marker: { color: color(lane.severity), symbol: event ? 'line-ns-open' : 'square', size: event ? 7 : sizes, opacity: 1, ...(event ? {} : { line: { width: 0 } }) },
        ...(event ? { hoverinfo: 'skip' } : { hovertemplate: `${text(lane.name)}<extra></extra>` }), meta: { lane: i },
      });
    });
    for (const c of curves) {
      if (hidden.has(c.index)) continue;
      const panel = figures.panels.find((p) => p.id === c.panel);
      const quiet = c.index >= 0 && figures.lines[c.index].quiet;
      const shared = { yaxis: panelAxis[c.panel], meta: { panel: c.panel, line: c.index } };
      const hue = c.kind === 'range' ? color('dim') : color(`c${c.hue}`);
      const single = c.kind === 'value' && panel.style !== 'line';
      if (c.kind === 'range' || (c.kind === 'value' && !single && figures.lines.length <= 3)) {
        out.push({ ...shared, ...c.band, mode: 'lines', line: { width: 0 }, fill: 'toself', fillcolor: alpha(hue, 0.22), hoverinfo: 'skip' });
      }
      if (c.kind === 'range') continue;
      const f = digits(panel.unit);
      const model = c.kind === 'model';
      const value = model ? `%{y:${f}}` : `%{y:${f}} (%{customdata[0]:${f}} to %{customdata[1]:${f}})`;
      if (panel.style === 'spikes') {
        const stem = (i, y) => (y === null ? null : c.line.data[i][1]);
        out.push({
          ...shared, x: c.line.x.flatMap((x) => [x, x, x]), y: c.line.y.flatMap((y, i) => [0, stem(i, y), null]),
          mode: 'lines', line: { color: hue, width: 1 }, opacity: quiet ? 0.4 : 0.6, hoverinfo: 'skip',
        });
      }
      const name = c.label ? text(c.label) : text(panel.title);
      const row = c.panel === figures.panels[0].id && !many ? ', near line %{customdata[2]}' : '';
      out.push({
        ...shared, x: c.line.x, y: c.line.y, customdata: c.line.data, name,
        mode: single ? 'markers' : c.alone && !model ? 'lines+markers' : 'lines',
        marker: { size: single ? 4 : 3, color: hue, opacity: panel.style === 'spikes' ? 0 : 1 },
        line: { color: model ? color('dim') : hue, width: model || quiet ? 1 : 1.6, dash: model ? 'dot' : 'solid' },
        opacity: quiet ? 0.6 : 1, hovertemplate: `${value}${row}<extra>${name}</extra>`,
      });
    }
    return out;
  };

  const layout = () => {
    const small = narrow();
    const many = figures.lines.length > 2;
    const bars = figures.lanes.length * 17, lanes = bars + (figures.restarts.length ? 14 : 0), gap = 30, height = small ? 80 : 88, slider = 30, foot = 44;
    const inner = lanes + figures.panels.length * (height + gap) + slider + foot;
    // The names of the lanes stand in the left margin, whole or visibly cut.
    const most = small ? 8 : 12;
    const names = figures.lanes.map((l) => (l.label.length > most ? `${l.label.slice(0, most - 1)}…` : l.label));
    const widest = Math.max(0, ...names.map((name) => name.length));
    const margin = { l: Math.max(small ? 44 : 62, 12 + 6.6 * widest), r: 10, t: 8, b: 20 };
    const share = (px) => Math.max(0, 1 - px / inner);
    const grid = { gridcolor: color('grid'), zeroline: false, fixedrange: true, color: color('dim') };
    const out = {
      height: inner + margin.t + margin.b, margin, showlegend: false, dragmode: small ? 'pan' : 'zoom',
      paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)',
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: color('text') },
      hovermode: 'x unified', hoversubplots: many || small ? 'single' : 'axis',
      hoverlabel: { bgcolor: color('bg'), bordercolor: color('line'), font: { size: 11, color: color('text') } },
      xaxis: {
        ...grid, fixedrange: false, type: figures.byTime ? 'date' : 'linear', anchor: axis(figures.panels.length),
        range: range || whole(), showspikes: true, spikemode: 'across',
        spikethickness: 1, spikecolor: color('dim'), spikedash: 'dot', spikesnap: 'cursor', nticks: small ? 5 : 9, ticks: 'outside', ticklen: 6, tickcolor: 'rgba(0,0,0,0)',
        rangeslider: { thickness: slider / inner, autorange: false, range: whole(), bgcolor: color('surface'), bordercolor: color('line'), borderwidth: 1 },
        tickformatstops: figures.byTime ? [{ dtickrange: [null, 60_000], value: '%H:%M:%S\n%Y-%m-%d' }, { dtickrange: [60_000, 86_400_000], value: '%H:%M\n%Y-%m-%d' }, { dtickrange: [86_400_000, null], value: '%Y-%m-%d' }] : [],
        hoverformat: figures.byTime ? '%Y-%m-%d %H:%M:%S' : ',d',
      },
      yaxis: {
        ...grid, showgrid: false, range: [-figures.lanes.length + 0.4, 0.6], tickvals: figures.lanes.map((_, i) => -i),
        ticktext: names.map(text), domain: [share(bars), 1],
        tickfont: { size: 10 },
      },
      shapes: [], annotations: [],
    };
    // The slider shows the first panel only: one overview, not eight on top of each other.
    const off = { rangemode: 'fixed', range: [1e15, 2e15] };
    out.xaxis.rangeslider.yaxis = off;
    figures.panels.forEach((p, i) => {
      const top = lanes + i * (height + gap) + gap - 8;
      const name = `yaxis${i + 2}`;
      out[name] = {
        ...grid, domain: [share(top + height), share(top)], range: [0, p.top * 1.02], nticks: 4,
        tickvals: [0, p.top / 2, p.top], tickformat: p.top <= 1 ? '.3~f' : p.top < 1e5 ? ',.1~f' : '.3~s', showline: false,
      };
      out.xaxis.rangeslider[name] = i ? off : { rangemode: 'fixed', range: [0, p.top * 1.02] };
      out.annotations.push({
        text: text(p.unit && p.unit !== 'fraction' ? `${p.title}, ${p.unit}` : p.title), showarrow: false,
        xref: 'paper', yref: 'paper', x: 0, y: share(top), xanchor: 'left', yanchor: 'bottom', font: { size: small ? 11 : 12, weight: 600 },
      });
    });
    // Labels stand beside the titles, where they hide no value, and none lies on another. They end where
    // their line does, or begin there where they would leave the figure.
    const width = main.clientWidth - margin.l - margin.r;
    const pixels = (x) => ((x - figures.range[0]) / (figures.range[1] - figures.range[0])) * width;
    const taken = figures.panels.map((p) => ({ panel: p.id, from: 0, to: (small ? 6.6 : 7.2) * (p.title.length + (p.unit.length > 0 ? p.unit.length + 2 : 0)) }));
    const named = new Map();
    for (const r of figures.references) {
      const yref = panelAxis[r.panel];
      // A level of the whole log keeps its label at the edge, whatever part is shown.
      const [xref, ends] = r.x[0] === null ? ['paper', [0, 1]] : ['x', r.x.map(at)];
      out.shapes.push({ type: 'line', xref, yref, x0: ends[0], x1: ends[1], y0: r.y, y1: r.y, line: { color: color('dim'), width: 1, dash: 'dash' } });
      const key = `${r.panel} ${r.x}`;
      if (r.label) named.set(key, [...(named.get(key) || []), { ...r, xref, ends }]);
    }
    for (const levels of named.values()) {
      const r = levels[0];
      r.label = levels.sort((a, b) => b.y - a.y).map((l) => l.label).join(', ');
      const [begin, end] = r.x[0] === null ? [0, width] : r.x.map(pixels);
      const room = 5.6 * (r.label.length + 2) + 8;
      const side = end < room ? 'left' : 'right'; // of the line: where the label stands
      const [from, to] = side === 'left' ? [begin, begin + room] : [end - room, end];
      if (taken.some((o) => o.panel === r.panel && from < o.to && o.from < to)) continue;
      taken.push({ panel: r.panel, from, to });
      const at = figures.panels.findIndex((p) => p.id === r.panel);
      out.annotations.push({
        text: text(`╌ ${r.label}`), showarrow: false, xref: r.xref, yref: 'paper', x: r.ends[side === 'left' ? 0 : 1], y: share(lanes + at * (height + gap) + gap - 8),
        xanchor: side, yanchor: 'bottom', font: { size: 10, color: color('dim') },
      });
    }
    const bottom = share(lanes + figures.panels.length * (height + gap));
    const across = { yref: 'paper', y0: bottom, y1: lanes ? share(lanes + 4) : 1, xref: 'x' };
    for (const lane of figures.lanes) {
      if (!lane.shade) continue;
      for (const [a, b] of lane.spans.slice(0, 150)) {
        out.shapes.push({ ...across, type: 'rect', x0: at(a), x1: at(b), line: { width: 0 }, fillcolor: color(lane.severity), opacity: Number(color('shade')), layer: 'below' });
      }
    }
    // A restart's label begins at its line, or ends there where it would leave the figure.
    let free = -Infinity;
    for (const [x, label] of figures.restarts) {
      out.shapes.push({ ...across, type: 'line', x0: at(x), x1: at(x), line: { color: color('text'), width: 1.2 } });
      const where = pixels(x);
      const room = 5.6 * label.length + 8;
      const left = where + room > width ? where - room : where;
      if (left < free) continue;
      free = left + room;
      out.annotations.push({ text: text(label), showarrow: false, xref: 'x', yref: 'paper', x: at(x), y: across.y1, xanchor: left < where ? 'right' : 'left', yanchor: 'bottom', font: { size: 10 } });
    }
    return out;
  };

  const config = {
    responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false, doubleClick: 'reset',
  };
  const draw = async () => {
    await Plotly.react(main, traces(), layout(), config);
    if (figures.phase) await drawPhase();
  };

  const drawPhase = () => {
    const p = figures.phase;
    const times = p.at.map((d) => at(p.from + d));
    const points = {
      x: p.x, y: p.y, customdata: times.map((t, i) => [String(t).replace('T', ' ').slice(0, 19), p.rows[i]]), mode: 'markers',
      marker: {
        size: 5, opacity: 0.85, color: p.at, colorscale: [0, 1, 2, 3, 4, 5, 6, 7].map((i) => [i / 7, color(`a${i}`)]),
      },
      hovertemplate: '%{x:,.1~f} running, %{y:,.1~f} token/s<br>%{customdata[0]}, near line %{customdata[1]}<extra></extra>',
    };
    const model = {
      x: p.model.map((m) => m[0]), y: p.model.map((m) => m[1]), mode: 'lines', hoverinfo: 'skip',
      line: { color: color('dim'), width: 1.2, dash: 'dot' },
    };
    const grid = { gridcolor: color('grid'), zeroline: false, color: color('dim') };
    return Plotly.react(document.getElementById('live-phase'), [model, points], {
      height: 380, margin: { l: 52, r: 10, t: 14, b: 40 }, showlegend: false, hovermode: 'closest', dragmode: narrow() ? false : 'zoom',
      paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', font: { size: 11, color: color('text'), family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: color('bg'), bordercolor: color('line'), font: { color: color('text') } },
      xaxis: { ...grid, tickformat: ',', range: [0, p.top[0]], title: { text: 'running requests' } },
      yaxis: { ...grid, tickformat: ',', range: [0, p.top[1]], title: { text: 'token/s' } },
      shapes: p.ceilings.map(([x]) => ({ type: 'line', yref: 'paper', y0: 0, y1: 1, x0: x, x1: x, line: { color: color('text'), width: 1.2, dash: 'dash' } })),
      annotations: p.ceilings.map(([x, name, side], i) => ({ text: text(name), showarrow: false, x, yref: 'paper', y: 1 - 0.05 * (i % 3), xanchor: side === 'left' ? 'right' : 'left', xshift: side === 'left' ? -4 : 4, yanchor: 'top' })),
    }, config);
  };

  // Zoom: a stretch with half its length on both sides, at least a minute or 20 lines.
  const zoom = (a, b) => {
    const pad = Math.max((b - a) / 2, figures.byTime ? 30_000 : 10);
    range = [at(Math.max(figures.range[0], a - pad)), at(Math.min(figures.range[1], b + pad))];
    Plotly.relayout(main, { 'xaxis.range': range });
    document.getElementById('timeline').scrollIntoView();
  };
  const spanOf = (node) => {
    if (!figures.byTime) return node.dataset.lines.split(' ').map(Number);
    if (!node.dataset.start || !node.dataset.end) return null;
    return [node.dataset.start, node.dataset.end].map((t) => Date.parse(`${t}Z`));
  };
  const controls = () => {
    for (const node of document.querySelectorAll('[data-finding]')) {
      const span = spanOf(node);
      if (!span || span[1] < figures.range[0] || span[0] > figures.range[1]) continue;
      const button = element('button', { type: 'button', className: 'zoom', textContent: 'Zoom', title: 'Show this stretch on the timeline', onclick: () => zoom(...span) });
      button.setAttribute('aria-label', `Zoom the timeline to ${node.firstElementChild.matches('td') ? node.firstElementChild.textContent : 'this finding'}`);
      (node.matches('tr') ? node.firstElementChild : node).append(button);
    }
    const reset = element('button', {
      type: 'button', textContent: 'Whole log',
      onclick: () => { range = null; Plotly.relayout(main, { 'xaxis.range': whole() }); },
    });
    const save = element('button', {
      type: 'button', textContent: 'Save as PNG',
      onclick: () => Plotly.downloadImage(main, { format: 'png', filename: 'timeline', width: 1200, height: main.clientHeight, scale: 2 }),
    });
    document.getElementById('tools').append(reset, save, element('span', { className: 'dim', textContent: 'Drag to zoom, double-click for the whole log.' }));
    const legend = document.getElementById('legend');
    [...(legend ? legend.children : [])].forEach((item, i) => {
      const button = element('button', { type: 'button' }, ...item.childNodes);
      button.setAttribute('aria-pressed', String(!hidden.has(i)));
      button.onclick = () => {
        if (hidden.has(i)) hidden.delete(i); else hidden.add(i);
        button.setAttribute('aria-pressed', String(!hidden.has(i)));
        Plotly.react(main, traces(), layout(), config);
      };
      item.append(button);
    });
    main.on('plotly_relayout', (change) => {
      if (change['xaxis.range[0]']) range = [change['xaxis.range[0]'], change['xaxis.range[1]']];
      if (change['xaxis.autorange']) range = null;
    });
    main.on('plotly_click', (event) => {
      const found = event.points.map((p) => p.customdata).find((d) => typeof d === 'number');
      const finding = found === undefined ? null : document.getElementById(`finding-${found}`);
      if (!finding) return;
      const folded = finding.firstElementChild.matches('details') ? finding.firstElementChild : finding.closest('details');
      if (folded) folded.open = true;
      finding.scrollIntoView();
    });
  };

  document.documentElement.classList.add('has-live');
  try {
    await draw();
  } catch (error) {
    document.documentElement.classList.remove('has-live');
    throw error;
  }
  controls();
  for (const box of document.querySelectorAll('.scroll')) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0; // the keyboard can scroll it
  }
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  let wasNarrow = narrow();
  new ResizeObserver(() => {
    if (narrow() !== wasNarrow) { wasNarrow = narrow(); draw(); }
  }).observe(main);
  document.documentElement.dataset.ready = 'yes';
})();
