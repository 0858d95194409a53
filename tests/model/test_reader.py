"""Specs that cannot be read: one line with file, line, the right name; never a traceback, never a hang."""

import os

import pytest

from kvcalc.errors import KvcalcError, SpecError
from kvcalc.model.catalog import load
from kvcalc.model.reader import read_specs

GOOD = """\
name: x
dtype: bf16
layers:
- repeat: 4
  mixer: {kind: kv, q_heads: 8, kv_heads: 2, head_dim: 64}
"""


def complaint(path):
    with pytest.raises(KvcalcError) as caught:
        load(str(path))
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message
    return caught.value


def test_the_good_one_is_good(spec_file):
    assert len(load(str(spec_file(GOOD))).layers) == 4


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("kv_heads", "kv_hads", 5, ["unknown key kv_hads", "kv_heads"]),
        ("repeat", "repat", 4, ["unknown key repat", "repeat"]),
        ("dtype", "dtyp", 2, ["unknown key dtyp", "dtype"]),
        ("kind: kv", "kind: kw", 5, ["unknown kind 'kw'", "kv"]),
        ("kind: kv, ", "", 5, ["kind: is missing"]),
        (", head_dim: 64", "", 5, ["head_dim: is missing"]),
        ("kv_heads: 2", "kv_heads: 3", 5, ["q_heads 8", "kv_heads 3"]),
        ("kv_heads: 2", "kv_heads: 0", 5, ["kv_heads: 0", ">= 1"]),
        ("kv_heads: 2", "kv_heads: -1", 5, ["kv_heads: -1", ">= 1"]),
        ("kv_heads: 2", "kv_heads: true", 5, ["kv_heads: true is not a whole number"]),
        ("kv_heads: 2", "kv_heads: 1000000000000000000", 5, ["<= 1000000000"]),
        ("kv_heads: 2", "kv_heads: " + "9" * 5000, 5, ["too many digits"]),
        ("kv_heads: 2", "kv_heads: 2.5", 5, ["2.5 is not a whole number"]),
        ("kv_heads: 2", "kv_heads: .nan", 5, ["nan is not a whole number"]),
        ("kv_heads: 2", "kv_heads: .inf", 5, ["inf is not a whole number"]),
        ("kv_heads: 2", "kv_heads: two", 5, ["two is not a whole number"]),
        ("kv_heads: 2", "kv_heads: null", 5, ["null is not a whole number"]),
        ("kv_heads: 2", "kv_heads: [2]", 5, ["a list is not a whole number"]),
        ("kv_heads: 2", "kv_heads: 2, kv_heads: 2", 5, ["kv_heads: stands twice"]),
        ("kv_heads: 2", "kv_heads: 2, format: fp9", 5, ["fp9", "fp8"]),
        ("repeat: 4", "repeat: 0", 4, ["repeat: 0"]),
        ("dtype: bf16", "dtype: bf61", 2, ["bf61", "bf16"]),
        ("dtype: bf16", "dtype: fp8_ds_mla", 2, ["fp8_ds_mla"]),
        ("dtype: bf16", "prefill_layers: 9", 2, ["prefill_layers 9", "4 layers"]),
        ("dtype: bf16", "hidden_size: !!int 5", 2, ["tag"]),
        ("dtype: bf16", "<<: {}", 2, ["merge keys"]),
        ("dtype: bf16", "1: 2", 2, ["a key must be a word"]),
        ("dtype: bf16", "mlps: {a: {kind: moe, expert: 3}}", 2, ["unknown key expert in moe", "experts"]),
        ("kv_heads", "kv-heads", 5, ["unknown key kv-heads", "kv_heads"]),
        ("kv_heads: 2", "kv_heads: 2, bias: yes", 5, ["bias: yes is not possible", "none, qkv, all"]),
        ("kv_heads: 2", "kv_heads: 2, id: kv_cache", 5, ["id: kv_cache", "another label"]),
        ("kv_heads: 2", "kv_heads: 2, id: 'a,b'", 5, ["id:"]),
        ("kv_heads: 2", "kv_heads: 2, formats: {fp8: 3}", 5, ["formats: 3 is not a name"]),
        ("kv_heads: 2", "kv_heads: 2, window: 4, ratio: 2", 5, ["window and ratio", "keep one"]),
        ("name: x", "name: 123", 1, ["name: 123 is not a name"]),
        ("name: x", 'name: ""', 1, ["name:", "empty"]),
        ("name: x", 'name: "a\\eb"', 1, ["name:", "control characters"]),
        ("repeat: 4", "norm_vectors: 1\n  pattern: [{mlp: {kind: dense}}]", 4, ["pattern beside mixer, norm_vectors"]),
        ("dtype: bf16", "blocks: {a: {mixer: nope}}", 2, ["unknown mixer 'nope'"]),
        ("dtype: bf16", "mixers: {a: b, b: a}", 2, ["circle"]),
        ("dtype: bf16", "assumed: {chache: [a]}", 2, ["unknown key chache", "cache"]),
        ("dtype: bf16", "blocks: {a: {mixer: {kind: recurrent, states: [{nam: x}]}}}", 2, ["unknown key nam", "name"]),
    ],
)
def test_one_thing_wrong(spec_file, old, new, line, words):
    error = complaint(spec_file(GOOD.replace(old, new)))
    assert f"model.yaml:{line}: " in error.message
    assert all(word in f"{error.message} | {error.hint}" for word in words)


