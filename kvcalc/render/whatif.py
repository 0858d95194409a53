"""The what-if panel of a page: sliders that size a model by the components of `kvcalc.sizing.whatif`.

`panel(whatif_data(cases)) -> str` is all of it: markup, style, data and script, for a page that allows inline style and
script (`script-src 'unsafe-inline'`) and nothing else. A page takes one. The state stands in the page's fragment:
`#model=NAME&ctx=8192&batch=4&kv=fp8&tp=2`.
"""

from string import Template

from kvcalc.render.inline import file_text, script_json
from kvcalc.sizing.panel_data import WhatIfData

_FILES = ("whatif.css", "whatif_need.js", "whatif.js")


def panel(data: WhatIfData) -> str:
    """The panel as one HTML element, hidden until its script has run."""
    style, *scripts = map(file_text, _FILES)
    return _PANEL.substitute(style=style, data=script_json(data), script="\n".join(scripts))


_PANEL = Template("""<section class="whatif" aria-labelledby="whatif-title" hidden>
<style>$style</style>
<h2 id="whatif-title">What if</h2>
<p class="stack" data-out="stack"></p>
<form autocomplete="off">
<fieldset class="moved"><legend>Context, tokens of a sequence</legend>
<input type="range" min="0" step="1" data-field="ctx-slider" aria-label="Context">
<input type="number" min="1" step="1" inputmode="numeric" data-field="ctx" aria-label="Context in tokens"></fieldset>
<fieldset class="moved"><legend>Batch, sequences at once</legend>
<input type="range" min="0" step="1" data-field="batch-slider" aria-label="Batch">
<input type="number" min="1" step="1" inputmode="numeric" data-field="batch" aria-label="Batch in sequences"></fieldset>
<label class="chosen">Case <select data-field="model"></select></label>
<label class="chosen">KV format <select data-field="kv"></select></label>
<label class="chosen">Tensor parallel <select data-field="tp"></select></label>
</form>
<p class="note" data-out="note" role="status"></p>
<p class="note" data-out="limit"></p>
<p class="note" data-out="encoder"></p>
<div class="results">
<p class="verdict" data-out="verdict"></p>
<p class="spoken" data-out="spoken" aria-live="polite"></p>
<dl class="cards">
<div class="main"><dt>KV cache in all</dt><dd><data data-out="total"></data></dd></div>
<div><dt>a sequence</dt><dd><data data-out="sequence"></data></dd></div>
<div><dt>one more token</dt><dd><data data-out="token"></data></dd></div>
<div><dt>fixed a sequence</dt><dd data-out="fixed"></dd></div>
<div class="main"><dt>the fullest rank</dt><dd><data data-out="rank"></data></dd></div>
<div><dt data-out="ranks-label">all ranks</dt><dd><data data-out="all"></data></dd></div>
<div><dt>a decode step reads</dt><dd><data data-out="read"></data></dd></div>
<div><dt>weights a rank</dt><dd><data data-out="weights"></data></dd></div>
</dl>
<p class="note" data-out="refused-ranks"></p>
<ul class="parts" data-out="parts" aria-label="What the cache is made of"></ul>
<p class="note">Weights: <span data-out="weights-text"></span>.</p>
<code class="command" data-out="command" aria-label="The same on the command line"></code>
</div>
<script type="application/json">$data</script>
<script>$script</script>
</section>
<noscript><p>The what-if panel needs JavaScript.</p></noscript>
""")