LAYER = "{kind: kv, kv_heads: 2, head_dim: 64}"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("layers:\n- mixer: {kind: kv, id: globl, kv_heads: 2, head_dim: 64}\n- mixer: {kind: shared, source: global}",
         4, ["source: global names no component", "globl"]),
        (f"layers:\n- mixer: {{kind: shared, source: global}}\n- mixer: {LAYER.replace('kv,', 'kv, id: global,')}",
         3, ["source: global stands in a later layer"]),
        ("layers:\n- mixer: {kind: shared, source: previous}", 3, ["no earlier layer keeps"]),
        (f"layers:\n- mixer: [{LAYER}, {LAYER}]\n- mixer: {{kind: shared, source: previous}}", 4, ["keeps 2 caches", "id:"]),
        ("layers:\n- mixer: {kind: short_conv, id: c, width: 8, kernel: 3}\n- mixer: {kind: shared, source: c}", 4,
         ["keeps no entries"]),
        (f"layers:\n- mixer: {LAYER.replace('2', '4')}\n- mixer: {{kind: shared, source: previous, q_heads: 6}}", 4,
         ["q_heads 6", "4 KV heads"]),
        ("layers:\n- mixer: {kind: kv, id: xyz, kv_heads: 1, head_dim: 8}\n- mixer: {kind: shared, source: xyz}\n"
         "- mixer: {kind: shared, source: xy}", 5, ["source: xy names no component", "xyz"]),
        ("mixers: {foobar: {kind: gmu}}\nlayers:\n- {mixer: foobar}\n- {mixer: foo}", 5, ["unknown mixer 'foo'"]),
        ("blocks:\n  a: {pattern: [b]}\n  b: {pattern: [a]}\nlayers: [a]", 2, ["circle", "a -> b -> a"]),
        ("mixers:\n  a: [b]\n  b: [a]\nlayers: [{mixer: a}]", 2, ["circle"]),
        ("layers: [a]", 2, ["unknown block 'a'"]),
        ("blocks: {own: {}}\nlayers: [onw]", 3, ["unknown block 'onw'", "own"]),
        ("mixers: {half: {kind: gmu}}\nlayers: [{mixer: hlaf}]", 3, ["unknown mixer 'hlaf'", "half"]),
        ("layers: [{mlp: big}]", 2, ["unknown mlp 'big'"]),
        (f"layers:\n- pattern: [{{mixer: {LAYER}}}]\n  mixer: {LAYER}", 3, ["pattern", "blocks:"]),
        ("layers: []", 2, ["layers: is an empty list"]),
        ("layers: [{pattern: []}]", 2, ["pattern"]),
        ("layers: [3]", 2, ["3 is no"]),
        ("layers: {}", 2, ["layers: a mapping is not a list"]),
        ("max_context: 5", 1, ["layers: is missing", "name, layers"]),
    ],
)  # fmt: skip
def test_names_that_do_not_work_out(spec_file, text, line, words):
    error = complaint(spec_file(f"name: x\n{text}\n"))
    assert f"model.yaml:{line}: " in error.message
    assert all(word in f"{error.message} | {error.hint}" for word in words), (error.message, error.hint)


def test_repeats_are_multiplied_before_anything_is_unrolled(spec_file):
    billion = "repeat: 1000000000"
    nested = f"- {billion}\n  pattern:\n  - {billion}\n    pattern:\n    - {{{billion}, mixer: {LAYER}}}\n"
    text = f"name: x\nlayers:\n{nested}"
    assert "1,000,000,000,000,000,000,000,000,000 layers" in complaint(spec_file(text)).message


def test_blocks_that_double_each_other_are_counted_not_unrolled(spec_file):
    blocks = "".join(f"  b{i}: {{pattern: [b{i + 1}, b{i + 1}]}}\n" for i in range(40))
    error = complaint(spec_file(f"name: x\nblocks:\n{blocks}  b40: {{mixer: {LAYER}}}\nlayers: [b0]\n"))
    assert f"{2**40:,} layers" in error.message


def test_mixers_that_double_each_other_stop_at_a_handful(spec_file):
    mixers = "".join(f"  m{i}: [m{i + 1}, m{i + 1}]\n" for i in range(40))
    error = complaint(spec_file(f"name: x\nmixers:\n{mixers}  m40: {LAYER}\nlayers: [{{mixer: m0}}]\n"))
    assert "64 components" in error.message


def test_anchors_that_explode(spec_file):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    assert "anchors expand" in complaint(spec_file("\n".join(lines))).message


def test_deep_nesting_and_unsafe_tags_and_broken_yaml(spec_file, tmp_path):
    assert "nest" in complaint(spec_file("[" * 100_000)).message
    assert "nested more than" in complaint(spec_file("a: " + "[" * 80 + "]" * 80)).message
    bait = tmp_path / "pwned"
    assert "tag" in complaint(spec_file(f'name: !!python/object/apply:os.system ["touch {bait}"]')).message
    assert not bait.exists()
    assert "not YAML" in complaint(spec_file("name: [1, 2\n")).message
    assert "no complete anchor" in complaint(spec_file("a: &a [*a]")).message
    assert "model.yaml:2: not YAML: control" in complaint(spec_file("name: x\nsource: a\x01b")).message


def test_depth_counts_through_anchors(spec_file):
    lines = ["a0: &a0 " + "[" * 15 + "x" + "]" * 15]
    lines += [f"a{i}: &a{i} " + "[" * 15 + f"*a{i - 1}" + "]" * 15 for i in range(1, 30)]
    assert "nested more than" in complaint(spec_file("\n".join(lines))).message


def test_depth_counts_through_blocks_and_patterns(spec_file):
    def nested(inner):
        return "{pattern: [" * 20 + inner + "]}" * 20

    blocks = "".join(f"  b{i}: {nested(f'b{i + 1}')}\n" for i in range(40))
    error = complaint(spec_file(f"name: x\nblocks:\n{blocks}  b40: {{mixer: {LAYER}}}\nlayers: [b0]\n"))
    assert "nest more than" in error.message


def test_depth_counts_whatever_the_order_in_which_blocks_are_asked_for(spec_file):
    blocks = "".join(f"  b{i}: {'{pattern: [' * 20}b{i + 1}{']}' * 20}\n" for i in range(60))
    layers = ", ".join(f"b{i}" for i in range(60, -1, -1))
    error = complaint(spec_file(f"name: x\nblocks:\n{blocks}  b60: {{mixer: {LAYER}}}\nlayers: [{layers}]\n"))
    assert "deep" in error.message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"---\n---\n", "the file is empty"),
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "binary"),
        (b"x" * (2**20 + 1), "more than 1,048,576 bytes"),
        (b"- a\n", "a spec is a mapping"),
        (b"words\n", "a spec is a mapping"),
        ("name: x\n".encode("utf-16"), "binary"),
    ],
)
def test_files_that_are_no_specs(tmp_path, content, words):
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    assert words in complaint(path).message


def test_paths_that_are_no_files(tmp_path):
    assert "is a directory" in complaint(tmp_path).message
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    assert "is a directory" in complaint(folder).message
    assert "No such file" in complaint(tmp_path / "none.yaml").message
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    assert "no regular file" in complaint(pipe).message


def test_byte_order_mark_and_windows_lines_are_fine(tmp_path):
    path = tmp_path / "windows.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load(str(path)).name == "x"


def test_several_documents_need_a_choice(spec_file):
    path = spec_file(GOOD + "---\n" + GOOD.replace("name: x", "name: y"))
    assert [spec.name for spec in read_specs(path)] == ["x", "y"]
    assert load(f"{path}#y").name == "y"
    assert "x, y" in complaint(path).hint
    with pytest.raises(KvcalcError, match="unknown document"):
        load(f"{path}#z")


def test_documents_of_one_name_are_refused(spec_file):
    with pytest.raises(SpecError, match="two documents are named x"):
        read_specs(spec_file(GOOD + "---\n" + GOOD))


def test_quoted_letters_and_aliases_of_anchors_are_read(spec_file):
    text = (
        "name: x\nblocks:\n  M: {mixer: &m {kind: mamba1, inner: 8, state: 2, kernel: 4}}\n"
        '  "*": {mixer: {kind: kv, kv_heads: 1, head_dim: 8}}\n'
        '  E: {mlp: {kind: moe}}\nlayers: [{pattern: "ME*"}, {repeat: 2, mixer: *m}]\n'
    )
    spec = load(str(spec_file(text)))
    assert [len(layer.components) for layer in spec.layers] == [1, 0, 1, 1, 1]
